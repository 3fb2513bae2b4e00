"""Decide when a connection is given up: no handshake, no calls, or a peer that is gone. Pure.

TCP does not notice that a client's machine has lost its power or its network, and a client with a
held call sends nothing by itself. So a silent connection with calls is asked (PING).
"""

from __future__ import annotations

import enum

import attrs

from triomq.remoting.grpc.grpc_settings import GrpcSettings


class LifeSign(enum.Enum):
    """What to do about a connection now."""

    FINE = "fine"
    ASK = "ask"
    TOO_SLOW = "handshake_ms"
    IDLE = "idle_ms"
    SILENT = "keepalive_timeout_ms"


@attrs.define(eq=False)
class Liveness:
    """One connection since *opened_at*, in seconds of a monotonic clock."""

    settings: GrpcSettings
    opened_at: float
    heard_at: float = attrs.field(init=False)
    busy_at: float = attrs.field(init=False)
    _asked_at: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.heard_at = self.busy_at = self.opened_at

    def heard(self, now: float) -> None:
        """Note bytes of the client."""
        self.heard_at = now
        self._asked_at = None

    def check(self, now: float, *, began: bool, calls: int) -> LifeSign:
        """Return what to do. *began*: a first frame has come."""
        settings = self.settings
        if not began:
            late = now - self.opened_at >= settings.handshake_ms / 1000
            return LifeSign.TOO_SLOW if late else LifeSign.FINE
        if not calls:
            idle = now - self.busy_at >= settings.idle_ms / 1000
            return LifeSign.IDLE if idle else LifeSign.FINE
        self.busy_at = now
        if self._asked_at is not None:
            silent = now - self._asked_at >= settings.keepalive_timeout_ms / 1000
            return LifeSign.SILENT if silent else LifeSign.FINE
        if now - self.heard_at < settings.keepalive_ms / 1000:
            return LifeSign.FINE
        self._asked_at = now
        return LifeSign.ASK
