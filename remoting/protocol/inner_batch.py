"""Inner batches: records with many messages, as brokers store them for batch consume queues.

The body is that of a SEND_BATCH_MESSAGE request. Its messages take from the record what they do not
have themselves: topic, queue, times, hosts, flags. Source:
common/…/message/MessageDecoder.java#decodeMessage.
"""

from collections.abc import Iterable

from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.record import StoredMessage, body_crc
from triomq.remoting.protocol.sys_flags import INNER_BATCH, NEED_UNWRAP

INNER_FLAGS = INNER_BATCH | NEED_UNWRAP


def is_inner_batch(message: StoredMessage) -> bool:
    """Return whether a record must be unwrapped."""
    return message.sys_flag & INNER_FLAGS == INNER_FLAGS


def unwrap(message: StoredMessage) -> list[StoredMessage]:
    """Return the messages of an inner batch, each with its own queue offset.

    All have the log offset of the record, and so the same offset id.

    Raises: RemoteProtocolError if the body is not a batch.
    """
    return [
        StoredMessage(
            message.topic,
            message.queue_id,
            message.queue_offset + number,
            message.log_offset,
            message.size,
            flag,
            message.sys_flag & ~INNER_FLAGS,
            message.born_timestamp,
            message.born_host_bytes,
            message.store_timestamp,
            message.store_host_bytes,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body,
            body_crc(body),
            properties,
        )
        for number, (flag, body, properties) in enumerate(decode_batch(message.body))
    ]


def unwrapped(messages: Iterable[StoredMessage], first_offset: int = 0) -> list[StoredMessage]:
    """Return all messages, inner batches unwrapped.

    Without the messages of a batch before ``first_offset``: a broker sends whole records.
    """
    found: list[StoredMessage] = []
    for message in messages:
        if is_inner_batch(message):
            found += [inner for inner in unwrap(message) if inner.queue_offset >= first_offset]
        else:
            found.append(message)
    return found
