"""Budgets for frames that cost a server more than their sender: resets, settings, pings and all
others without data. Pure.

Source: RFC 9113, section 10.5.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import attrs

from triomq.remoting.grpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    ErrorCode,
    SessionRefused,
)
from triomq.remoting.protocol.limits import Limits

CONTINUATIONS_MAX = 32
BURST_SECONDS = 10
"""a budget that was not used for this time is full"""
_CONTROLS_PER_DATA = 4
"""WINDOW_UPDATEs and the like that a client may send for each frame with data"""
FEW_RESETS_PER_SECOND = 1
"""Of a connection, which do not count for its address: behind a shared address the connections that
flood are closed, not one that cancels a call now and then.
"""
_FORGOTTEN_AT_ONCE = 64


def always(now: float) -> bool:
    """Spend nothing."""
    return True


@attrs.define(eq=False)
class FrameBudget:
    """Frames of one kind: ``rate`` a second, and ``BURST_SECONDS`` times as many at once."""

    rate: float
    left: float = attrs.field(init=False)
    _filled: float = attrs.field(default=-1.0, init=False)
    """when ``left`` was last brought up to date; negative before the first frame"""

    def __attrs_post_init__(self) -> None:
        self.left = self.rate * BURST_SECONDS

    def spend(self, now: float) -> bool:
        """Take one frame out; return whether the budget had it."""
        self.left -= 1
        if self._filled < 0:
            self._filled = now
        if self.left < 0:
            most = self.rate * BURST_SECONDS
            self.left = min(most, self.left + self.rate * max(0.0, now - self._filled))
            self._filled = now
        return self.left >= 0

    def earn(self, count: int) -> None:
        """Add frames that other frames justify."""
        self.left = min(self.left + count, self.rate * BURST_SECONDS)


@attrs.define(eq=False)
class AddressResets:
    """The budget of each address for calls that end in a reset, whatever the connection: a client
    that connects again has no new one.
    """

    limits: Limits
    _by_address: dict[str, FrameBudget] = attrs.field(factory=dict, init=False)
    _used: dict[str, float] = attrs.field(factory=dict, init=False)
    """Address -> when it used its budget last; those that wait longest come first."""

    def spend(self, address: str, now: float) -> bool:
        """Take one reset out; return whether the budget had it. Checkpoint: never."""
        budget = self._by_address.get(address)
        if budget is None:
            self._forget(now - BURST_SECONDS)
            rate = self.limits.most("address_resets_per_second")
            budget = self._by_address[address] = FrameBudget(rate)
        self._used.pop(address, None)
        self._used[address] = now
        return budget.spend(now)

    def _forget(self, before: float) -> None:
        """Forget budgets that are full again."""
        for address, used in list(islice(self._used.items(), _FORGOTTEN_AT_ONCE)):
            if used < before:
                del self._used[address], self._by_address[address]

    def __len__(self) -> int:
        return len(self._by_address)


@attrs.define(eq=False)
class FrameBudgets:
    """The budgets of one connection.

    ``header_list_bytes_max``: beyond it a list of headers, or its block, ends the connection.
    ``spend_of_address`` takes a reset out of the budget of the client's address.
    """

    limits: Limits
    header_list_bytes_max: int
    spend_of_address: Callable[[float], bool] = always
    _block_bytes: int = attrs.field(default=0, init=False)
    _continuations: int = attrs.field(default=0, init=False)
    _resets: FrameBudget = attrs.field(init=False)
    _few_resets: FrameBudget = attrs.field(init=False)
    _settings: FrameBudget = attrs.field(init=False)
    _pings: FrameBudget = attrs.field(init=False)
    _controls: FrameBudget = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        most = self.limits.most
        self._resets = FrameBudget(most("resets_per_second"))
        self._few_resets = FrameBudget(FEW_RESETS_PER_SECOND)
        self._settings = FrameBudget(most("settings_per_second"))
        self._pings = FrameBudget(most("pings_per_second"))
        self._controls = FrameBudget(most("controls_per_second"))

    def sent_data(self) -> None:
        """Note a frame with data of this side: it justifies a window update and a ping."""
        self._pings.earn(1)
        self._controls.earn(_CONTROLS_PER_DATA)

    def was_reset(self, now: float) -> None:
        """Note a call that this side had to reset because of the peer's mistake.

        Raises: SessionRefused.
        """
        self._spend_reset("calls that end in a reset", now)

    def note(self, kind: int, flags: int, length: int, now: float) -> None:
        """Note a frame of the peer. *now*: seconds, monotonic. Raises: SessionRefused."""
        if kind == DATA and length:
            self._pings.earn(1)
            self._controls.earn(_CONTROLS_PER_DATA)
        elif kind == HEADERS:
            self._block_bytes = length
            self._continuations = 0
            self._require_block()
            if flags & END_HEADERS:
                self._controls.earn(_CONTROLS_PER_DATA)
        elif kind == CONTINUATION:
            self._block_bytes += length
            self._continuations += 1
            self._require_block()
        elif kind == RST_STREAM:
            self._spend_reset("cancelled calls", now)
        elif kind == SETTINGS:
            self._spend(self._settings, "settings_per_second", "SETTINGS frames", now)
        elif kind == PING:
            self._spend(self._pings, "pings_per_second", "PING frames", now)
        else:
            self._spend(self._controls, "controls_per_second", "frames without data", now)

    def headers_too_long(self) -> SessionRefused:
        """Count a list of headers that is beyond the limit, and return its error."""
        return self._headers_refused(f"more than {self.header_list_bytes_max} bytes")

    def _require_block(self) -> None:
        if (
            self._block_bytes > self.header_list_bytes_max
            or self._continuations > CONTINUATIONS_MAX
        ):
            raise self._headers_refused(
                f"{self._block_bytes} bytes in {self._continuations + 1} frames"
            )

    def _headers_refused(self, size: str) -> SessionRefused:
        self.limits.note("header_bytes_max")
        return SessionRefused(
            f"the headers of a call have {size}",
            f"send less metadata, or raise {self.limits.name('header_bytes_max')}",
            ErrorCode.ENHANCE_YOUR_CALM,
        )

    def _spend_reset(self, what: str, now: float) -> None:
        """Count a reset for the connection, and unless it has had few for its address."""
        self._spend(self._resets, "resets_per_second", what, now)
        if not self._few_resets.spend(now) and not self.spend_of_address(now):
            raise self._refusal("address_resets_per_second", f"{what} of one address")

    def _spend(self, budget: FrameBudget, limit: str, what: str, now: float) -> None:
        if not budget.spend(now):
            raise self._refusal(limit, what)

    def _refusal(self, limit: str, what: str) -> SessionRefused:
        self.limits.note(limit)
        return SessionRefused(
            f"more than {self.limits.most(limit)} {what} a second",
            f"send fewer, or raise {self.limits.name(limit)}",
            ErrorCode.ENHANCE_YOUR_CALM,
        )
