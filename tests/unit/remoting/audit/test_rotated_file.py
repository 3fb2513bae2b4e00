"""Files of lines that are rotated by their size."""

from __future__ import annotations

import stat
from pathlib import Path

from triomq.remoting.audit.rotated_file import RotatedFile

LINE = b"x" * 39 + b"\n"


def files_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def test_a_full_file_is_rotated_and_the_oldest_one_is_removed(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "audit.log", 100, 3)
    file.append([b"first" + LINE[5:], *[LINE] * 4])
    assert files_of(tmp_path) == {"audit.log": 40, "audit.log.1": 80, "audit.log.2": 80}
    assert (tmp_path / "audit.log.2").read_bytes().startswith(b"first")
    file.append([LINE] * 2)
    assert files_of(tmp_path) == {"audit.log": 40, "audit.log.1": 80, "audit.log.2": 80}
    assert not (tmp_path / "audit.log.2").read_bytes().startswith(b"first")


def test_one_file_starts_again_and_fewer_files_than_before_are_kept(tmp_path: Path) -> None:
    RotatedFile(tmp_path / "audit.log", 100, 4).append([LINE] * 8)
    assert len(files_of(tmp_path)) == 4
    RotatedFile(tmp_path / "audit.log", 100, 1).append([LINE])
    assert files_of(tmp_path) == {"audit.log": 40}


def test_a_line_that_is_longer_than_a_file_may_be_has_one_of_its_own(tmp_path: Path) -> None:
    RotatedFile(tmp_path / "audit.log", 20, 3).append([LINE, LINE])
    assert files_of(tmp_path) == {"audit.log": 40, "audit.log.1": 40}


def test_half_a_line_of_a_crash_does_not_damage_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"half')
    RotatedFile(path, 1000, 3).append([LINE])
    assert path.read_bytes() == b'{"half\n' + LINE


def test_new_files_are_the_owners_alone_and_a_moved_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = RotatedFile(path, 1000, 3)
    file.append([LINE])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(tmp_path / "moved")
    file.append([LINE])
    assert files_of(tmp_path) == {"audit.log": 40, "moved": 40}
