"""Messages that take more than the next number of their queue: batches sent to a topic with batch consume queues, and messages for light queues (LMQ).

Such a batch is stored as one record, an *inner batch*, which the consumers' clients take apart; its answer names it by its own unique key.
Source: broker/processor/SendMessageProcessor.java#sendBatchMessage, broker/util/HookUtils.java#checkInnerBatch, #handleLmqQuota.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq.broker.processors import properties as props
from triomq.broker.processors.admission import Target
from triomq.broker.store.batch_queue import BATCH_MESSAGES_MAX
from triomq.broker.store.draft import Draft
from triomq.broker.store.numbering import SPECIAL, UNUSUAL, dispatch_fault, may_dispatch
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message import (
    CLUSTER,
    INNER_BASE,
    INNER_BATCH,
    INNER_NUM,
    KEYS,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    NEED_UNWRAP,
    TAGS,
    UNIQ_KEY,
    properties_text,
)
from triomq.remoting.server.handlers import Request

UNUSUAL_FLAGS = UNUSUAL | INNER_BATCH
"""Flags of a request that make its message an unusual one; that of inner batches is the broker's to set."""
OWN_NUMBERS = (INNER_BASE, MULTI_QUEUE_OFFSET)
"""What the store writes itself when it appends such a message."""


def own_flags(header: SendMessageHeader) -> int:
    """The flags of a request that a record may bear."""
    return header.sys_flag & ~SPECIAL


def refuse_inner_batch(header: SendMessageHeader, known: Mapping[str, str]) -> None:
    """Only a batch request makes an inner batch."""
    if header.sys_flag & INNER_BATCH or INNER_NUM in known:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message says that it is an inner batch (sysFlag {header.sys_flag:#x}, property {INNER_NUM}), which only the broker makes of a batch; send it as a batch",
        )


def inner_batch(
    request: Request, target: Target, queue_id: int, text: str, known: Mapping[str, str], unique_key: str, cluster_name: str, count: int
) -> Draft:
    """The one record of a batch request. Its properties are the request's; those of its messages lie in the body."""
    header: SendMessageHeader = request.header
    if count > BATCH_MESSAGES_MAX:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"the batch has {count} messages, at most {BATCH_MESSAGES_MAX} fit into one record; send several batches")
    kept = props.without_properties(text, (UNIQ_KEY, CLUSTER, INNER_NUM, *OWN_NUMBERS))
    added = properties_text({UNIQ_KEY: unique_key, CLUSTER: cluster_name, INNER_NUM: str(count)})
    return Draft(
        target.topic,
        queue_id,
        request.body,
        (kept + added).encode("utf-8", "replace"),
        header.flag,
        own_flags(header) | INNER_BATCH | NEED_UNWRAP | SPECIAL,
        header.born_timestamp,
        request.connection.peer_bytes,
        header.reconsume_times or 0,
        tags=known.get(TAGS),
        unique_key=unique_key,
        keys=known.get(KEYS),
    )


def mark_unusual(draft: Draft, known: Mapping[str, str], target: Target, store: MessageStore) -> None:
    """Mark a single message that takes more than its queue's next number. Raises Rejected for light queues that cannot be."""
    if target.batched:
        draft.sys_flag |= SPECIAL
    listed = known.get(MULTI_DISPATCH, "")
    if not listed.strip() or not store.config.multi_dispatch or not may_dispatch(draft.topic):
        return
    names = listed.split(",")
    fault = dispatch_fault(names)
    if fault is not None:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, fault)
    limit, table = store.config.light_queues_max, store.queue_table
    if limit is not None and table.light_count >= limit and any((name, 0) not in table.queues for name in names):
        raise Rejected(
            ResponseCode.LMQ_QUOTA_EXCEEDED,
            f"[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded. (there are {table.light_count}, maxLmqConsumeQueueNum is {limit}; raise it, or use fewer queues)",
        )
    draft.sys_flag |= SPECIAL


def refuse_numbers(known: Mapping[str, str]) -> None:
    """For the messages of an ordinary batch: they may not say numbers that only the store gives."""
    for name in (INNER_NUM, *OWN_NUMBERS):
        if name in known:
            raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"the property {name} is the broker's own; remove it")

