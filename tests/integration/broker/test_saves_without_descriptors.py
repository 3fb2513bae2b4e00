"""Too many open files while a small table is saved: the old file stays, one log line names the
cause, and the table is saved when descriptors are free again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from callback_table import CallbackTable
from no_files import no_files_left

from triomq.broker.services import persisted
from triomq.broker.services.persisted import TableSaver
from triomq.client.receiving.local_offsets import LocalOffsets, read_offsets
from triomq.namesrv.kv import KvConfig, KvFileError
from triomq.remoting.core.atomic_file import replace_file
from triomq.remoting.core.saved_settings import SavedSettings
from triomq.remoting.protocol.bodies.route import MessageQueue


@contextmanager
def none_left_after(count: int) -> Iterator[None]:
    """Let the process have no descriptor left as soon as it has opened ``count`` files by
    ``os.open``.
    """
    opened = 0
    system_open = os.open

    def counting_open(*arguments: object, **named: object) -> int:
        nonlocal opened
        opened += 1
        if opened <= count:
            return system_open(*arguments, **named)  # type: ignore[arg-type]
        with no_files_left():
            return system_open(*arguments, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", counting_open)
        yield


@pytest.mark.parametrize("count", [0, 1])
def test_a_save_that_fails_leaves_the_old_file_and_its_backup(tmp_path: Path, count: int) -> None:
    """Opened are the new file (twice) and the directory, before the old file is moved away."""
    path = tmp_path / "t.json"
    for content in (b"1", b"2"):
        replace_file(path, content)
    first_free = os.dup(0)
    os.close(first_free)
    for _ in range(2):
        with none_left_after(count), pytest.raises(OSError, match="Too many open files"):
            replace_file(path, b"3")
        with no_files_left(), pytest.raises(OSError, match="Too many open files"):
            replace_file(path, b"3")
        assert (path.read_bytes(), path.with_name("t.json.bak").read_bytes()) == (b"2", b"1")
    replace_file(path, b"4")
    assert (path.read_bytes(), path.with_name("t.json.bak").read_bytes()) == (b"4", b"2")
    again = os.dup(0)
    os.close(again)
    assert again == first_free, "no save leaves a file open"


async def test_tables_of_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(persisted, "RETRY_SECONDS", 0.02)
    caplog.set_level(logging.INFO)
    contents = [b"1"]
    path = tmp_path / "topics.json"
    table = CallbackTable(path, lambda: contents[-1])
    async with trio.open_nursery() as nursery:
        await nursery.start(TableSaver((table,)).run)
        table.touch()
        await table.wait_saved()
        for number in (1, 2):
            contents.append(b"%d" % (10 * number))
            caplog.clear()
            with no_files_left():
                table.touch()
                await trio.sleep(0.2)
                assert table.dirty
            with trio.fail_after(10):
                await table.wait_saved()
            assert [file.read_bytes() for file in (path, path.with_name("topics.json.bak"))] == [
                contents[-1],
                contents[-2],
            ]
            *errors, last = [
                (record.levelname, record.getMessage())
                for record in caplog.records
                if str(path) in record.getMessage()  # a cluster in the same process may log, too
            ]
            # A try that fails while the limit is set back names the new limit.
            assert 1 <= len(set(errors)) == len(errors) <= 2, "one line for many tries"
            for level, text in errors:
                assert level == "ERROR"
                assert text.startswith(f"cannot save {path}: Too many open files: this process may")
            assert last == ("INFO", f"{path} is saved again")
        nursery.cancel_scope.cancel()


async def test_settings_changed_at_run_time(tmp_path: Path) -> None:
    path = tmp_path / "saved.conf"
    saved = SavedSettings.open(path)
    await saved.save({"a": "1"})
    content = path.read_bytes()
    for _ in range(2):
        with no_files_left(), pytest.raises(OSError, match="Too many open files"):
            await saved.save({"b": "2"})
        assert path.read_bytes() == content
    await saved.save({"c": "3"})
    assert SavedSettings.open(path)._texts == {"a": "1", "c": "3"}, (
        "what was refused is not saved later, either"
    )


def test_key_values_of_a_name_server(tmp_path: Path) -> None:
    table = KvConfig.open(tmp_path / "kv.json")
    table.put("N", "a", "1")
    for _ in range(2):
        with (
            no_files_left(),
            pytest.raises(
                KvFileError,
                match=(
                    r"too many open files: this process may have \d+ \(ulimit -n\); .*; then try"
                    r" again"
                ),
            ),
        ):
            table.put("N", "a", "2")
        assert table.get("N", "a") == "1"
        assert KvConfig.open(table.path).get("N", "a") == "1"
    table.put("N", "a", "3")
    assert KvConfig.open(table.path).get("N", "a") == "3"


class Owned:
    """What the store needs of an assignment."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue, self.to_store, self.stored = queue, -1, -1


async def test_offsets_of_a_broadcasting_consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets("g", None, 1.0, path=path, known={})  # type: ignore[arg-type]
    queue = MessageQueue("T", "broker-a", 0)
    assignment = Owned(queue)
    assignments: Any = [assignment]
    for stored in (5, 7):
        caplog.clear()
        assignment.to_store = stored
        before = read_offsets(path)
        with no_files_left():
            for _ in range(3):
                await offsets.store(assignments)
        assert read_offsets(path) == before
        await offsets.store(assignments)
        assert read_offsets(path) == {queue: stored}
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1, (
            "one line for three tries"
        )
