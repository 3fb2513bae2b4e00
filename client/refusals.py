"""What servers refuse: one class for each response code, with what to do about it.

The rest of the tree is in `client/errors.py`, which has all of these names, too.

Source of the code numbers: remoting/…/protocol/ResponseCode.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from triomq.remoting.protocol.codes import ResponseCode


class TrioMQError(Exception):
    """Root of all errors of the SDK."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False


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

    fix = "send the message again in a new transaction"


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
    fix = "create the topic with `mqadmin updateTopic -c CLUSTER -t TOPIC`, or allow autoCreateTopicEnable on the broker"


class OffsetOutOfRange(BrokerError):
    """PULL_OFFSET_MOVED (21): the wanted offset is gone or does not exist yet."""

    fix = "seek to an offset between the queue's min and max"


class OffsetNotFound(BrokerError):
    """QUERY_NOT_FOUND (22): the group has no offset for this queue."""

    fix = "the group has not consumed this queue yet"


class SubscriptionInvalid(BrokerError):
    """SUBSCRIPTION_PARSE_FAILED (23)."""

    fix = "correct the filter expression; SQL92 needs enablePropertyFilter=true on the broker"


class SubscriptionUnknown(BrokerError):
    """SUBSCRIPTION_NOT_EXIST (24): the broker knows no subscription of this group to this topic."""

    retriable = True
    fix = (
        "normal for a moment after a broker restart; otherwise members of the group have different subscriptions: give all of them the "
        "same topics and expressions, or use another group"
    )


class SubscriptionOutdated(BrokerError):
    """SUBSCRIPTION_NOT_LATEST (25): the broker knows an older subscription than the one that asked."""

    retriable = True
    fix = "normal for a moment after a change of subscriptions; otherwise the group's members have different ones: make them equal"


class GroupNotFound(BrokerError):
    """SUBSCRIPTION_GROUP_NOT_EXIST (26)."""

    fix = "create the group with `mqadmin updateSubGroup`, or allow autoCreateSubscriptionGroup on the broker"


class FilterUnknown(BrokerError):
    """FILTER_DATA_NOT_EXIST (27): the broker has no compiled filter of this group."""

    retriable = True
    fix = "normal for a moment after a broker restart: the next heartbeat brings the filter"


class FilterOutdated(BrokerError):
    """FILTER_DATA_NOT_LATEST (28): the broker has an older filter of this group."""

    retriable = True
    fix = "normal for a moment after a change of subscriptions; otherwise make the group's members subscribe the same"


class TopicExists(BrokerError):
    """TOPIC_EXIST_ALREADY (18)."""

    fix = "take the topic as it is, or choose another name"


class ParameterInvalid(BrokerError):
    """INVALID_PARAMETER (29), for instance a queue id that the topic does not have."""

    refresh_route = True
    fix = "correct the argument; after a change of the topic's queues the route is refreshed by itself"


class BuyerUnknown(BrokerError):
    """NO_BUYER_ID (204): a rule of a unitised deployment."""

    retriable = True
    fix = "another broker may take the message; check unit_name and the unit settings of the cluster"


class WrongUnit(BrokerError):
    """NOT_IN_CURRENT_UNIT (205): the broker belongs to another unit."""

    retriable = True
    refresh_route = True
    fix = "check unit_name and the unit settings of the cluster"


class GroupOffline(BrokerError):
    """CONSUMER_NOT_ONLINE (206)."""

    fix = "start a consumer of the group"


class ConsumerSilent(BrokerError):
    """CONSUME_MSG_TIMEOUT (207): a consumer was asked through its broker and did not answer in time."""

    retriable = True
    fix = "look at that consumer: its handlers may hang"


class MessageGone(BrokerError):
    """NO_MESSAGE (208): there is no such message to acknowledge or to change."""

    fix = "its invisible time is over, or somebody acknowledged it: it comes again, or is done"


class PollingFull(BrokerError):
    """POLLING_FULL (209): too many requests wait on the broker for new messages."""

    retriable = True
    fix = "wait a little; the client does so by itself"


class PollingTimeout(BrokerError):
    """POLLING_TIMEOUT (210): nothing came while the broker held the request."""

    retriable = True
    fix = "ask again"


class BrokerNotFound(BrokerError):
    """BROKER_NOT_EXIST (211)."""

    refresh_route = True
    fix = "check the broker's name and id"


class DispatchBehind(BrokerError):
    """BROKER_DISPATCH_NOT_COMPLETE (212): the broker still builds its queues from the log."""

    retriable = True
    fix = "wait until the broker has caught up"


class GroupBroadcasts(BrokerError):
    """BROADCAST_CONSUMPTION (213): a broadcasting group has no offsets on the broker."""

    fix = "ask the members themselves: each keeps its own offsets"


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
    """ILLEGAL_OPERATION (604): for instance a transaction that is over, or a delivery that is too late to recall."""

    fix = "look at the state of the message: what was asked for is not possible any more"


class ControllerRefused(BrokerError):
    """CONTROLLER_FENCED_MASTER_EPOCH (2000) and all codes of the controllers, 2001 to 2016."""

    retriable = True
    fix = "ask again: a controller election or a change of masters may be under way; otherwise see the controller's log"


class QueueQuotaExceeded(BrokerError):
    """LMQ_QUOTA_EXCEEDED (2017): no more light queues."""

    fix = "remove unused light queues, or raise the broker's limit"


class SubscriptionQuotaExceeded(BrokerError):
    """LITE_SUBSCRIPTION_QUOTA_EXCEEDED (2018): no more light subscriptions."""

    fix = "remove unused subscriptions, or raise the broker's limit"


class UserNotFound(BrokerError):
    """USER_NOT_EXIST (3001)."""

    fix = "create the user, or correct the name"


class PolicyNotFound(BrokerError):
    """POLICY_NOT_EXIST (3002)."""

    fix = "create the policy, or correct its subject and resource"


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
    ResponseCode.TOPIC_EXIST_ALREADY: TopicExists,
    ResponseCode.PULL_OFFSET_MOVED: OffsetOutOfRange,
    ResponseCode.QUERY_NOT_FOUND: OffsetNotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionInvalid,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionUnknown,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionOutdated,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    ResponseCode.INVALID_PARAMETER: ParameterInvalid,
    ResponseCode.FILTER_DATA_NOT_EXIST: FilterUnknown,
    ResponseCode.FILTER_DATA_NOT_LATEST: FilterOutdated,
    ResponseCode.NO_BUYER_ID: BuyerUnknown,
    ResponseCode.NOT_IN_CURRENT_UNIT: WrongUnit,
    ResponseCode.CONSUMER_NOT_ONLINE: GroupOffline,
    ResponseCode.CONSUME_MSG_TIMEOUT: ConsumerSilent,
    ResponseCode.NO_MESSAGE: MessageGone,
    ResponseCode.POLLING_FULL: PollingFull,
    ResponseCode.POLLING_TIMEOUT: PollingTimeout,
    ResponseCode.BROKER_NOT_EXIST: BrokerNotFound,
    ResponseCode.BROKER_DISPATCH_NOT_COMPLETE: DispatchBehind,
    ResponseCode.BROADCAST_CONSUMPTION: GroupBroadcasts,
    ResponseCode.FLOW_CONTROL: FlowControl,
    ResponseCode.NOT_LEADER_FOR_QUEUE: NotLeader,
    ResponseCode.ILLEGAL_OPERATION: IllegalOperation,
    ResponseCode.GO_AWAY: BrokerStopping,
    **{code: ControllerRefused for code in ResponseCode if code.name.startswith("CONTROLLER_")},
    ResponseCode.LMQ_QUOTA_EXCEEDED: QueueQuotaExceeded,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: SubscriptionQuotaExceeded,
    ResponseCode.USER_NOT_EXIST: UserNotFound,
    ResponseCode.POLICY_NOT_EXIST: PolicyNotFound,
}
"""Response code → class.  Codes that are not here stay a plain `BrokerError`: successes, results of pulls, and codes that no server sends."""


def broker_error(code: int, remark: str | None, broker: str = "", request: str = "") -> BrokerError:
    """Make the error of the class that belongs to `code`."""
    return BROKER_ERRORS.get(code, BrokerError)(code, remark, broker, request)


def code_name(code: int) -> str:
    """Return RocketMQ's name of a response code, or `unknown code`."""
    return next((member.name for member in ResponseCode if member.value == code), "unknown code")
