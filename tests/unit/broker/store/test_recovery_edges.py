"""Recovery of damaged stores: the files, and what the log says to the operator."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from stores import SteppingClock, draft, find_bodies, moved, read_all, tiny_config

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.keys.index_file import HEADER, Geometry, KeyIndexFile
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.consume_queue import ENTRY, ConsumeQueue
from triomq.broker.store.queues.table import QueueTable
from triomq.broker.store.recovery_progress import RecoveryProgress
from triomq.broker.store.store import MessageStore

SEGMENT = 4096
BODY = "x" * 900
"""Four messages a segment."""


async def make(
    config: StoreConfig, count: int = 24, *, clean: bool = True, mark: bool = True
) -> None:
    """Message n goes to queue n % 2. ``clean`` false: as ``kill -9`` leaves it. ``mark`` false: as
    a Java broker leaves it.
    """
    async with open_store(config, SteppingClock()) as store:
        for number in range(count):
            store.append(
                [draft(f"{number}:{BODY}", queue_id=number % 2, unique_key=f"U{number}", keys="k")]
            )
    if not clean:
        (config.root / "abort").touch()
    if not mark:
        (config.root / "checkpoint").unlink()


def segment(config: StoreConfig, number: int) -> Path:
    return config.commitlog / f"{number * SEGMENT:020d}"


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


async def check(store: MessageStore, first: int, end: int) -> None:
    """Check that the store has the messages [first, end) in log, queues and index, and takes
    more.
    """
    for queue_id in (0, 1):
        found = await read_all(store, "T", queue_id)
        expected = [number for number in range(first, end) if number % 2 == queue_id]
        assert [int(message.body.split(b":")[0]) for message in found] == expected
        assert [message.queue_offset for message in found] == [number // 2 for number in expected]
    for number in range(end + 2):
        assert (await find_bodies(store, "T", f"U{number}") != []) == (first <= number < end), (
            number
        )
    assert len(await find_bodies(store, "T", "k")) == end - first
    place = store.append([draft("more", queue_id=end % 2, unique_key="more")])[0]
    assert place.queue_offset == end // 2
    assert await find_bodies(store, "T", "more") == [b"more"]


@pytest.mark.parametrize("missing", [(1,), (2, 3)])
async def test_a_missing_middle_segment_stops_the_start_with_the_offset_and_what_can_be_done(
    tmp_path: Path, missing: tuple[int, ...]
) -> None:
    config = tiny_config(tmp_path / "store")
    await make(config)
    kept = tmp_path / "kept"
    kept.mkdir()
    for number in missing:
        segment(config, number).rename(kept / segment(config, number).name)
    before = {path: path.read_bytes() for path in config.root.rglob("*") if path.is_file()}
    with pytest.raises(StoreDamaged) as caught:
        async with open_store(config):
            pass
    text = str(caught.value)
    assert (
        f"the bytes from offset {missing[0] * SEGMENT} to {(missing[-1] + 1) * SEGMENT} are missing"
        in text
    )
    assert "restore it from a copy" in text
    assert "loses their messages" in text
    assert {
        path: path.read_bytes() for path in config.root.rglob("*") if path.is_file()
    } == before  # no file was changed
    first_way = moved(config, tmp_path / "restored")
    shutil.copytree(config.root, first_way.root)
    for path in kept.iterdir():
        shutil.copy(path, first_way.commitlog / path.name)
    async with open_store(first_way, SteppingClock()) as store:
        await check(store, 0, 24)
    second_way = moved(config, tmp_path / "later moved away")
    shutil.copytree(config.root, second_way.root)
    for path in second_way.commitlog.iterdir():
        if int(path.name) > missing[0] * SEGMENT:
            path.unlink()
    async with open_store(second_way, SteppingClock()) as store:
        await check(store, 0, 4 * missing[0])
    for path in config.commitlog.iterdir():
        if int(path.name) < missing[0] * SEGMENT:
            path.unlink()
    async with open_store(config, SteppingClock()) as store:
        await check(store, 4 * (missing[-1] + 1), 24)


@pytest.mark.parametrize("mark", [True, False], ids=["our checkpoint", "no checkpoint"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
async def test_a_log_cut_by_an_operator_takes_queues_and_index_along(
    tmp_path: Path, clean: bool, mark: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The last segments were moved away: queues and index have messages that the log lacks."""
    config = tiny_config(tmp_path / "store")
    await make(config, clean=clean, mark=mark)
    for number in (3, 4, 5):
        segment(config, number).unlink()
    async with open_store(config, SteppingClock()) as store:
        if clean:
            assert "their last entries are cut off" in caplog.text
        await check(store, 0, 12)
    async with open_store(config, SteppingClock()) as store:
        assert store.appended.value > 3 * SEGMENT


async def test_the_key_of_a_message_that_takes_the_place_of_a_lost_one_is_found(
    tmp_path: Path,
) -> None:
    """After a clean stop the last record was lost: the index has a record that begins where the log
    ends now, and where the next record begins.
    """
    config = tiny_config(tmp_path / "store")
    async with open_store(config, SteppingClock()) as store:
        store.append([draft("kept", unique_key="K")])
        (last,) = store.append([draft("lost", unique_key="L")])
    write(segment(config, 0), last.log_offset, bytes(last.size))
    async with open_store(config, SteppingClock()) as store:
        assert await find_bodies(store, "T", "L") == []
        (place,) = store.append([draft("instead", unique_key="I")])
        assert place.log_offset == last.log_offset
        assert [await find_bodies(store, "T", key) for key in "KLI"] == [
            [b"kept"],
            [],
            [b"instead"],
        ]


@pytest.mark.parametrize("mark", [True, False], ids=["our checkpoint", "no checkpoint"])
@pytest.mark.parametrize("what", ["half an entry", "a whole entry", "many entries"])
async def test_torn_and_wrong_entries_behind_the_last_one_of_a_queue_are_cut(
    tmp_path: Path, what: str, mark: bool
) -> None:
    config = tiny_config(tmp_path / "store")
    await make(config, 23, clean=False, mark=mark)
    data = {
        "half an entry": ENTRY.pack(6 * SEGMENT, 1000, 7)[:13],
        "a whole entry": ENTRY.pack(6 * SEGMENT, 1000, 7),
        "many entries": b"".join(ENTRY.pack(6 * SEGMENT + 1000 * n, 1000, 7) for n in range(5)),
    }[what]
    file = config.root / "consumequeue" / "T" / "1" / f"{200:020d}"
    write(file, 20, data)  # queue 1 has the entries 0 to 10
    async with open_store(config, SteppingClock()) as store:
        await check(store, 0, 23)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
async def test_a_missing_index_is_rebuilt(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tmp_path / "store")
    await make(config, clean=clean)
    shutil.rmtree(config.root / "index")
    async with open_store(config, SteppingClock()) as store:
        assert "there is no key index: it is rebuilt from the log" in caplog.text
        await check(store, 0, 24)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize(
    ("how", "which"),
    # The first file follows no other, so it has no order.
    [
        *(
            (how, which)
            for how in ("length", "next entry", "slots", "offsets")
            for which in (0, 1, -1)
        ),
        ("order", 1),
        ("order", -1),
    ],
)
async def test_a_damaged_index_file_is_rebuilt(
    tmp_path: Path, how: str, which: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tmp_path / "store")
    await make(config, clean=clean)
    files = sorted((config.root / "index").iterdir())
    assert len(files) > 2
    header = list(HEADER.unpack(files[which].read_bytes()[: HEADER.size]))
    if how == "length":
        with files[which].open("r+b") as file:
            file.truncate(100)
    else:
        number, value = {
            "next entry": (5, 1000),
            "slots": (4, -1),
            "offsets": (2, 1 << 60),
            "order": (2, 1),
        }[how]
        header[number] = value
        write(files[which], 0, HEADER.pack(*header))
    async with open_store(config, SteppingClock()) as store:
        assert f"{files[which].name} is damaged" in caplog.text
        await check(store, 0, 24)


def test_why_bytes_are_not_a_header() -> None:
    geometry = Geometry(16, 24)
    assert KeyIndexFile.complaint(HEADER.pack(5, 9, 0, 100, 3, 7), geometry) is None
    assert KeyIndexFile.complaint(bytes(HEADER.size), geometry) is None
    for header, words in (
        ((5, 9, 0, 100, 3, 25), "next entry is 25 of 24"),
        ((5, 9, 0, 100, 17, 7), "17 of 16 slots"),
        ((5, 9, 101, 100, 3, 7), "from log offset 101 to 100"),
        ((-5, 9, 0, 100, 3, 7), "from time -5 to 9"),
    ):
        assert words in str(KeyIndexFile.complaint(HEADER.pack(*header), geometry))


async def test_a_long_recovery_logs_its_progress(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path / "store", segment_size_bytes=1 << 20)
    async with open_store(config, SteppingClock()) as store:
        for number in range(1500):
            store.append([draft(f"{number}:{BODY}")])
    (config.root / "checkpoint").unlink()
    (config.root / "abort").touch()
    caplog.set_level(logging.INFO)
    async with open_store(config, SteppingClock(step_ms=2_000)) as store:
        assert store.max_offset("T", 0) == 1500
    lines = [record.message for record in caplog.records if "recovery has read" in record.message]
    assert lines
    assert "of at most 2 MiB of the log (" in lines[0]
    assert "s to go" in lines[0]


def test_progress_in_words() -> None:
    now = [0]
    progress = RecoveryProgress(1 << 30, 11 << 30, lambda: now[0])
    assert (
        progress.text((1 << 30) + (3 << 30), 10_000)
        == "recovery has read 3072 of at most 10240 MiB of the log (30 %), 307 MiB/s, at most 23 s"
        " to go"
    )
    assert "no estimate yet" in progress.text(1 << 30, 0)


def test_progress_is_logged_every_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    times = iter([0, 4_999, 5_000, 9_000, 10_000, 3_000, 7_000, 8_000])
    progress = RecoveryProgress(0, 100 << 20, lambda: next(times))
    for position in range(7):
        progress.note(position << 20)
    assert len(caplog.records) == 3  # at 5 and 10 s, and at 8 s after the clock was set back to 3 s


async def test_a_recovery_that_keeps_queues_ahead_of_the_log_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(QueueTable, "truncate", lambda *_, **__: None)
    with pytest.raises(BaseExceptionGroup) as caught:
        await test_a_log_cut_by_an_operator_takes_queues_and_index_along(
            tmp_path, True, True, caplog
        )
    assert caught.group_contains(Exception)


async def half_an_entry(folder: Path) -> None:
    """Entry 6 of a file lies in two sectors. Of the entry behind the checkpoint only the second
    sector has reached the disk: log offset 0, and a size.
    """
    config = tiny_config(folder / "store")
    async with open_store(config, SteppingClock()) as store:
        for number in range(6):
            store.append([draft(f"{number}:{BODY}", queue_id=0, unique_key=f"U{number}", keys="k")])
        await store.index_syncer.save()
        store.append([draft(f"6:{BODY}", queue_id=0, unique_key="U6", keys="k")])
        for _ in store.queue_table.write_out():
            pass
        shutil.copytree(config.root, folder / "killed")
    killed = moved(config, folder / "killed")
    file = killed.root / "consumequeue" / "T" / "0" / f"{0:020d}"
    assert ENTRY.unpack_from(file.read_bytes(), 120)[0] > 0
    write(file, 120, bytes(8))
    async with open_store(killed, SteppingClock()) as store:
        assert [message.queue_offset for message in await read_all(store, "T", 0)] == list(range(7))
        assert store.append([draft("more")])[0].queue_offset == 7


async def test_half_an_entry_does_not_count(tmp_path: Path) -> None:
    await half_an_entry(tmp_path)


async def test_a_recovery_that_takes_half_an_entry_for_a_whole_one_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumeQueue, "_is_torn", lambda *_: False)
    with pytest.raises((AssertionError, ExceptionGroup)):
        await half_an_entry(tmp_path)


async def test_an_index_without_a_checkpoint_is_rebuilt_after_a_crash(tmp_path: Path) -> None:
    """No queue entry and no checkpoint is on the disk yet, but some pages of the index are."""
    config = tiny_config(tmp_path / "store")
    await make(config, 6, clean=False, mark=False)
    shutil.rmtree(config.root / "consumequeue")
    for path in (config.root / "index").iterdir():
        write(path, 104, bytes(200))
    async with open_store(config, SteppingClock()) as store:
        await check(store, 0, 6)
