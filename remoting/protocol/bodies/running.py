"""What a client tells about itself when asked: 307 and 309.

Source: remoting/…/protocol/body/ConsumerRunningInfo.java, ConsumeMessageDirectlyResult.java.
"""

from typing import Any

import attrs

from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessQueueState(JsonBody):
    """Messages pulled from one queue and not yet settled. ``dropped`` travels as ``droped``."""

    commit_offset: int = 0
    cached_min_offset: int = attrs.field(default=0, metadata=named("cachedMsgMinOffset"))
    cached_max_offset: int = attrs.field(default=0, metadata=named("cachedMsgMaxOffset"))
    cached_count: int = attrs.field(default=0, metadata=named("cachedMsgCount"))
    cached_size_mib: int = attrs.field(default=0, metadata=named("cachedMsgSizeInMiB"))
    transaction_min_offset: int = attrs.field(default=0, metadata=named("transactionMsgMinOffset"))
    transaction_max_offset: int = attrs.field(default=0, metadata=named("transactionMsgMaxOffset"))
    transaction_count: int = attrs.field(default=0, metadata=named("transactionMsgCount"))
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = attrs.field(default=False, metadata=named("droped"))
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PopQueueState(JsonBody):
    dropped: bool = attrs.field(default=False, metadata=named("droped"))
    last_pop_timestamp: int = 0
    wait_ack_count: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeRates(JsonBody):
    """Of one topic: per second, and mean times in ms."""

    pull_rt: float = attrs.field(default=0.0, metadata=named("pullRT"))
    pull_tps: float = attrs.field(default=0.0, metadata=named("pullTPS"))
    consume_rt: float = attrs.field(default=0.0, metadata=named("consumeRT"))
    consume_ok_tps: float = attrs.field(default=0.0, metadata=named("consumeOKTPS"))
    consume_failed_tps: float = attrs.field(default=0.0, metadata=named("consumeFailedTPS"))
    consume_failed_count: int = attrs.field(default=0, metadata=named("consumeFailedMsgs"))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumerRunning(JsonBody):
    """307. ``properties`` holds PROP_NAMESERVER_ADDR, PROP_CONSUME_TYPE and the settings of the consumer."""

    properties: dict[str, str] = attrs.field(factory=dict)
    subscriptions: list[SubscriptionData] = attrs.field(factory=list, metadata=named("subscriptionSet"))
    queues: dict[MessageQueue, ProcessQueueState] = attrs.field(factory=dict, metadata=named("mqTable"))
    pop_queues: dict[MessageQueue, PopQueueState] = attrs.field(factory=dict, metadata=named("mqPopTable"))
    rates: dict[str, ConsumeRates] = attrs.field(factory=dict, metadata=named("statusTable"))
    user: dict[str, Any] = attrs.field(factory=dict, metadata=named("userConsumerInfo"))
    jstack: str | None = None


CONSUME_RESULTS = ("CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL")
"""In the order of CMResult.java: the Go client writes their numbers, which fastjson takes, too."""


def _result_name(text: str) -> str:
    return CONSUME_RESULTS[int(text)] if text.isdecimal() and int(text) < len(CONSUME_RESULTS) else text


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeDirectlyResult(JsonBody):
    """309. Results: `CONSUME_RESULTS`."""

    consume_result: str = attrs.field(default="CR_SUCCESS", converter=_result_name)
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_ms: int = attrs.field(default=0, metadata=named("spentTimeMills"))
