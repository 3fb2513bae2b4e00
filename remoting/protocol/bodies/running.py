"""Bodies of GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309).

Brokers relay both requests from tools to a consumer; these are the consumer's answers.

Source: remoting/…/protocol/body/ConsumerRunningInfo.java, ConsumeMessageDirectlyResult.java.
"""

from typing import Any

import attrs

from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.schema import JsonBody, named


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessQueueState(JsonBody):
    """The state of one queue: its unsettled messages, its lock, its times (ms since 1970).

    ``dropped``: the consumer no longer owns the queue; Java's JSON spells it ``droped``.
    """

    commit_offset: int = 0
    cached_min_offset: int = named("cachedMsgMinOffset", default=0)
    cached_max_offset: int = named("cachedMsgMaxOffset", default=0)
    cached_count: int = named("cachedMsgCount", default=0)
    cached_size_mib: int = named("cachedMsgSizeInMiB", default=0)
    transaction_min_offset: int = named("transactionMsgMinOffset", default=0)
    transaction_max_offset: int = named("transactionMsgMaxOffset", default=0)
    transaction_count: int = named("transactionMsgCount", default=0)
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = named("droped", default=False)
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PopQueueState(JsonBody):
    """The state of one queue that the consumer reads with POP."""

    dropped: bool = named("droped", default=False)
    last_pop_timestamp: int = 0
    wait_ack_count: int = 0


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeRates(JsonBody):
    """The rates of one topic: ``…_tps`` in messages per second, ``…_rt`` in ms (mean).

    ``consume_failed_count``: messages in the last hour.
    """

    pull_rt: float = named("pullRT", default=0.0)
    pull_tps: float = named("pullTPS", default=0.0)
    consume_rt: float = named("consumeRT", default=0.0)
    consume_ok_tps: float = named("consumeOKTPS", default=0.0)
    consume_failed_tps: float = named("consumeFailedTPS", default=0.0)
    consume_failed_count: int = named("consumeFailedMsgs", default=0)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumerRunning(JsonBody):
    """The answer to GET_CONSUMER_RUNNING_INFO (307).

    ``properties`` has PROP_NAMESERVER_ADDR, PROP_CONSUME_TYPE and the consumer's settings.
    """

    properties: dict[str, str] = attrs.field(factory=dict)
    subscriptions: list[SubscriptionData] = named("subscriptionSet", factory=list)
    queues: dict[MessageQueue, ProcessQueueState] = named("mqTable", factory=dict)
    pop_queues: dict[MessageQueue, PopQueueState] = named("mqPopTable", factory=dict)
    rates: dict[str, ConsumeRates] = named("statusTable", factory=dict)
    user: dict[str, Any] = named("userConsumerInfo", factory=dict)
    jstack: str | None = None


CONSUME_RESULTS = (
    "CR_SUCCESS",
    "CR_LATER",
    "CR_ROLLBACK",
    "CR_COMMIT",
    "CR_THROW_EXCEPTION",
    "CR_RETURN_NULL",
)
"""In the order of CMResult.java: the Go client sends the position, which fastjson also accepts."""


def _result_name(text: str) -> str:
    return (
        CONSUME_RESULTS[int(text)]
        if text.isdecimal() and int(text) < len(CONSUME_RESULTS)
        else text
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsumeDirectlyResult(JsonBody):
    """The answer to CONSUME_MESSAGE_DIRECTLY (309): a result from ``CONSUME_RESULTS``."""

    consume_result: str = attrs.field(default="CR_SUCCESS", converter=_result_name)
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_ms: int = named("spentTimeMills", default=0)
