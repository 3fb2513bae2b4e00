"""Residency: which pages of a map the page cache has, on real files with holes that were never
read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import SteppingClock, draft, tiny_config

from triomq.broker.store.core.results import GetStatus
from triomq.broker.store.io.disk import Disk, DiskFeatures
from triomq.broker.store.io.residency import PAGES_MAX, Residency, has_mincore
from triomq.broker.store.opening import open_store

PAGE = mmap.PAGESIZE
pytestmark = pytest.mark.skipif(not has_mincore(), reason="this system has no mincore")


@pytest.fixture
def view(tmp_path: Path) -> Iterator[memoryview]:
    """Pages 3 to 9 of a sparse file of 2,000 pages are written, all others are holes."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, 2_000 * PAGE)
        os.pwrite(fd, b"x" * (7 * PAGE), 3 * PAGE)
        yield memoryview(mmap.mmap(fd, 2_000 * PAGE, access=mmap.ACCESS_READ))
    finally:
        os.close(fd)


@pytest.mark.parametrize("touched", [False, True])
def test_present_and_missing_pages(view: memoryview, touched: bool) -> None:
    if touched:  # then they are in the page table of this process, too
        assert bytes(view[3 * PAGE : 10 * PAGE]) == b"x" * (7 * PAGE)
    residency = Residency(view)
    assert residency.has(3 * PAGE, 10 * PAGE)
    assert residency.has(3 * PAGE + 1, 10 * PAGE - 1)
    assert residency.has(9 * PAGE + 17, 9 * PAGE + 18)
    assert not residency.has(3 * PAGE, 1_500 * PAGE)  # too far for one call
    for start, stop in (
        (1_200 * PAGE, 1_200 * PAGE + 1),
        (1_990 * PAGE, 2_000 * PAGE),
        (5 * PAGE, 900 * PAGE),
    ):
        assert not residency.has(start, stop)


def test_a_span_outside_of_the_map_is_missing(view: memoryview) -> None:
    residency = Residency(view)
    assert not residency.has(5 * PAGE, 5 * PAGE)
    assert not residency.has(6 * PAGE, 4 * PAGE)
    assert not residency.has(1_999 * PAGE, 2_000 * PAGE + 1)
    bytes(view)  # now all pages are present
    assert residency.has(0, (PAGES_MAX - 1) * PAGE)
    assert not residency.has(0, (PAGES_MAX - 1) * PAGE + 1)


class CountingDisk(Disk):
    """Counts how often the page cache is asked for bytes of the log."""

    def __init__(self, features: DiskFeatures) -> None:
        super().__init__(features)
        self.asked = 0
        self.log_size = 0

    def read_nowait(self, fd: int, size: int, offset: int) -> bytearray | None:
        self.asked += os.fstat(fd).st_size == self.log_size
        return super().read_nowait(fd, size, offset)


async def test_scattered_records_behind_the_hot_part_cost_one_question(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path,
        segment_size_bytes=1 << 20,
        hot_bytes_max=0,
        transfer_bytes_memory_max=1 << 20,
        message_size_bytes_max=1 << 16,
    )
    async with open_store(config, SteppingClock()) as store:
        store.append(
            [
                draft(
                    f"{number}" + "x" * 20_000, queue_id=number % 4, tags="A" if number % 8 else "B"
                )
                for number in range(80)
            ]
        )
        assert store.log.segments.end > 1 << 20
    answers: list[list[bytes]] = []
    asked = []
    for known in (True, False):
        disk = CountingDisk(DiskFeatures(residency=known))
        disk.log_size = config.segment_size_bytes
        async with open_store(config, SteppingClock(), disk=disk) as store:
            disk.asked = 0
            answers.append([])
            for offset in range(19):  # some answers lie in two segments
                for codes in (None, frozenset({65})):
                    found = store.get(
                        "T", 0, offset, messages_max=4, bytes_max=1 << 20, tag_codes=codes
                    )
                    assert found is not None
                    assert found.status is GetStatus.FOUND
                    answers[-1].append(b"".join(found.chunks))
            asked.append(disk.asked)
    assert answers[0] == answers[1]
    assert asked[0] * 3 < asked[1], "only answers from two segments are asked for piece by piece"


async def test_a_missing_page_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(
        tmp_path,
        segment_size_bytes=1 << 20,
        hot_bytes_max=0,
        transfer_bytes_memory_max=1 << 20,
        message_size_bytes_max=1 << 16,
    )
    async with open_store(
        config, SteppingClock(), disk=Disk(DiskFeatures(residency=True))
    ) as store:
        store.append([draft("x" * 20_000, queue_id=number % 2) for number in range(20)])
        assert store.get("T", 0, 0, messages_max=8, bytes_max=1 << 20) is not None
        monkeypatch.setattr(Residency, "has", lambda *_: False)
        monkeypatch.setattr(
            Disk,
            "read_nowait",
            lambda self, fd, size, offset: (
                None if os.fstat(fd).st_size == 1 << 20 else bytearray(self.read(fd, size, offset))
            ),
        )
        assert store.get("T", 0, 0, messages_max=8, bytes_max=1 << 20) is None
