"""What the folder of a query shows: planned and committed batches, tasks at the gate, output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq

from tests.spark_chaos.judge import WrittenRow

Place = tuple[str, int]
"""(broker, queue)"""


@attrs.frozen
class QueryFolder:
    """The folder of one query."""

    path: Path
    topic: str
    checkpoint: str = "checkpoint"

    def last_planned(self) -> int:
        """Return the number of the newest batch in the log; -1 if there is none."""
        return self._last("offsets")

    def last_committed(self) -> int:
        return self._last("commits")

    def _last(self, kind: str) -> int:
        folder = self.path / self.checkpoint / kind
        numbers = [int(entry.name) for entry in folder.glob("*") if entry.name.isdecimal()]
        return max(numbers, default=-1)

    def logged(self, batch: int) -> dict[str, Any]:
        """Return the position that the log has for the end of a batch; none for batch -1."""
        if batch < 0:
            return {}
        text = (self.path / self.checkpoint / "offsets" / str(batch)).read_text()
        position: dict[str, Any] = json.loads(text.splitlines()[2])
        return position

    def read_up_to(self, batch: int, member: str = "q") -> dict[Place, int]:
        """Return the next offset of each queue after a batch, or another member of the log."""
        brokers = self.logged(batch).get(member, {}).get(self.topic, {})
        return {
            (broker, int(queue)): offset
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        }

    def has_reached(self, ends: Mapping[Place, int]) -> bool:
        """Whether committed batches end exactly there."""
        last = self.last_planned()
        if last < 0 or self.last_committed() != last:
            return False
        here = self.read_up_to(last)
        return all(here.get(place) == end for place, end in ends.items())

    def inside(self, batch: int) -> list[str]:
        """Return the marks of tasks (or of the writer) that wait at the gate of a batch."""
        return sorted(entry.name for entry in (self.path / "inside").glob(f"{batch}-*"))

    def held(self, batch: int) -> set[tuple[str, int, int]]:
        """Return (broker, queue, offset) of the rows that waited at the gate of a batch."""
        marks = [self.path / "inside" / mark for mark in self.inside(batch)]
        return {tuple(row) for mark in marks for row in json.loads(mark.read_text())}

    def is_unfinished(self, batch: int) -> bool:
        """Whether a batch is planned and not committed."""
        return self.last_planned() == batch and self.last_committed() == batch - 1

    def open_gate(self, batch: int) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / f"open-{batch}").touch()

    def rows(self, sink: str) -> Iterator[WrittenRow]:
        """Yield the output. Of parquet only files count that Spark has committed."""
        files = self._committed_files() if sink == "parquet" else self._files_of_batches()
        for file in files:
            columns = pq.ParquetFile(file).read().to_pydict()
            yield from map(
                WrittenRow,
                columns["name"],
                columns["broker"],
                columns["queue"],
                columns["offset"],
                columns["checksum"],
            )

    def _files_of_batches(self) -> list[Path]:
        return sorted((self.path / "output").glob("*/part-*.parquet"))

    def _committed_files(self) -> list[Path]:
        names = set()
        for entry in (self.path / "output" / "_spark_metadata").glob("*"):
            if entry.name.isdecimal() or entry.name.endswith(".compact"):
                names |= {
                    json.loads(line)["path"].rsplit("/", 1)[1]
                    for line in entry.read_text().splitlines()
                    if line.startswith("{")
                }
        return [self.path / "output" / name for name in sorted(names)]
