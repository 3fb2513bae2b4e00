"""Refusals of servers: one error class for each response code, with the way out.

``client/core/errors.py`` has the other errors of the SDK, and exports all names of this module.

Source of the code numbers: remoting/…/protocol/ResponseCode.java.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from triomq.remoting.protocol.codes import ResponseCode

E = TypeVar("E", bound=BaseException)

REPR_MAX = 300
"""Maximum number of characters of an error's text in its repr."""


class TrioMQError(Exception):
    """Base class of all errors of the SDK."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False

    def __repr__(self) -> str:
        """Return the class and the text, shortened: arguments may hold thousands of receipts."""
        text = str(self)
        return (
            f"<{type(self).__name__}: {text if len(text) <= REPR_MAX else f'{text[:REPR_MAX]}…'}>"
        )


_NO_REASON = "no reason given"


def shorten(error: E) -> E:
    """Remove the traceback of an expected error, which then begins where it is raised next."""
    if isinstance(error, TrioMQError):
        error.__traceback__ = None
    return error


BROKER_ERRORS: dict[int, type[BrokerError]] = {}
"""Response code → class; other codes (results of pulls, for example) give a ``BrokerError``."""


class BrokerError(TrioMQError):
    """A refusal by a server: RocketMQ's response ``code`` and the server's ``remark``."""

    fix: ClassVar[str] = "the server's log may say more"
    fixes: ClassVar[dict[str, str]] = {}
    """Word in the request's name or in the remark → another way out than ``fix``."""

    def __init_subclass__(cls, *, code: int | None = None, **kwargs: object) -> None:
        """Register the class for the refusals with ``code``."""
        super().__init_subclass__(**kwargs)
        if code is not None:
            BROKER_ERRORS[code] = cls

    def __init__(self, code: int, remark: str | None, broker: str = "", request: str = "") -> None:
        super().__init__(code, remark, broker, request)
        self.code = code
        self.remark = remark or ""
        self.broker = broker
        self.request = request

    def __str__(self) -> str:
        where = self.broker or "the server"
        request = f" {self.request}" if self.request else ""
        remark = self.remark or _NO_REASON
        said = f"{request} {remark}".lower()
        fix = next((fix for word, fix in self.fixes.items() if word in said), self.fix)
        return f"{where} refused{request} with {self.code} {code_name(self.code)}: {remark} — {fix}"


_NO_CREDENTIALS = "sign the request: --credentials FILE of mqadmin, or TRIOMQ_CREDENTIALS=FILE"
_CALLER_UNKNOWN = (
    "that is the caller, the accessKey of the credentials: correct it, or let an administrator"
    " create the user at this broker"
)
_WRONG_KEY = "the secretKey of the credentials is not that of the user: correct it"


class BrokerFailed(BrokerError, code=ResponseCode.SYSTEM_ERROR):
    """SYSTEM_ERROR (1): the request failed inside the broker."""

    retriable = True
    fix = "see the broker's log for the cause"
    fixes: ClassVar = {
        "no acl config for": _CALLER_UNKNOWN,
        "no accesskey is configured": _NO_CREDENTIALS,
        "check signature failed": _WRONG_KEY,
        **dict.fromkeys(
            (" update_broker_config", " update_namesrv_config"),
            "correct the setting as the server says; nothing was changed",
        ),
    }


class BrokerBusy(BrokerError, code=ResponseCode.SYSTEM_BUSY):
    """SYSTEM_BUSY (2): the broker sheds load, or is a slave that may not be read."""

    retriable = True
    fix = (
        "send more slowly, or add brokers; a slave answers pulls so ([REJECTREQUEST]) unless it has"
        " slaveReadEnable=true"
    )


class RequestNotSupported(BrokerError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """REQUEST_CODE_NOT_SUPPORTED (3)."""

    fix = "this server is too old or of another kind for the request"
    fixes: ClassVar = {
        "get_routeinfo": "this is a broker: give the address of a name server, port 9876"
    }


class TransactionFailed(BrokerError, code=ResponseCode.TRANSACTION_FAILED):
    """TRANSACTION_FAILED (4)."""

    fix = "send the message again in a new transaction"


class MessageRefused(BrokerError, code=ResponseCode.MESSAGE_ILLEGAL):
    """MESSAGE_ILLEGAL (13): the message breaks a rule of the broker or the topic.

    It is too large, has too many properties, or a field that the topic's type forbids.
    """

    fix = "correct the request as the broker says"
    fixes: ClassVar = {
        "timer message": "choose an earlier time of delivery, or raise timerMaxDelaySec",
        **dict.fromkeys(
            ("body", "bytes", "length", "too l", _NO_REASON),
            "send a smaller or a corrected message (limits, unless maxMessageSize says otherwise:"
            " 4 MiB of body, 32,767 bytes of properties)",
        ),
    }


class BrokerUnavailable(BrokerError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """SERVICE_NOT_AVAILABLE (14): the broker is stopping, a slave, or its disk is full."""

    retriable = True
    refresh_route = True
    fix = "see the broker's log; a full disk is the usual cause"


class VersionNotSupported(BrokerError, code=ResponseCode.VERSION_NOT_SUPPORTED):
    """VERSION_NOT_SUPPORTED (15)."""

    fix = "update the broker"


class PermissionDenied(BrokerError, code=ResponseCode.NO_PERMISSION):
    """NO_PERMISSION (16): topic, group or broker do not allow this, or the credentials do not."""

    retriable = True
    fix = (
        "check the topic's perm (`mqadmin topic route`), the broker's brokerPermission, and the"
        " credentials"
    )
    fixes: ClassVar = {
        "is not found.": _CALLER_UNKNOWN,
        "username cannot be null": _NO_CREDENTIALS,
        "check signature failed": _WRONG_KEY,
        "is disabled.": "an administrator enables the user: `mqadmin user update -s enable`",
        "no matched policies": "`mqadmin can` explains the rule, `mqadmin acl create` makes one",
        "adminaddresses": "the administrator of the cluster keeps that list in the server's file",
        "recall": "set recallMessageEnable=true on the broker (`mqadmin broker set`)",
        "subscription group": (
            "let the group consume: `mqadmin group update -c CLUSTER -g GROUP -s true`"
        ),
    }


class TopicNotFound(BrokerError, code=ResponseCode.TOPIC_NOT_EXIST):
    """TOPIC_NOT_EXIST (17)."""

    retriable = True
    refresh_route = True
    fix = (
        "create the topic with `mqadmin topic create -c CLUSTER -t TOPIC`, or allow"
        " autoCreateTopicEnable on the broker"
    )


class OffsetOutOfRange(BrokerError, code=ResponseCode.PULL_OFFSET_MOVED):
    """PULL_OFFSET_MOVED (21): the offset is no longer or not yet in the queue."""

    fix = "seek to an offset between the queue's min and max"


class OffsetNotFound(BrokerError, code=ResponseCode.QUERY_NOT_FOUND):
    """QUERY_NOT_FOUND (22): the group has no offset for this queue."""

    fix = "the group has not consumed this queue yet"


class SubscriptionInvalid(BrokerError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """SUBSCRIPTION_PARSE_FAILED (23)."""

    fix = "correct the filter expression; SQL92 needs enablePropertyFilter=true on the broker"


class SubscriptionUnknown(BrokerError, code=ResponseCode.SUBSCRIPTION_NOT_EXIST):
    """SUBSCRIPTION_NOT_EXIST (24): the broker has no subscription of this group to this topic."""

    retriable = True
    fix = (
        "normal for a moment after a broker restart; otherwise members of the group have different"
        " subscriptions: give all of them the same topics and expressions, or use another group"
    )


class SubscriptionOutdated(BrokerError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """SUBSCRIPTION_NOT_LATEST (25): the broker has an older subscription than this one."""

    retriable = True
    fix = (
        "normal for a moment after a change of subscriptions; otherwise the group's members have"
        " different ones: make them equal"
    )


class GroupNotFound(BrokerError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """SUBSCRIPTION_GROUP_NOT_EXIST (26)."""

    fix = (
        "create the group with `mqadmin group create`, or allow autoCreateSubscriptionGroup on"
        " the broker"
    )


class FilterUnknown(BrokerError, code=ResponseCode.FILTER_DATA_NOT_EXIST):
    """FILTER_DATA_NOT_EXIST (27): the broker has no compiled filter of this group."""

    retriable = True
    fix = "normal for a moment after a broker restart: the next heartbeat brings the filter"


class FilterOutdated(BrokerError, code=ResponseCode.FILTER_DATA_NOT_LATEST):
    """FILTER_DATA_NOT_LATEST (28): the broker has an older filter of this group."""

    retriable = True
    fix = (
        "normal for a moment after a change of subscriptions; otherwise make the group's members"
        " subscribe the same"
    )


class TopicExists(BrokerError, code=ResponseCode.TOPIC_EXIST_ALREADY):
    """TOPIC_EXIST_ALREADY (18)."""

    fix = "take the topic as it is, or choose another name"


class ParameterInvalid(BrokerError, code=ResponseCode.INVALID_PARAMETER):
    """INVALID_PARAMETER (29), for instance a queue id that the topic does not have."""

    refresh_route = True
    fix = (
        "correct the argument; after a change of the topic's queues the client refreshes the route"
    )


class BuyerUnknown(BrokerError, code=ResponseCode.NO_BUYER_ID):
    """NO_BUYER_ID (204): a rule of a unitised deployment."""

    retriable = True
    fix = (
        "another broker may take the message; check unit_name and the unit settings of the cluster"
    )


class WrongUnit(BrokerError, code=ResponseCode.NOT_IN_CURRENT_UNIT):
    """NOT_IN_CURRENT_UNIT (205): the broker belongs to another unit."""

    retriable = True
    refresh_route = True
    fix = "check unit_name and the unit settings of the cluster"


class GroupOffline(BrokerError, code=ResponseCode.CONSUMER_NOT_ONLINE):
    """CONSUMER_NOT_ONLINE (206)."""

    fix = "start a consumer of the group"


class ConsumerSilent(BrokerError, code=ResponseCode.CONSUME_MSG_TIMEOUT):
    """CONSUME_MSG_TIMEOUT (207): a consumer did not answer its broker in time."""

    retriable = True
    fix = "check that consumer: its handlers may hang"


class MessageGone(BrokerError, code=ResponseCode.NO_MESSAGE):
    """NO_MESSAGE (208): the message to acknowledge or to change does not exist."""

    fix = "its invisible time is over and it comes again, or another consumer acknowledged it"


class PollingFull(BrokerError, code=ResponseCode.POLLING_FULL):
    """POLLING_FULL (209): too many requests wait on the broker for new messages."""

    retriable = True
    fix = "none needed: the client waits and asks again"


class PollingTimeout(BrokerError, code=ResponseCode.POLLING_TIMEOUT):
    """POLLING_TIMEOUT (210): no message came while the broker held the request."""

    retriable = True
    fix = "ask again"


class BrokerNotFound(BrokerError, code=ResponseCode.BROKER_NOT_EXIST):
    """BROKER_NOT_EXIST (211)."""

    refresh_route = True
    fix = "check the broker's name and id"


class DispatchBehind(BrokerError, code=ResponseCode.BROKER_DISPATCH_NOT_COMPLETE):
    """BROKER_DISPATCH_NOT_COMPLETE (212): the broker still builds its queues from the log."""

    retriable = True
    fix = "wait until the broker has caught up"


class GroupBroadcasts(BrokerError, code=ResponseCode.BROADCAST_CONSUMPTION):
    """BROADCAST_CONSUMPTION (213): a broadcasting group has no offsets on the broker."""

    fix = "ask the members themselves: each keeps its own offsets"


class FlowControl(BrokerError, code=ResponseCode.FLOW_CONTROL):
    """FLOW_CONTROL (215)."""

    retriable = True
    fix = "none needed: the client waits and asks again"


class NotLeader(BrokerError, code=ResponseCode.NOT_LEADER_FOR_QUEUE):
    """NOT_LEADER_FOR_QUEUE (501)."""

    retriable = True
    refresh_route = True
    fix = "none needed: the client refreshes the route"


class IllegalOperation(BrokerError, code=ResponseCode.ILLEGAL_OPERATION):
    """ILLEGAL_OPERATION (604): the message's state does not allow the operation.

    For example the transaction is over, or it is too late to recall the message.
    """

    fix = "check the state of the message: the operation is not possible any more"


class ControllerRefused(BrokerError):
    """CONTROLLER_FENCED_MASTER_EPOCH (2000) and all codes of the controllers, 2001 to 2016."""

    retriable = True
    fix = "try again: the controller or a master may be changing; otherwise see its log"


BROKER_ERRORS.update(
    {code: ControllerRefused for code in ResponseCode if code.name.startswith("CONTROLLER_")}
)


class QueueQuotaExceeded(BrokerError, code=ResponseCode.LMQ_QUOTA_EXCEEDED):
    """LMQ_QUOTA_EXCEEDED (2017): no more light queues."""

    fix = "remove unused light queues, or raise the broker's limit"


class SubscriptionQuotaExceeded(BrokerError, code=ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED):
    """LITE_SUBSCRIPTION_QUOTA_EXCEEDED (2018): no more light subscriptions."""

    fix = "remove unused subscriptions, or raise the broker's limit"


class UserNotFound(BrokerError, code=ResponseCode.USER_NOT_EXIST):
    """USER_NOT_EXIST (3001)."""

    fix = "create the user, or correct the name"


class PolicyNotFound(BrokerError, code=ResponseCode.POLICY_NOT_EXIST):
    """POLICY_NOT_EXIST (3002)."""

    fix = "create the policy, or correct its subject and resource"


class BrokerStopping(BrokerError, code=ResponseCode.GO_AWAY):
    """GO_AWAY (1500): the broker tells its clients to connect again, or elsewhere."""

    retriable = True
    refresh_route = True
    fix = "none needed: the client uses another broker or connects again"


class TimersUnavailable(BrokerError):
    """The broker delivers no messages at a given time.

    With SYSTEM_ERROR (1) its timers are switched off and the message is not stored. With
    VERSION_NOT_SUPPORTED (15) it is older than release 5.0 and has delivered the message at once.
    """

    fix = "use delay_level, or a broker of release 5.0 or later with timerWheelEnable=true"


_NO_TIMERS = "timerWheelEnable is false"
"""In the remark of a broker whose timers are switched off."""


def broker_error(code: int, remark: str | None, broker: str = "", request: str = "") -> BrokerError:
    """Return an error of the class of ``code``."""
    if code == ResponseCode.SYSTEM_ERROR and remark and _NO_TIMERS in remark:
        return TimersUnavailable(code, remark, broker, request)
    return BROKER_ERRORS.get(code, BrokerError)(code, remark, broker, request)


def code_name(code: int) -> str:
    """Return RocketMQ's name of a response code, or ``unknown code``."""
    return next((member.name for member in ResponseCode if member.value == code), "unknown code")
