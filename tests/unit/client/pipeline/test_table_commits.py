"""Tables lose nothing when a process ends at any step of a commit, or two processes write.

Without Spark, on an object store in memory. A table is read after each end as any reader would.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

import attrs
import pytest

from tests.support.object_store import Crash, ObjectStore, end_before, plain_rows
from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.tables.batch_files import BatchFiles, FileMerge, Write
from triomq.client.pipeline.tables.locks import (
    LockFile,
    LockHeld,
    LockLost,
    LockOwner,
    WriteLock,
    birth_of,
    locked,
)
from triomq.client.pipeline.tables.version_log import VersionLog

LAKE = "s3/lake"
LOCKS = "s3/checkpoint/locks/run"
WRITER = "0123456789ab"
DAYS = ("mq_date=2026-01-01", "mq_date=2026-01-02")
Work = Callable[[ObjectStore, WriteLock], None]


def rows_to(store: ObjectStore, rows: Sequence[int], run: str, folders: Sequence[str]) -> Write:
    """Write rows as Spark does: a file in each folder, and the mark of success."""

    def write(folder: str) -> None:
        store.delete(folder)  # mode "overwrite"
        for number, name in enumerate(folders):
            part = rows[number :: len(folders)]
            text = " ".join(map(str, part))
            store.put(f"{folder}{name}/part-{number}-{run}.parquet", text)
        store.put(f"{folder}/_SUCCESS", "")

    return write


def append(batch: int, rows: Sequence[int]) -> Work:
    folders = [f"/{day}" for day in DAYS]

    def work(store: ObjectStore, lock: WriteLock) -> None:
        table = BatchFiles(store, LAKE, WRITER, lock)
        table.append(batch, 1, rows_to(store, rows, lock.run, folders))

    return work


def merge(store: ObjectStore, lock: WriteLock) -> None:
    """Merge the small files of the first day."""
    merging = FileMerge(store, LAKE, WRITER, lock)
    merging.finish()
    folder = f"{LAKE}/{DAYS[0]}"
    old = store.children(folder)
    if len(old) < 2:
        return
    rows = [int(number) for file in old for number in store.objects[file.path].split()]
    name = f"{WRITER}-merged-{0:012}-{lock.run}"
    merging.merge(folder, old, name, rows_to(store, rows, lock.run, [""]))


def upsert(rows: Sequence[int]) -> Work:
    def work(store: ObjectStore, lock: WriteLock) -> None:
        log = VersionLog(store, LAKE, WRITER, lock)
        last = log.newest()
        known = set(plain_rows(store, LAKE))
        log.commit(last + 1, rows_to(store, sorted(known | set(rows)), lock.run, ["", ""]))

    return work


@attrs.frozen
class Commit:
    """A commit: what was there, the work, and the rows that a reader may and must find."""

    before: Sequence[Work]
    work: Work
    old: list[int]
    new: list[int]
    may_be_between: bool
    """a reader may find something else than the old or the new rows while the work goes on"""
    steps: list[str]


COMMITS = {
    "append": Commit(
        [append(0, range(4))],
        append(1, range(4, 8)),
        list(range(4)),
        list(range(8)),
        True,
        [
            "put lake/_staging/W-batch-RUN/mq_date=2026-01-01/part-0-RUN.parquet",
            "put lake/_staging/W-batch-RUN/mq_date=2026-01-02/part-1-RUN.parquet",
            "put lake/_staging/W-batch-RUN/_SUCCESS",
            "copy to lake/mq_date=2026-01-01/W-000000000001-part-0-RUN.parquet",
            "delete lake/_staging/W-batch-RUN/mq_date=2026-01-01/part-0-RUN.parquet",
            "copy to lake/mq_date=2026-01-02/W-000000000001-part-1-RUN.parquet",
            "delete lake/_staging/W-batch-RUN/mq_date=2026-01-02/part-1-RUN.parquet",
            "delete lake/_staging/W-batch-RUN/_SUCCESS",
        ],
    ),
    "append again": Commit(
        [append(0, range(4)), append(1, range(4, 8))],
        append(1, range(4, 8)),
        list(range(8)),
        list(range(8)),
        True,
        [
            "put lake/_staging/W-batch-RUN/mq_date=2026-01-01/part-0-RUN.parquet",
            "put lake/_staging/W-batch-RUN/mq_date=2026-01-02/part-1-RUN.parquet",
            "put lake/_staging/W-batch-RUN/_SUCCESS",
            "delete lake/mq_date=2026-01-01/W-000000000001-part-0-RUN.parquet",
            "delete lake/mq_date=2026-01-02/W-000000000001-part-1-RUN.parquet",
            "copy to lake/mq_date=2026-01-01/W-000000000001-part-0-RUN.parquet",
            "delete lake/_staging/W-batch-RUN/mq_date=2026-01-01/part-0-RUN.parquet",
            "copy to lake/mq_date=2026-01-02/W-000000000001-part-1-RUN.parquet",
            "delete lake/_staging/W-batch-RUN/mq_date=2026-01-02/part-1-RUN.parquet",
            "delete lake/_staging/W-batch-RUN/_SUCCESS",
        ],
    ),
    "merge": Commit(
        [append(0, range(4)), append(1, range(4, 8))],
        merge,
        list(range(8)),
        list(range(8)),
        True,
        [
            "put lake/_staging/W-merge-RUN/part-0-RUN.parquet",
            "put lake/_staging/W-merge-RUN/_SUCCESS",
            "create lake/_staging/W-plan.json",
            "copy to lake/mq_date=2026-01-01/W-merged-000000000000-RUN-0.parquet",
            "delete lake/_staging/W-merge-RUN/part-0-RUN.parquet",
            "delete lake/mq_date=2026-01-01/W-000000000000-part-0-RUN.parquet",
            "delete lake/mq_date=2026-01-01/W-000000000001-part-0-RUN.parquet",
            "delete lake/_staging/W-plan.json",
            "delete lake/_staging/W-merge-RUN/_SUCCESS",
        ],
    ),
    "first version": Commit(
        [append(0, range(4))],
        upsert(range(2, 6)),
        list(range(4)),
        list(range(6)),
        False,
        [
            "put lake/_staging/W-version-RUN/part-0-RUN.parquet",
            "put lake/_staging/W-version-RUN/part-1-RUN.parquet",
            "put lake/_staging/W-version-RUN/_SUCCESS",
            "copy to lake/_v=000000000000-RUN-00000.parquet",
            "delete lake/_staging/W-version-RUN/part-0-RUN.parquet",
            "copy to lake/_v=000000000000-RUN-00001.parquet",
            "delete lake/_staging/W-version-RUN/part-1-RUN.parquet",
            "create lake/_spark_metadata/0.compact",
            "delete lake/mq_date=2026-01-01/W-000000000000-part-0-RUN.parquet",
            "delete lake/mq_date=2026-01-02/W-000000000000-part-1-RUN.parquet",
            "delete lake/_staging/W-version-RUN/_SUCCESS",
        ],
    ),
    "version": Commit(
        [upsert(range(4)), upsert(range(5))],
        upsert(range(2, 6)),
        list(range(5)),
        list(range(6)),
        False,
        [
            "put lake/_staging/W-version-RUN/part-0-RUN.parquet",
            "put lake/_staging/W-version-RUN/part-1-RUN.parquet",
            "put lake/_staging/W-version-RUN/_SUCCESS",
            "copy to lake/_v=000000000002-RUN-00000.parquet",
            "delete lake/_staging/W-version-RUN/part-0-RUN.parquet",
            "copy to lake/_v=000000000002-RUN-00001.parquet",
            "delete lake/_staging/W-version-RUN/part-1-RUN.parquet",
            "create lake/_spark_metadata/2.compact",
            "delete lake/_spark_metadata/0.compact",
            "delete lake/_v=000000000000-RUN-00000.parquet",
            "delete lake/_v=000000000000-RUN-00001.parquet",
            "delete lake/_staging/W-version-RUN/_SUCCESS",
        ],
    ),
}
KILLS = [(name, step) for name, commit in COMMITS.items() for step in range(len(commit.steps))]


def store_before(commit: Commit) -> ObjectStore:
    store = ObjectStore()
    for work in commit.before:
        work(store, WriteLock())
    store.steps.clear()
    return store


def named(step: str) -> str:
    """Return a step without the names that differ from run to run."""
    short = step.replace("s3/", "").replace(WRITER, "W")
    return re.sub(r"(?<=[-])(?!0{6})[0-9a-f]{12}", "RUN", short)


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_has_these_steps(name: str) -> None:
    commit = COMMITS[name]
    store = store_before(commit)
    assert plain_rows(store, LAKE) == commit.old
    commit.work(store, WriteLock())
    assert [named(step) for step in store.steps] == commit.steps
    assert plain_rows(store, LAKE) == commit.new
    assert not [path for path in store.objects if "_staging" in path]


@pytest.mark.parametrize(
    ("name", "step"), KILLS, ids=[f"{name}: {COMMITS[name].steps[step]}" for name, step in KILLS]
)
def test_a_process_that_ends_before_a_step_loses_nothing(name: str, step: int) -> None:
    """Readers of a table of changes find one of its versions; the next run makes all right."""
    commit = COMMITS[name]
    store = store_before(commit)
    end_before(store, step)
    with pytest.raises(Crash):
        commit.work(store, WriteLock())
    assert len(store.steps) == step
    found = plain_rows(store, LAKE)
    assert commit.may_be_between or found in (commit.old, commit.new)
    assert set(found) >= set(commit.old) or name == "append again"
    again = ObjectStore(store.objects)
    commit.work(again, WriteLock())
    assert plain_rows(again, LAKE) == commit.new
    commit.work(again, WriteLock())
    assert plain_rows(again, LAKE) == commit.new
    assert not [path for path in store.objects if "_staging" in path]


@pytest.mark.parametrize(
    ("name", "step"), KILLS, ids=[f"{name}: {COMMITS[name].steps[step]}" for name, step in KILLS]
)
def test_a_process_that_sleeps_through_a_takeover_changes_nothing(name: str, step: int) -> None:
    """It sleeps before any step of its commit; another one takes over, and does the same work."""
    commit = COMMITS[name]
    store = store_before(commit)
    first = LockFile(store, LOCKS, owner(1), births=lambda _: "1")
    first.take()
    lock_steps = len(store.steps)

    def take_over(number: int) -> None:
        if number == lock_steps + step:
            store.before_step = lambda _: None
            other = LockFile(store, LOCKS, owner(2), births=lambda _: "")
            other.take()
            commit.work(store, WriteLock(owner(2).run, other.check))

    store.before_step = take_over
    try:
        commit.work(store, WriteLock(owner(1).run, first.check))
    except (PipelineError, OSError):
        pass  # also files that it had written are gone
    else:
        # Only cleaning up was left, or both have carried out one plan.
        assert "delete" in commit.steps[step] or name == "merge"
    assert plain_rows(store, LAKE) == commit.new
    commit.work(store, WriteLock())
    assert plain_rows(store, LAKE) == commit.new


def test_versions_of_two_writers_do_not_mix() -> None:
    """Two checkpoints have locks of their own: the number of the version decides."""
    store = ObjectStore()
    upsert([1])(store, WriteLock())
    log, other = (VersionLog(store, LAKE, writer, WriteLock()) for writer in (WRITER, "f" * 12))
    other.commit(1, rows_to(store, [1, 2], "other", [""]))
    with pytest.raises(PipelineError, match="another process has written version 1"):
        log.commit(1, rows_to(store, [1, 3], "run", [""]))
    assert plain_rows(store, LAKE) == [1, 2]
    for rows in ([1, 2, 3], [1, 2, 3, 4]):
        other.commit(other.newest() + 1, rows_to(store, rows, "other", [""]))
    with pytest.raises(PipelineError, match="another process has written version 1"):
        log.commit(1, rows_to(store, [1, 3], "run", [""]))
    assert plain_rows(store, LAKE) == [1, 2, 3, 4]


# --- locks


def owner(number: int, machine: str = "m") -> LockOwner:
    return LockOwner(
        run=f"{number:012x}",
        host=f"host-{number}",
        process=number,
        machine=machine,
        birth=str(number),
        since="2026-01-01T00:00:00+00:00",
    )


def test_one_process_at_a_time_has_a_lock() -> None:
    store = ObjectStore()
    first = LockFile(store, LOCKS, owner(1), births=str)
    first.take()
    second = LockFile(store, LOCKS, owner(2), births=str)
    with pytest.raises(LockHeld, match=r"process 1 on host-1 \(since .*; stop that process"):
        second.take()
    first.check()
    first.release()
    second.take()
    with pytest.raises(LockLost, match="process 2 on host-2"):
        first.check()
    first.release()  # not its own any more
    second.check()


@pytest.mark.parametrize("beats", [True, False])
def test_the_owner_on_another_machine_is_watched(beats: bool) -> None:
    store = ObjectStore()
    first = LockFile(store, LOCKS, owner(1, "other"))
    first.take()
    first.beat()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 5 and beats:
            first.beat()

    second = LockFile(store, LOCKS, owner(2), sleep=sleep, births=str)
    if beats:
        with pytest.raises(LockHeld):
            second.take()
        first.check()
        assert sum(slept) == 5
    else:
        second.take()
        assert sum(slept) == 20
        with pytest.raises(LockLost):
            first.check()


def test_two_processes_that_take_over_at_once() -> None:
    store = ObjectStore()
    LockFile(store, LOCKS, owner(1)).take()
    second, third = (
        LockFile(store, LOCKS, owner(n), births=lambda n: "" if n == 1 else str(n)) for n in (2, 3)
    )

    def take_first(_: int) -> None:
        store.before_step = lambda _: None
        third.take()

    store.before_step = take_first
    with pytest.raises(LockHeld, match="host-3"):
        second.take()
    third.check()


def test_a_process_that_ends_while_it_takes_a_lock_over_hinders_no_other() -> None:
    steps = ["create 000000000002", "delete beat-000000000001", "delete 000000000001"]
    for number in range(len(steps)):
        store = ObjectStore()
        first = LockFile(store, LOCKS, owner(1))
        first.take()
        first.beat()
        store.steps.clear()
        end_before(store, number)
        with pytest.raises(Crash):
            LockFile(store, LOCKS, owner(2), births=lambda _: "").take()
        done = [step.replace(f"{LOCKS}/", "") for step in store.steps]
        assert done == steps[:number]
        store = ObjectStore(store.objects)
        third = LockFile(store, LOCKS, owner(3), births=lambda _: "")
        third.take()
        third.check()
        assert list(store.objects) == [f"{LOCKS}/{2 if number == 0 else 3:012}"]


def test_a_damaged_lock_is_named() -> None:
    store = ObjectStore({f"{LOCKS}/000000000001": "{"})
    with pytest.raises(PipelineError, match=r"000000000001 is not a lock .*delete the file"):
        LockFile(store, LOCKS, owner(1)).take()


def test_a_process_has_its_lock_until_it_ends() -> None:
    """With the processes of this machine; the thread that beats is a real one."""
    store = ObjectStore()
    with locked(store, "s3/checkpoint", "run") as lock:
        lock.check()
        with pytest.raises(LockHeld, match=f"process {os.getpid()} on "):
            with locked(store, "s3/checkpoint", "run"):
                pass
        with locked(store, "s3/checkpoint", "upkeep"):
            lock.check()
    assert store.objects == {}
    assert any("beat-000000000001" in step for step in store.steps)
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    assert birth_of(ended.pid) == ""
    assert birth_of(os.getpid()) != ""
