"""The key-value table and its file in Java's form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triomq.namesrv.kv import KvConfig, KvFileError
from triomq.remoting.core.atomic_file import backup_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def test_values_survive_a_restart_in_java_s_form(path: Path) -> None:
    table = KvConfig.open(path)
    assert table.namespace("N") is None
    table.put("N", "a", "1")
    table.put("N", "b", "ü")
    table.put("M", "a", "3")
    table.delete("N", "a")
    assert json.loads(path.read_text()) == {"configTable": {"N": {"b": "ü"}, "M": {"a": "3"}}}
    again = KvConfig.open(path)
    assert (again.get("N", "a"), again.get("N", "b"), again.get("M", "a")) == (None, "ü", "3")
    assert again.namespace("N") == {"b": "ü"}


def test_an_emptied_namespace_stays(path: Path) -> None:
    table = KvConfig.open(path)
    table.put("N", "a", "1")
    table.delete("N", "a")
    assert table.namespace("N") == {}


def test_deleting_an_absent_key_writes_nothing(path: Path) -> None:
    table = KvConfig.open(path)
    table.delete("N", "a")
    assert not path.exists()


def test_the_old_content_stays_as_backup(path: Path) -> None:
    table = KvConfig.open(path)
    table.put("N", "a", "1")
    table.put("N", "a", "2")
    assert json.loads(backup_of(path).read_text()) == {"configTable": {"N": {"a": "1"}}}
    path.write_text('{"configTable":{"N"')
    assert KvConfig.open(path).get("N", "a") == "1"


@pytest.mark.parametrize("content", ["[]", '{"configTable":[1]}', '{"configTable":{"N":{"a":1}}}'])
def test_a_damaged_file_without_backup_is_refused(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(
        KvFileError,
        match=(
            r"kvConfig.json: not a key-value table .*; restore the file, or remove it to begin with"
            r" an empty table"
        ),
    ):
        KvConfig.open(path)
    backup_of(path).write_text("x")
    with pytest.raises(KvFileError):
        KvConfig.open(path)


def test_java_s_file_with_more_members_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:8"}},"other":1}')
    assert KvConfig.open(path).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:8"


def test_a_change_that_cannot_be_saved_has_no_effect(path: Path, tmp_path: Path) -> None:
    table = KvConfig.open(path)
    table.put("N", "a", "1")
    path.with_name(path.name + ".tmp").mkdir()  # blocks the path of the temporary file
    with pytest.raises(
        KvFileError,
        match="is a directory; make room or give the name server the right to write there",
    ):
        table.put("N", "a", "2")
    assert table.get("N", "a") == "1"
    assert KvConfig.open(path).get("N", "a") == "1"


def test_a_path_that_cannot_be_read_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(
        KvFileError,
        match="is a directory; give the name server the right to read it, or set kvConfigPath",
    ):
        KvConfig.open(path)
