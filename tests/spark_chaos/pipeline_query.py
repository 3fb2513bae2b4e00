"""A pipeline of a chaos run: its file, its jobs in the driver, and the rows of its lake."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq

from tests.spark_chaos.checkpoints import Place, QueryFolder
from tests.spark_chaos.judge import NAME_BYTES, WrittenRow
from tests.spark_chaos.plan import DoesNotCount
from tests.spark_chaos.scene import Scene
from tests.spark_chaos.spark_host import WAIT_SECONDS, check_not_busy
from tests.support.spark_peers import wait_for

KEEP_DAYS = 30
PIPELINE = """
[pipeline]
name = "{name}"

[source]
name_server = "{namesrv}"
topics = ["{topic}"]

[source.options]
{options}

[decode]
format = "bytes"

[sink]
kind = "{kind}"
path = "{lake}"
keep_days = {keep_days}

[run]
trigger = "100 milliseconds"
checkpoint = "checkpoint"
"""


@attrs.define(eq=False)
class PipelineQuery:
    """``name``: of the pipeline in the driver, and of its folder in ``folder``."""

    scene: Scene
    folder: Path
    name: str
    topic: str
    options: dict[str, str]
    old_dates: bool = False
    """whether half of the messages look as if they had been stored long ago"""
    broken: str = ""
    """the kind of the run, if the driver breaks a rule that such runs hold up"""
    query: QueryFolder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.query = QueryFolder(self.folder / self.name, self.topic, "checkpoint/rows")

    @property
    def lake(self) -> Path:
        """The table; all pipelines of a run have the same."""
        return self.folder / "lake"

    @property
    def file(self) -> Path:
        return self.query.path / "pipeline.toml"

    @property
    def rows_checkpoint(self) -> str:
        return str(self.query.path / "checkpoint" / "rows")

    def write_file(self) -> None:
        self.query.path.mkdir(parents=True, exist_ok=True)
        options = "\n".join(f'{name} = "{text}"' for name, text in self.options.items())
        self.file.write_text(
            PIPELINE.format(
                name=self.name,
                namesrv=self.scene.namesrv,
                topic=self.topic,
                options=options,
                kind=self.scene.host.lake,
                lake=self.lake,
                keep_days=KEEP_DAYS,
            )
        )

    def start(self, *, at: str = "written", hold: int | None = None) -> None:
        """Run the pipeline, from its checkpoint if it has one; hold it in a batch."""
        self.write_file()
        path = self.rows_checkpoint if at == "written" else str(self.lake)
        self._ask(self.name, "run", [] if hold is None else [(path, at, hold)])

    def start_upkeep(self, *, again: bool = False, hold: int | None = None) -> str:
        """Run ``compact``, once or until it is stopped; hold it in a merge. Returns: its name."""
        name = f"upkeep of {self.name}"
        holds = [] if hold is None else [("lake", "merged", hold)]
        self._ask(name, "keep up", holds, again=again)
        return name

    def start_backfill(
        self, stores: Mapping[str, Path], step_bytes: int, *, hold: int | None = None
    ) -> str:
        """Run ``backfill``; hold it behind a step. Returns: its name."""
        name = f"backfill of {self.name}"
        self.write_file()
        holds = []
        if hold is not None:
            holds.append((str(self.query.path / "checkpoint" / "backfill"), "written", hold))
        paths = {broker: str(store) for broker, store in stores.items()}
        self._ask(name, "backfill", holds, stores=paths, **{"step bytes": step_bytes})
        return name

    def _ask(self, name: str, do: str, holds: list[tuple[str, str, int]], **more: Any) -> None:
        job = {
            "do": do,
            "file": str(self.file),
            "folder": str(self.query.path),
            "holds": holds,
            "old dates": self.old_dates,
            "broken": self.broken,
            **more,
        }
        self.scene.host.ask("start pipeline", name=name, job=job)

    def stop(self) -> None:
        """Let the batch in progress end, and the pipeline."""
        stopped = self.scene.host.ask("stop", name=self.name)
        assert stopped["error"] is None, stopped["error"]

    def upkeep_done(self) -> dict[str, int]:
        """Stop ``compact`` and return what it has merged and deleted."""
        return dict(self.result_of(f"upkeep of {self.name}"))

    def result_of(self, name: str) -> dict[str, Any]:
        """Wait for a command and return what it has done."""
        stopped = self.scene.host.ask("stop", name=name)
        check_not_busy(str(stopped["error"]))
        assert stopped["error"] is None, f"{name}: {stopped['error']}"
        return dict(stopped["result"])

    def error(self, name: str | None = None) -> str:
        """Wait until the pipeline, or a command, has failed, and return why."""
        name = name or self.name

        def failed() -> str | None:
            state = self.scene.host.ask("state", name=name)
            assert state["active"] or state["error"], f"{name} ended without an error"
            return None if state["active"] else str(state["error"])

        found = str(wait_for(failed, f"{name} to fail", WAIT_SECONDS))
        check_not_busy(found)
        return found

    def wait(self, condition: Callable[[], Any], what: str, *also: str) -> None:
        """Wait for a condition while the pipeline, and the commands ``also``, go on."""
        self.scene.host.wait([self.name, *also], condition, what)

    def wait_inside(self, batch: int) -> None:
        def inside() -> bool:
            if self.query.last_planned() > batch:
                raise DoesNotCount(f"batch {batch} of {self.name} had too few rows")
            return bool(self.query.inside(batch))

        self.wait(inside, f"batch {batch} of {self.name}")

    def wait_reached(self, ends: Mapping[Place, int], *also: str) -> None:
        self.wait(lambda: self.query.has_reached(ends), f"{self.name} to reach {ends}", *also)

    def rows(self) -> Iterator[WrittenRow]:
        """Yield the rows that readers of the lake see, of all pipelines that write to it."""
        folder = self.lake
        if self.scene.host.lake != "parquet":  # its rows are in files that the format names
            folder = self.query.path / "rows"
            self._ask("reader", "read", [], to=str(folder))
            self.result_of("reader")
        for file in sorted(folder.rglob("*.parquet")):
            if any(part[0] in "._" for part in file.relative_to(folder).parts):
                continue
            found = pq.ParquetFile(file).read(["mq_broker", "mq_queue", "mq_offset", "value"])
            columns = found.to_pydict()
            bodies = columns["value"]
            yield from map(
                WrittenRow,
                (body[:NAME_BYTES].decode() for body in bodies),
                columns["mq_broker"],
                columns["mq_queue"],
                columns["mq_offset"],
                map(zlib.crc32, bodies),
            )
