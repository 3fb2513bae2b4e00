"""Which failures are worth another attempt, where, and after which wait: pure rules, no I/O.

The response codes and the number of attempts are those of the official client (sync sends), with
one difference. There, a broker that hangs uses the whole time budget in the first attempt, so a
timeout is in effect never retried. Here an attempt gets only half of the time left while another
broker could still be asked. The cost is a possible duplicate (same message id, another offset id)
if the slow broker stores the message after all.

Source for the rules: client/…/producer/DefaultMQProducer.java (retryResponseCodes),
DefaultMQProducerImpl.java#sendDefaultImpl.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import attrs

from triomq.client.core.errors import (
    Attempt,
    BrokerError,
    BrokerStopping,
    ConnectionFailed,
    ConnectionLost,
    NoNameServer,
    ProtocolBroken,
    RequestTimeout,
    SettingsError,
    TrioMQError,
)
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.refused_sends import NOT_CONFIRMED, is_refused_for_now

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
"""Refusals that may not hold for another broker, or for the same broker a moment later."""

BUSY_CODES: frozenset[int] = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
"""Flow control; RocketMQ's gRPC clients get TOO_MANY_REQUESTS for SYSTEM_BUSY."""

_TRANSPORT_ERRORS = (ConnectionFailed, ConnectionLost, RequestTimeout, ProtocolBroken)


def may_send_again(error: TrioMQError, codes: frozenset[int] = RETRY_CODES) -> bool:
    """Return whether a send is worth another attempt after this error."""
    if isinstance(error, BrokerError):
        return error.code in codes
    return isinstance(error, _TRANSPORT_ERRORS)


def may_be_stored(error: TrioMQError) -> bool:
    """Return whether the broker may have the message of a failed attempt.

    That is so if the request may have arrived and was not refused. An unreadable answer may say
    that the message is stored; SYSTEM_ERROR is any internal failure, a failed fsync included, after
    which the message may be in the log.
    """
    if isinstance(error, BrokerError):
        return error.code == ResponseCode.SYSTEM_ERROR and not _refused_for_now(error)
    return isinstance(error, ConnectionLost | RequestTimeout | ProtocolBroken)


def concerns_broker(error: TrioMQError) -> bool:
    """Return whether an error is about its broker: transport errors and refusals are."""
    return isinstance(error, (BrokerError, *_TRANSPORT_ERRORS))


def concerns_route(error: TrioMQError) -> bool:
    """Return whether another broker may be the master now, so that the route is looked up at once.

    A broker that has become a slave rejects sends as RocketMQ's does, with SYSTEM_BUSY.
    """
    return (
        error.refresh_route
        or _refused_for_now(error)
        or (isinstance(error, BrokerError) and error.remark == NOT_CONFIRMED)
    )


def is_unconnected(error: TrioMQError) -> bool:
    """Return whether an attempt found no connection, so that its request was not sent."""
    return isinstance(error, ConnectionFailed)


def found_no_master(error: TrioMQError) -> bool:
    """Return whether an attempt met no broker that takes messages now; nothing is stored."""
    return isinstance(error, ConnectionFailed | BrokerStopping) or _refused_for_now(error)


def _refused_for_now(error: TrioMQError) -> bool:
    return isinstance(error, BrokerError) and is_refused_for_now(error.code, error.remark)


def may_ask_again(error: TrioMQError) -> bool:
    """Return whether an idempotent request is worth another attempt: its server is unreachable."""
    return isinstance(error, ConnectionFailed | ConnectionLost | BrokerStopping | NoNameServer)


def is_busy(error: TrioMQError) -> bool:
    """Return whether a broker sheds load: another attempt at once would add to it."""
    return isinstance(error, BrokerError) and error.code in BUSY_CODES


def try_seconds(
    seconds_left: float, *, last_try: bool, other_broker: bool, longest: float | None = None
) -> float:
    """Return the time limit of the next attempt: all the time left, or half of it.

    Half while another broker could still be asked. ``longest``: the application's own limit for an
    attempt that is not the last.
    """
    if last_try:
        return seconds_left
    if longest is not None:
        return min(seconds_left, longest)
    return seconds_left / 2 if other_broker else seconds_left


@attrs.frozen
class BusyBackoff:
    """Waits of a send after a broker's busy answers: growing up to a limit, with jitter.

    The first three defaults are those of RocketMQ's 5.x proxy for its producers; its remoting
    client does not wait at all.
    """

    first: float = 0.01
    """seconds after the first busy answer; 0 disables the waits"""
    factor: float = 2.0
    longest: float = 1.0
    """seconds"""
    jitter: float = 0.2
    """share of the wait by which it may be shorter or longer"""

    def __attrs_post_init__(self) -> None:
        if not (
            0 <= self.first <= self.longest < inf
            and 1 <= self.factor <= 10
            and 0 <= self.jitter <= 1
        ):
            raise SettingsError(
                f"{self} cannot be used: first may be from 0 to longest, factor from 1 to 10,"
                " jitter from 0 to 1, and longest is a number of seconds"
            )

    def seconds(self, times: int, chance: float) -> float:
        """Return the wait after the ``times``-th busy answer, counted from 1.

        ``chance``: a random number from 0 to 1.
        """
        wait = min(self.first * self.factor ** min(times - 1, 300), self.longest)
        return wait * (1 + self.jitter * (2 * chance - 1))


CONNECT_BACKOFF = BusyBackoff(first=0.05, longest=0.5)
"""Waits after attempts without a master; the jitter spreads a restarting server's clients."""
ATTEMPTS_LISTED_MAX = 16
"""Maximum number of attempts that an error lists, besides those whose message may be stored."""


def listed_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts to list: the first, the last, all whose message may be stored."""
    listed = list(attempts)
    while len(listed) > ATTEMPTS_LISTED_MAX:
        oldest = next(
            (
                index
                for index, attempt in enumerate(listed)
                if index and found_no_master(attempt.error)
            ),
            None,
        )
        if oldest is None:
            break
        del listed[oldest]
    return listed
