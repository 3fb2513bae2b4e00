"""Everything that the SDK raises.  Each message names the cause and a way out.

    TrioMQError
    ├── SettingsError, MessageInvalid, TopicInvalid     also ValueError: a wrong argument, nothing was sent
    ├── NotRunning, AlreadySettled, QueueNotAssigned, ForkDetected    also RuntimeError: a wrong use of an object
    ├── NoNameServer, RouteNotFound                     discovery: nobody knows where the topic lives
    ├── ConnectionFailed, ConnectionLost                also OSError
    ├── RequestTimeout                                  also TimeoutError: one request had no answer in time
    ├── ProtocolBroken                                  the peer does not speak the protocol
    ├── BrokerError(code, remark, broker, request)      the server answered, and refused; one subclass per code, see BROKER_ERRORS
    ├── BatchIncomplete(receipts)                       a list of messages was stored in part
    ├── CallTimeout                                     also TimeoutError: `timeout=` of the blocking façade
    └── SendError(attempts)                             a send that was tried, perhaps several times, and did not work out
        ├── SendTimeout                                 also TimeoutError: the time budget ran out
        └── SendFailed                                  all tries used up

`retriable` says whether the same call may work a moment later or on another broker, `refresh_route` whether the cached route is
suspect.  Both are facts of a class.  `SendError.maybe_stored` answers the question that matters after a failed send: can the message
lie on a broker all the same?

Source of the code numbers: remoting/…/protocol/ResponseCode.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from triomq.remoting import errors as remoting_errors
from triomq.remoting.protocol.codes import RequestCode, ResponseCode


class TrioMQError(Exception):
    """Root of all errors of the SDK."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False


class SettingsError(TrioMQError, ValueError):
    """A setting cannot be used."""


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
        return f"no name server answered ({tried}): check that mqnamesrv runs there and that the port is reachable"


class RouteNotFound(TrioMQError):
    """The name servers answer, but know no broker that has the topic."""

    retriable = True

    def __init__(self, topic: str, detail: str = "") -> None:
        super().__init__(topic, detail)
        self.topic = topic
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return (
            f"no broker offers topic {self.topic!r}{detail}: check the spelling, create it with `mqadmin updateTopic -t "
            f"{self.topic}`, or start a broker with autoCreateTopicEnable=true"
        )


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
            "(a broker announces it as brokerIP1)"
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


class BrokerError(TrioMQError):
    """A server's refusal.  `code` is RocketMQ's response code, `remark` the server's own words."""

    fix: ClassVar[str] = "the server's log may say more"

    def __init__(self, code: int, remark: str | None, broker: str = "", request: str = "") -> None:
        super().__init__(code, remark, broker, request)
        self.code = code
        self.remark = remark or ""
        self.broker = broker
        self.request = request

    def __str__(self) -> str:
        where = self.broker or "the server"
        request = f" {self.request}" if self.request else ""
        remark = self.remark or "no reason given"
        return f"{where} refused{request} with {self.code} {code_name(self.code)}: {remark} — {self.fix}"


class BrokerFailed(BrokerError):
    """SYSTEM_ERROR (1): the request ran into a fault inside the broker."""

    retriable = True
    fix = "look for the fault in the broker's log"


class BrokerBusy(BrokerError):
    """SYSTEM_BUSY (2): the broker sheds load."""

    retriable = True
    fix = "send more slowly, or add brokers"


class RequestNotSupported(BrokerError):
    """REQUEST_CODE_NOT_SUPPORTED (3)."""

    fix = "this server is too old or of another kind for the request"


class TransactionFailed(BrokerError):
    """TRANSACTION_FAILED (4)."""


class MessageRefused(BrokerError):
    """MESSAGE_ILLEGAL (13): too large, too many properties, or a field that the topic's type forbids."""

    fix = "send a smaller or a corrected message (limits: 4 MiB of body, 32,767 bytes of properties)"


class BrokerUnavailable(BrokerError):
    """SERVICE_NOT_AVAILABLE (14): the broker is stopping, a slave, or its disk is full."""

    retriable = True
    refresh_route = True
    fix = "see the broker's log; a full disk is the usual cause"


class VersionNotSupported(BrokerError):
    """VERSION_NOT_SUPPORTED (15)."""

    fix = "update the broker"


class PermissionDenied(BrokerError):
    """NO_PERMISSION (16): the topic, the group or the broker is closed for this, or the credentials do not allow it."""

    retriable = True
    fix = "check the topic's perm (`mqadmin topicRoute`), the broker's brokerPermission, and the credentials"


class TopicNotFound(BrokerError):
    """TOPIC_NOT_EXIST (17)."""

    retriable = True
    refresh_route = True
    fix = "create the topic with `mqadmin updateTopic`, or allow autoCreateTopicEnable on the broker"


class OffsetOutOfRange(BrokerError):
    """PULL_OFFSET_MOVED (21): the wanted offset is gone or does not exist yet."""

    fix = "seek to an offset between the queue's min and max"


class OffsetNotFound(BrokerError):
    """QUERY_NOT_FOUND (22): the group has no offset for this queue."""

    fix = "the group has not consumed this queue yet"


class SubscriptionInvalid(BrokerError):
    """SUBSCRIPTION_PARSE_FAILED (23)."""

    fix = "correct the filter expression"


class SubscriptionUnknown(BrokerError):
    """SUBSCRIPTION_NOT_EXIST (24): no heartbeat of this group has reached the broker yet."""

    retriable = True
    fix = "normal for a moment after a broker restart; otherwise compare the subscriptions of the group's members"


class SubscriptionOutdated(BrokerError):
    """SUBSCRIPTION_NOT_LATEST (25): the broker knows an older subscription than the one that asked."""

    retriable = True
    fix = "normal for a moment after a change of subscriptions"


class GroupNotFound(BrokerError):
    """SUBSCRIPTION_GROUP_NOT_EXIST (26)."""

    fix = "create the group with `mqadmin updateSubGroup`, or allow autoCreateSubscriptionGroup on the broker"


class ParameterInvalid(BrokerError):
    """INVALID_PARAMETER (29), for instance a queue id that the topic does not have."""

    refresh_route = True
    fix = "correct the argument; after a change of the topic's queues the route is refreshed by itself"


class GroupOffline(BrokerError):
    """CONSUMER_NOT_ONLINE (206)."""

    fix = "start a consumer of the group"


class FlowControl(BrokerError):
    """FLOW_CONTROL (215)."""

    retriable = True
    fix = "wait a little; the client does so by itself"


class NotLeader(BrokerError):
    """NOT_LEADER_FOR_QUEUE (501)."""

    retriable = True
    refresh_route = True
    fix = "the route is refreshed by itself"


class IllegalOperation(BrokerError):
    """ILLEGAL_OPERATION (604)."""


class BrokerStopping(BrokerError):
    """GO_AWAY (1500): the broker asks its clients to connect again, or elsewhere."""

    retriable = True
    refresh_route = True
    fix = "nothing to do: the client goes to another broker or comes back"


BROKER_ERRORS: Mapping[int, type[BrokerError]] = {
    ResponseCode.SYSTEM_ERROR: BrokerFailed,
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: RequestNotSupported,
    ResponseCode.TRANSACTION_FAILED: TransactionFailed,
    ResponseCode.MESSAGE_ILLEGAL: MessageRefused,
    ResponseCode.SERVICE_NOT_AVAILABLE: BrokerUnavailable,
    ResponseCode.VERSION_NOT_SUPPORTED: VersionNotSupported,
    ResponseCode.NO_PERMISSION: PermissionDenied,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.PULL_OFFSET_MOVED: OffsetOutOfRange,
    ResponseCode.QUERY_NOT_FOUND: OffsetNotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionInvalid,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionUnknown,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionOutdated,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.INVALID_PARAMETER: ParameterInvalid,
    ResponseCode.CONSUMER_NOT_ONLINE: GroupOffline,
    ResponseCode.FLOW_CONTROL: FlowControl,
    ResponseCode.NOT_LEADER_FOR_QUEUE: NotLeader,
    ResponseCode.ILLEGAL_OPERATION: IllegalOperation,
    ResponseCode.GO_AWAY: BrokerStopping,
}
"""Response code → class.  Codes that are not here stay a plain `BrokerError`."""


def broker_error(code: int, remark: str | None, broker: str = "", request: str = "") -> BrokerError:
    """Make the error of the class that belongs to `code`."""
    return BROKER_ERRORS.get(code, BrokerError)(code, remark, broker, request)


def code_name(code: int) -> str:
    """Return RocketMQ's name of a response code, or `unknown code`."""
    return next((member.name for member in ResponseCode if member.value == code), "unknown code")


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
