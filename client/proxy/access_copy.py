"""Users, rules and quotas of the brokers: a proxy copies them, and refuses calls as brokers would.

Brokers see the proxy's own user, who must be a super user to read passwords. One master is asked,
as by RocketMQ's proxy: mqadmin changes users on all masters of a cluster. Until the first answer
every call is refused; later the newest table counts while no master answers.

Of the quotas a proxy counts ``connections``, which brokers do not see; they count the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs
import trio

from triomq.client.core.errors import TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.remoting.access.changes import copied_table
from triomq.remoting.access.quotas import QUOTAS, Quotas, Use
from triomq.remoting.access.users import UserTable
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RemoteProtocolError, RemotingError
from triomq.remoting.core.properties_file import parse_properties
from triomq.remoting.grpc.methods import CallContext
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.bodies.schema import decode_array
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 20.0
"""Java's aclCacheRefreshSeconds: how late a change may be seen here."""
RETRY_SECONDS = 1.0
CALL_SECONDS = 3.0


@attrs.define(eq=False)
class AccessCopy:
    """The copy. ``masters``: addresses of masters, in the order in which they are asked."""

    connector: Connector
    masters: Callable[[], Sequence[str]]
    table: UserTable = attrs.field(factory=UserTable)
    quotas: Quotas = attrs.field(factory=lambda: Quotas(()), init=False)
    failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the copy up to date; ``started`` after the first try."""
        while True:
            worked = await self.copy()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(PERIOD_SECONDS if worked else RETRY_SECONDS)

    async def copy(self) -> bool:
        """Copy the table of the first master that hands it over; return whether one did."""
        reason = "no master is known"
        for address in self.masters():
            try:
                users = await self._ask(address, RequestCode.AUTH_LIST_USER)
                rules = await self._ask(address, RequestCode.AUTH_LIST_ACL)
                found = copied_table(decode_array(User, users), decode_array(Acl, rules))
            except (RemotingError, TrioMQError) as error:
                reason = f"{address}: {error}"
                continue
            self.table.users, self.table.rules = found.users, found.rules
            self.failures.worked("users and rules")
            await self._copy_quotas(address)
            return True
        self.failures.failed("users and rules", reason)
        return False

    async def _copy_quotas(self, address: str) -> None:
        try:
            settings = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
            found = QUOTAS.read(parse_properties(settings.decode()).get("quotas", ""))
        except (RemotingError, TrioMQError, ValueError) as error:
            self.failures.failed("quotas", f"{address}: {error}")  # the older ones count
            return
        self.failures.worked("quotas")
        if found != self.quotas.quotas:
            self.quotas.replace(found)

    def spend(self, user: str, _name: str, _request: object, call: CallContext) -> None:
        """Refuse a call over one connection too many of its user. Raises: Rejected."""
        use = Use(user, topic=None, group=None, requests=0, connection=call.connection)
        self.quotas.require(use, trio.current_time())

    async def _ask(self, address: str, code: int) -> bytes:
        answer = await self.connector.invoke(address, request(code), timeout=CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteProtocolError(
                f"it answered {answer.code} {answer.remark}",
                "let innerClientAuthenticationCredentials name a super user of the brokers",
            )
        return bytes(answer.body)
