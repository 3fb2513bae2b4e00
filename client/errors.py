"""Everything that the SDK raises.  Each message names the cause and a way out.

    TrioMQError
    ├── SettingsError, MessageInvalid, TopicInvalid     also ValueError: a wrong argument, nothing was sent
    │   └── HandlerInvalid                              a SettingsError: the handler is no async function
    ├── NotRunning, AlreadySettled, QueueNotAssigned, ForkDetected    also RuntimeError: a wrong use of an object
    ├── NoNameServer, RouteNotFound                     discovery: nobody knows where the topic lives
    ├── ConnectionFailed, ConnectionLost                also OSError
    ├── RequestTimeout                                  also TimeoutError: one request had no answer in time
    ├── ProtocolBroken                                  the peer does not speak the protocol
    ├── BrokerError(code, remark, broker, request)      the server answered, and refused; one subclass per code, see client/refusals.py
    ├── BatchIncomplete(receipts)                       a list of messages was stored in part
    ├── CallTimeout                                     also TimeoutError: `timeout=` of the blocking façade
    └── SendError(attempts)                             a send that was tried, perhaps several times, and did not work out
        ├── SendTimeout                                 also TimeoutError: the time budget ran out
        └── SendFailed                                  all tries used up

`retriable` says whether the same call may work a moment later or on another broker, `refresh_route` whether the cached route is
suspect.  Both are facts of a class.  `SendError.maybe_stored` answers the question that matters after a failed send: can the message
lie on a broker all the same?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from triomq.client.refusals import BROKER_ERRORS as BROKER_ERRORS
from triomq.client.refusals import BrokerBusy as BrokerBusy
from triomq.client.refusals import BrokerError as BrokerError
from triomq.client.refusals import BrokerFailed as BrokerFailed
from triomq.client.refusals import BrokerNotFound as BrokerNotFound
from triomq.client.refusals import BrokerStopping as BrokerStopping
from triomq.client.refusals import BrokerUnavailable as BrokerUnavailable
from triomq.client.refusals import BuyerUnknown as BuyerUnknown
from triomq.client.refusals import ConsumerSilent as ConsumerSilent
from triomq.client.refusals import ControllerRefused as ControllerRefused
from triomq.client.refusals import DispatchBehind as DispatchBehind
from triomq.client.refusals import FilterOutdated as FilterOutdated
from triomq.client.refusals import FilterUnknown as FilterUnknown
from triomq.client.refusals import FlowControl as FlowControl
from triomq.client.refusals import GroupBroadcasts as GroupBroadcasts
from triomq.client.refusals import GroupNotFound as GroupNotFound
from triomq.client.refusals import GroupOffline as GroupOffline
from triomq.client.refusals import IllegalOperation as IllegalOperation
from triomq.client.refusals import MessageGone as MessageGone
from triomq.client.refusals import MessageRefused as MessageRefused
from triomq.client.refusals import NotLeader as NotLeader
from triomq.client.refusals import OffsetNotFound as OffsetNotFound
from triomq.client.refusals import OffsetOutOfRange as OffsetOutOfRange
from triomq.client.refusals import ParameterInvalid as ParameterInvalid
from triomq.client.refusals import PermissionDenied as PermissionDenied
from triomq.client.refusals import PolicyNotFound as PolicyNotFound
from triomq.client.refusals import PollingFull as PollingFull
from triomq.client.refusals import PollingTimeout as PollingTimeout
from triomq.client.refusals import QueueQuotaExceeded as QueueQuotaExceeded
from triomq.client.refusals import RequestNotSupported as RequestNotSupported
from triomq.client.refusals import SubscriptionInvalid as SubscriptionInvalid
from triomq.client.refusals import SubscriptionOutdated as SubscriptionOutdated
from triomq.client.refusals import SubscriptionQuotaExceeded as SubscriptionQuotaExceeded
from triomq.client.refusals import SubscriptionUnknown as SubscriptionUnknown
from triomq.client.refusals import TopicExists as TopicExists
from triomq.client.refusals import TopicNotFound as TopicNotFound
from triomq.client.refusals import TransactionFailed as TransactionFailed
from triomq.client.refusals import TrioMQError as TrioMQError
from triomq.client.refusals import UserNotFound as UserNotFound
from triomq.client.refusals import VersionNotSupported as VersionNotSupported
from triomq.client.refusals import WrongUnit as WrongUnit
from triomq.client.refusals import broker_error as broker_error
from triomq.client.refusals import code_name as code_name
from triomq.remoting import errors as remoting_errors
from triomq.remoting.protocol.codes import RequestCode


class SettingsError(TrioMQError, ValueError):
    """A setting cannot be used."""


class HandlerInvalid(SettingsError):
    """A handler is no async function: found out at its first call, and ends the consumer."""


class MessageInvalid(TrioMQError, ValueError):
    """A message breaks a limit that every broker enforces; it was not sent."""


class TopicInvalid(TrioMQError, ValueError):
    """A topic or group name that no broker accepts."""


class NotRunning(TrioMQError, RuntimeError):
    """The object is used before `async with`, or after its end."""


class AlreadySettled(TrioMQError, RuntimeError):
    """A second verdict about one message."""


class QueueNotAssigned(TrioMQError, RuntimeError):
    """A call about a queue that this consumer does not own (any more)."""


class ForkDetected(TrioMQError, RuntimeError):
    """A live object is used in a forked child process, where its thread and its connections do not exist."""


class NoNameServer(TrioMQError):
    """No name server answered.  `reasons` maps each address to what happened there."""

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
        return f"no name server answered ({tried}): check that a name server (mqnamesrv) runs there, and that this machine reaches its port"


class RouteNotFound(TrioMQError):
    """The name servers answer, but know no broker that has the topic, or, if `offered`, none that has what was wanted of it (`detail`)."""

    retriable = True

    def __init__(self, topic: str, detail: str = "", fix: str = "", offered: bool = False) -> None:
        super().__init__(topic, detail, fix, offered)
        self.topic = topic
        self.detail = detail
        self.fix = fix
        self.offered = offered

    def __str__(self) -> str:
        if self.offered:
            fix = self.fix or f"see with `mqadmin topicRoute -t {self.topic}` where the topic is now, and whether the broker runs"
            return f"topic {self.topic!r} has a route, but {self.detail}: {fix}"
        detail = f" ({self.detail})" if self.detail else ""
        fix = self.fix or (
            f"check the spelling, create it with `mqadmin updateTopic -c CLUSTER -t {self.topic}`, or start a broker with autoCreateTopicEnable=true"
        )
        return f"no broker offers topic {self.topic!r}{detail}: {fix}"


class ConnectionFailed(TrioMQError, OSError):
    """No connection could be made; nothing was sent."""

    retriable = True
    refresh_route = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot connect to {self.address}: {self.reason}; check that the server runs and that this machine reaches the address "
            "(a broker announces itself as brokerIP1: set it to an address that clients reach)"
        )


class ConnectionLost(TrioMQError, OSError):
    """The connection ended while an answer was awaited; whether the request took effect is unknown."""

    retriable = True
    refresh_route = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"connection to {self.address} lost: {self.reason}; the request may or may not have taken effect"


class RequestTimeout(TrioMQError, TimeoutError):
    """One request got no answer in time; whether it took effect is unknown."""

    retriable = True
    refresh_route = True

    def __init__(self, address: str, request: str, seconds: float) -> None:
        super().__init__(address, request, seconds)
        self.address = address
        self.request = request
        self.seconds = seconds

    def __str__(self) -> str:
        return f"{self.address} did not answer {self.request} within {self.seconds:g} s: it is overloaded, stopped, or cut off"


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code, or the number."""
    return next((member.name for member in RequestCode if member.value == code), f"request {code}")


@attrs.frozen(kw_only=True)
class Attempt:
    """One try of a send."""

    broker: str
    """broker name, and address where known"""
    seconds: float
    error: TrioMQError

    def __str__(self) -> str:
        return f"{self.broker or 'no broker'} after {self.seconds:.2f} s: {self.error}"


class SendError(TrioMQError):
    """A send that did not work out.  The last try's error is also the `__cause__`."""

    def __init__(
        self, topic: str, attempts: Sequence[Attempt], *, maybe_stored: bool = False, reason: str = ""
    ) -> None:
        super().__init__(topic, attempts)
        self.topic = topic
        self.attempts = tuple(attempts)
        self.maybe_stored = maybe_stored
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_send_error, (type(self), self.topic, self.attempts, self.maybe_stored, self.reason))

    def _tail(self) -> str:
        tries = "; ".join(f"[{number}] {attempt}" for number, attempt in enumerate(self.attempts, 1))
        stored = "it may be stored all the same" if self.maybe_stored else "it is not stored"
        reason = f"; {self.reason}" if self.reason else ""
        return f"{stored}{reason}; {len(self.attempts)} tries: {tries}" if tries else f"{stored}{reason}"


def _rebuild_send_error(
    kind: type[SendError], topic: str, attempts: Sequence[Attempt], maybe_stored: bool, reason: str
) -> SendError:
    return kind(topic, attempts, maybe_stored=maybe_stored, reason=reason)


class SendTimeout(SendError, TimeoutError):
    """The time for one send, all tries included, is over (setting `send_timeout`)."""

    retriable = True

    def __str__(self) -> str:
        return f"sending to {self.topic!r} took longer than send_timeout; {self._tail()}"


class SendFailed(SendError):
    """Every try failed."""

    retriable = True

    def __str__(self) -> str:
        return f"sending to {self.topic!r} failed; {self._tail()}"


class BatchIncomplete(TrioMQError):
    """`send_batch` stored the first messages of its list, then failed; the `__cause__` says why.

    `receipts` belong to the messages that are stored, in order; `unsent` counts the rest.
    """

    retriable = True

    def __init__(self, receipts: Sequence[object], unsent: int) -> None:
        super().__init__(receipts, unsent)
        self.receipts = list(receipts)
        self.unsent = unsent

    def __str__(self) -> str:
        return f"the first {len(self.receipts)} messages are stored, the last {self.unsent} are not: send these again ({self.__cause__})"


class CallTimeout(TrioMQError, TimeoutError):
    """A blocking call took longer than its `timeout`; it was cancelled, and its outcome is unknown."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the call did not end within timeout={self.seconds:g} s and was cancelled; give it more time"


def from_remoting(error: remoting_errors.RemotingError) -> TrioMQError:
    """Translate an error of the transport into one of ours."""
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
    """The peer sent bytes that are not RocketMQ's protocol; most often the address belongs to another kind of server."""

    retriable = True

    def __str__(self) -> str:
        return f"{self.args[0]}; check that the address belongs to a RocketMQ or TrioMQ server"
