"""What consumers committed at a slave: which of it the master must hear of."""

from __future__ import annotations

from pathlib import Path

from triomq.broker.services.offsets import OwnCommits, open_consumer_offsets
from triomq.broker.services.versions import Version
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.bodies.topics import DataVersion


def table(**queues: int) -> ConsumerOffsetTable:
    """Offsets of group G: ``T_0=5``."""
    rows: dict[str, dict[int, int]] = {}
    for name, offset in queues.items():
        topic, queue_id = name.split("_")
        rows.setdefault(f"{topic}@G", {})[int(queue_id)] = offset
    return ConsumerOffsetTable(rows, DataVersion(0, 7, 7))


def test_the_master_hears_of_what_is_ahead_of_it_and_of_nothing_else(tmp_path: Path) -> None:
    offsets = open_consumer_offsets(tmp_path, Version(lambda: 1))
    offsets.own = OwnCommits()
    assert offsets.replace(table(T_0=5, T_1=5, T_2=5)) == []
    offsets.commit("G", "T", 0, 8)
    offsets.commit("G", "T", 1, 6)
    offsets.commit("H", "U", 0, 1)
    found = offsets.replace(table(T_0=7, T_1=9, T_2=6))
    assert sorted(found) == [("G", "T", 0, 8), ("H", "U", 0, 1)]
    assert offsets.committed == {"G": {"T": {0: 8, 1: 9, 2: 6}}, "H": {"U": {0: 1}}}
    assert offsets.version.current == DataVersion(0, 7, 7)
    offsets.own.forget(found)
    assert offsets.own.commits == {}
    assert offsets.replace(table(T_0=9)) == []
    assert offsets.committed == {"G": {"T": {0: 9}}}


def test_going_back_on_purpose_wins(tmp_path: Path) -> None:
    offsets = open_consumer_offsets(tmp_path, Version(lambda: 1))
    offsets.own = OwnCommits()
    offsets.replace(table(T_0=5))
    offsets.commit("G", "T", 0, 2)
    offsets.commit("G", "T", 0, 3)
    assert offsets.replace(table(T_0=5)) == [("G", "T", 0, 3)]
    assert offsets.committed == {"G": {"T": {0: 3}}}


def test_a_commit_that_comes_while_the_master_is_told_is_kept(tmp_path: Path) -> None:
    offsets = open_consumer_offsets(tmp_path, Version(lambda: 1))
    offsets.own = OwnCommits()
    offsets.commit("G", "T", 0, 5)
    found = offsets.replace(table(T_0=1))
    offsets.commit("G", "T", 0, 6)
    offsets.own.forget(found)
    assert offsets.replace(table(T_0=5)) == [("G", "T", 0, 6)]
