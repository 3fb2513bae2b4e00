"""What a broker makes of the queues of transactions when it starts."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from triomq.broker.processors.transactions import TransactionRequests
from triomq.broker.services.transactions.open_halves import OpenHalves, Progress
from triomq.broker.services.transactions.transactions import Transactions
from triomq.broker.store.reading.queue_messages import DamagedRecord, QueueMessages
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.headers.transaction import ROLLBACK
from triomq.remoting.protocol.names import HALF_TOPIC, OP_HALF_TOPIC
from triomq.remoting.protocol.record import encode_record
from triomq.remoting.protocol.record_reader import read_record

HOST = b"\x7f\0\0\1\0\0\0\1"


def op_record(offset: int, body: bytes) -> bytes:
    return encode_record(
        topic=OP_HALF_TOPIC,
        queue_id=0,
        queue_offset=offset,
        log_offset=offset * 1000,
        body=body,
        properties=b"TAGS\x01d\x02",
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1,
        store_host=HOST,
        flag=0,
        sys_flag=0,
        reconsume_times=0,
    )


class Queues:
    """Five halves, and op records of which some are damaged, one a read."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records
        self.ends = {HALF_TOPIC: 5, OP_HALF_TOPIC: len(records)}

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.ends[topic]

    async def messages(
        self, topic: str, queue_id: int, offset: int, **limits: int
    ) -> QueueMessages:
        if offset >= self.ends[topic]:
            return QueueMessages([], [], offset)
        data = self.records[offset]
        found = read_record(data, 0, len(data))
        if isinstance(found, str):
            damaged = [DamagedRecord(topic, f"message {offset}", 0, found)]
            return QueueMessages([], [], offset + 1, damaged)
        return QueueMessages([found], [data], offset + 1)


async def test_a_damaged_op_record_does_not_stop_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store: Any = Queues([op_record(0, b"0,1,"), b"no record", op_record(2, b"3,"), b""])
    offsets: Any = SimpleNamespace(committed_offset=lambda *_: 0)
    durability: Any = None
    transactions = Transactions(store, offsets, durability, lambda: 0)
    await transactions.load()
    assert transactions.open.open == {2, 4}
    assert transactions.open.op_end == 4
    assert transactions.open.progress() == Progress(2, 2), "the third op record is still needed"
    assert "of op records 1 to 1, 1 cannot be read" in caplog.text
    assert "may come twice" in caplog.text


def test_what_has_ended_takes_no_memory() -> None:
    """Halves that ask for much time and end soon, at a high rate."""
    halves = OpenHalves(0, 0)
    for number in range(20_000):
        now = number / 1000
        halves.arrived(number + 1, now)
        for offset in halves.due(now, 1.0, 50):
            halves.postpone(offset, now + 86_400)
        if number >= 2_000:
            halves.finish([number - 2_000])
    assert len(halves.open) == 2_000
    assert len(halves._heap) < 5_000
    assert len(halves._arrivals) < 200


async def test_a_long_queue_of_ended_transactions_takes_no_memory() -> None:
    count = 100_000
    records = [
        op_record(n, b"".join(b"%d," % k for k in range(n * 1000, n * 1000 + 1000)))
        for n in range(count // 1000)
    ]
    store: Any = Queues(records)
    store.ends[HALF_TOPIC] = count + 1
    offsets: Any = SimpleNamespace(committed_offset=lambda *_: 0)
    durability: Any = None
    transactions = Transactions(store, offsets, durability, lambda: 0)
    tracemalloc.start()
    try:
        await transactions.load()
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert transactions.open.open == {count}
    assert transactions.open.progress() == Progress(count, len(records))


async def test_an_end_may_be_faster_than_the_arrival_of_its_half() -> None:
    """With SYNC_FLUSH the producer has its answer before readers see the half."""
    half: Any = SimpleNamespace(queue_offset=5)
    header: Any = SimpleNamespace(verdict=ROLLBACK, message_id="id")
    nothing: Any = None
    opened, requests = OpenHalves(4, 0), TransactionRequests(nothing, nothing)
    assert opened.open == set()
    end = requests._decide(header, half, opened, set())
    assert end.queue_offset == 5
    assert opened.open == {4, 5}
    opened.arrived(6, 1.0)
    opened.finish([5])
    with pytest.raises(Rejected, match="has ended already"):
        requests._decide(header, half, opened, set())


def test_an_op_record_is_done_after_the_last_half_that_it_names() -> None:
    opened = OpenHalves(5, 0)
    opened.op_record(0, [5])
    assert opened.progress() == Progress(5, 0), "its half has not arrived yet"
    opened.arrived(6, 0.0)
    opened.finish([5])
    assert opened.progress() == Progress(6, 1)


@pytest.mark.parametrize("last", ["disk", "slave"])
async def test_progress_waits_for_the_disk_and_for_the_slaves(last: str) -> None:
    """A slave that becomes master without the end of a transaction must not skip its half."""
    saved: dict[str, int] = {}
    ends = {"appended": 100, "disk": 100, "slave": 100, last: 99}
    offsets: Any = SimpleNamespace(
        committed_offset=lambda group, topic, queue_id: saved.get(topic),
        commit=lambda group, topic, queue_id, offset: saved.update({topic: offset}),
    )
    appended, flushed = SimpleNamespace(value=100), SimpleNamespace(value=ends["disk"])
    store: Any = SimpleNamespace(appended=appended, flushed=flushed)
    durability: Any = SimpleNamespace(durable_now=lambda end: end <= ends["slave"])
    transactions = Transactions(store, offsets, durability, lambda: 0)
    transactions.open.arrived(3, 0.0)
    transactions.open.op_record(0, [0])
    transactions.open.finish([0])
    for _ in range(2):
        assert transactions.save_progress()
        assert saved == {}
    ends["slave"] = flushed.value = 100
    assert not transactions.save_progress()
    assert saved == {HALF_TOPIC: 1, OP_HALF_TOPIC: 1}


def test_an_old_copy_that_ends_leaves_the_newest_one() -> None:
    """The op record of a copy that was checked in turn comes behind the next copy."""
    open_halves = OpenHalves(0, 0)
    open_halves.arrived(3, now=0.0)
    open_halves.note_copy(0, 1, due=10.0)
    open_halves.note_copy(0, 2, due=20.0)
    open_halves.finish([0, 1])
    assert open_halves.current(0) == 2
    assert open_halves.due(15.0, 60.0, 10) == []
    assert open_halves.due(20.0, 60.0, 10) == [2]
    open_halves.finish([2])
    assert open_halves.current(0) is None


def test_a_half_is_due_once() -> None:
    open_halves = OpenHalves(0, 0)
    open_halves.arrived(2, now=0.0)
    for _ in range(2):
        open_halves.postpone(0, due=30.0)
    assert open_halves.due(60.0, 60.0, 10) == [0, 1]
    assert open_halves.due(90.0, 60.0, 10) == []
