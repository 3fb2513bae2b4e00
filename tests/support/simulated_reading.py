"""A queue read through the protocol as any client reads it, and the folders where simulated disks
lie.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from history import Queue, Stored

from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
)
from triomq.remoting.protocol.headers.pull import (
    SUBSCRIPTION,
    PullMessageHeader,
    PullMessageResponseHeader,
)
from triomq.remoting.protocol.record_reader import decode_records


class NotReadable(Exception):
    """The broker did not answer as one that has everything."""


async def read_queue(
    connector: Connector, address: str, queue: Queue, stored: list[Stored]
) -> tuple[int, int]:
    """All messages of a queue, pulled; its first offset and its end as the broker names them."""
    _, topic, queue_id = queue
    bounds = []
    first, last = GetMinOffsetHeader(topic, queue_id), GetMaxOffsetHeader(topic, queue_id)
    for code, header in ((RequestCode.GET_MIN_OFFSET, first), (RequestCode.GET_MAX_OFFSET, last)):
        answer = await connector.invoke(address, request(code, header))
        if answer.code != ResponseCode.SUCCESS:
            raise NotReadable
        bounds.append(answer.header(OffsetResponseHeader).offset)
    offset, end = bounds
    while offset < end:
        pull = PullMessageHeader("CHECK", topic, queue_id, offset, 32, SUBSCRIPTION, 0, 0, 0, "*")
        answer = await connector.invoke(address, request(RequestCode.PULL_MESSAGE, pull))
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_records(bytes(answer.body)):
                key = message.body.decode().partition(":")[0]
                stored.append(Stored(queue, message.queue_offset, key, message.log_offset))
        elif answer.code not in (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise NotReadable
        after = answer.header(PullMessageResponseHeader).next_begin_offset
        if after <= offset:
            raise NotReadable
        offset = after
    return bounds[0], bounds[1]


def whole_records(data: bytes) -> bytes:
    """A log without what a full disk has left of an append behind its last record: the next append
    writes over it.
    """
    end = 0
    while (
        end + 4 <= len(data)
        and 0 < (size := int.from_bytes(data[end : end + 4])) <= len(data) - end
    ):
        end += size
    return data[:end]


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Where histories play: memory, if the system has such a folder. It becomes the working
    directory, so that brokers name their files alike in each of them.
    """
    shm = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="triomq-", dir=shm if shm.is_dir() else None) as folder,
        contextlib.chdir(folder),
    ):
        yield Path()
