"""The sequence of log files: contiguous, of full size, and otherwise refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.segment import segment_name
from triomq.broker.store.io.segments import Segments

SIZE = 4096


def make(directory: Path, *bases: int, size: int = SIZE) -> Segments:
    directory.mkdir(exist_ok=True)
    for base in bases:
        with (directory / segment_name(base)).open("wb") as file:
            file.truncate(size)
    return Segments(Disk(), directory, SIZE)


def test_names_are_the_offset_of_the_first_byte() -> None:
    assert segment_name(0) == "00000000000000000000"
    assert segment_name(1_073_741_824) == "00000000001073741824"


def test_new_files_have_their_full_size(tmp_path: Path) -> None:
    segments = make(tmp_path / "log")
    segments.load()
    first = segments.grow(0)
    second = segments.grow(SIZE)
    assert [segment.path.stat().st_size for segment in (first, second)] == [SIZE, SIZE]
    assert segments.end == 2 * SIZE
    assert segments.find(SIZE - 1) is first
    assert segments.find(SIZE) is second
    assert segments.find(2 * SIZE) is None
    assert segments.find(-1) is None
    segments.close()


def test_covering(tmp_path: Path) -> None:
    segments = make(tmp_path / "log", SIZE, 2 * SIZE, 3 * SIZE)
    segments.load()
    assert [segment.base for segment in segments.covering(2 * SIZE - 1, 2 * SIZE + 1)] == [
        SIZE,
        2 * SIZE,
    ]
    assert segments.covering(2 * SIZE, 2 * SIZE) == []
    assert segments.first_offset == SIZE


def test_a_log_need_not_begin_at_zero_and_folders_are_skipped(tmp_path: Path) -> None:
    segments = make(tmp_path / "log", 3 * SIZE, 2 * SIZE)
    (tmp_path / "log" / "folder").mkdir()
    segments.load()
    assert [segment.base for segment in segments.items] == [2 * SIZE, 3 * SIZE]
    dropped = segments.drop_from(2 * SIZE + 1)
    assert [path.name for path in dropped] == [segment_name(3 * SIZE)]
    assert not dropped[0].exists()


def test_an_empty_last_file_is_removed(tmp_path: Path) -> None:
    segments = make(tmp_path / "log", 0)
    (tmp_path / "log" / segment_name(SIZE)).touch()
    segments.load()
    assert len(segments.items) == 1
    assert not (tmp_path / "log" / segment_name(SIZE)).exists()


@pytest.mark.parametrize(
    ("names", "size", "words"),
    [
        (["00000000000000000000", "notes.txt"], SIZE, ("notes.txt", "move the file away")),
        (["00000000000000000000", "00000000000000000000~"], SIZE, ("only segments",)),
        (["00000000000000000000"], 1000, ("length is 1000", "mappedFileSizeCommitLog=1000")),
        (
            ["00000000000000000000", "00000000000000008192"],
            SIZE,
            ("hole", "00000000000000004096", "restore"),
        ),
        (["00000000000000001000"], SIZE, ("not a multiple",)),
    ],
    ids=["foreign file", "editor backup", "short", "missing middle", "odd name"],
)
def test_files_that_cannot_be_a_log_are_refused_with_cause_and_fix(
    tmp_path: Path, names: list[str], size: int, words: tuple[str, ...]
) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    for name in names:
        with (directory / name).open("wb") as file:
            file.truncate(size)
    with pytest.raises(StoreDamaged) as caught:
        Segments(Disk(), directory, SIZE).load()
    for word in words:
        assert word in str(caught.value)


def test_the_map_shows_what_is_written_and_outlives_the_file(tmp_path: Path) -> None:
    segments = make(tmp_path / "log")
    segments.load()
    segment = segments.grow(0)
    view = segment.view[:5]
    segments.disk.write_at(segment.fd, b"hello", 0, segment.path)
    assert bytes(view) == b"hello"
    segments.drop_from(0)
    assert bytes(view) == b"hello"
