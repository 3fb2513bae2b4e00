"""A broker in controller mode cuts its log: readers have seen nothing of what is cut off, and a
crash at any operation of the cut leaves a store that opens, and that can be cut again.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio
from simulated_disk import Image, Operation, SimulatedDisk
from store_simulation import deterministic, simulated_config
from stores import SteppingClock, draft, moved

from triomq.broker.inspect.layout import Sizes
from triomq.broker.inspect.verify import verify
from triomq.broker.store import recovery
from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.opening import close_files, finish_store, load_store
from triomq.broker.store.store import MessageStore

MESSAGES = 55


async def opened(config: StoreConfig, disk: SimulatedDisk, cut_at: int | None) -> MessageStore:
    config.root.mkdir(exist_ok=True)
    return await load_store(config, SteppingClock(), disk, holds_tail=True, cut_at=cut_at)


async def filled(config: StoreConfig, confirmed: int) -> list[tuple[int, int]]:
    """Store messages, of which some are confirmed; return the places of their records."""
    store = await opened(config, SimulatedDisk(config.root), None)
    places = []
    for number in range(MESSAGES):
        batch = store.append(
            [draft(f"m{number}" * (number % 7), "T", number % 3, keys=f"k{number}")]
        )
        places.append((batch[0].log_offset, batch[0].log_offset + batch[0].size))
    await store.flusher.flush()
    assert store.confirmations is not None
    store.confirmations.confirm(places[confirmed][1] + 3)  # inside of the next record
    assert store.indexed.value == store.confirmed.value == places[confirmed][1]
    assert counts(store) == confirmed + 1
    await finish_store(store)
    close_files(store)
    return places


def counts(store: MessageStore) -> int:
    return sum(store.max_offset("T", queue_id) for queue_id in range(3))


def log_bytes(store: MessageStore, end: int) -> bytes:
    found = b""
    for segment in store.log.segments.items:
        found += segment.path.read_bytes()
    return found[:end]


def ends_within(places: list[tuple[int, int]], cut_at: int) -> int:
    return max(end for _, end in places if end <= cut_at)


async def confirm_all(store: MessageStore) -> None:
    assert store.confirmations is not None
    store.confirmations.confirm(store.appended.value)
    await store.indexer.catch_up()


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("inside", [0, 5])
def test_a_crash_at_any_operation_of_a_cut(mode: FlushMode, inside: int, tmp_path: Path) -> None:
    config = simulated_config(tmp_path / "store", mode)
    images: list[tuple[Operation, Image]] = []

    async def cut() -> tuple[list[tuple[int, int]], int, bytes]:
        places = await filled(config, 20)
        cut_at = places[30][1] + inside
        disk = SimulatedDisk(config.root)
        disk.before = lambda operation: images.append((operation, disk.image()))
        store = await opened(config, disk, cut_at)
        assert store.appended.value == ends_within(places, cut_at) == places[30][1]
        assert counts(store) == 21  # what was confirmed is shown, and nothing else
        before = log_bytes(store, store.appended.value)
        await confirm_all(store)
        assert counts(store) == 31
        close_files(store)
        return places, cut_at, before

    with deterministic(1):
        places, cut_at, before = trio.run(cut)
        assert len(images) > 5
        for number, (operation, image) in enumerate(images):
            for how in ("kill",) if number % 2 else ("power",):
                target = tmp_path / f"{number}-{how}"
                if how == "kill":
                    image.after_kill(target)
                else:
                    image.after_power_failure(target, number)
                try:
                    trio.run(again, moved(config, target), places, cut_at, before)
                except Exception as error:
                    error.add_note(f"{how} before {operation.kind} {operation.path.name}")
                    raise
                shutil.rmtree(target)


async def again(
    config: StoreConfig, places: list[tuple[int, int]], cut_at: int, before: bytes
) -> None:
    """The next start, without the cut, then the cut; each time log and queues are as they must."""
    end = len(before)
    store = await opened(config, SimulatedDisk(config.root), None)
    whole = {place[1] for place in places}
    assert store.appended.value >= end
    assert store.appended.value in whole or store.appended.value % config.segment_size_bytes == 0
    assert log_bytes(store, end) == before
    assert counts(store) <= 21
    close_files(store)
    store = await opened(config, SimulatedDisk(config.root), cut_at)
    assert (store.appended.value, log_bytes(store, end)) == (end, before)
    await confirm_all(store)
    assert counts(store) == 31
    # A message behind the cut gets the number after the last one, and its log is whole.
    await store.begin_writing()
    store.append([draft("new", "T", 31 % 3)])
    await store.flusher.flush()
    await confirm_all(store)
    assert counts(store) == 32
    await finish_store(store)
    close_files(store)
    sizes = Sizes(
        segment_size=config.segment_size_bytes,
        queue_file_size=config.queue_file_size_bytes,
        index_slots=config.index_slot_count,
        index_entries=config.index_entry_count,
    )
    verdict = verify(config.root, sizes)
    assert verdict.clean, verdict.document()


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_below_what_was_shown(seed: int, tmp_path: Path) -> None:
    """A master that acknowledges alone may have shown what a cut takes: queues lose it, too."""
    config = simulated_config(tmp_path / "store", FlushMode.ASYNC)
    choose = random.Random(seed)

    async def run() -> None:
        places = await filled(config, 50)
        at = choose.randrange(5, 45)
        store = await opened(config, SimulatedDisk(config.root), places[at][1])
        assert store.appended.value == places[at][1]
        assert counts(store) <= at + 1
        await confirm_all(store)
        assert counts(store) == at + 1
        close_files(store)

    with deterministic(seed):
        trio.run(run)


def test_a_start_that_shows_the_tail_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = recovery.Recovery._apply

    def hasty(self: recovery.Recovery, batch: object) -> None:
        self.holds_tail = False
        original(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery.Recovery, "_apply", hasty)
    with pytest.raises(AssertionError):
        test_a_crash_at_any_operation_of_a_cut(FlushMode.ASYNC, 0, tmp_path)
