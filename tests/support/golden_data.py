"""The captured exchanges and stores of ``tests/golden``, ready to iterate over."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
RELEASES = ("5.5.0", "4.9.4")


class Exchange(NamedTuple):
    """A captured request, and its response if there was one, as whole frames."""

    file: str
    line: int
    sender: str
    server: str
    code: int
    oneway: bool
    serialize: str
    request: bytes
    response: bytes | None
    response_code: int | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} code {self.code}"


@lru_cache(maxsize=1)
def exchanges() -> tuple[Exchange, ...]:
    return tuple(_read_exchanges())


def _read_exchanges() -> Iterator[Exchange]:
    for path in sorted((GOLDEN / "wire").glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            row = json.loads(line)
            response = row["response"]
            yield Exchange(
                path.name,
                number,
                row["from"],
                row["server"],
                row["code"],
                row["oneway"],
                row["serialize"],
                bytes.fromhex(row["request"]),
                bytes.fromhex(response) if response else None,
                row["response_code"],
            )


def commit_log(release: str) -> list[tuple[int, bytes]]:
    """(offset of the first byte, bytes) of each commit-log file of a golden store."""
    with tarfile.open(GOLDEN / "store" / f"java-{release}.tar.gz") as archive:
        files = [member for member in archive if member.isfile() and "/commitlog/" in member.name]
        segments = []
        for member in files:
            opened = archive.extractfile(member)
            assert opened is not None
            segments.append((int(Path(member.name).name), opened.read()))
    return sorted(segments)


def logged_messages(release: str) -> list[dict[str, Any]]:
    """What Java's own decoder reads from that log, in log order."""
    with gzip.open(GOLDEN / "store" / f"java-{release}.messages.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]
