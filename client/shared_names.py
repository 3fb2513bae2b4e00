# ruff: noqa: F405 - the errors are in the list of all names, not in an import of each
"""The names of the SDK that ``triomq``, ``triomq.sync`` and ``triomq.aio`` share, and their homes.

Names are loaded on first use, so that tools which need a part (the command line, Spark's workers)
do not load the rest.
"""

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triomq.client.admin.answers import Answers
    from triomq.client.admin.broker_address import BrokerAddress
    from triomq.client.admin.cleaning import Cleaning
    from triomq.client.admin.errors import (
        BrokerMissing,
        ClusterNotFound,
        NoBrokerAnswered,
        TraceTopicMissing,
    )
    from triomq.client.admin.missing_brokers import BrokerLeft
    from triomq.client.admin.traces import MessageHistory
    from triomq.client.core.config import (
        ClientSettings,
        ConsumerSettings,
        ProducerSettings,
        TracerProvider,
    )
    from triomq.client.core.errors import *  # noqa: F403
    from triomq.client.core.message_hooks import (
        CheckForbidden,
        ConsumeContext,
        ConsumeHook,
        SendContext,
        SendHook,
    )
    from triomq.client.core.retry import BusyBackoff
    from triomq.client.core.trace_records import ConsumeOutcome, TracedKind
    from triomq.client.idempotency.claims import Busy, Done, Held, OnceStore, TransactionalOnceStore
    from triomq.client.idempotency.guard import KeyOf, OnceStatistics
    from triomq.client.idempotency.postgresql_store import PostgresqlOnceStore
    from triomq.client.idempotency.redis_store import RedisOnceStore
    from triomq.client.idempotency.sqlite_store import SqliteOnceStore
    from triomq.client.receiving.allocation import (
        Allocation,
        RoomOfMember,
        RoomOfQueue,
        allocate_average,
        allocate_circle,
        allocate_config,
        allocate_consistent_hash,
        allocate_machine_room,
        allocate_machine_room_nearby,
    )
    from triomq.client.receiving.body_codec import BodyCodec, json_codec
    from triomq.client.receiving.member_spec import AssignmentChange
    from triomq.client.receiving.message_view import MessageView
    from triomq.client.receiving.offsets import ConsumeFrom, Start
    from triomq.client.receiving.pop.durations import Duration
    from triomq.client.receiving.rates import TopicRates
    from triomq.client.receiving.subscribing import Sql, Subscriptions
    from triomq.client.requests.reply_message import ReplyMessage
    from triomq.client.requests.requests import RequestStatistics
    from triomq.client.sdk.push_consumer import ConsumerStatistics, Mode
    from triomq.client.sending.queue_choice import (
        Selector,
        select_by_go_hash,
        select_by_hash,
        select_by_machine_room,
        select_by_random,
    )
    from triomq.client.sending.receipt import SendReceipt, SendStatus
    from triomq.client.trace.trace_events import TraceEvent
    from triomq.client.transactions.checked_message import CheckedMessage, CheckHandler
    from triomq.client.transactions.local import LocalWork, TransactionResult
    from triomq.client.transactions.outcomes import TransactionOutcome
    from triomq.remoting.client.rpc_hooks import RpcHook
    from triomq.remoting.core.config_error import ConfigError
    from triomq.remoting.protocol.bodies.cluster import ClusterTable
    from triomq.remoting.protocol.bodies.groups import (
        ConsumerConnection,
        ProducerConnection,
        SubscriptionGroupConfig,
    )
    from triomq.remoting.protocol.bodies.offsets import ConsumeStats, TopicStats
    from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
    from triomq.remoting.protocol.bodies.topics import TopicConfig
    from triomq.remoting.protocol.codes import RequestCode, SerializeType
    from triomq.remoting.protocol.command import Command
    from triomq.remoting.protocol.compression import Compression
    from triomq.remoting.protocol.message import Message
    from triomq.remoting.protocol.record import StoredMessage
    from triomq.remoting.protocol.signing import Credentials
    from triomq.remoting.tls.client import Tls

__all__ = [
    "Allocation",
    "AlreadySettled",
    "Answers",
    "AssignmentChange",
    "Attempt",
    "BatchIncomplete",
    "BodyCodec",
    "BrokerAddress",
    "BrokerBusy",
    "BrokerError",
    "BrokerFailed",
    "BrokerLeft",
    "BrokerMissing",
    "BrokerNotFound",
    "BrokerStopping",
    "BrokerUnavailable",
    "Busy",
    "BusyBackoff",
    "BuyerUnknown",
    "CallTimeout",
    "CheckForbidden",
    "CheckHandler",
    "CheckedMessage",
    "ClaimBusy",
    "ClaimLost",
    "Cleaning",
    "ClientSettings",
    "ClusterNotFound",
    "ClusterTable",
    "Command",
    "Compression",
    "ConfigError",
    "ConnectionFailed",
    "ConnectionLost",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeHook",
    "ConsumeOutcome",
    "ConsumeStats",
    "ConsumerConnection",
    "ConsumerSettings",
    "ConsumerSilent",
    "ConsumerStatistics",
    "ControllerRefused",
    "Credentials",
    "DispatchBehind",
    "Done",
    "Duration",
    "FilterOutdated",
    "FilterUnknown",
    "FlowControl",
    "ForkDetected",
    "GroupBroadcasts",
    "GroupNotFound",
    "GroupOffline",
    "HandlerInvalid",
    "Held",
    "IllegalOperation",
    "KeyOf",
    "LocalWork",
    "Message",
    "MessageGone",
    "MessageHistory",
    "MessageInvalid",
    "MessageQueue",
    "MessageRefused",
    "MessageView",
    "MissingBroker",
    "Mode",
    "NoBrokerAnswered",
    "NoBrokerRegistered",
    "NoNameServer",
    "NotARequest",
    "NotLeader",
    "NotRunning",
    "OffsetNotFound",
    "OffsetOutOfRange",
    "OnceStatistics",
    "OnceStore",
    "OnceStoreFailed",
    "ParameterInvalid",
    "PermissionDenied",
    "PolicyNotFound",
    "PollingFull",
    "PollingTimeout",
    "PostgresqlOnceStore",
    "ProducerConnection",
    "ProducerSettings",
    "ProtocolBroken",
    "QueueNotAssigned",
    "QueueQuotaExceeded",
    "ReceiptExpired",
    "RedisOnceStore",
    "ReplyMessage",
    "ReplyNotDelivered",
    "ReplyTimeout",
    "RequestCode",
    "RequestNotSupported",
    "RequestStatistics",
    "RequestTimeout",
    "RoomOfMember",
    "RoomOfQueue",
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
    "SqliteOnceStore",
    "Start",
    "StoredMessage",
    "SubscriptionGroupConfig",
    "SubscriptionInvalid",
    "SubscriptionOutdated",
    "SubscriptionQuotaExceeded",
    "SubscriptionUnknown",
    "Subscriptions",
    "TimersUnavailable",
    "Tls",
    "TooManyKeys",
    "TopicConfig",
    "TopicExists",
    "TopicInvalid",
    "TopicNotFound",
    "TopicRates",
    "TopicRoute",
    "TopicStats",
    "TraceEvent",
    "TraceTopicMissing",
    "TracedKind",
    "TracerProvider",
    "TransactionFailed",
    "TransactionOutcome",
    "TransactionResult",
    "TransactionalOnceStore",
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
    "json_codec",
    "select_by_go_hash",
    "select_by_hash",
    "select_by_machine_room",
    "select_by_random",
]

_MODULES = {
    "triomq.client.admin.broker_address": "BrokerAddress",
    "triomq.client.admin.missing_brokers": "BrokerLeft MissingBroker",
    "triomq.client.admin.answers": "Answers",
    "triomq.client.admin.cleaning": "Cleaning",
    "triomq.client.admin.errors": (
        "BrokerMissing ClusterNotFound NoBrokerAnswered TraceTopicMissing"
    ),
    "triomq.client.admin.traces": "MessageHistory",
    "triomq.client.core.config": "ClientSettings ConsumerSettings ProducerSettings TracerProvider",
    "triomq.client.receiving.allocation": (
        "Allocation RoomOfMember RoomOfQueue allocate_average allocate_circle "
        "allocate_config allocate_consistent_hash allocate_machine_room "
        "allocate_machine_room_nearby"
    ),
    "triomq.client.receiving.body_codec": "BodyCodec json_codec",
    "triomq.client.receiving.member_spec": "AssignmentChange",
    "triomq.client.receiving.message_view": "MessageView",
    "triomq.client.receiving.offsets": "ConsumeFrom Start",
    "triomq.client.receiving.pop.durations": "Duration",
    "triomq.client.sdk.push_consumer": "ConsumerStatistics Mode",
    "triomq.client.receiving.rates": "TopicRates",
    "triomq.client.receiving.subscribing": "Sql Subscriptions",
    "triomq.client.idempotency.claims": "Busy Done Held OnceStore TransactionalOnceStore",
    "triomq.client.idempotency.guard": "KeyOf OnceStatistics",
    "triomq.client.idempotency.postgresql_store": "PostgresqlOnceStore",
    "triomq.client.idempotency.redis_store": "RedisOnceStore",
    "triomq.client.idempotency.sqlite_store": "SqliteOnceStore",
    "triomq.client.core.message_hooks": (
        "CheckForbidden ConsumeContext ConsumeHook SendContext SendHook"
    ),
    "triomq.client.sending.queue_choice": (
        "Selector select_by_go_hash select_by_hash select_by_machine_room select_by_random"
    ),
    "triomq.client.sending.receipt": "SendReceipt SendStatus",
    "triomq.client.requests.reply_message": "ReplyMessage",
    "triomq.client.requests.requests": "RequestStatistics",
    "triomq.client.core.retry": "BusyBackoff",
    "triomq.client.trace.trace_events": "TraceEvent",
    "triomq.client.core.trace_records": "ConsumeOutcome TracedKind",
    "triomq.client.transactions.checked_message": "CheckHandler CheckedMessage",
    "triomq.client.transactions.local": "LocalWork TransactionResult",
    "triomq.client.transactions.outcomes": "TransactionOutcome",
    "triomq.remoting.client.rpc_hooks": "RpcHook",
    "triomq.remoting.protocol.bodies.cluster": "ClusterTable",
    "triomq.remoting.protocol.bodies.groups": (
        "ConsumerConnection ProducerConnection SubscriptionGroupConfig"
    ),
    "triomq.remoting.protocol.bodies.offsets": "ConsumeStats TopicStats",
    "triomq.remoting.protocol.bodies.route": "MessageQueue TopicRoute",
    "triomq.remoting.protocol.bodies.topics": "TopicConfig",
    "triomq.remoting.protocol.codes": "RequestCode SerializeType",
    "triomq.remoting.protocol.command": "Command",
    "triomq.remoting.protocol.compression": "Compression",
    "triomq.remoting.protocol.message": "Message",
    "triomq.remoting.protocol.record": "StoredMessage",
    "triomq.remoting.protocol.signing": "Credentials",
    "triomq.remoting.core.config_error": "ConfigError",
    "triomq.remoting.tls.client": "Tls",
}
HOMES = dict.fromkeys(__all__, "triomq.client.core.errors")
"""Public name → the module that defines it."""
HOMES |= {name: module for module, names in _MODULES.items() for name in names.split()}


def load(package: str, homes: Mapping[str, str], name: str) -> object:
    """Return a public name of a package, and keep it there.

    Raises: AttributeError.
    """
    module = sys.modules[package]
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
    value = getattr(importlib.import_module(homes[name]), name)
    setattr(module, name, value)
    return value


def __getattr__(name: str) -> object:
    return load(__name__, HOMES, name)
