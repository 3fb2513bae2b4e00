"""Recovery: where it starts, where the log ends, and what it must never do."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from stores import NO_FEATURES, SteppingClock, draft, find_bodies, moved, read_all, tiny_config

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Appended
from triomq.broker.store.core.errors import (
    FullAtStart,
    StartError,
    StoreDamaged,
    StoreDenied,
    StoreIoError,
)
from triomq.broker.store.io import log_blocks
from triomq.broker.store.io.checkpoint import Checkpoint
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.log import scan as log_scan
from triomq.broker.store.opening import open_store
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.recovery import Recovery, sole

SEGMENT = 4096


async def make_store(
    config: StoreConfig, *bodies: str, save_after: int | None = None
) -> list[Appended]:
    """A killed store: its files are as the page cache had them. The checkpoint covers the first
    ``save_after`` messages.
    """
    living = moved(config, config.root.with_name("living"))
    places = []
    async with open_store(living, SteppingClock()) as store:
        for number, body in enumerate(bodies, 1):
            places += store.append(
                [draft(body, unique_key=f"U{number}", keys=f"k{number % 2}", queue_id=number % 2)]
            )
            if number == save_after:
                await store.index_syncer.save()
        shutil.copytree(living.root, config.root)
    shutil.rmtree(living.root)
    return places


def log_file(config: StoreConfig, base: int = 0) -> Path:
    return config.commitlog / f"{base:020d}"


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


async def bodies_of(config: StoreConfig, disk: Disk | None = None) -> list[str]:
    """Open the store, compare log, queues and index, and return the bodies in log order."""
    async with open_store(config, SteppingClock(), disk=disk) as store:
        messages = [
            message for queue_id in (0, 1) for message in await read_all(store, "T", queue_id)
        ]
        for queue_id in (0, 1):
            queue = [message for message in messages if message.queue_id == queue_id]
            assert [message.queue_offset for message in queue] == list(range(len(queue)))
        for message in messages:
            assert message.body in await find_bodies(store, "T", message.properties["UNIQ_KEY"])
        assert len(
            await find_bodies(store, "T", "k0") + await find_bodies(store, "T", "k1")
        ) == len(messages)
        return [
            message.body.decode()
            for message in sorted(messages, key=lambda message: message.log_offset)
        ]


@pytest.mark.parametrize("disk", [Disk(), Disk(NO_FEATURES)], ids=["all calls", "fallbacks"])
@pytest.mark.parametrize("save_after", [None, 1, 7, 20])
@pytest.mark.feature("47b", "48c", "51b")
async def test_a_killed_store_has_everything(
    tmp_path: Path, save_after: int | None, disk: Disk
) -> None:
    config = tiny_config(tmp_path / "store")
    bodies = [f"{number}:" + "x" * (number * 37 % 700) for number in range(20)]
    places = await make_store(config, *bodies, save_after=save_after)
    assert (config.root / "abort").exists()
    async with open_store(config, disk=disk) as store:
        assert store.recovered.trusted == (save_after is not None)
        assert store.recovered.records == 20 - (save_after or 0)
        assert store.recovered.scanned_from == (
            places[save_after - 1].log_offset + places[save_after - 1].size if save_after else 0
        )
    assert await bodies_of(config, disk) == bodies


async def test_a_tail_cut_at_every_byte_of_the_last_record(tmp_path: Path) -> None:
    """For any part of the last record in the file: the record is dropped, all records before it
    stay, and the next append takes its place.
    """
    config = tiny_config(tmp_path / "store", check_crc_on_recover=True)
    places = await make_store(config, "first", "second" * 30, "the last one", save_after=1)
    last = places[-1]
    whole = log_file(config).read_bytes()
    for kept in range(last.size):
        torn = moved(config, tmp_path / "torn")
        shutil.copytree(config.root, torn.root)
        write(
            log_file(torn),
            last.log_offset,
            whole[last.log_offset : last.log_offset + kept].ljust(last.size, b"\0"),
        )
        async with open_store(torn, SteppingClock()) as store:
            assert store.appended.value == last.log_offset, kept
            assert (store.max_offset("T", 0), store.max_offset("T", 1)) == (1, 1)
            assert store.append([draft("instead", queue_id=1)])[0].queue_offset == 1
            assert await find_bodies(store, "T", "U3") == []
        assert log_file(torn).read_bytes()[: last.log_offset] == whole[: last.log_offset]
        shutil.rmtree(torn.root)


@pytest.mark.parametrize("position", range(0, 120, 7))
async def test_a_flipped_bit_in_the_last_record_is_seen(tmp_path: Path, position: int) -> None:
    """Everything is checked except times, hosts and counters: a record with wrong ones is still
    whole.
    """
    config = tiny_config(tmp_path / "store")
    (place,) = await make_store(config, "the only one")
    data = log_file(config).read_bytes()
    assert position < place.size
    write(log_file(config), position, bytes([data[position] ^ 0x04]))
    try:
        async with open_store(config) as store:
            assert store.appended.value in (0, place.size)
            unchecked = (
                range(12, 28),
                range(36, 84),
            )  # queue id and offset, flag; sysFlag, times, hosts
            body_topic_properties = position >= 88 + len("the only one")
            assert (
                store.appended.value == 0
                or body_topic_properties
                or any(position in part for part in unchecked)
            )
    except StartError as error:
        pytest.fail(f"a torn tail must not stop the start: {error}")


async def test_stale_records_behind_the_end_stay_erased(tmp_path: Path) -> None:
    """Java leaves old bytes behind the end: if an append ends where an old record begins, that
    record is valid again after the next crash.
    """
    config = tiny_config(tmp_path / "store")
    places = await make_store(config, "kept", "torn1", "stale", "stale")
    write(log_file(config), places[1].log_offset + 90, b"\xff")
    second = moved(config, tmp_path / "second")
    async with open_store(config, SteppingClock()) as store:
        assert store.appended.value == places[1].log_offset
        place = store.append([draft("anew1", unique_key="U2", keys="k0", queue_id=0)])[0]
        assert place.log_offset + place.size == places[2].log_offset
        shutil.copytree(config.root, second.root)
    assert await bodies_of(second) == ["kept", "anew1"]


async def test_the_check_for_stale_records_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With only eight zero bytes at the end, as RocketMQ's documentation advises, the stale record
    comes back.
    """
    monkeypatch.setattr(
        Disk,
        "zero_tail",
        lambda disk, fd, offset, end, path: disk.write_at(
            fd, bytes(min(8, end - offset)), offset, path
        ),
    )
    with pytest.raises(AssertionError):
        await test_stale_records_behind_the_end_stay_erased(tmp_path)


@pytest.mark.parametrize("what", ["log", "queues", "index"])
async def test_a_mark_that_does_not_fit_the_files_is_ignored(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tmp_path / "store")
    bodies = [f"m{number}" * 40 for number in range(12)]
    places = await make_store(config, *bodies, save_after=12)
    if what == "log":
        write(log_file(config, 0), places[5].log_offset + 95, b"\xff\xff")
        checkpoint = Checkpoint.decode((config.root / "checkpoint").read_bytes())
        assert checkpoint.mark is not None
        wrong = attrs.evolve(
            checkpoint,
            queue_log_offset=places[5].log_offset,
            mark=attrs.evolve(checkpoint.mark, record_offset=places[5].log_offset),
        )
        (config.root / "checkpoint").write_bytes(wrong.encode())
        bodies = bodies[:5]
    else:
        shutil.rmtree(config.root / {"queues": "consumequeue", "index": "index"}[what])
    assert await bodies_of(config) == bodies
    assert "Java's rules" in caplog.text


async def test_records_ahead_of_the_mark_are_indexed_once(tmp_path: Path) -> None:
    """Queue entries and keys of records behind the mark may be on the disk already, or in part."""
    config = tiny_config(
        tmp_path / "store", index_write_interval_ms=1, checkpoint_interval_ms=3_600_000
    )
    bodies = [f"m{number}" for number in range(50)]
    await make_store(config, *bodies, save_after=20)
    for _ in range(3):
        copy = moved(config, tmp_path / "copy")
        shutil.copytree(config.root, copy.root)
        assert await bodies_of(copy) == bodies
        shutil.rmtree(copy.root)


@pytest.mark.parametrize("clean", [True, False])
async def test_damage_in_the_middle(tmp_path: Path, clean: bool) -> None:
    """After a clean stop no record is torn, so segments behind a bad record are not deleted
    silently.
    """
    config = tiny_config(tmp_path / "store")
    await make_store(config, *["x" * 900] * 12)
    write(log_file(config, SEGMENT), 200, b"\xff" * 10)
    (config.root / "checkpoint").unlink()
    if clean:
        (config.root / "abort").unlink()
        with pytest.raises(StoreDamaged) as caught:
            await bodies_of(config)
        assert f"{SEGMENT:020d}" in str(caught.value)
        assert "later segments hold messages" in str(caught.value)
        assert log_file(config, 2 * SEGMENT).exists()
    else:
        assert len(await bodies_of(config)) == 4
        assert not log_file(config, 2 * SEGMENT).exists()


async def test_without_a_log_queues_and_index_are_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tmp_path / "store")
    await make_store(config, "a", "b", save_after=2)
    shutil.rmtree(config.commitlog)
    assert await bodies_of(config) == []
    assert "no commit log" in caplog.text
    async with open_store(config) as store:
        assert store.append([draft(unique_key="new")])[0].queue_offset == 0
        assert await find_bodies(store, "T", "new") == [b"hello"]


async def test_a_log_that_begins_later(tmp_path: Path) -> None:
    """Old segments were deleted: queues keep their numbers, and their minimum follows."""
    config = tiny_config(tmp_path / "store")
    await make_store(config, *["x" * 900] * 12, save_after=12)
    log_file(config, 0).unlink()
    async with open_store(config) as store:
        assert store.log.first_offset == SEGMENT
        assert (store.min_offset("T", 1), store.max_offset("T", 1)) == (2, 6)
        assert [message.queue_offset for message in await read_all(store, "T", 1)] == [2, 3, 4, 5]
    shutil.rmtree(config.root / "consumequeue")
    (config.root / "checkpoint").unlink()
    (config.root / "abort").touch()
    async with open_store(config) as store:  # rebuilt from the rest of the log
        assert (store.min_offset("T", 1), store.max_offset("T", 1)) == (2, 6)
        assert [message.queue_offset for message in await read_all(store, "T", 1)] == [2, 3, 4, 5]
        assert store.append([draft(queue_id=1)])[0].queue_offset == 6


async def test_a_log_that_ends_with_its_segment(tmp_path: Path) -> None:
    """The BLANK is written, but the next segment does not exist yet."""
    config = tiny_config(tmp_path / "store")
    await make_store(config, *["x" * 900] * 5)
    log_file(config, SEGMENT).unlink()
    async with open_store(config) as store:
        assert store.appended.value == SEGMENT
        assert (
            store.append([draft("next", queue_id=1, unique_key="U9", keys="k1")])[0].log_offset
            == SEGMENT
        )
    assert len(await bodies_of(config)) == 5


async def test_a_transaction_s_half_messages_are_recovered_without_entries(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "store")
    async with open_store(config) as store:
        store.append([draft(sys_flag=4), draft(), draft(sys_flag=12), draft(sys_flag=8)])
    shutil.rmtree(config.root / "consumequeue")
    async with open_store(config) as store:
        assert store.max_offset("T", 0) == 2


async def test_topics_that_would_lead_out_of_the_store_end_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tmp_path / "store")
    places = await make_store(config, "good", "evil")
    data = log_file(config).read_bytes()
    topic_at = data.index(b"\1T", places[1].log_offset + 88)
    write(log_file(config), topic_at + 1, b"/")
    assert await bodies_of(config) == ["good"]
    assert "cannot be" in caplog.text


async def test_a_full_disk_at_the_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path / "store")
    await make_store(config, "a", "b")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        FullAtStart, match="free some space on its file system, then start the broker again"
    ):
        await bodies_of(config)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda root: root.write_text("a file"), StoreDamaged, "storePathRootDir"),
        (
            lambda root: (
                (root / "commitlog").parent.mkdir() or (root / "commitlog").write_text("x")
            ),
            StoreDamaged,
            "move it away",
        ),
        (lambda root: (root / "checkpoint").mkdir(parents=True), StoreDamaged, "move it away"),
    ],
    ids=["root is a file", "log is a file", "checkpoint is a folder"],
)
async def test_a_file_in_the_way_is_named(
    tmp_path: Path, make: Callable[[Path], Any], kind: type[Exception], words: str
) -> None:
    make(tmp_path / "store")
    with pytest.raises(kind, match=words) as caught:
        async with open_store(tiny_config(tmp_path / "store")):
            pass
    assert str(tmp_path / "store") in str(caught.value)


@pytest.mark.parametrize(
    ("number", "kind"), [(13, StoreDenied), (30, StoreDenied), (28, FullAtStart), (5, StoreIoError)]
)
async def test_errors_of_the_system_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refuse(disk: Disk, path: Path, size: int, position: int) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    config = tiny_config(tmp_path / "store")
    await make_store(config, "a")
    monkeypatch.setattr(Disk, "read_path", refuse)
    with pytest.raises(kind, match="checkpoint"):
        await bodies_of(config)
    monkeypatch.undo()
    assert await bodies_of(config) == ["a"]  # the lock was released, and no file was changed


async def test_a_foreign_file_in_the_log_stops_the_start(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "store")
    await make_store(config, "a")
    (config.commitlog / "core.1234").write_text("x")
    with pytest.raises(StoreDamaged, match=r"core\.1234"):
        await bodies_of(config)


async def test_recovery_reads_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(tmp_path / "store", segment_size_bytes=1 << 20)
    bodies = [f"{number}" * 300 for number in range(40)]
    await make_store(config, *bodies)
    monkeypatch.setattr(log_scan, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(log_scan, "BATCH_RECORDS", 7)
    assert await bodies_of(config) == bodies


async def test_a_restart_reads_what_came_since_the_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "store", segment_size_bytes=1 << 30)
    await make_store(config, *["x"] * 50, save_after=49)
    begun = time.monotonic()
    async with open_store(config) as store:
        assert store.recovered.records == 1
    assert time.monotonic() - begun < 30  # it does not read a GiB of zeros


@pytest.mark.parametrize("first", [1, 64, 300, 4096])
@pytest.mark.parametrize("reads", [0, 2, 1_000_000])
async def test_blocks_end_anywhere_and_may_stop_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, reads: int
) -> None:
    """The first ``reads`` blocks of a log of several segments come from the thread; ``first``:
    bytes of the first block.
    """
    monkeypatch.setattr(log_blocks, "FIRST_BYTES", first)
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES_MAX", 2 * first)
    taken: list[int] = []
    read = log_blocks.LogBlocks._read

    def fail_later(self: log_blocks.LogBlocks, path: Path, size: int, position: int) -> bytes:
        if len(taken) == reads:
            raise OSError(errno.EIO, "broken")
        taken.append(position)
        return read(self, path, size, position)

    monkeypatch.setattr(log_blocks.LogBlocks, "_read", fail_later)
    bodies = [f"{number}" * (1 + 100 * (number % 7)) for number in range(40)]
    config = tiny_config(tmp_path / "store", segment_size_bytes=SEGMENT)
    await make_store(config, *bodies)
    taken.clear()
    assert sorted(await bodies_of(config)) == sorted(bodies)
    assert len(taken) >= min(reads, 5)


async def test_a_read_error_under_a_record_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery itself reads what the thread cannot read, and a read error is not the end of the
    log.
    """
    config = tiny_config(tmp_path / "store", segment_size_bytes=SEGMENT)
    places = await make_store(config, "a", "b")
    read = Disk.read

    def broken(self: Disk, fd: int, size: int, offset: int) -> bytes:
        if (
            os.path.samestat(os.fstat(fd), os.stat(log_file(config)))
            and offset <= places[1].log_offset < offset + size
        ):
            raise OSError(errno.EIO, "broken")
        return read(self, fd, size, offset)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "read", broken)
        with pytest.raises(StoreIoError, match="broken"):
            async with open_store(config, SteppingClock()):
                pass
    assert sorted(await bodies_of(config)) == ["a", "b"]


@pytest.mark.parametrize("kind", [KeyError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_any_exception_comes_out_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, kind: type[BaseException]
) -> None:
    """The caller needs its type and its cause."""
    config = tiny_config(tmp_path / "store", segment_size_bytes=SEGMENT)
    await make_store(config, "a", "b")
    cause = ValueError("why")

    def fail(self: object, *what: object) -> None:
        raise kind("here") from cause

    monkeypatch.setattr(
        *((Recovery, "_apply") if where == "loop" else (log_blocks.LogBlocks, "_read")), fail
    )
    with pytest.raises(kind, match="here") as caught:
        async with open_store(config, SteppingClock()):
            pass
    assert caught.value.__cause__ is cause
    assert caught.value.__context__ is cause or caught.value.__context__ is None


async def test_a_recovery_that_is_cancelled_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path / "store", segment_size_bytes=SEGMENT)
    await make_store(config, "a", "b")
    with monkeypatch.context() as patch, trio.CancelScope() as scope:

        def cancel(self: Recovery, batch: Batch) -> None:
            scope.cancel()

        patch.setattr(Recovery, "_apply", cancel)
        async with open_store(config, SteppingClock()):
            pass
    assert scope.cancelled_caught
    assert sorted(await bodies_of(config)) == ["a", "b"]


def test_several_exceptions_stay_together() -> None:
    one, other = KeyError("one"), OSError("other")
    assert sole(ExceptionGroup("", [ExceptionGroup("", [one])])) is one
    both = ExceptionGroup("", [one, other])
    assert sole(both) is both


@pytest.mark.feature(30)
async def test_recovery_stops_at_a_record_whose_body_has_a_flipped_bit_and_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tmp_path / "store")
    places = await make_store(config, "first", "second", "third")
    data = log_file(config).read_bytes()
    body = data.index(b"third")
    write(log_file(config), body, bytes([data[body] ^ 0x01]))
    async with open_store(config, SteppingClock()) as store:
        assert store.appended.value == places[2].log_offset
    assert (
        f"the log ends at {places[2].log_offset} (2 records read from 0; after a crash; "
        in caplog.text
    )
    assert "CRC" in caplog.text
    assert await bodies_of(config) == ["first", "second"]
