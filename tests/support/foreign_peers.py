"""Which programs that we did not write have run during a test: without one no cell of
docs/compatibility.md is green.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_alive: Counter[str] = Counter()
_noted: set[str] = set()


def begin() -> None:
    """A test begins: only what runs already, and what is noted from now on, counts."""
    _noted.clear()


def note(peer: str) -> None:
    """The peer does something for the test."""
    _noted.add(peer)


def seen() -> set[str]:
    """The peers that had a part in the test."""
    return _noted | {peer for peer, count in _alive.items() if count}


def peer_of(command: Sequence[str]) -> str | None:
    """The column of docs/compatibility.md that a command line belongs to; None for programs of
    ours.
    """
    version = re.search(r"/java-([0-9.]+)/classes:", " ".join(command))
    if version is None:
        return None
    server = any(word.endswith((".BrokerStartup", ".NamesrvStartup")) for word in command)
    return f"java-{'server' if server else 'client'}-{version[1]}"


@contextmanager
def alive(command: Sequence[str]) -> Iterator[None]:
    """A program that runs for the block, and takes part in every test inside it."""
    peer = peer_of(command)
    if peer is None:
        yield
        return
    _alive[peer] += 1
    try:
        yield
    finally:
        _noted.add(peer)  # of the test that ends it
        _alive[peer] -= 1
