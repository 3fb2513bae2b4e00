"""Which life of a topic the messages of an answer belong to. Pure.

A topic that is deleted and created again has the same name and the same offsets. What tells its
lives apart is the time when messages were stored: the messages of a later life are newer than the
newest message of a batch that was planned before.
"""

import struct

import attrs

from triomq.client.spark.records import BORN_HOST_AT
from triomq.remoting.protocol.record import SYS_FLAG_AT
from triomq.remoting.protocol.sys_flags import BORN_HOST_V6

read_int = struct.Struct(">i").unpack_from
read_long = struct.Struct(">q").unpack_from


@attrs.frozen
class LastMessage:
    """The newest message of a batch in one queue, when the batch was planned."""

    offset: int
    stored_ms: int
    """epoch, ms"""


def first_store_time(body: bytes | memoryview) -> int | None:
    """Return the store time (ms) of an answer's first record, None if it has none."""
    if len(body) < BORN_HOST_AT + 28:
        return None
    (sys_flag,) = read_int(body, SYS_FLAG_AT)
    (stored_ms,) = read_long(body, BORN_HOST_AT + (20 if sys_flag & BORN_HOST_V6 else 8))
    return int(stored_ms)
