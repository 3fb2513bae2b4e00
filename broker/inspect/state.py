"""The small files of a store, and the state that they show: stopped, crashed, or in use."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import attrs

from triomq.broker.inspect.report import Report
from triomq.broker.store.io.checkpoint import SIZE_BYTES, Checkpoint
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.lock import LockState, lock_state
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.findings import Level
from triomq.remoting.protocol.fastjson import loads


@attrs.frozen(kw_only=True)
class StoreState:
    """The state that ``lock``, ``abort`` and ``checkpoint`` show."""

    crashed: bool
    """``abort`` exists: the last stop was a crash, or a broker runs"""
    lock: LockState
    checkpoint: Checkpoint

    def level_at(self, log_offset: int) -> Level:
        """Return how bad it is that queues or index differ from the log at this offset.

        After a crash the next start repairs them behind the checkpoint's mark.
        """
        mark = self.checkpoint.mark
        repaired = self.crashed and (mark is None or log_offset >= mark.record_end)
        return Level.ADVICE if repaired else Level.PROBLEM

    @property
    def text(self) -> str:
        if self.lock.held:
            return f"in use by {self.lock.owner}"
        return "not stopped in order (abort exists)" if self.crashed else "stopped in order"


def read_state(root: Path, report: Report) -> StoreState:
    """Read the three files.

    Raises: OSError.
    """
    lock = lock_state(root / "lock")
    crashed = (root / "abort").exists()
    if lock.held:
        report.note(
            "in-use",
            root / "lock",
            f"{lock.owner} uses this directory: its files change during the inspection, so findings"
            " near the end of the log mean little",
            "stop the broker, or inspect a copy of the directory",
        )
    elif crashed:
        report.note(
            "abort",
            root / "abort",
            "the last stop was a crash or a kill",
            "nothing: the next start recovers",
        )
    path = root / "checkpoint"
    if not path.exists():
        report.note(
            "checkpoint-missing",
            path,
            "the store has no checkpoint",
            "nothing: the next start reads the log from its first segment",
        )
        return StoreState(crashed=crashed, lock=lock, checkpoint=Checkpoint())
    data = Disk().read_path(path, SIZE_BYTES, 0)
    if path.stat().st_size < SIZE_BYTES:
        advice = "delete it: the next start reads the log from its first segment"
        report.damage(
            "checkpoint-size",
            path,
            f"the file has {len(data)} bytes, a checkpoint has {SIZE_BYTES}",
            advice,
            at=len(data),
        )
    return StoreState(crashed=crashed, lock=lock, checkpoint=Checkpoint.decode(data))


def check_checkpoint(
    state: StoreState,
    path: Path,
    log_end: int,
    newest_ms: int,
    ends: Container[int],
    report: Report,
) -> None:
    """Check that the checkpoint is not ahead of the log.

    ``newest_ms``: the latest store time; ``ends``: has the mark's end if a record ends there.
    """
    checkpoint = state.checkpoint
    advice = (
        "if the log was cut on purpose, delete the file: the next start reads the log from its"
        " first segment; otherwise restore the log from a copy before any start"
    )
    if checkpoint.log_timestamp > newest_ms:
        what = (
            f"according to it, messages stored until {checkpoint.log_timestamp} ms were on the"
            f" disk, but the newest message in the log is of {newest_ms} ms"
        )
        report.damage("checkpoint-ahead", path, what, advice, at=0)
    mark = checkpoint.mark
    if mark is not None and mark.record_end > log_end:
        report.damage(
            "checkpoint-ahead",
            path,
            f"according to it, the log was on the disk up to {mark.record_end}, but it ends at"
            f" {log_end}",
            advice,
            at=4064,
        )
    elif mark is not None and mark.record_end not in ends:
        what = (
            f"its mark names a record at {mark.record_offset} that ends at {mark.record_end}, but"
            " no such record is in the log"
        )
        report.note(
            "checkpoint-mark",
            path,
            what,
            "nothing: the next start ignores the mark and follows Java's rules",
            at=4064,
        )


def check_config(root: Path, report: Report) -> Container[str] | None:
    """Check that every table of ``config`` can be read; return the topics.

    Returns: the names of the topics; None if their table is missing or damaged.
    Raises: OSError.
    """
    folder = root / "config"
    if not folder.is_dir():
        report.note(
            "config-missing",
            folder,
            "the store has no folder named config",
            "nothing for messages; topics, groups and consumer offsets start empty",
        )
        return None
    for path in sorted(folder.glob("*.json")):
        if _table(path, report) is None:
            backup = path.with_name(path.name + ".bak")
            if backup.exists() and _table(backup, None) is not None:
                advice = (
                    f"nothing, or copy {backup.name} over it: brokers take {backup.name} when the"
                    " file cannot be read"
                )
            else:
                advice = "restore it from a copy, or move it away to begin with an empty table"
            report.damage("config", path, "the file is empty or not JSON", advice)
    table = _table(folder / "topics.json", None) or _table(folder / "topics.json.bak", None)
    found = table.get("topicConfigTable") if isinstance(table, dict) else None
    return set(map(str, found)) if isinstance(found, dict) else None


def _table(path: Path, report: Report | None) -> object:
    """Return the decoded content, None if there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if report is not None:
            report.damage(
                "config",
                path,
                f"it cannot be read: {error.strerror or error}",
                "check the disk and the file's permissions",
            )
        return None
    try:
        return loads(content) if content.strip() else None
    except (RemotingError, ValueError):
        return None
