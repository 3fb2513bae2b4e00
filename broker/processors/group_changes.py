"""Requests among the brokers of a group with ``enableSlaveActingMaster``.

Codes: NOTIFY_MIN_BROKER_ID_CHANGE (905), EXCHANGE_BROKER_HA_INFO (906), GET_TIMER_CHECK_POINT (60).
Source: broker/processor/AdminBrokerProcessor.java#notifyMinBrokerIdChange, #exchangeBrokerHaInfo.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.roles.acting_master import ActingMaster
from triomq.broker.roles.table_copy import TableCopy
from triomq.broker.services.registration import Registrar
from triomq.broker.services.timers.timers import Timers
from triomq.remoting.core.errors import ConnectionLost, Rejected, RemotingError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.protocol.headers.registration import MinBrokerIdChangeHeader
from triomq.remoting.server.requests import Request, Response

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""Pause after a check, which asks every name server: any peer can send notices at any rate."""
REPORT_SECONDS = 10.0
"""Longest report: a master that starts waits for it, then copies the other commits itself."""
NO_TIMERS = TimerCheckPoint(
    last_read_ms=0,
    last_flushed_position=0,
    last_queue_offset=0,
    master_queue_offset=0,
    data_version=DataVersion(-1, 0, 0),
)


@attrs.define(eq=False)
class GroupChanges:
    """The handlers; without the option all but ``timer_check_point`` raise Rejected."""

    enabled: bool
    registrar: Registrar
    log_end: Callable[[], int]
    slave: ReplicationSlave | None = None
    acting: ActingMaster | None = None
    copy: TableCopy | None = None
    timers: Timers | None = None
    hear: Callable[[str], None] = lambda slave: None
    """Called on a master with the address of a slave that says that it is there."""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _noticed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _reporting: bool = attrs.field(default=False, init=False)
    """Whether a report of commits runs: one at a time, since any peer can pose as the master."""

    async def run(self) -> None:
        """Check the group at the first notice, then once for all notices during the pause."""
        while True:
            await self._noticed.wait()
            self._noticed = trio.Event()
            if self.acting is not None:
                self.acting.check_now()
            self.registrar.servers.announce_again()  # the answer has the master's address
            await trio.sleep(PAUSE_SECONDS)

    def _require(self, code: int) -> None:
        if not self.enabled:
            raise Rejected(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {code} not supported (enableSlaveActingMaster is off)",
            )

    def smallest_id(self, request: Request) -> Response:
        """Note that a name server reports another smallest id; the task asks all name servers."""
        self._require(request.code)
        header: MinBrokerIdChangeHeader = request.header
        self._limit.info(
            logger,
            "%s says that the smallest id of this group is %s (%s) now",
            request.connection.peer_text,
            header.min_broker_id,
            header.min_broker_addr,
        )
        self._noticed.set()
        return Response()

    async def master_address(self, request: Request) -> Response:
        """Return the HA address to a slave, or hand over to a master that starts, then answer.

        A slave sends its own address, Java's an empty header; a master sends its addresses.
        """
        self._require(request.code)
        header: ExchangeHaAddressHeader = request.header
        settings = self.registrar.settings
        if header.master_ha_address is None:
            if self.slave is not None:
                return Response(header=ExchangeHaAddressHeader())
            if header.master_address is not None:
                self.hear(header.master_address)
            return Response(
                header=ExchangeHaAddressHeader(
                    settings.ha_address, self.log_end(), settings.broker_address
                )
            )
        if self.slave is None or self.acting is None or self.copy is None:
            return Response(header=ExchangeHaAddressHeader())
        await self.acting.hand_over()
        self.slave.master.update(header.master_ha_address, header.master_address)
        reported = header.master_address is not None and await self._report_commits(
            self.copy, header.master_address
        )
        # Without an address in the answer, the master takes over the table itself, as Java's does.
        return Response(
            header=ExchangeHaAddressHeader(
                header.master_ha_address,
                header.master_flush_offset,
                header.master_address if reported else None,
            )
        )

    async def _report_commits(self, copy: TableCopy, master: str) -> bool:
        """Report to the master what consumers have committed here; return whether it has all.

        Any peer can pose as the master, and each report costs a connection to that address and up
        to ``REPORT_SECONDS``. So there is one report at a time; other masters are answered at once,
        and take the table themselves.
        """
        if self._reporting:
            await trio.lowlevel.checkpoint()
            self._limit.info(
                logger,
                "%s says that it is the master while commits of consumers are reported to another"
                " one; it takes the table itself",
                master,
            )
            return False
        self._reporting = True
        try:
            with trio.fail_after(REPORT_SECONDS):
                try:
                    await copy.report_commits(master)
                except ConnectionLost:  # to the process before: the first write finds that out
                    await copy.report_commits(master)
        except (RemotingError, trio.TooSlowError, ValueError) as error:
            reason = (
                f"it took longer than {REPORT_SECONDS:g} s"
                if isinstance(error, trio.TooSlowError)
                else error
            )
            self._limit.warning(
                logger,
                "cannot report commits of consumers to master %s: %s; they are reported later",
                master,
                reason,
            )
            return False
        finally:
            self._reporting = False
        return True

    def timer_check_point(self, _request: Request) -> Response:
        """Return how far the timers are on the disk.

        Without timers it is a progress that is older than any that a Java master may have: a Java
        master that starts asks its slaves for it, whatever their options are, and does not serve
        without an answer.
        """
        timers = self.timers
        return Response(body=(timers.check_point() if timers is not None else NO_TIMERS).encode())
