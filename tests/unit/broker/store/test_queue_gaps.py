"""Recovery, expiry and searches of consume queues with fillers at the beginning and in the
middle.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from stores import draft, tiny_config

from triomq.broker.store.core.draft import Appended
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.queues.consume_queue import ENTRY, ConsumeQueue
from triomq.broker.store.queues.search import FILLER_SIZE, Entry, first_not
from triomq.broker.store.queues.table import QueueTable

SIZE = 100
PATTERNS = [
    [0, 1, 2, 20, 21, 47, 48, 49],
    [5, 6, 30],
    [13, 14, 15, 16, 70, 71],
    [0, 90],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 29],
]


def queue_of(root: Path, numbers: list[int]) -> tuple[QueueTable, ConsumeQueue]:
    """Record n of the log has the queue offset ``numbers[n]``; the files hold ten entries each."""
    table = QueueTable(tiny_config(root), Disk())
    drafts = [draft() for _ in numbers]
    table.apply(
        Batch(
            drafts,
            [Appended(n * SIZE, SIZE, number, n) for n, number in enumerate(numbers)],
            0,
            len(numbers) * SIZE,
        )
    )
    return table, table.queues["T", 0]


def real_numbers(queue: ConsumeQueue) -> list[int]:
    first = queue.bases[0] // ENTRY.size if queue.bases else queue.tail_offset
    return [
        number for number in range(first, queue.end_offset) if queue.entry(number)[1] != FILLER_SIZE
    ]


@pytest.mark.parametrize("written", [True, False], ids=["on disk", "in memory"])
@pytest.mark.parametrize("numbers", PATTERNS, ids=str)
def test_the_minimum_is_the_first_real_entry_that_the_log_still_has(
    tmp_path: Path, numbers: list[int], written: bool
) -> None:
    table, queue = queue_of(tmp_path, numbers)
    if written:
        list(table.write_out())
    for kept in range(len(numbers) + 1):
        queue.find_min(kept * SIZE)
        assert queue.min_offset == ([*numbers, queue.end_offset][kept]), f"{kept} records deleted"
    table.close()


@pytest.mark.parametrize("numbers", PATTERNS, ids=str)
def test_truncation_keeps_just_the_entries_before_the_cut(
    tmp_path: Path, numbers: list[int]
) -> None:
    for kept in range(len(numbers) + 1):
        table, _ = queue_of(tmp_path / str(kept), numbers)
        list(table.write_out())
        table.close()
        again = QueueTable(tiny_config(tmp_path / str(kept)), Disk())
        again.load()
        again.truncate(kept * SIZE)
        queue = again.queues["T", 0]
        assert real_numbers(queue) == numbers[:kept]
        assert queue.end_offset == queue.next_offset == (numbers[kept - 1] + 1 if kept else 0)
        assert queue.log_end == (kept * SIZE if kept else -1)
        again.close()


def test_the_end_of_a_queue_that_a_crash_left_with_trailing_fillers(tmp_path: Path) -> None:
    table, queue = queue_of(tmp_path, [0, 1, 2])
    queue.tail += ENTRY.pack(0, FILLER_SIZE, 0) * 40
    queue.end_offset += 40
    list(table.write_out())
    table.close()
    again = QueueTable(tiny_config(tmp_path), Disk())
    again.load()
    queue = again.queues["T", 0]
    queue.find_end_by_scan()
    assert (queue.end_offset, queue.log_end) == (3, 3 * SIZE)
    again.close()


def plain_binary_search(
    holds: object, next_real: object, low: int, high: int, *, first: int | None = None
) -> int:
    """A broken rule: a filler counts as an expired entry."""
    while low < high:
        middle = (low + high) // 2
        real = next_real(middle, middle + 1)  # type: ignore[operator]
        if real is None or holds(*real):  # type: ignore[operator]
            low = middle + 1
        else:
            high = middle
    return low


def disagreements(search: object) -> int:
    """Compared with a linear scan, for all places of four real entries among nine."""
    wrong = 0
    for places in itertools.combinations(range(9), 4):
        entries: list[Entry] = [
            (places.index(n) * SIZE, SIZE, 0) if n in places else (0, FILLER_SIZE, 0)
            for n in range(9)
        ]

        def next_real(
            start: int, stop: int, entries: list[Entry] = entries
        ) -> tuple[int, Entry] | None:
            return next(
                ((n, entries[n]) for n in range(start, stop) if entries[n][1] != FILLER_SIZE), None
            )

        for log_min in range(0, 5 * SIZE, SIZE):
            expected = next((n for n in places if entries[n][0] >= log_min), 9)
            for first in (None, 0):
                wrong += (
                    search(
                        lambda _, entry, log_min=log_min: entry[0] < log_min,
                        next_real,
                        0,
                        9,
                        first=first,
                    )
                    != expected
                )  # type: ignore[operator]
    return wrong


def test_the_search_agrees_with_a_scan_and_a_plain_one_does_not() -> None:
    assert disagreements(first_not) == 0
    assert disagreements(plain_binary_search) > 0
