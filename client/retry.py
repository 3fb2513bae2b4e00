"""When to try again, where, and how long to wait: pure rules, no clock, no I/O.

The set of response codes and the number of tries are those of the official client (sync sends).  One thing differs on purpose: there a
broker that hangs eats the whole time budget in the first try, so that a time-out is in effect never retried.  Here a try may use only
half of what is left while another broker could still be asked.  The price is a possible duplicate (same message id, another offset id)
when the slow broker stores the message after all.

Source for the rules: client/…/producer/DefaultMQProducer.java (retryResponseCodes), DefaultMQProducerImpl.java#sendDefaultImpl.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import attrs

from triomq.client.errors import (
    Attempt,
    BrokerError,
    ConnectionFailed,
    ConnectionLost,
    ProtocolBroken,
    RequestTimeout,
    SettingsError,
    TrioMQError,
)
from triomq.remoting.protocol.codes import ResponseCode

RETRY_CODES: frozenset[int] = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals that another broker (or the same one, a moment later) may not share."""

BUSY_CODES: frozenset[int] = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
"""Flow control: what the remoting protocol has for the TOO_MANY_REQUESTS of RocketMQ's gRPC clients, which is made from SYSTEM_BUSY"""

_TRANSPORT_ERRORS = (ConnectionFailed, ConnectionLost, RequestTimeout, ProtocolBroken)


def may_send_again(error: TrioMQError, codes: frozenset[int] = RETRY_CODES) -> bool:
    """Say whether a failed try of a send is worth another one."""
    if isinstance(error, BrokerError):
        return error.code in codes
    return isinstance(error, _TRANSPORT_ERRORS)


def may_be_stored(error: TrioMQError) -> bool:
    """Say whether the message of a failed try can lie on the broker: the request may have arrived, and no refusal came back.

    An answer that cannot be read counts, too: it may have said that the message is stored. So does SYSTEM_ERROR: it tells of whatever a broker failed over, also of an
    fsync, when the message lies in the log already and may come back with the broker.
    """
    if isinstance(error, BrokerError):
        return error.code == ResponseCode.SYSTEM_ERROR
    return isinstance(error, ConnectionLost | RequestTimeout | ProtocolBroken)


def concerns_broker(error: TrioMQError) -> bool:
    """Say whether a failed try tells something about its broker; what an application's check raises does not."""
    return isinstance(error, (BrokerError, *_TRANSPORT_ERRORS))


def is_unconnected(error: TrioMQError) -> bool:
    """Return whether a try found no connection, for example while a broker restarts; its request was not sent."""
    return isinstance(error, ConnectionFailed)


def is_busy(error: TrioMQError) -> bool:
    """Say whether a broker sheds load: another try at once would add to it."""
    return isinstance(error, BrokerError) and error.code in BUSY_CODES


def try_seconds(seconds_left: float, *, last_try: bool, other_broker: bool, longest: float | None = None) -> float:
    """Return the time limit of the next try: all that is left, or half of it while another broker could be asked afterwards.

    `longest` is the application's own limit for a try that is not the last one.
    """
    if last_try:
        return seconds_left
    if longest is not None:
        return min(seconds_left, longest)
    return seconds_left / 2 if other_broker else seconds_left


@attrs.frozen
class BusyBackoff:
    """How long a send waits after a broker's answer that it is busy: longer each time, up to a limit, and not all senders equally long.

    The first three are what RocketMQ's 5.x proxy gives its producers; its remoting client does not wait at all.
    """

    first: float = 0.01
    """seconds after the first such answer; 0 never waits"""
    factor: float = 2.0
    longest: float = 1.0
    jitter: float = 0.2
    """share of the wait by which it may be shorter or longer"""

    def __attrs_post_init__(self) -> None:
        if not (0 <= self.first <= self.longest < inf and 1 <= self.factor <= 10 and 0 <= self.jitter <= 1):
            raise SettingsError(
                f"{self} is no back-off: first may be from 0 to longest, factor from 1 to 10, jitter from 0 to 1, and longest is a number of seconds"
            )

    def seconds(self, times: int, chance: float) -> float:
        """Return the wait after the `times`-th answer of this kind, from 1; `chance` is a random number from 0 to 1."""
        wait = min(self.first * self.factor ** min(times - 1, 300), self.longest)
        return wait * (1 + self.jitter * (2 * chance - 1))


CONNECT_BACKOFF = BusyBackoff(first=0.05, longest=0.5)
"""Between tries that found no connection; jitter spreads the producers of a broker that restarts."""
ATTEMPTS_LISTED_MAX = 16
"""Tries listed in an error, not counting those whose message may be stored: all of these are listed."""


def listed_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts to list in an error: the first, the last ones, and all whose message may be stored."""
    listed = list(attempts)
    while len(listed) > ATTEMPTS_LISTED_MAX:
        oldest = next((index for index, attempt in enumerate(listed) if index and is_unconnected(attempt.error)), None)
        if oldest is None:
            break
        del listed[oldest]
    return listed


@attrs.define(eq=False)
class Backoff:
    """Waiting times that grow by a factor up to a limit, in seconds."""

    first: float
    longest: float
    factor: float = 2.0
    _next: float | None = attrs.field(default=None, init=False)

    def wait(self) -> float:
        """Return the next waiting time."""
        now = self.first if self._next is None else self._next
        self._next = min(now * self.factor, self.longest)
        return now

    def reset(self) -> None:
        """Begin again with the shortest."""
        self._next = None
