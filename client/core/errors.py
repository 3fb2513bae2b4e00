"""Everything that the SDK raises. Each message names the cause and a way out.

    TrioMQError
    ├── SettingsError, MessageInvalid, TopicInvalid                  wrong argument; a ValueError
    │   └── HandlerInvalid                                           the handler is not async
    ├── NotRunning, AlreadySettled, QueueNotAssigned, ForkDetected   wrong use; a RuntimeError
    ├── NoNameServer, RouteNotFound                                  no broker was found
    │   └── NoBrokerRegistered                                       no topic has one
    ├── ConnectionFailed, ConnectionLost                             an OSError
    ├── RequestTimeout                                               a TimeoutError
    ├── ProtocolBroken                                               not RocketMQ's protocol
    ├── ReceiptExpired                                           a popped message comes again
    ├── TooManyKeys                                              ``latest`` met its limit
    ├── ClaimBusy, ClaimLost, OnceStoreFailed                        ``@once`` gave a message up
    ├── BrokerError(code, remark, broker, request)                   a refusal; broker_errors.py
    ├── BatchIncomplete(receipts)                                    a list was stored in part
    ├── CallTimeout                                                  ``timeout=``; a TimeoutError
    ├── NotARequest, ReplyNotDelivered                               ``message.reply`` failed
    ├── ReplyTimeout(receipt)                                        no reply; a TimeoutError
    └── SendError(attempts)                                          a failed send
        ├── SendTimeout                                              time is over; a TimeoutError
        └── SendFailed                                               all attempts were used

Two facts of each class: ``retriable`` tells whether the same call may work a moment later or on
another broker, ``refresh_route`` whether the cached route is suspect. ``SendError.maybe_stored``
tells whether a broker may have the message of a failed send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from triomq.client.core.broker_errors import *  # noqa: F403 - this module has all errors
from triomq.client.core.broker_errors import TrioMQError
from triomq.remoting.core import errors as remoting_errors
from triomq.remoting.protocol.codes import RequestCode


class SettingsError(TrioMQError, ValueError):
    """A setting cannot be used."""


class HandlerInvalid(SettingsError):
    """A handler that no message can be given to: one that is not async, or whose loop is closed.

    Refused at construction, or at a call, which ends the consumer.
    """


class MessageInvalid(TrioMQError, ValueError):
    """A message breaks a limit that every broker enforces; it was not sent."""


class TopicInvalid(TrioMQError, ValueError):
    """No broker accepts this topic name."""


class NotRunning(TrioMQError, RuntimeError):
    """An object is used before its ``async with`` block, or after its end."""


class AlreadySettled(TrioMQError, RuntimeError):
    """A message was settled a second time."""


class ReceiptExpired(TrioMQError):
    """The invisible time of a popped message is over, so its receipt handle has no effect."""

    def __init__(self, message_id: str, topic: str, seconds: float) -> None:
        super().__init__(message_id, topic, seconds)
        self.message_id = message_id
        self.topic = topic
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"the invisible time of message {self.message_id} of {self.topic} ({self.seconds:g} s)"
            " is over: the group gets it again, with another receipt handle; receive it with a"
            " longer `invisible`, or call `change_invisible` before the time is over"
        )


class QueueNotAssigned(TrioMQError, RuntimeError):
    """A call names a queue that this consumer does not own (any more)."""


class TooManyKeys(TrioMQError):
    """A topic that is read as a table has more keys than ``keys_max`` allows."""


class ForkDetected(TrioMQError, RuntimeError):
    """An object is used in a forked child, where its thread and connections do not exist."""


class ClaimBusy(TrioMQError):
    """``@once``: another consumer worked on the message for all of ``wait``."""

    retriable = True


class ClaimLost(TrioMQError):
    """``@once``: the handler took longer than the lease, or ended the transaction itself."""

    retriable = True


class OnceStoreFailed(TrioMQError):
    """``@once``: the database with the claims failed, or cannot be reached."""

    retriable = True


class NoNameServer(TrioMQError):
    """No name server answered; ``reasons`` maps each address to what happened there."""

    retriable = True

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = dict(reasons)

    def __str__(self) -> str:
        if not self.reasons:
            return (
                "no name server is configured: give the addresses as the first argument, "
                "'host:9876;host2:9876', or set the environment variable NAMESRV_ADDR"
            )
        tried = "; ".join(f"{address}: {reason}" for address, reason in self.reasons.items())
        return (
            f"no name server answered ({tried}): check that a name server (mqnamesrv) runs there,"
            " and that this machine reaches its port"
        )


class RouteNotFound(TrioMQError):
    """The name servers have no broker for the topic.

    With ``offered`` they have brokers of the topic, but not what was requested (``detail``).
    """

    retriable = True

    def __init__(self, topic: str, detail: str = "", fix: str = "", offered: bool = False) -> None:
        super().__init__(topic, detail, fix, offered)
        self.topic = topic
        self.detail = detail
        self.fix = fix
        self.offered = offered

    def __str__(self) -> str:
        if self.offered:
            fix = (
                self.fix
                or f"see with `mqadmin topic route -t {self.topic}` where the topic is now,"
                " and whether the broker runs"
            )
            return f"topic {self.topic!r} has a route, but {self.detail}: {fix}"
        detail = f" ({self.detail})" if self.detail else ""
        fix = self.fix or (
            f"check the spelling, create it with `mqadmin topic create -c CLUSTER -t {self.topic}`,"
            " or start a broker with autoCreateTopicEnable=true"
        )
        return f"no broker offers topic {self.topic!r}{detail}: {fix}"


class NoBrokerRegistered(RouteNotFound):
    """The name servers answer, and know no broker at all: the only one restarts, or never ran."""

    def __str__(self) -> str:
        return (
            f"no broker is registered with the name servers, so none offers topic {self.topic!r}:"
            " start one with `mqbroker -n ADDRESSES`; a broker that has just started registers"
            " within a second (Java's within 30)"
        )


class ConnectionFailed(TrioMQError, OSError):
    """No connection could be made; nothing was sent."""

    retriable = True
    refresh_route = True

    def __init__(self, address: str, reason: str, fix: str = "") -> None:
        super().__init__(address, reason)  # OSError takes a third argument for a file name
        self.address = address
        self.reason = reason
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.address, self.reason, self.fix)

    def __str__(self) -> str:
        fix = self.fix or (
            "check that the server runs and that this machine reaches the address (a broker"
            " announces itself as brokerIP1: set it to an address that clients reach)"
        )
        return f"cannot connect to {self.address}: {self.reason}; {fix}"


class ConnectionLost(TrioMQError, OSError):
    """The connection ended before the answer came; whether the request took effect is unknown."""

    retriable = True
    refresh_route = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"connection to {self.address} lost: {self.reason}; the request may or may not have"
            " taken effect"
        )


class RequestTimeout(TrioMQError, TimeoutError):
    """One request was not answered in time; whether it took effect is unknown."""

    retriable = True
    refresh_route = True

    def __init__(self, address: str, request: str, seconds: float) -> None:
        super().__init__(address, request, seconds)
        self.address = address
        self.request = request
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"{self.address} did not answer {self.request} within {self.seconds:.3g} s: it is"
            " overloaded, stopped, or cut off"
        )


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code, or its number."""
    return next((member.name for member in RequestCode if member.value == code), f"request {code}")


@attrs.frozen(kw_only=True)
class Attempt:
    """One attempt of a send."""

    broker: str
    """the broker's name, and its address if known"""
    seconds: float
    error: TrioMQError

    def __str__(self) -> str:
        return _tried([self])


def _tried(attempts: Sequence[Attempt]) -> str:
    """Describe attempts of one broker with the same cause."""
    first, longest = attempts[0], max(attempt.seconds for attempt in attempts)
    up_to = "up to " if len(attempts) > 1 else ""
    return f"{first.broker or 'no broker'} after {up_to}{longest:.2f} s: {first.error}"


class SendError(TrioMQError):
    """A send that failed; the last attempt's error is also the ``__cause__``."""

    def __init__(
        self,
        topic: str,
        attempts: Sequence[Attempt],
        *,
        maybe_stored: bool = False,
        reason: str = "",
    ) -> None:
        super().__init__(topic, attempts)
        self.topic = topic
        self.attempts = tuple(attempts)
        self.maybe_stored = maybe_stored
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(type(self), maybe_stored=self.maybe_stored, reason=self.reason)
        return make, (self.topic, self.attempts)

    def _tail(self) -> str:
        parts = ["it may be stored nevertheless" if self.maybe_stored else "it is not stored"]
        if self.reason:
            parts.append(self.reason)
        equal: dict[tuple[str, str], list[int]] = {}
        for number, attempt in enumerate(self.attempts):
            equal.setdefault((attempt.broker, str(attempt.error)), []).append(number)
        tries = [
            f"[{', '.join(str(number + 1) for number in numbers)}]"
            f" {_tried([self.attempts[number] for number in numbers])}"
            for numbers in equal.values()
        ]
        if tries:
            parts.append(f"{len(self.attempts)} tries: {'; '.join(tries)}")
        return "; ".join(parts)


class SendTimeout(SendError, TimeoutError):
    """The time for one send, all attempts included, is over (setting ``send_timeout``)."""

    retriable = True

    def __str__(self) -> str:
        return f"sending to {self.topic!r} took longer than send_timeout; {self._tail()}"


class SendFailed(SendError):
    """All attempts of a send failed."""

    retriable = True

    def __str__(self) -> str:
        return f"sending to {self.topic!r} failed; {self._tail()}"


class BatchIncomplete(TrioMQError):
    """``send_batch`` stored only the first messages of its list; the ``__cause__`` says why.

    ``receipts`` belong to the stored messages, in order; ``unsent`` is the number of the others.
    """

    retriable = True

    def __init__(self, receipts: Sequence[object], unsent: int) -> None:
        super().__init__(receipts, unsent)
        self.receipts = list(receipts)
        self.unsent = unsent

    def __str__(self) -> str:
        return (
            f"the first {len(self.receipts)} messages are stored, the last {self.unsent} are not:"
            f" send these again ({self.__cause__})"
        )


class ReplyTimeout(TrioMQError, TimeoutError):
    """No reply to a request came in time.

    ``receipt`` belongs to the stored request; without it ``maybe_stored`` tells whether a broker
    may have the request.
    """

    def __init__(
        self,
        topic: str,
        correlation_id: str,
        seconds: float,
        receipt: object = None,
        *,
        maybe_stored: bool = True,
    ) -> None:
        super().__init__(topic, correlation_id, seconds, receipt)
        self.topic = topic
        self.correlation_id = correlation_id
        self.seconds = seconds
        self.receipt = receipt
        self.maybe_stored = maybe_stored

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(type(self), maybe_stored=self.maybe_stored)
        return make, (self.topic, self.correlation_id, self.seconds, self.receipt)

    def __str__(self) -> str:
        if self.receipt is not None:
            state = (
                "the request is stored, so its consumer is slow, stopped, or does not reply"
                " (`mqadmin group lag`); give it more time, or look at the consumer"
            )
        elif self.maybe_stored:
            state = "no broker has confirmed the request, which may be stored nevertheless"
        else:
            state = "the request is not stored: send it again"
        return (
            f"no reply to request {self.correlation_id} to {self.topic!r} within"
            f" {self.seconds:g} s; {state}"
        )


class NotARequest(TrioMQError, ValueError):
    """``reply`` was called on a message that is not a request; ``missing``: properties it lacks."""

    def __init__(self, message_id: str, topic: str, missing: Sequence[str]) -> None:
        super().__init__(message_id, topic, missing)
        self.message_id = message_id
        self.topic = topic
        self.missing = tuple(missing)

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of {self.topic} is not a request (it has no"
            f" {', '.join(self.missing)}): reply only to messages that were sent by `request`"
        )


class ReplyNotDelivered(TrioMQError):
    """No broker could deliver a reply; ``errors`` has one error for each broker that was asked."""

    retriable = True

    def __init__(self, client_id: str, correlation_id: str, errors: Sequence[TrioMQError]) -> None:
        super().__init__(client_id, correlation_id, errors)
        self.client_id = client_id
        self.correlation_id = correlation_id
        self.errors = tuple(errors)

    def __str__(self) -> str:
        reasons = "; ".join(map(str, self.errors))
        return (
            f"the reply to request {self.correlation_id} did not reach {self.client_id}: {reasons};"
            " if the requester has stopped, or its time is over, nothing can be done"
        )


class CallTimeout(TrioMQError, TimeoutError):
    """A blocking call took longer than its ``timeout``; it was cancelled, outcome unknown."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return (
            f"the call did not end within timeout={self.seconds:g} s and was cancelled; give it"
            " more time"
        )


def from_remoting(error: remoting_errors.RemotingError) -> TrioMQError:
    """Return the SDK's error for an error of the transport."""
    match error:
        case remoting_errors.ConnectFailed():
            return ConnectionFailed(error.address, error.reason)
        case remoting_errors.ConnectionLost():
            return ConnectionLost(error.address, error.reason)
        case remoting_errors.RequestTimeout():
            return RequestTimeout(error.address, request_name(error.code), error.seconds)
        case _:
            return ProtocolBroken(str(error))


class ProtocolBroken(TrioMQError):
    """The peer sent bytes that are not RocketMQ's protocol: most often another kind of server."""

    retriable = True

    def __str__(self) -> str:
        return f"{self.args[0]}; check that the address belongs to a RocketMQ or TrioMQ server"
