"""The status of a pipeline, as another process reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from triomq.client.pipeline.batch import BatchCounts
from triomq.client.pipeline.core.errors import ReadRefused, SessionError
from triomq.client.pipeline.core.spec import SourceSpec
from triomq.client.pipeline.run import added, cause_of, without_commits
from triomq.client.pipeline.status import (
    STATUS_BYTES_MAX,
    PipelineStatus,
    QueryStatus,
    local_path,
    read_status,
    write_status,
)

STATUS = PipelineStatus(
    name="orders",
    state="running",
    started="2026-01-01T00:00:00.000+00:00",
    time="2026-01-01T00:00:01.000+00:00",
    queries={"rows": QueryStatus(batch=3, rows=10, good=8, bad={"it is not JSON": 2})},
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_status(tmp_path, STATUS)
    assert read_status(str(tmp_path)) == STATUS
    assert read_status(f"file:{tmp_path}") == STATUS
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_process_that_is_gone_is_seen(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_status(tmp_path, attrs.evolve(STATUS, process=ended.pid))
    found = read_status(str(tmp_path))
    assert (found.state, found.cause) == (
        "killed",
        "the process has ended without a word; start the pipeline again, nothing is lost",
    )
    write_status(tmp_path, attrs.evolve(STATUS, process=ended.pid, state="stopped"))
    assert read_status(str(tmp_path)).state == "stopped"
    write_status(tmp_path, attrs.evolve(STATUS, process=ended.pid, host="elsewhere"))
    assert read_status(str(tmp_path)).state == "running"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not the status of a pipeline.*delete it"),
        ("[]", "is not the status"),
        ('{"queries": {"rows": {"batches": 1}}}', "unexpected keyword argument 'batches'"),
        (STATUS.to_json().replace("running", "sleeping"), "state 'sleeping' is unknown"),
        (" " * (STATUS_BYTES_MAX + 1), f"larger than {STATUS_BYTES_MAX} bytes"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(ReadRefused, match=message):
        read_status(str(tmp_path))


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ReadRefused, match=r"no pipeline with this checkpoint has run; start it"):
        read_status(str(tmp_path))
    with pytest.raises(ReadRefused, match=r"s3a://bucket/c is not on this machine; read s3a://"):
        read_status("s3a://bucket/c")


@pytest.mark.parametrize(
    ("checkpoint", "path"),
    [
        ("c", Path("c")),
        ("/a/c", Path("/a/c")),
        ("file:/a/c", Path("/a/c")),
        ("file:///a/c", Path("/a/c")),
        ("hdfs://name/a", None),
        ("s3a:b", None),
    ],
)
def test_a_checkpoint_on_this_machine(checkpoint: str, path: Path | None) -> None:
    assert local_path(checkpoint) == path


def report(batch: int, rows: int, late: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        batchId=batch,
        numInputRows=rows,
        batchDuration=1500,
        timestamp="2026-01-01T00:00:02.000Z",
        sources=[],
        stateOperators=[SimpleNamespace(numRowsDroppedByWatermark=late)],
    )


def test_reports_are_added() -> None:
    status = added(QueryStatus(), report(0, 10), BatchCounts(good=6, bad={"a": 3}))
    assert (status.batch, status.rows, status.good, status.kept_out) == (0, 10, 6, 1)
    status = added(status, report(1, 5, late=2), BatchCounts(good=3, bad={"a": 1, "b": 1}))
    assert (status.rows, status.bad, status.late) == (15, {"a": 4, "b": 1}, 2)
    assert (status.batch_rows, status.batch_seconds) == (5, 1.5)
    idle = added(status, report(2, 0), None)
    assert (idle.batch, idle.rows, idle.batch_rows) == (1, 15, 0)


class Py4JError(Exception):
    """As Spark's gateway raises it."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            SessionError("the session has no delta; add it"),
            "the session has no delta; add it; then",
        ),
        (
            Py4JError("o1.save\n at x\ntriomq.client.spark.errors.NotDelivered: 3 messages\n at y"),
            "3 messages; then start the pipeline again",
        ),
        (
            Py4JError(
                "An error occurred while calling o1.save.\n: a.SparkException: aborted\n\tat x\n"
                "Caused by: a.b.Wrapped$Exception: it failed\n\tat y\n"
                "Caused by: java.io.IOException: No space left\n\t... 9 more"
            ),
            "java.io.IOException: No space left; remove the cause",
        ),
        (Py4JError("An error occurred while calling o1.save.\n: a.IOException: b\n\tat x"), "a.IO"),
        (
            Py4JError(
                "An exception was thrown from the Python worker:\n"
                "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n"
                "During handling of the above exception, another exception occurred:\n"
                "Traceback (most recent call last):\n  File y\nzlib.Error: header"
            ),
            "zlib.Error: header; remove",
        ),
        (OSError("disk full"), "disk full; remove the cause and start the pipeline again"),
        (KeyError(), "KeyError; remove the cause"),
    ],
)
def test_a_cause_has_one_line(error: Exception, cause: str) -> None:
    assert cause_of(error).startswith(cause)
    assert "\n" not in cause_of(error)


def test_only_the_query_of_rows_reports_to_brokers() -> None:
    plain = SourceSpec(name_server="n:1", topics=("t",))
    assert without_commits(plain) == plain
    grouped = attrs.evolve(plain, options={"groupid": "g", "commitgroupoffsets": "true"})
    assert without_commits(grouped).options == {"groupid": "g", "commitGroupOffsets": "false"}


def test_this_process_runs(tmp_path: Path) -> None:
    write_status(tmp_path, STATUS)
    assert read_status(str(tmp_path)).process == os.getpid()
