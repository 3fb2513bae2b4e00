"""How is a running pipeline seen from another process? By ``status.json`` in its checkpoint."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import attrs

from triomq.client.pipeline.core.errors import ReadRefused

STATUS_FILE = "status.json"
STATUS_BYTES_MAX = 1 << 20
State = Literal["running", "stopped", "failed", "killed"]
LOCAL = re.compile(r"file:/*(?=/)|(?![A-Za-z][A-Za-z0-9+.-]*:)")


@attrs.frozen(kw_only=True)
class QueryStatus:
    """One query of a pipeline. Counts are of this run of the process."""

    batch: int = -1
    """number of the last batch that has ended"""
    rows: int = 0
    """messages read"""
    good: int = 0
    bad: Mapping[str, int] = attrs.field(factory=dict)
    """reason → rows"""
    kept_out: int = 0
    """rows that a rule ``keep`` has dropped"""
    late: int = 0
    """windows: what the watermark has kept out of totals; Spark counts rows of one window and group
    that one task reads in a batch as one"""
    lag: int | None = None
    """messages that the brokers had, and the last batch has not read; None before the source has
    asked the brokers, as while a batch is run again"""
    batch_rows: int = 0
    batch_seconds: float = 0.0
    time: str = ""
    """end of the last batch, in UTC"""


@attrs.frozen(kw_only=True)
class PipelineStatus:
    """A pipeline as its process has last described it."""

    name: str
    state: State
    """``killed``: the process has ended without a word"""
    cause: str = ""
    """of a failure, with the fix"""
    host: str = attrs.field(factory=socket.gethostname)
    process: int = attrs.field(factory=os.getpid)
    started: str
    time: str
    queries: Mapping[str, QueryStatus]
    """``rows``, and the names of windows"""

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self), indent=2) + "\n"


def local_path(checkpoint: str) -> Path | None:
    """Return the folder of a checkpoint on this machine; None for ``hdfs:``, ``s3a:`` and so on."""
    found = LOCAL.match(checkpoint)
    return Path(checkpoint[found.end() :]) if found else None


def write_status(folder: Path, status: PipelineStatus) -> None:
    """Replace the file as a whole. Raises: OSError."""
    new = folder / f"{STATUS_FILE}.new"
    new.write_text(status.to_json())
    new.replace(folder / STATUS_FILE)


def read_status(checkpoint: str) -> PipelineStatus:
    """Read the status of a pipeline. Raises: ReadRefused."""
    folder = local_path(checkpoint)
    if folder is None:
        raise ReadRefused(
            f"{checkpoint} is not on this machine; read {checkpoint.rstrip('/')}/{STATUS_FILE} with"
            " the tools of its storage"
        )
    path = folder / STATUS_FILE
    try:
        with path.open("rb") as file:
            text = file.read(STATUS_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ReadRefused(
            f"{path} does not exist: no pipeline with this checkpoint has run; start it with"
            " mqpipeline run"
        ) from None
    except OSError as error:
        raise ReadRefused(f"{path} cannot be read: {error.strerror}; check its rights") from None
    status = parse_status(text, str(path))
    if status.state == "running" and status.host == socket.gethostname():
        try:
            os.kill(status.process, 0)
        except ProcessLookupError:
            cause = (
                "the process has ended without a word; start the pipeline again, nothing is lost"
            )
            return attrs.evolve(status, state="killed", cause=cause)
        except PermissionError:
            pass  # it runs, as another user
    return status


def parse_status(text: bytes, path: str) -> PipelineStatus:
    """Return the content of a status file. Raises: ReadRefused."""
    try:
        if len(text) > STATUS_BYTES_MAX:
            raise ValueError(f"it is larger than {STATUS_BYTES_MAX} bytes")
        fields = json.loads(text)
        queries = {name: QueryStatus(**found) for name, found in fields.pop("queries").items()}
        status = PipelineStatus(**fields, queries=queries)
        if status.state not in get_args(State):
            raise ValueError(f"state {status.state!r} is unknown")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReadRefused(
            f"{path} is not the status of a pipeline ({error}); delete it, the next batch writes it"
        ) from None
    return status
