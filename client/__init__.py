"""The SDK: `Producer`, `PushConsumer`, `PullConsumer`, and what they take, return and raise.

Names are loaded on first use, so that tools which need a part (the command line, Spark's workers) do not load the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.config import (
        ClientSettings,
        ConsumerSettings,
        ProducerSettings,
    )
    from triomq.client.consumer.allocation import (
        Allocation,
        allocate_average,
        allocate_circle,
        allocate_config,
        allocate_consistent_hash,
        allocate_machine_room,
        allocate_machine_room_nearby,
    )
    from triomq.client.consumer.counts import TopicRates
    from triomq.client.consumer.delivery import (
        BatchHandler,
        Handler,
    )
    from triomq.client.consumer.offsets import ConsumeFrom
    from triomq.client.consumer.pull import PullConsumer
    from triomq.client.consumer.push import (
        ConsumerStatistics,
        PushConsumer,
    )
    from triomq.client.consumer.rebalance import AssignmentChange
    from triomq.client.consumer.received import ReceivedMessage
    from triomq.client.consumer.subscribing import (
        Sql,
        Subscriptions,
    )
    from triomq.client.errors import (
        AlreadySettled,
        Attempt,
        BatchIncomplete,
        BrokerBusy,
        BrokerError,
        BrokerFailed,
        BrokerNotFound,
        BrokerStopping,
        BrokerUnavailable,
        BuyerUnknown,
        CallTimeout,
        ConnectionFailed,
        ConnectionLost,
        ConsumerSilent,
        ControllerRefused,
        DispatchBehind,
        FilterOutdated,
        FilterUnknown,
        FlowControl,
        ForkDetected,
        GroupBroadcasts,
        GroupNotFound,
        GroupOffline,
        HandlerInvalid,
        IllegalOperation,
        MessageGone,
        MessageInvalid,
        MessageRefused,
        NoNameServer,
        NotLeader,
        NotRunning,
        OffsetNotFound,
        OffsetOutOfRange,
        ParameterInvalid,
        PermissionDenied,
        PolicyNotFound,
        PollingFull,
        PollingTimeout,
        ProtocolBroken,
        QueueNotAssigned,
        QueueQuotaExceeded,
        RequestNotSupported,
        RequestTimeout,
        RouteNotFound,
        SendError,
        SendFailed,
        SendTimeout,
        SettingsError,
        SubscriptionInvalid,
        SubscriptionOutdated,
        SubscriptionQuotaExceeded,
        SubscriptionUnknown,
        TopicExists,
        TopicInvalid,
        TopicNotFound,
        TransactionFailed,
        TrioMQError,
        UserNotFound,
        VersionNotSupported,
        WrongUnit,
    )
    from triomq.client.hooks import (
        ConsumeContext,
        ConsumeHook,
        SendContext,
        SendHook,
    )
    from triomq.client.producer.producer import Producer
    from triomq.client.producer.queue_choice import (
        Selector,
        select_by_go_hash,
        select_by_hash,
        select_by_machine_room,
        select_by_random,
    )
    from triomq.client.producer.receipt import (
        SendReceipt,
        SendStatus,
    )
    from triomq.client.retry import BusyBackoff
    from triomq.remoting.client.hooks import RpcHook
    from triomq.remoting.protocol.bodies.route import MessageQueue
    from triomq.remoting.protocol.codes import SerializeType
    from triomq.remoting.protocol.compression import Compression
    from triomq.remoting.protocol.message import Message
    from triomq.remoting.protocol.signing import Credentials
    from triomq.remoting.tls.client import Tls

__all__ = [
    "Admin",
    "Allocation",
    "AlreadySettled",
    "AssignmentChange",
    "Attempt",
    "BatchHandler",
    "BatchIncomplete",
    "BrokerBusy",
    "BrokerError",
    "BrokerFailed",
    "BrokerNotFound",
    "BrokerStopping",
    "BrokerUnavailable",
    "BusyBackoff",
    "BuyerUnknown",
    "CallTimeout",
    "ClientSettings",
    "Compression",
    "ConnectionFailed",
    "ConnectionLost",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeHook",
    "ConsumerSettings",
    "ConsumerSilent",
    "ConsumerStatistics",
    "ControllerRefused",
    "Credentials",
    "DispatchBehind",
    "FilterOutdated",
    "FilterUnknown",
    "FlowControl",
    "ForkDetected",
    "GroupBroadcasts",
    "GroupNotFound",
    "GroupOffline",
    "Handler",
    "HandlerInvalid",
    "IllegalOperation",
    "Message",
    "MessageGone",
    "MessageInvalid",
    "MessageQueue",
    "MessageRefused",
    "NoNameServer",
    "NotLeader",
    "NotRunning",
    "OffsetNotFound",
    "OffsetOutOfRange",
    "ParameterInvalid",
    "PermissionDenied",
    "PolicyNotFound",
    "PollingFull",
    "PollingTimeout",
    "Producer",
    "ProducerSettings",
    "ProtocolBroken",
    "PullConsumer",
    "PushConsumer",
    "QueueNotAssigned",
    "QueueQuotaExceeded",
    "ReceivedMessage",
    "RequestNotSupported",
    "RequestTimeout",
    "RouteNotFound",
    "RpcHook",
    "Selector",
    "SendContext",
    "SendError",
    "SendFailed",
    "SendHook",
    "SendReceipt",
    "SendStatus",
    "SendTimeout",
    "SerializeType",
    "SettingsError",
    "Sql",
    "SubscriptionInvalid",
    "SubscriptionOutdated",
    "SubscriptionQuotaExceeded",
    "SubscriptionUnknown",
    "Subscriptions",
    "Tls",
    "TopicExists",
    "TopicInvalid",
    "TopicNotFound",
    "TopicRates",
    "TransactionFailed",
    "TrioMQError",
    "UserNotFound",
    "VersionNotSupported",
    "WrongUnit",
    "allocate_average",
    "allocate_circle",
    "allocate_config",
    "allocate_consistent_hash",
    "allocate_machine_room",
    "allocate_machine_room_nearby",
    "select_by_go_hash",
    "select_by_hash",
    "select_by_machine_room",
    "select_by_random",
]

_HOMES = {
    "Admin": "triomq.client.admin.admin",
    "Allocation": "triomq.client.consumer.allocation",
    "AssignmentChange": "triomq.client.consumer.rebalance",
    "BatchHandler": "triomq.client.consumer.delivery",
    "BusyBackoff": "triomq.client.retry",
    "ClientSettings": "triomq.client.config",
    "Compression": "triomq.remoting.protocol.compression",
    "ConsumeContext": "triomq.client.hooks",
    "ConsumeFrom": "triomq.client.consumer.offsets",
    "ConsumeHook": "triomq.client.hooks",
    "ConsumerSettings": "triomq.client.config",
    "ConsumerStatistics": "triomq.client.consumer.push",
    "Credentials": "triomq.remoting.protocol.signing",
    "Handler": "triomq.client.consumer.delivery",
    "Message": "triomq.remoting.protocol.message",
    "MessageQueue": "triomq.remoting.protocol.bodies.route",
    "Producer": "triomq.client.producer.producer",
    "ProducerSettings": "triomq.client.config",
    "PullConsumer": "triomq.client.consumer.pull",
    "PushConsumer": "triomq.client.consumer.push",
    "ReceivedMessage": "triomq.client.consumer.received",
    "RpcHook": "triomq.remoting.client.hooks",
    "Selector": "triomq.client.producer.queue_choice",
    "SendContext": "triomq.client.hooks",
    "SendHook": "triomq.client.hooks",
    "SendReceipt": "triomq.client.producer.receipt",
    "SendStatus": "triomq.client.producer.receipt",
    "SerializeType": "triomq.remoting.protocol.codes",
    "Sql": "triomq.client.consumer.subscribing",
    "Subscriptions": "triomq.client.consumer.subscribing",
    "Tls": "triomq.remoting.tls.client",
    "TopicRates": "triomq.client.consumer.counts",
    "allocate_average": "triomq.client.consumer.allocation",
    "allocate_circle": "triomq.client.consumer.allocation",
    "allocate_config": "triomq.client.consumer.allocation",
    "allocate_consistent_hash": "triomq.client.consumer.allocation",
    "allocate_machine_room": "triomq.client.consumer.allocation",
    "allocate_machine_room_nearby": "triomq.client.consumer.allocation",
    "select_by_go_hash": "triomq.client.producer.queue_choice",
    "select_by_hash": "triomq.client.producer.queue_choice",
    "select_by_machine_room": "triomq.client.producer.queue_choice",
    "select_by_random": "triomq.client.producer.queue_choice",
}
"""Where each public name is defined; the errors have one home."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "triomq.client.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
