"""What a comparison with a foreign peer found: a Markdown table with targets, a JSON file, and a
program that surely ends.

python tests/bench/verdict_table.py .bench/java-programs.json    prints the tables of an earlier run
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

BENCH_FOLDER = Path(__file__).resolve().parent.parent.parent / ".bench"


class Missing(SystemExit):
    """A peer is not there; the text says which, and what to do."""


@dataclass
class Row:
    """One measurement on both sides. ``factor``: the target as ours : theirs (theirs : ours where
    less is better); ``limit``: a target for ours alone.
    """

    what: str
    unit: str
    ours: float | None = None
    peer: float | None = None
    less_is_better: bool = False
    factor: float | None = None
    limit: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Above 1: ours is better."""
        if not self.ours or not self.peer:
            return None
        return self.peer / self.ours if self.less_is_better else self.ours / self.peer

    @property
    def met(self) -> bool | None:
        """None: there is no target, or a side was not measured."""
        if self.ours is None or (self.factor is None and self.limit is None):
            return None
        if self.limit is not None and (
            self.ours > self.limit if self.less_is_better else self.ours < self.limit
        ):
            return False
        if self.factor is None:
            return True
        return None if self.ratio is None else self.ratio >= self.factor

    @property
    def target(self) -> str:
        sign = "≤" if self.less_is_better else "≥"
        parts = [f"{self.factor:g} ×"] if self.factor is not None else []
        parts += [f"{sign} {self.limit:g} {self.unit}"] if self.limit is not None else []
        return ", ".join(parts)


@dataclass
class Table:
    """Rows under one heading."""

    title: str
    peer: str
    rows: list[Row] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [
            f"**{self.title}**",
            "",
            f"| | unit | ours | {self.peer} | ratio | target | |",
            "|---|---|---:|---:|---:|---:|---|",
        ]
        for row in self.rows:
            ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
            verdict = {True: "met", False: "missed", None: ""}[row.met]
            remark = "; ".join(filter(None, (verdict, row.note)))
            lines.append(
                f"| {row.what} | {row.unit} | {number(row.ours)} | {number(row.peer)} | {ratio} |"
                f" {row.target or '–'} | {remark} |"
            )
        return "\n".join(lines)


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.2f}"
        if abs(value) < 10
        else f"{value:.1f}"
    )


@dataclass
class Report:
    """One run of one program."""

    name: str
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.time)

    def table(self, title: str, peer: str) -> Table:
        self.tables.append(Table(title, peer))
        return self.tables[-1]

    def markdown(self) -> str:
        return "\n\n".join(
            [table.markdown() for table in self.tables] + [f"- {note}" for note in self.notes]
        )

    def write(self, path: Path | None = None) -> Path:
        """As JSON; every row also with its ratio and whether its target was met."""
        path = path or BENCH_FOLDER / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        tables = [
            {
                "title": table.title,
                "peer": table.peer,
                "rows": [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in table.rows],
            }
            for table in self.tables
        ]
        host = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "load": os.getloadavg(),
        }
        content = {
            "name": self.name,
            "begun": self.begun,
            "seconds": time.time() - self.begun,
            "host": host,
            "notes": self.notes,
            "tables": tables,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path

    def finish(self, path: Path | None = None) -> None:
        print("\n" + self.markdown() + f"\n\nwritten: {self.write(path)}", flush=True)


def read(path: Path) -> Report:
    content = json.loads(path.read_text())
    fields = Row.__dataclass_fields__
    tables = [
        Table(
            table["title"],
            table["peer"],
            [
                Row(**{key: value for key, value in row.items() if key in fields})
                for row in table["rows"]
            ],
        )
        for table in content["tables"]
    ]
    return Report(content["name"], tables, content["notes"], content["begun"])


@contextmanager
def surely_ending(seconds: int) -> Iterator[None]:
    """SIGTERM and a run that takes too long leave the block like any error, so that no server is
    left behind.
    """

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(
            f"not finished within {seconds} s: given up"
            if signum == signal.SIGALRM
            else "ended by a signal"
        )

    before = {
        number: signal.signal(number, leave)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    }
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        for signum, handler in before.items():
            signal.signal(signum, handler)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(read(Path(name)).markdown())
