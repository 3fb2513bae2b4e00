"""Who may log in: users of a file, or the users of the cluster's own access control."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs
import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import read_body
from triomq.client.console.core.users import UserRole, hash_password, password_matches, read_users
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.remoting.protocol.bodies.auth import User
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.auth import UserHeader
from triomq.remoting.protocol.signing import Credentials

HASHES_AT_ONCE = 2
"""each takes a processor for 0.1 s and 32 MiB"""
SUPER = "Super"


class LoginRefused(TrioMQError):
    """Logins cannot be checked now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class PasswordCheck(Protocol):
    """A source of users."""

    async def role_of(self, name: str, password: str) -> UserRole | None:
        """Return the role of a user, None if name or password is wrong. Raises: TrioMQError."""

    async def present_roles(self) -> dict[str, UserRole] | None:
        """Return all users with their roles; None if the source cannot list them."""


@attrs.define(eq=False)
class FileLogin:
    """Users of a users file, which is read at every login."""

    path: Path
    _limit: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(HASHES_AT_ONCE))
    _nobody: str = attrs.field(factory=lambda: hash_password("no user has this password"))

    async def role_of(self, name: str, password: str) -> UserRole | None:
        """Check a password, in the same time for known and unknown names. Raises: ConfigError."""
        user = (await trio.to_thread.run_sync(read_users, self.path)).get(name)
        known = user.password_hash if user is not None else self._nobody
        right = await trio.to_thread.run_sync(
            password_matches, password, known, limiter=self._limit
        )
        return user.role if right and user is not None else None

    async def present_roles(self) -> dict[str, UserRole] | None:
        users = await trio.to_thread.run_sync(read_users, self.path)
        return {name: user.role for name, user in users.items()}


@attrs.define(eq=False)
class ClusterLogin:
    """Users of RocketMQ's access control: the brokers check the signature of a request."""

    open_admin: Callable[[Credentials], Admin]

    async def role_of(self, name: str, password: str) -> UserRole | None:
        """Let a broker check name and password; its Super users are admins, others viewers.

        Raises: LoginRefused if the brokers do not check signatures.
        """
        if not name or not password:
            return None
        wrong = Credentials(access_key=name, secret_key=password + "\N{BULLET}wrong")
        if await self._admitted(wrong) is not None:
            raise LoginRefused(
                "the cluster does not check passwords: set authenticationEnabled=true on its"
                " brokers, or start the console with --users FILE"
            )
        user = await self._admitted(Credentials(access_key=name, secret_key=password))
        if user is None:
            return None
        return UserRole.ADMIN if user.user_type == SUPER else UserRole.VIEWER

    async def _admitted(self, credentials: Credentials) -> User | None:
        """Return the user as a broker sees it, None if the broker refuses the signature."""
        async with self.open_admin(credentials) as admin:
            masters = await admin.brokers(masters_only=True)
            if not masters:
                raise LoginRefused("no broker is registered, so no password can be checked")
            address, name = masters[0].address, credentials.access_key
            try:
                await admin.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            except BrokerError as error:
                if error.code == ResponseCode.NO_PERMISSION:
                    return None
                raise
            try:
                answer = await admin.ask(address, RequestCode.AUTH_GET_USER, UserHeader(name))
            except BrokerError:  # a user without the right to read users
                return User(username=name)
            return read_body(User, answer) if answer.body else User(username=name)

    async def present_roles(self) -> dict[str, UserRole] | None:
        await trio.lowlevel.checkpoint()
        return None
