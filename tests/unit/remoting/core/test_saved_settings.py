"""Settings that were changed while a program ran: a file that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.remoting.core import saved_settings
from triomq.remoting.core.saved_settings import read_saved
from triomq.remoting.core.settings import ConfigError


def test_a_folder_that_is_closed_is_named_and_not_the_file_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store belongs to another user: nobody must look for a damaged file."""
    store = tmp_path / "store"

    def closed(path: object, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(saved_settings, "read_file", closed)
    monkeypatch.setattr("os.access", lambda path, _: not Path(path).is_relative_to(store))
    with pytest.raises(ConfigError) as raised:
        read_saved(store / "config" / "runtime.properties")
    assert str(raised.value) == (
        f"{store}: permission denied; give the user of this program read and write permission"
        " there, or choose another folder"
    )


def test_a_file_that_is_closed_is_named_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: object, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(saved_settings, "read_file", closed)
    path = tmp_path / "runtime.properties"
    with pytest.raises(ConfigError, match=f"{path}: permission denied; give the user"):
        read_saved(path)


def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "runtime.properties"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"runtime\.properties: cannot be read .*repair it"):
        read_saved(path)
