"""Sessions of logged-in users, and the limit on failed logins. Pure: callers pass the time.

Everything here is bounded: the oldest entry makes room for a new one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict

import attrs

from triomq.client.console.core.users import UserRole

SESSIONS_MAX = 1000
IDLE_SECONDS = 30 * 60.0
"""a session without a request of its user ends; automatic refreshes do not count"""
SESSION_SECONDS = 12 * 3600.0
FAILED_LOGINS_MAX = 5
BLOCKED_SECONDS = 5 * 60.0
REMEMBERED_MAX = 10_000
NOTICES_MAX = 10


@attrs.define(eq=False)
class ConsoleSession:
    """One login of one user."""

    user: str
    role: UserRole
    created_at: float
    used_at: float
    notices: list[tuple[str, str]] = attrs.field(factory=list)
    """``("done" or "failed", text)`` to show on the next page"""

    def notice(self, kind: str, text: str) -> None:
        """Show a text on the next page."""
        self.notices = [*self.notices[-NOTICES_MAX + 1 :], (kind, text)]


@attrs.define(eq=False)
class SessionTable:
    """Sessions by the hash of their cookie: a copy of this memory is no login."""

    _key: bytes = attrs.field(factory=lambda: secrets.token_bytes(32), repr=False)
    _sessions: OrderedDict[bytes, ConsoleSession] = attrs.field(factory=OrderedDict)

    def begin(self, user: str, role: UserRole, now: float) -> str:
        """Make a session; return its cookie."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[self._name(cookie)] = ConsoleSession(user, role, now, now)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return cookie

    def find(self, cookie: str | None, now: float, *, touch: bool) -> ConsoleSession | None:
        """Return the session of a cookie, None if there is none or its time is over."""
        if not cookie:
            return None
        name = self._name(cookie)
        session = self._sessions.get(name)
        if session is None:
            return None
        if now - session.used_at > IDLE_SECONDS or now - session.created_at > SESSION_SECONDS:
            del self._sessions[name]
            return None
        if touch:
            session.used_at = now
            self._sessions.move_to_end(name)
        return session

    def end(self, cookie: str | None) -> None:
        """Forget a session."""
        if cookie:
            self._sessions.pop(self._name(cookie), None)

    def keep(self, roles: dict[str, UserRole]) -> None:
        """End the sessions of users who are gone, and give the others their present role."""
        for name, session in list(self._sessions.items()):
            if session.user in roles:
                session.role = roles[session.user]
            else:
                del self._sessions[name]

    def form_token(self, cookie: str) -> str:
        """Return what forms of the pages for this cookie must send back (against CSRF)."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def token_matches(self, cookie: str | None, token: str) -> bool:
        """Compare the token of a form, in constant time."""
        return bool(cookie) and hmac.compare_digest(
            self.form_token(cookie or "").encode(), token.encode()
        )

    @staticmethod
    def _name(cookie: str) -> bytes:
        return hashlib.sha256(cookie.encode()).digest()


@attrs.define(eq=False)
class LoginLimiter:
    """Failed logins by user and by address: after too many, further tries are refused for a time.

    Both are counted, so neither one address with many users nor many addresses with one user can
    try passwords quickly.
    """

    _failed: OrderedDict[str, tuple[int, float]] = attrs.field(factory=OrderedDict)
    """label → failures in a row, time of the last one"""

    def wait_seconds(self, user: str, address: str, now: float) -> float:
        """Return how long this user at this address has to wait before the next try."""
        return max(
            0.0, *(self._until(label) - now for label in (f"user {user}", f"address {address}"))
        )

    def _until(self, label: str) -> float:
        count, last = self._failed.get(label, (0, 0.0))
        return last + BLOCKED_SECONDS if count >= FAILED_LOGINS_MAX else 0.0

    def failed(self, user: str, address: str, now: float) -> None:
        """Count a failure."""
        for label in (f"user {user}", f"address {address}"):
            count, last = self._failed.pop(label, (0, 0.0))
            if now - last > BLOCKED_SECONDS:
                count = 0
            self._failed[label] = count + 1, now
        while len(self._failed) > REMEMBERED_MAX:
            self._failed.popitem(last=False)

    def worked(self, user: str, address: str) -> None:
        """Forget the failures after a login."""
        for label in (f"user {user}", f"address {address}"):
            self._failed.pop(label, None)
