"""The fast paths of a get (all entries at once; memory maps) give the results of the slow paths."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest
from stores import SteppingClock, draft, tiny_config

from triomq.broker.store.core.results import GetResult
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store
from triomq.broker.store.reading.reader import Reader
from triomq.broker.store.store import MessageStore


async def filled(store: MessageStore, seed: int) -> None:
    """Two queues over several segments, with records that are adjacent now and then."""
    chance = random.Random(seed)
    for number in range(120):
        store.append(
            [draft(f"{number}" * chance.randrange(1, 30), queue_id=chance.choice([0, 0, 1]))]
        )


def seen(result: GetResult | None) -> tuple[object, ...]:
    assert result is not None
    values = attrs.asdict(result, recurse=False)
    return *(value for name, value in values.items() if name != "chunks"), b"".join(result.chunks)


@pytest.mark.parametrize("seed", range(5))
async def test_taking_all_entries_equals_choosing_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    taken = 0
    take_all = Reader._take_all

    def counted(*arguments: object) -> GetResult | None:
        nonlocal taken
        result = take_all(*arguments)  # type: ignore[arg-type]
        taken += result is not None
        return result

    async with open_store(
        tiny_config(tmp_path, transfer_count_memory_max=20, transfer_bytes_memory_max=3_000),
        SteppingClock(),
    ) as store:
        await filled(store, seed)
        chance = random.Random(seed)
        asked = [
            (
                chance.randrange(0, 90),
                chance.randrange(1, 40),
                chance.choice([1, 500, 2_000, 1 << 20]),
            )
            for _ in range(200)
        ]
        answers = []
        for taker in (counted, lambda *_: None):
            monkeypatch.setattr(Reader, "_take_all", taker)
            answers.append(
                [
                    seen(store.get("T", 0, offset, messages_max=count, bytes_max=size))
                    for offset, count, size in asked
                ]
            )
        assert answers[0] == answers[1]
        assert 20 < taken < 200


class PartlyCold(Disk):
    """A disk whose page cache lacks one byte of the log."""

    lacks: int = -1
    asked: int = 0

    def read_nowait(self, fd: int, size: int, offset: int) -> bytearray | None:
        self.asked += 1
        return (
            None if offset <= self.lacks < offset + size else super().read_nowait(fd, size, offset)
        )


async def test_maps_are_read_only_if_the_page_cache_has_the_records(tmp_path: Path) -> None:
    disk = PartlyCold()
    body = "x" * 30_000
    config = tiny_config(
        tmp_path,
        segment_size_bytes=1 << 20,
        hot_bytes_max=0,
        transfer_bytes_memory_max=1 << 20,
        message_size_bytes_max=1 << 16,
    )
    async with open_store(config, SteppingClock(), disk=disk) as store:
        places = store.append(
            [draft(f"{number}{body}", queue_id=number % 2) for number in range(20)]
        )

        def get() -> GetResult | None:
            disk.asked = 0
            return store.get("T", 0, 0, messages_max=10, bytes_max=1 << 20)

        warm = get()
        assert warm is not None
        assert warm.count == 10
        assert disk.asked < 12, "a byte in 64 KiB, not every record"
        whole = b"".join(warm.chunks)
        for lacking in (places[0].log_offset, places[18].log_offset + places[18].size - 1):
            disk.lacks = lacking
            assert get() is None, "it would have waited for the disk"
            disk.lacks = -1
        cold = await store.get_cold("T", 0, 0, messages_max=10, bytes_max=1 << 20)
        assert b"".join(cold.chunks) == whole
