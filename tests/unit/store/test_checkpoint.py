"""The checkpoint file: Java's fields in their places, our mark where Java does not read."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from triomq.broker.store.checkpoint import MARK_POSITION, Checkpoint, CheckpointFile, Mark
from triomq.broker.store.io.disk import Disk

FULL = Checkpoint(
    log_timestamp=1,
    queue_timestamp=2,
    index_timestamp=3,
    master_flushed=4,
    confirmed=5,
    queue_log_offset=6,
    mark=Mark(record_offset=6, record_end=60, index_position=5, has_queues=True),
)


@pytest.mark.feature("47a")
def test_bytes_of_the_fact_sheet() -> None:
    data = attrs.evolve(FULL, queue_log_offset=0, mark=None).encode()
    assert (
        data[:40].hex(" ", 8)
        == "0000000000000001 0000000000000002 0000000000000003 0000000000000004 0000000000000005"
    )
    assert data[40:] == bytes(4056)


def test_round_trip(tmp_path: Path) -> None:
    assert Checkpoint.decode(FULL.encode()) == FULL
    file = CheckpointFile(Disk(), tmp_path / "checkpoint")
    assert file.load() == Checkpoint()
    file.write(FULL)
    file.close()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    again = CheckpointFile(Disk(), tmp_path / "checkpoint")
    assert again.load() == FULL
    again.close()
    again.close()


@pytest.mark.parametrize("size", [0, 8, 47, 48, 4095])
def test_a_short_file_knows_less(size: int) -> None:
    known = Checkpoint.decode(FULL.encode()[:size])
    assert known.mark is None
    assert known.log_timestamp == (1 if size else 0)


def test_a_mark_counts_only_while_java_has_not_moved_on() -> None:
    data = bytearray(FULL.encode())
    data[47] = 7
    assert Checkpoint.decode(bytes(data)).mark is None


def test_a_mark_of_another_version_does_not_count() -> None:
    data = bytearray(FULL.encode())
    data[MARK_POSITION + 6] = ord("2")
    assert Checkpoint.decode(bytes(data)).mark is None


def test_java_s_safe_time_has_a_margin() -> None:
    assert Checkpoint(log_timestamp=10_000, queue_timestamp=9_000).safe_timestamp == 6_000
    assert Checkpoint(log_timestamp=10_000).safe_timestamp == 0
