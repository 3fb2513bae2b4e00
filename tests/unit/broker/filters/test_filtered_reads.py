"""Reading through a filter: which records are kept, where the next pull begins, and when a request
stops looking.
"""

from __future__ import annotations

import pytest

from triomq.broker.services import filtered_reads
from triomq.broker.services.filtered_reads import SCANNED_MAX, get_filtered
from triomq.broker.store.core.results import GetResult, GetStatus
from triomq.remoting.protocol.message_properties import encode_properties
from triomq.remoting.protocol.record import encode_record
from triomq.remoting.protocol.record_reader import decode_records


def record(number: int) -> bytes:
    return encode_record(
        topic="T",
        body=b"%d" % number,
        properties=encode_properties({"n": str(number)}),
        queue_id=0,
        queue_offset=number,
        log_offset=number * 100,
        born_timestamp=1,
        store_timestamp=1,
        born_host=b"\x7f\0\0\1\0\0\0\1",
        store_host=b"\x7f\0\0\1\0\0\0\1",
    )


class Queue:
    """A queue of ``size`` records; those from ``cold`` on are on the disk."""

    def __init__(self, size: int, cold: int = 1 << 62) -> None:
        self.size, self.cold, self.gets = size, cold, 0

    def get(self, offset: int, messages_max: int, bytes_max: int) -> GetResult | None:
        self.gets += 1
        if offset >= self.size:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, 0, self.size)
        if offset >= self.cold:
            return None
        numbers = range(offset, min(offset + messages_max, self.size, self.cold))
        return GetResult(
            GetStatus.FOUND,
            numbers.stop,
            0,
            self.size,
            [record(number) for number in numbers],
            len(numbers),
            1,
        )


def bodies(found: GetResult) -> list[int]:
    return [int(message.body) for message in decode_records(b"".join(found.chunks))]


def every(step: int):  # type: ignore[no-untyped-def]
    return lambda properties: int(properties["n"]) % step == 0


def test_wanted_records_are_gathered_over_several_gets() -> None:
    found = get_filtered(Queue(100).get, 1, 5, 1 << 20, every(10))
    assert found is not None
    assert (found.status, bodies(found), found.next_offset, found.count) == (
        GetStatus.FOUND,
        [10, 20, 30, 40, 50],
        51,
        5,
    )


def test_at_the_end_of_the_queue_what_was_found_is_answered() -> None:
    found = get_filtered(Queue(25).get, 1, 32, 1 << 20, every(10))
    assert found is not None
    assert (bodies(found), found.next_offset) == ([10, 20], 25)


def test_nothing_wanted_moves_on() -> None:
    found = get_filtered(Queue(10).get, 0, 32, 1 << 20, lambda properties: False)
    assert found is not None
    assert (found.status, found.next_offset, found.chunks) == (GetStatus.NO_MATCHED_MESSAGE, 10, [])


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_reads, "SCAN_SECONDS", 60.0)


def test_a_request_looks_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_reads, "SCAN_SECONDS", 0.0)
    queue = Queue(100_000)
    found = get_filtered(queue.get, 0, 32, 1 << 20, lambda properties: False)
    assert found is not None
    assert (found.next_offset, queue.gets) == (32, 1), "the first get is always made"


def test_a_request_looks_at_a_bounded_number() -> None:
    queue = Queue(100_000)
    found = get_filtered(queue.get, 0, 32, 1 << 20, lambda properties: False)
    assert found is not None
    assert (found.next_offset, queue.gets) == (SCANNED_MAX, SCANNED_MAX // 32)


def test_an_empty_queue_and_a_cold_one() -> None:
    found = get_filtered(Queue(0).get, 0, 32, 1 << 20, every(1))
    assert found is not None
    assert found.status is GetStatus.OFFSET_OVERFLOW_ONE
    assert get_filtered(Queue(100, cold=0).get, 0, 32, 1 << 20, every(1)) is None
    found = get_filtered(Queue(100, cold=40).get, 0, 64, 1 << 20, every(10))
    assert found is not None
    assert (bodies(found), found.next_offset) == ([0, 10, 20, 30], 40)


def test_bytes_bound_an_answer() -> None:
    size = len(record(0))
    found = get_filtered(Queue(100).get, 0, 1, 2 * size, every(1))
    assert found is not None
    assert len(bodies(found)) == 1
