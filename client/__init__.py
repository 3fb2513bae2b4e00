# ruff: noqa: F405 - the errors are in the list of all names, not in an import of each
"""The SDK: ``Producer``, consumers, ``Admin``, and what they take, return and raise.

Names are loaded on first use, so that tools which need a part (the command line, Spark's workers)
do not load the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.config import ClientSettings, ConsumerSettings, ProducerSettings
    from triomq.client.consumer.allocation import (
        Allocation,
        allocate_average,
        allocate_circle,
        allocate_config,
        allocate_consistent_hash,
        allocate_machine_room,
        allocate_machine_room_nearby,
    )
    from triomq.client.consumer.delivery import BatchHandler, Handler
    from triomq.client.consumer.member_spec import AssignmentChange
    from triomq.client.consumer.message_view import MessageView
    from triomq.client.consumer.offsets import ConsumeFrom
    from triomq.client.consumer.pop.leased_message import LeasedMessage
    from triomq.client.consumer.pop.simple import SimpleConsumer
    from triomq.client.consumer.pull import PullConsumer
    from triomq.client.consumer.push import ConsumerStatistics, PushConsumer
    from triomq.client.consumer.rates import TopicRates
    from triomq.client.consumer.received import ReceivedMessage
    from triomq.client.consumer.subscribing import Sql, Subscriptions
    from triomq.client.errors import *  # noqa: F403
    from triomq.client.idempotency.claims import OnceStore, TransactionalOnceStore
    from triomq.client.idempotency.guard import OnceStatistics
    from triomq.client.idempotency.once import OnceHandler, OnceTransaction, once
    from triomq.client.idempotency.postgresql_store import PostgresqlOnceStore
    from triomq.client.idempotency.redis_store import RedisOnceStore
    from triomq.client.idempotency.sqlite_store import SqliteOnceStore
    from triomq.client.message_hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
    from triomq.client.producer.producer import Producer
    from triomq.client.producer.queue_choice import (
        Selector,
        select_by_go_hash,
        select_by_hash,
        select_by_machine_room,
        select_by_random,
    )
    from triomq.client.producer.receipt import SendReceipt, SendStatus
    from triomq.client.requests.reply_message import ReplyMessage
    from triomq.client.requests.requests import RequestStatistics
    from triomq.client.retry import BusyBackoff
    from triomq.client.transactions.checked_message import CheckedMessage, CheckHandler
    from triomq.client.transactions.local import LocalWork, TransactionResult
    from triomq.client.transactions.outcomes import TransactionOutcome
    from triomq.client.transactions.transaction import Transaction
    from triomq.remoting.client.rpc_hooks import RpcHook
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
    "CheckHandler",
    "CheckedMessage",
    "ClaimBusy",
    "ClaimLost",
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
    "LeasedMessage",
    "LocalWork",
    "Message",
    "MessageGone",
    "MessageInvalid",
    "MessageQueue",
    "MessageRefused",
    "MessageView",
    "NoNameServer",
    "NotARequest",
    "NotLeader",
    "NotRunning",
    "OffsetNotFound",
    "OffsetOutOfRange",
    "OnceHandler",
    "OnceStatistics",
    "OnceStore",
    "OnceStoreFailed",
    "OnceTransaction",
    "ParameterInvalid",
    "PermissionDenied",
    "PolicyNotFound",
    "PollingFull",
    "PollingTimeout",
    "PostgresqlOnceStore",
    "Producer",
    "ProducerSettings",
    "ProtocolBroken",
    "PullConsumer",
    "PushConsumer",
    "QueueNotAssigned",
    "QueueQuotaExceeded",
    "ReceiptExpired",
    "ReceivedMessage",
    "RedisOnceStore",
    "ReplyMessage",
    "ReplyNotDelivered",
    "ReplyTimeout",
    "RequestNotSupported",
    "RequestStatistics",
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
    "SimpleConsumer",
    "Sql",
    "SqliteOnceStore",
    "SubscriptionInvalid",
    "SubscriptionOutdated",
    "SubscriptionQuotaExceeded",
    "SubscriptionUnknown",
    "Subscriptions",
    "TimersUnavailable",
    "Tls",
    "TooManyKeys",
    "TopicExists",
    "TopicInvalid",
    "TopicNotFound",
    "TopicRates",
    "Transaction",
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
    "once",
    "select_by_go_hash",
    "select_by_hash",
    "select_by_machine_room",
    "select_by_random",
]

_HOMES = {
    "Admin": "triomq.client.admin.admin",
    "Allocation": "triomq.client.consumer.allocation",
    "AssignmentChange": "triomq.client.consumer.member_spec",
    "BatchHandler": "triomq.client.consumer.delivery",
    "BusyBackoff": "triomq.client.retry",
    "CheckHandler": "triomq.client.transactions.checked_message",
    "CheckedMessage": "triomq.client.transactions.checked_message",
    "ClientSettings": "triomq.client.config",
    "Compression": "triomq.remoting.protocol.compression",
    "ConsumeContext": "triomq.client.message_hooks",
    "ConsumeFrom": "triomq.client.consumer.offsets",
    "ConsumeHook": "triomq.client.message_hooks",
    "ConsumerSettings": "triomq.client.config",
    "ConsumerStatistics": "triomq.client.consumer.push",
    "Credentials": "triomq.remoting.protocol.signing",
    "Handler": "triomq.client.consumer.delivery",
    "LeasedMessage": "triomq.client.consumer.pop.leased_message",
    "LocalWork": "triomq.client.transactions.local",
    "Message": "triomq.remoting.protocol.message",
    "MessageQueue": "triomq.remoting.protocol.bodies.route",
    "MessageView": "triomq.client.consumer.message_view",
    "OnceHandler": "triomq.client.idempotency.once",
    "OnceStatistics": "triomq.client.idempotency.guard",
    "OnceStore": "triomq.client.idempotency.claims",
    "OnceTransaction": "triomq.client.idempotency.once",
    "PostgresqlOnceStore": "triomq.client.idempotency.postgresql_store",
    "Producer": "triomq.client.producer.producer",
    "ProducerSettings": "triomq.client.config",
    "PullConsumer": "triomq.client.consumer.pull",
    "PushConsumer": "triomq.client.consumer.push",
    "ReceivedMessage": "triomq.client.consumer.received",
    "RedisOnceStore": "triomq.client.idempotency.redis_store",
    "ReplyMessage": "triomq.client.requests.reply_message",
    "RequestStatistics": "triomq.client.requests.requests",
    "RpcHook": "triomq.remoting.client.rpc_hooks",
    "Selector": "triomq.client.producer.queue_choice",
    "SendContext": "triomq.client.message_hooks",
    "SendHook": "triomq.client.message_hooks",
    "SendReceipt": "triomq.client.producer.receipt",
    "SendStatus": "triomq.client.producer.receipt",
    "SerializeType": "triomq.remoting.protocol.codes",
    "SimpleConsumer": "triomq.client.consumer.pop.simple",
    "Sql": "triomq.client.consumer.subscribing",
    "SqliteOnceStore": "triomq.client.idempotency.sqlite_store",
    "Subscriptions": "triomq.client.consumer.subscribing",
    "Tls": "triomq.remoting.tls.client",
    "TopicRates": "triomq.client.consumer.rates",
    "Transaction": "triomq.client.transactions.transaction",
    "TransactionOutcome": "triomq.client.transactions.outcomes",
    "TransactionResult": "triomq.client.transactions.local",
    "TransactionalOnceStore": "triomq.client.idempotency.claims",
    "allocate_average": "triomq.client.consumer.allocation",
    "allocate_circle": "triomq.client.consumer.allocation",
    "allocate_config": "triomq.client.consumer.allocation",
    "allocate_consistent_hash": "triomq.client.consumer.allocation",
    "allocate_machine_room": "triomq.client.consumer.allocation",
    "allocate_machine_room_nearby": "triomq.client.consumer.allocation",
    "once": "triomq.client.idempotency.once",
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
