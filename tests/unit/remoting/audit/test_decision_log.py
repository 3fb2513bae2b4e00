"""The queues of the audit log: bounded, never waited for, honest about what they lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triomq.remoting.audit.audit_entry import TEXT_MAX, AuditEntry
from triomq.remoting.audit.audit_settings import AuditSettings
from triomq.remoting.audit.decision_log import LAST_WRITE_SECONDS, DecisionLog, open_audit, writing
from triomq.remoting.audit.rotated_file import RotatedFile
from triomq.remoting.core.settings import ConfigError


def decision(number: int, *, allowed: bool = True) -> AuditEntry:
    return AuditEntry(door="remoting", what=f"W{number}", peer="h:1", allowed=allowed, why="so")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def opened(folder: Path, **settings: Any) -> DecisionLog:
    log = open_audit(AuditSettings(path=str(folder / "audit.log"), **settings), "broker-a")
    assert log is not None
    return log


async def test_entries_are_written_at_the_end_too_refusals_in_their_own_file(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path)
    async with writing(log):
        log.note(decision(1))
        log.note(decision(2, allowed=False))
    allowed, refused = lines_of(tmp_path / "audit.log"), lines_of(tmp_path / "audit-refused.log")
    assert [line["what"] for line in allowed] == ["W1"]
    assert [line["what"] for line in refused] == ["W2"]
    assert allowed[0]["server"] == "broker-a"
    assert allowed[0]["user"] is None
    assert "claimed" not in allowed[0]
    assert log.counts == {"written": 2}


async def test_a_full_queue_drops_and_the_next_line_says_how_many(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.queue_max = 2
    for number in range(5):
        log.note(decision(number))
    log.note(decision(9, allowed=False))  # refusals do not wait in the same queue
    async with writing(log):
        pass
    lost, *rest = lines_of(tmp_path / "audit.log")
    assert lost["lost"] == 3
    assert [line["what"] for line in rest] == ["W0", "W1"]
    assert log.counts == {"dropped": 3, "written": 3}


@attrs.define
class SlowDisk:
    """Writes wait until it is freed."""

    begun: threading.Event = attrs.field(factory=threading.Event)
    freed: threading.Event = attrs.field(factory=threading.Event)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    found, append = SlowDisk(), RotatedFile.append

    def slow(file: RotatedFile, lines: Sequence[bytes]) -> None:
        found.begun.set()
        assert found.freed.wait(60)
        append(file, lines)

    monkeypatch.setattr(RotatedFile, "append", slow)
    monkeypatch.setattr("triomq.remoting.audit.decision_log.GATHER_SECONDS", 0.0)
    return found


async def test_a_disk_that_hangs_stops_nobody(tmp_path: Path, disk: SlowDisk) -> None:
    log = opened(tmp_path)
    async with writing(log):
        log.note(decision(1))
        await trio.to_thread.run_sync(disk.begun.wait)
        log.note(decision(2))
        assert log.counts["written"] == 0
        disk.freed.set()
    assert [line["what"] for line in lines_of(tmp_path / "audit.log")] == ["W1", "W2"]


async def test_a_server_that_stops_waits_for_the_write_that_has_begun(
    tmp_path: Path, disk: SlowDisk
) -> None:
    log = opened(tmp_path)
    with trio.CancelScope() as scope:
        async with writing(log):
            log.note(decision(1))
            await trio.to_thread.run_sync(disk.begun.wait)
            scope.cancel()
            threading.Timer(0.2, disk.freed.set).start()
    assert [line["what"] for line in lines_of(tmp_path / "audit.log")] == ["W1"]
    assert log.counts == {"written": 1}


async def test_a_server_that_stops_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, disk: SlowDisk, autojump_clock: trio.testing.MockClock
) -> None:
    log = opened(tmp_path)
    autojump_clock.autojump_threshold = 0.05  # the thread is real
    async with writing(log):
        log.note(decision(1))
        await trio.to_thread.run_sync(disk.begun.wait)
    assert log.counts["written"] == 0
    assert trio.current_time() >= LAST_WRITE_SECONDS
    disk.freed.set()


async def test_lines_that_the_disk_refuses_are_counted_and_named_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    append, full = RotatedFile.append, [True]

    def failing(file: RotatedFile, lines: Sequence[bytes]) -> None:
        if full.pop() if full else False:
            raise OSError(28, "No space left on device")
        append(file, lines)

    monkeypatch.setattr(RotatedFile, "append", failing)
    async with writing(log):
        log.note(decision(1))
    async with writing(log):
        log.note(decision(2))
    assert log.counts == {"failed": 1, "written": 1}
    lost, line = lines_of(tmp_path / "audit.log")
    assert (lost["lost"], line["what"]) == (1, "W2")


def test_one_in_so_many_is_sampled(tmp_path: Path) -> None:
    assert [opened(tmp_path, sample_every=1).sampled() for _ in range(3)] == [True] * 3
    third = opened(tmp_path, sample_every=3)
    assert [third.sampled() for _ in range(6)] == [False, False, True] * 2
    assert not opened(tmp_path, sample_every=0).sampled()


def test_a_text_of_a_peer_is_cut(tmp_path: Path) -> None:
    long = AuditEntry(door="grpc", what="W", peer="h:1", allowed=False, why="x" * 10_000)
    assert len(long.why) == TEXT_MAX


def test_a_file_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auditLogPath.*make the folder"):
        open_audit(AuditSettings(path=str(tmp_path / "none" / "audit.log")), "x")
    assert open_audit(AuditSettings(), "x") is None
