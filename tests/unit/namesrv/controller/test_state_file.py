"""The file of a controller's state: nothing is seen that is not on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from triomq.namesrv.controller import state_file
from triomq.namesrv.controller.commands import ApplyId, Elect
from triomq.namesrv.controller.state_file import FILE_NAME, StateFile
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import ResponseCode


def apply_id(broker_id: int) -> ApplyId:
    return ApplyId(cluster="C", broker_name="a", broker_id=broker_id, check_code=f"x:{broker_id};1")


async def test_a_state_is_read_again(tmp_path: Path) -> None:
    file = StateFile.open(tmp_path / "new")
    await file.commit(apply_id(1))
    state = await file.commit(Elect(broker_name="a", broker_id=1, master_epoch=0))
    assert StateFile.open(tmp_path / "new").state == state == file.state
    (tmp_path / "new" / FILE_NAME).unlink()  # a crash between two renames: the backup
    assert StateFile.open(tmp_path / "new").state.groups["a"].master is None


async def test_a_change_is_seen_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile.open(tmp_path)
    seen = []
    write = state_file.replace_file

    def spying(path: Path, content: bytes) -> None:
        seen.append(dict(file.state.groups))
        write(path, content)

    monkeypatch.setattr(state_file, "replace_file", spying)
    await file.commit(apply_id(1))
    assert seen == [{}]
    await file.commit(apply_id(1))  # changes nothing, so it writes nothing
    assert len(seen) == 1


async def test_a_disk_that_takes_nothing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile.open(tmp_path)

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(state_file, "replace_file", full)
        with pytest.raises(Rejected, match="No space") as caught:
            await file.commit(apply_id(1))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert file.state.groups == {}
    await file.commit(apply_id(1))
    assert file.state.groups.keys() == {"a"}


async def test_commands_that_come_together_are_applied_one_after_the_other(tmp_path: Path) -> None:
    file = StateFile.open(tmp_path)
    await file.commit(apply_id(1))
    refused = []

    async def elect() -> None:
        try:
            await file.commit(Elect(broker_name="a", broker_id=1, master_epoch=0))
        except Rejected as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(elect)
    assert len(refused) == 2
    assert file.state.groups["a"].master_epoch == 1


def test_a_state_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"groups": {"a": 7}}')
    with pytest.raises(ConfigError, match="cannot be read"):
        StateFile.open(tmp_path)
