"""TrioMQ: a message-queue cluster in pure Python on Trio that speaks Apache RocketMQ's protocol.

This module offers the SDK; names are loaded on first use.

    from triomq import Producer, PushConsumer

Other doors: `triomq.sync` (blocking), `triomq.aio` (asyncio), `triomq.spark`, `triomq.testing`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.client import (
        AlreadySettled,
        AssignmentChange,
        BatchIncomplete,
        BrokerError,
        BusyBackoff,
        ClientSettings,
        Compression,
        ConnectionFailed,
        ConnectionLost,
        ConsumeContext,
        ConsumeFrom,
        ConsumeHook,
        ConsumerSettings,
        ConsumerStatistics,
        Credentials,
        Message,
        MessageInvalid,
        MessageQueue,
        NoNameServer,
        NotRunning,
        OffsetOutOfRange,
        Producer,
        ProducerSettings,
        PullConsumer,
        PushConsumer,
        QueueNotAssigned,
        ReceivedMessage,
        RequestTimeout,
        RouteNotFound,
        RpcHook,
        SendContext,
        SendError,
        SendFailed,
        SendHook,
        SendReceipt,
        SendStatus,
        SendTimeout,
        SettingsError,
        Sql,
        Tls,
        TopicInvalid,
        TopicNotFound,
        TopicRates,
        TrioMQError,
        allocate_average,
        allocate_circle,
        allocate_config,
        allocate_consistent_hash,
        allocate_machine_room,
        allocate_machine_room_nearby,
        select_by_go_hash,
        select_by_hash,
        select_by_machine_room,
        select_by_random,
    )

__version__ = "0.1.0"

__all__ = [
    "AlreadySettled",
    "AssignmentChange",
    "BatchIncomplete",
    "BrokerError",
    "BusyBackoff",
    "ClientSettings",
    "Compression",
    "ConnectionFailed",
    "ConnectionLost",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeHook",
    "ConsumerSettings",
    "ConsumerStatistics",
    "Credentials",
    "Message",
    "MessageInvalid",
    "MessageQueue",
    "NoNameServer",
    "NotRunning",
    "OffsetOutOfRange",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PushConsumer",
    "QueueNotAssigned",
    "ReceivedMessage",
    "RequestTimeout",
    "RouteNotFound",
    "RpcHook",
    "SendContext",
    "SendError",
    "SendFailed",
    "SendHook",
    "SendReceipt",
    "SendStatus",
    "SendTimeout",
    "SettingsError",
    "Sql",
    "Tls",
    "TopicInvalid",
    "TopicNotFound",
    "TopicRates",
    "TrioMQError",
    "__version__",
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("triomq.client"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
