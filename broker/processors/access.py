"""Users and rules: AUTH_CREATE_USER (3001) to AUTH_LIST_ACL (3010).

The broker answers a change when the change is on its disk. It refuses all changes while
authentication is off: otherwise anybody could create a super user now, and use it later, when
authentication is on. Source: broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import trio

from triomq.broker.processors.bodies import read_body
from triomq.broker.services.access_table import AccessTable
from triomq.remoting.access.changes import AccessChanges
from triomq.remoting.access.users import UserTable
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.auth import Acl, User
from triomq.remoting.protocol.bodies.schema import JsonBody, encode_array
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.auth import (
    AclHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    UserHeader,
)
from triomq.remoting.protocol.limits import SETTINGS_BYTES_MAX, require_size
from triomq.remoting.server.requests import Request, Response

B = TypeVar("B", bound=JsonBody)


@attrs.define(eq=False)
class AccessRequests:
    """The handlers. ``changed`` is called after each change: slaves copy the table.

    ``enabled``: whether requests are authenticated by this table; ``plain``: the users that the
    files of ACL 1.0 make, which requests only read.
    """

    table: AccessTable
    enabled: bool
    changed: Callable[[], None]
    plain: UserTable | None = None

    async def create_user(self, request: Request) -> Response:
        header: UserHeader = request.header
        return await self._change(
            lambda: self._as(request).create_user(header.username, _body(User, request))
        )

    async def update_user(self, request: Request) -> Response:
        header: UserHeader = request.header
        return await self._change(
            lambda: self._as(request).update_user(header.username, _body(User, request))
        )

    async def delete_user(self, request: Request) -> Response:
        header: UserHeader = request.header
        return await self._change(lambda: self._as(request).delete_user(header.username))

    def user(self, request: Request) -> Response:
        header: UserHeader = request.header
        return _answer(self._as(request).user(header.username))

    async def users(self, request: Request) -> Response:
        """Return users; a thread makes the list, since there may be 10,000."""
        header: ListUsersHeader = request.header
        found = self._snapshot(request)
        return await trio.to_thread.run_sync(lambda: _answers(found.users(header.filter)))

    async def put_rules(self, request: Request) -> Response:
        header: AclHeader = request.header
        return await self._change(lambda: self._as(request).put_rules(header, _body(Acl, request)))

    async def delete_rules(self, request: Request) -> Response:
        header: DeleteAclHeader = request.header
        return await self._change(lambda: self._as(request).delete_rules(header))

    def rules(self, request: Request) -> Response:
        header: AclHeader = request.header
        return _answer(self._as(request).rules(header.subject))

    async def all_rules(self, request: Request) -> Response:
        """Return rules; a thread makes the list, since each of 10,000 users may have 1,000."""
        header: ListAclsHeader = request.header
        found = self._snapshot(request)
        return await trio.to_thread.run_sync(lambda: _answers(found.all_rules(header)))

    def _as(self, request: Request) -> AccessChanges:
        """Return the table as the sender may see and change it. Raises: Rejected."""
        if self.plain is not None:
            return AccessChanges(self.plain, request.user)
        if not self.enabled:
            raise Rejected(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {int(request.code)} not supported: this broker keeps no users,"
                " since authenticationEnabled is false",
            )
        return AccessChanges(self.table.users, request.user)

    def _snapshot(self, request: Request) -> AccessChanges:
        """Return the same for a thread: changes do not disturb it. Raises: Rejected."""
        now = self._as(request)
        return AccessChanges(UserTable(dict(now.table.users), dict(now.table.rules)), now.caller)

    async def _change(self, change: Callable[[], None]) -> Response:
        if self.plain is not None:
            raise Rejected(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "the users of this broker are the accounts of its files (aclEnable): change"
                " plain_acl.yml",
            )
        change()
        self.table.touch()
        self.changed()
        await self.table.settled()
        return Response()


def _body(cls: type[B], request: Request) -> B | None:
    """Return the body, None without one. Raises: Rejected."""
    require_size(request.body, SETTINGS_BYTES_MAX)
    return read_body(cls, request.body) if request.body else None


def _answer(body: JsonBody | None) -> Response:
    return Response(body=b"" if body is None else body.encode())


def _answers(bodies: Sequence[JsonBody]) -> Response:
    return Response(body=encode_array(bodies) if bodies else b"")
