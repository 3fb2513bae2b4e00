"""Inner batches: one record that holds many messages, as brokers store a batch for a topic with batch consume queues.

The body is that of a SEND_BATCH_MESSAGE request; what its messages do not say themselves (topic, queue, times, hosts, flags) is the record's.
Source: common/…/message/MessageDecoder.java#decodeMessage.
"""

from collections.abc import Iterable

from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.message import INNER_BATCH, NEED_UNWRAP
from triomq.remoting.protocol.record import StoredMessage, body_crc

INNER_FLAGS = INNER_BATCH | NEED_UNWRAP


def is_inner_batch(message: StoredMessage) -> bool:
    """Whether a record must be taken apart."""
    return message.sys_flag & INNER_FLAGS == INNER_FLAGS


def unwrap(message: StoredMessage) -> list[StoredMessage]:
    """The messages of an inner batch, each with a queue offset of its own; RemoteProtocolError if the body is none.

    The offset in the log, and so the offset id, is that of the record for all of them.
    """
    return [
        StoredMessage(
            message.topic,
            message.queue_id,
            message.queue_offset + number,
            message.log_offset,
            message.size,
            element.flag,
            message.sys_flag & ~INNER_FLAGS,
            message.born_timestamp,
            message.born_host_bytes,
            message.store_timestamp,
            message.store_host_bytes,
            message.reconsume_times,
            message.prepared_transaction_offset,
            element.body,
            body_crc(element.body),
            element.properties,
        )
        for number, element in enumerate(decode_batch(message.body))
    ]


def unwrapped(messages: Iterable[StoredMessage], first_offset: int = 0) -> list[StoredMessage]:
    """All messages with inner batches taken apart, without those of a batch that lie before ``first_offset``: a broker gives a record as a whole."""
    found: list[StoredMessage] = []
    for message in messages:
        if is_inner_batch(message):
            found += [inner for inner in unwrap(message) if inner.queue_offset >= first_offset]
        else:
            found.append(message)
    return found
