"""The log of one controller: nothing is seen that is not on the disk, and a disk that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from triomq.namesrv.controller import members as members_module
from triomq.namesrv.controller import replicated_state
from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.commands import ApplyId, Elect
from triomq.namesrv.controller.controller_files import EARLIER_FILE, ControllerFolder
from triomq.namesrv.controller.controller_settings import Peer
from triomq.namesrv.controller.members import ControllerMembers
from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.events import MessageReceived, RaftRole
from triomq.namesrv.controller.raft.messages import AppendEntries
from triomq.namesrv.controller.raft.state import RaftInvariantBroken
from triomq.namesrv.controller.raft_storage import FILE_NAME, SystemRaftFiles
from triomq.namesrv.controller.state import ControllerState
from triomq.namesrv.controller.transitions import apply
from triomq.remoting.core.atomic_file import replace_file
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import ResponseCode

pytestmark = pytest.mark.usefixtures("autojump_clock")


def apply_id(broker_id: int) -> ApplyId:
    return ApplyId(cluster="C", broker_name="a", broker_id=broker_id, check_code=f"x:{broker_id};1")


FIRST_ELECTION = Elect(broker_name="a", broker_id=1, master_epoch=0)


async def inline(call: Callable[..., Any], *arguments: Any) -> Any:
    """Do without a thread, since the clock jumps while one works."""
    await trio.sleep(0.001)
    return call(*arguments)


@asynccontextmanager
async def opened(
    folder: Path, *members: str, files: SystemRaftFiles | None = None
) -> AsyncIterator[CommandLog]:
    members = members or ("n0",)
    log = CommandLog(
        own_id="n0",
        folder=ControllerFolder(folder, members, files),
        send=lambda _target, _message: None,
        in_thread=inline,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        if len(members) == 1:
            await log.led.wait()
        yield log
        nursery.cancel_scope.cancel()


async def test_a_state_is_read_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "new") as log:
        await log.commit(apply_id(1))
        state = await log.commit(FIRST_ELECTION)
        assert state == log.state
    async with opened(tmp_path / "new") as again:
        assert again.state == state


async def test_a_snapshot_takes_the_place_of_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated_state, "SNAPSHOT_ENTRIES", 10)
    async with opened(tmp_path) as log:
        for number in range(1, 25):
            await log.commit(apply_id(number))
        state = log.state
        assert log.lasting.node.log.snapshot.index >= 20
    async with opened(tmp_path) as again:
        assert again.state == state
        assert len(again.lasting.node.log.entries) < 12


async def test_a_change_is_seen_when_it_is_on_the_disk(tmp_path: Path) -> None:
    class Spying(SystemRaftFiles):
        log: CommandLog | None = None

        def sync(self, fd: int) -> None:
            if self.log is not None:
                seen.append((len(self.log.state.groups), list(answered)))
            super().sync(fd)

    seen: list[Any] = []
    answered: list[int] = []
    files = Spying()
    async with opened(tmp_path, files=files) as log:
        files.log = log
        await log.commit(apply_id(1))
        answered.append(1)
        assert seen == [(0, [])]
        assert log.state.groups.keys() == {"a"}


async def test_a_disk_that_takes_nothing_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(SystemRaftFiles):
        full = False

        def write_at(self, fd: int, data: bytes, offset: int, path: Path) -> None:
            if self.full:
                super().write_at(fd, data[: len(data) // 2], offset, path)
                raise OSError(28, "No space left on device")
            super().write_at(fd, data, offset, path)

        def write_file(self, path: Path, data: bytes) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().write_file(path, data)

    files = Full()
    async with opened(tmp_path, files=files) as log:
        await log.commit(apply_id(1))
        files.full = True
        with pytest.raises(Rejected) as lost:
            await log.commit(apply_id(2))
        assert lost.value.code == ResponseCode.CONTROLLER_NOT_LEADER
        with pytest.raises(Rejected, match="No space") as caught:
            await log.commit(apply_id(2))
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
        with pytest.raises(Rejected, match="No space"):
            await log.confirm_lead()
        assert (log.leads, log.leader) == (False, "")
        await trio.sleep(5)
        files.full = False
        with trio.fail_after(5):
            while not log.leads:
                await trio.sleep(0.1)
        await log.commit(apply_id(2))
        assert log.state.groups["a"].replicas.keys() == {1, 2}
    assert "then it goes on" in caplog.text


async def test_commands_that_come_together_are_applied_one_after_the_other(tmp_path: Path) -> None:
    refused = []

    async def elect() -> None:
        try:
            await log.commit(FIRST_ELECTION)
        except Rejected as error:
            refused.append(error)

    async with opened(tmp_path) as log:
        await log.commit(apply_id(1))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(elect)
        assert log.state.groups["a"].master_epoch == 1
    assert len(refused) == 2


async def test_one_of_three_that_hears_no_other_refuses(tmp_path: Path) -> None:
    async with opened(tmp_path, "n0", "n1", "n2") as log:
        while log.lasting.node.role is RaftRole.FOLLOWER:
            await trio.sleep(0.01)
        for ask in (log.confirm_lead, lambda: log.commit(apply_id(1))):
            with pytest.raises(Rejected, match="not in leader state") as caught:
                await ask()
            assert caught.value.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert log.leader == ""


async def test_too_long_a_command_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        long = ApplyId(cluster="C" * 70_000, broker_name="a", broker_id=1, check_code="x")
        with pytest.raises(Rejected, match="command_bytes_max") as caught:
            await log.commit(long)
        assert caught.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST


async def test_a_broken_log_ends_the_process(tmp_path: Path) -> None:
    """Two leaders in one term: nothing that this controller knows can be trusted."""
    with pytest.RaisesGroup(RaftInvariantBroken, flatten_subgroups=True):
        async with opened(tmp_path) as log:
            term = log.lasting.node.term
            log.step(MessageReceived("n1", AppendEntries(term, 0, 0, (), 0, 1)))
            with pytest.raises(Rejected, match="broken"):
                await log.confirm_lead()
            await trio.sleep_forever()


# Its folder


def earlier_state() -> ControllerState:
    state = apply(ControllerState(), apply_id(1)).state
    return apply(state, FIRST_ELECTION).state


async def test_the_file_of_an_earlier_version_becomes_the_first_snapshot(tmp_path: Path) -> None:
    replace_file(tmp_path / EARLIER_FILE, earlier_state().snapshot())
    async with opened(tmp_path) as log:
        assert log.state == earlier_state()
        await log.commit(apply_id(2))
    assert not (tmp_path / EARLIER_FILE).exists()
    async with opened(tmp_path) as log:
        assert log.state.groups["a"].replicas.keys() == {1, 2}
    (tmp_path / FILE_NAME).unlink()  # and it does not come back
    async with opened(tmp_path) as log:
        assert log.state == ControllerState()


async def test_the_file_of_an_earlier_version_is_no_state_of_three(tmp_path: Path) -> None:
    replace_file(tmp_path / EARLIER_FILE, earlier_state().snapshot())
    with pytest.raises(ConfigError, match="outvote"):
        ControllerFolder(tmp_path, ("n0", "n1", "n2")).open()


async def test_a_state_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / EARLIER_FILE).write_text('{"groups": {"a": 7}}')
    with pytest.raises(ConfigError, match="cannot be read"):
        ControllerFolder(tmp_path, ("n0",)).open()
    (tmp_path / EARLIER_FILE).unlink()
    (tmp_path / FILE_NAME).write_bytes(b"?")
    with pytest.raises(ConfigError, match="does not begin with a snapshot"):
        ControllerFolder(tmp_path, ("n0",)).open()


async def test_a_folder_has_one_process(tmp_path: Path) -> None:
    first = ControllerFolder(tmp_path, ("n0",))
    first.open().close()
    with pytest.raises(ConfigError, match="another process"):
        ControllerFolder(tmp_path, ("n0",)).open()
    first.close()


async def test_the_log_says_who_the_controllers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members_module, "CHANGE_SECONDS", 0.0)
    async with opened(tmp_path) as log:
        await log.commit(apply_id(1))
    named = [Peer(name, f"{name}:1") for name in ("n0", "n1")]
    async with opened(tmp_path, "n0", "n1") as log:
        await log.led.wait()  # with the one vote that the log asks for
        members = ControllerMembers(named[0], named, log)
        assert members.current() == (named[0],)
        assert members.difference().startswith(
            "controllerDLegerPeers names n0-n0:1;n1-n1:1, and the log n0-n0:1: the log counts"
        )
        for wrong, remark in (
            (Peer("n0", "x:1"), "controller n0 listens on n0:1: remove it first"),
            (Peer("n2", "n0:1"), "n0:1 is the address of controller n0"),
        ):
            with pytest.raises(Rejected, match=remark):
                await members.add(wrong)
        with pytest.raises(Rejected, match="no controller is n1: they are n0"):
            await members.remove("n1")
        with pytest.raises(Rejected, match="allows no such change"):
            await members.remove("n0")
        with pytest.raises(Rejected, match="follows and does not vote yet"):
            await members.add(named[1])
        assert log.configuration == Configuration(("n0",), ("n1",), {"n0": "n0:1", "n1": "n1:1"})
        await members.remove("n1")
    async with opened(tmp_path, "n0") as log:
        assert log.configuration == Configuration(("n0",), (), {"n0": "n0:1"})
