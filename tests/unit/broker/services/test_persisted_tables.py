"""Tables on disk: what a save leaves behind, what a load takes, and when the saver writes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import trio
from callback_table import CallbackTable

from triomq.broker.services import persisted
from triomq.broker.services.persisted import (
    RETRY_SECONDS,
    DamagedTable,
    TableSaver,
    encode_pretty,
    load_table,
)
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.atomic_file import replace_file

# How long the loop must be idle before time jumps: longer than a save in a thread takes.
IDLE_SECONDS = 0.1


def read_number(content: bytes) -> int:
    document = json.loads(content)
    if "n" not in document:
        raise ValueError("n is missing")
    return int(document["n"])


def test_without_files_a_table_is_empty(tmp_path: Path) -> None:
    assert load_table(tmp_path / "t.json", read_number) is None


def test_a_save_keeps_the_former_version_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "config" / "t.json"
    replace_file(path, b'{"n":1}')
    assert not path.with_name("t.json.bak").exists()
    replace_file(path, b'{"n":2}')
    assert load_table(path, read_number) == 2
    assert path.with_name("t.json.bak").read_bytes() == b'{"n":1}'
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["t.json", "t.json.bak"]


@pytest.mark.parametrize("content", [b"", b"  \n", b"{", b'{"m":1}', b'{"n":"x"}', b"\xff\xfe"])
def test_a_damaged_file_is_replaced_by_its_backup_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.with_name("t.json.bak").write_bytes(b'{"n":7}')
    path.write_bytes(content)
    assert load_table(path, read_number) == 7
    assert path.with_name("t.json.damaged").read_bytes() == content
    replace_file(path, b'{"n":8}')
    assert path.with_name("t.json.bak").read_bytes() == b'{"n":7}', (
        "the damaged file must not become the backup"
    )


def test_only_the_backup_is_left_when_java_died_between_its_two_steps(tmp_path: Path) -> None:
    (tmp_path / "t.json.bak").write_bytes(b'{"n":7}')
    assert load_table(tmp_path / "t.json", read_number) == 7


def test_when_nothing_can_be_read_the_error_names_files_and_fix(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"{")
    path.with_name("t.json.bak").write_bytes(b"[")
    with pytest.raises(
        DamagedTable,
        match=r"t\.json cannot be read.*t\.json\.bak cannot be read.*restore one of them",
    ):
        load_table(path, read_number)


def test_an_interrupted_save_leaves_a_complete_version(tmp_path: Path) -> None:
    """At whatever step the process dies, a later load finds the old or the new content."""
    path = tmp_path / "t.json"
    replace_file(path, b'{"n":1}')
    for allowed in range(3):
        before = load_table(path, read_number)
        assert before is not None
        if allowed < 2:
            with pytest.raises(KeyboardInterrupt):
                replace_file(path, b'{"n":%d}' % (before + 1), DyingDisk(allowed))
        else:
            replace_file(path, b'{"n":%d}' % (before + 1), DyingDisk(allowed))
        assert load_table(path, read_number) in (before, before + 1)


class DyingDisk(Disk):
    """Stands in for a process that dies at the n-th rename of a file."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self.allowed = allowed

    def rename(self, path: Path, target: Path) -> None:
        if not self.allowed:
            raise KeyboardInterrupt
        self.allowed -= 1
        super().rename(path, target)


def test_the_pretty_form_is_json_with_one_entry_per_line() -> None:
    table = {
        "dataVersion": {"counter": 1},
        "empty": {},
        "offsetTable": {"T@G": {0: 5, 1: 6}, 'q"@G': {}},
    }
    text = encode_pretty(table)
    assert json.loads(text) == {
        "dataVersion": {"counter": 1},
        "empty": {},
        "offsetTable": {"T@G": {"0": 5, "1": 6}, 'q"@G': {}},
    }
    assert b'\n\t\t"T@G":{"0":5,"1":6},\n' in text


async def test_changes_are_gathered_and_saved_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    saves: list[int] = []
    table = CallbackTable(
        tmp_path / "t.json", lambda: saves.append(table.changes) or b'{"n":1}', gather_seconds=5.0
    )
    saver = TableSaver((table,))
    async with trio.open_nursery() as nursery:
        await nursery.start(saver.run)
        begin = trio.current_time()
        for _ in range(4):
            table.touch()
            await trio.sleep(1)
        assert saves == []
        assert table.unsaved
        await table.wait_saved()
        assert trio.current_time() - begin == pytest.approx(5, abs=0.5)
        assert saves == [4]
        assert not table.dirty
        await trio.sleep(100)
        assert saves == [4], "a clean table is left alone"
        nursery.cancel_scope.cancel()


async def test_a_change_before_the_saver_runs_is_saved(tmp_path: Path) -> None:
    table = CallbackTable(tmp_path / "t.json", lambda: b'{"n":3}')
    table.touch()
    async with trio.open_nursery() as nursery:
        await nursery.start(TableSaver((table,)).run)
        with trio.fail_after(5):
            await table.wait_saved()
        nursery.cancel_scope.cancel()
    assert load_table(table.path, read_number) == 3


async def test_a_later_table_with_an_earlier_deadline_does_not_wait(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = IDLE_SECONDS
    slow = CallbackTable(tmp_path / "slow.json", lambda: b"{}", gather_seconds=60)
    quick = CallbackTable(tmp_path / "quick.json", lambda: b"{}")
    async with trio.open_nursery() as nursery:
        await nursery.start(TableSaver((slow, quick)).run)
        slow.touch()
        await trio.testing.wait_all_tasks_blocked()
        quick.touch()
        with trio.fail_after(1):
            await quick.wait_saved()
        assert slow.dirty
        nursery.cancel_scope.cancel()


async def test_a_failed_save_is_logged_and_tried_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    autojump_clock.autojump_threshold = IDLE_SECONDS
    folder = tmp_path / "config"
    folder.write_text("a file where the folder should be")
    table = CallbackTable(folder / "t.json", lambda: b'{"n":1}')
    async with trio.open_nursery() as nursery:
        await nursery.start(TableSaver((table,)).run)
        table.touch()
        await trio.sleep(RETRY_SECONDS / 2)
        assert table.dirty
        assert not table.unsaved, "nobody should wait for a disk that refuses"
        folder.unlink()
        await table.wait_saved()
        nursery.cancel_scope.cancel()
    assert "cannot save" in caplog.text
    assert load_table(table.path, read_number) == 1


async def test_a_change_during_a_save_is_saved_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first save does not contain the change, so the end of that save does not satisfy the
    wait.
    """
    value = 1
    table = CallbackTable(tmp_path / "t.json", lambda: b'{"n":%d}' % value)
    begun, go_on = threading.Event(), threading.Event()

    def held_save(path: Path, content: bytes, disk: Disk, private: bool) -> None:
        begun.set()
        assert go_on.wait(10)
        replace_file(path, content, disk)

    monkeypatch.setattr(persisted, "replace_file", held_save)
    async with trio.open_nursery() as nursery:
        await nursery.start(TableSaver((table,)).run)
        table.touch()
        assert await trio.to_thread.run_sync(begun.wait, 10)
        value = 2
        table.touch()
        nursery.start_soon(trio.to_thread.run_sync, go_on.set)
        with trio.fail_after(10):
            await table.wait_saved()
        assert load_table(table.path, read_number) == 2
        nursery.cancel_scope.cancel()


async def test_failed_saves_are_tried_again_at_intervals_until_one_works(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def save(path: Path, content: bytes, disk: Disk, private: bool) -> None:
        tries.append(trio.from_thread.run_sync(trio.current_time))
        if len(tries) % 3:
            raise OSError(28, "No space left on device")

    autojump_clock.autojump_threshold = IDLE_SECONDS
    monkeypatch.setattr(persisted, "replace_file", save)
    table = CallbackTable(tmp_path / "t.json", lambda: b"{}")
    async with trio.open_nursery() as nursery:
        await nursery.start(TableSaver((table,)).run)
        for count in (3, 6):
            table.touch()
            assert table.unsaved, "what failed before and works now may be waited for"
            await table.wait_saved()
            assert len(tries) == count
            assert [
                round(later - earlier)
                for earlier, later in zip(tries[count - 3 :], tries[count - 2 :])
            ] == [RETRY_SECONDS] * 2
        nursery.cancel_scope.cancel()


async def test_the_last_save_writes_what_is_dirty(tmp_path: Path) -> None:
    table = CallbackTable(tmp_path / "t.json", lambda: b'{"n":9}', gather_seconds=1000)
    saver = TableSaver((table, CallbackTable(tmp_path / "clean.json", lambda: b"{}")))
    table.touch()
    await saver.save_all()
    assert load_table(table.path, read_number) == 9
    assert not (tmp_path / "clean.json").exists()


async def test_the_last_save_waits_for_a_write_that_a_cancellation_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that write one temporary file would lose the last save."""
    values = iter([b'{"n":1}', b'{"n":2}'])
    table = CallbackTable(tmp_path / "t.json", lambda: next(values))
    begun, go_on = threading.Event(), threading.Event()
    running: list[int] = []

    def slow_save(path: Path, content: bytes, disk: Disk, private: bool) -> None:
        running.append(1)
        assert len(running) == 1, "two writes at a time"
        begun.set()
        assert go_on.wait(10)
        replace_file(path, content, disk)
        running.clear()

    monkeypatch.setattr(persisted, "replace_file", slow_save)
    saver = TableSaver((table,))
    async with trio.open_nursery() as nursery:
        await nursery.start(saver.run)
        table.touch()
        await trio.to_thread.run_sync(begun.wait, 10)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(saver.save_all)
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert load_table(table.path, read_number) == 2
