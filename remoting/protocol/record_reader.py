"""Records read strictly: a message, or the reason why none is there.

The store reads its log with a fast reader of its own (``broker/store/log/draft_reader.py``) and
Spark reads whole columns (``client/spark/records.py``); both accept only what ``read_record``
accepts. ``tests/property/test_record_readers.py`` holds the three to the same cases, and
docs/adr/009-record-readers.md has the reasons.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.record import (
    BLANK,
    HEAD_V4,
    HOST_BITS,
    LENGTH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    TOPIC_V1_MAX,
    Buffer,
    StoredMessage,
    body_crc,
    head_struct,
)

RECORD_BYTES_MIN = HEAD_V4.size + 3
"""A record without topic, body and properties."""
_HOST_BITS_AT = SYS_FLAG_AT + 3  # the byte of sysFlag that holds both bits
_HEADS = {
    bits: (head_struct(bits).unpack_from, head_struct(bits).size)
    for bits in range(HOST_BITS + 1)
    if bits & HOST_BITS == bits
}
_length_at = LENGTH.unpack_from
_FIX = "the records must be as RocketMQ 4.x or 5.x brokers write them"


def read_record(
    data: bytes, position: int, limit: int, check_crc: bool = True
) -> StoredMessage | str:
    """Return the message at ``position`` of data that may be read up to ``limit``, or why not.

    Bad content, or the BLANK at the end of a segment, returns the reason and raises nothing. As in
    Java, the stored log offset is not compared with the real position, and an empty body has no
    CRC. Source: store/…/CommitLog.java#checkMessageAndReturnSize.
    """
    if position + RECORD_BYTES_MIN > limit:
        return _no_record(data, position, limit)
    unpack, head_bytes = _HEADS[data[position + _HOST_BITS_AT] & HOST_BITS]
    body_at = position + head_bytes
    if body_at > limit:
        return _no_record(data, position, limit)
    # One tuple and one call: a consumer and a scan pay this for every message.
    (size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born, born_host, stored,
     store_host, reconsume_times, prepared, body_size) = unpack(data, position)  # fmt: skip
    end = position + size
    topic_at = body_at + body_size
    if not body_at <= topic_at < end <= limit:
        return _no_record(data, position, limit)
    if magic == MAGIC_V1 and data[topic_at] <= TOPIC_V1_MAX:
        topic_end = topic_at + 1 + data[topic_at]
        topic = _topic(data[topic_at + 1 : topic_end])
    elif magic == MAGIC_V2 and topic_at + 2 <= end and data[topic_at] < 0x80:
        topic_end = topic_at + 2 + _length_at(data, topic_at)[0]
        topic = str(data[topic_at + 2 : topic_end], "utf-8", "replace")
    else:
        return _no_record(data, position, limit)
    if topic_end + 2 > end or topic_end + 2 + _length_at(data, topic_end)[0] != end:
        return _no_record(data, position, limit)
    body = data[body_at:topic_at]
    if check_crc and body and body_crc(body) != crc:
        return "the body does not match its CRC"
    return StoredMessage(
        topic,
        queue_id,
        queue_offset,
        log_offset,
        size,
        flag,
        sys_flag,
        born,
        born_host,
        stored,
        store_host,
        reconsume_times,
        prepared,
        body,
        crc,
        data[topic_end + 2 : end],
    )


@lru_cache(maxsize=4096)
def _topic(encoded: bytes) -> str:
    return str(encoded, "utf-8", "replace")


def _no_record(data: bytes, position: int, limit: int) -> str:
    """Return why no record with the right lengths is at ``position``."""
    left = limit - position
    if left < BLANK.size:
        return f"only {left} bytes left"
    size, magic = BLANK.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        return "the rest of the segment is unused"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"no record starts here: magic {magic:#010x}"
    if not BLANK.size <= size <= left:
        return f"a record of {size} bytes, but {left} bytes left"
    head = head_struct(data[position + _HOST_BITS_AT] if size > _HOST_BITS_AT else 0)
    if size < head.size:
        return f"a record of {size} bytes is shorter than its fixed fields"
    body_size = head.unpack_from(data, position)[-1]
    if not 0 <= body_size < size - head.size:
        return f"a body of {body_size} bytes in a record of {size}"
    return f"lengths inside a record of {size} bytes do not add up"


def decode_records(buffer: Buffer, *, check_crc: bool = False) -> list[StoredMessage]:
    """Return all messages of a buffer that holds records, one behind the other.

    Raises: RemoteProtocolError if the buffer holds anything else.
    """
    messages: list[StoredMessage] = []
    data = bytes(buffer)
    limit = len(data)
    position = 0
    while position < limit:
        found = read_record(data, position, limit, check_crc)
        if isinstance(found, str):
            raise RemoteProtocolError(f"no record at byte {position}: {found}", _FIX)
        messages.append(found)
        position += found.size
    return messages


def split_records(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    """Yield the records of a get, of which each chunk holds one or several as a whole.

    Raises: RemoteProtocolError if a length is impossible: a record is damaged.
    """
    for chunk in chunks:
        for start, end in _spans(chunk):
            yield bytes(chunk[start:end])


def queue_offsets(chunks: Iterable[Buffer]) -> list[int]:
    """Return the queue offsets of the records of a get, without a copy of them.

    Raises: RemoteProtocolError if a length is impossible: a record is damaged.
    """
    return [
        int.from_bytes(chunk[start + QUEUE_OFFSET_AT : start + QUEUE_OFFSET_AT + 8], "big")
        for chunk in chunks
        for start, _ in _spans(chunk)
    ]


def _spans(chunk: Buffer) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(chunk):
        end = start + int.from_bytes(chunk[start : start + 4], "big")
        if not start + RECORD_BYTES_MIN <= end <= len(chunk):
            raise RemoteProtocolError(f"no record at byte {start}: its length is impossible", _FIX)
        yield start, end
        start = end
