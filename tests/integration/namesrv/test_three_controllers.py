"""Three name servers with controllers over real sockets: one leads, and may go away."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from frames import FrameClient
from processes import free_port

from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.namesrv.controller.peer_messages import PeerMessages
from triomq.namesrv.controller.raft.messages import TimeoutNow
from triomq.namesrv.controller.raft_wire import encode_message
from triomq.remoting.access.access_settings import WriterSettings
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, encode_command
from triomq.remoting.protocol.headers.controller import (
    ApplyBrokerIdHeader,
    ChangeControllersHeader,
    ControllerMetadataHeader,
    ElectMasterHeader,
    NextBrokerIdHeader,
    NextBrokerIdResponseHeader,
    ReplicaInfoHeader,
)
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader
from triomq.remoting.protocol.signing import Credentials

IDS = ("n0", "n1", "n2")


class Trio:
    """Three controllers of a group, each in a task of its own."""

    def __init__(self, folder: Path, nursery: trio.Nursery, access: WriterSettings) -> None:
        self.folder, self.nursery, self.access = folder, nursery, access
        self.ports = {name: free_port() for name in IDS}
        self.running: dict[str, tuple[NamesrvReady, trio.CancelScope]] = {}

    async def start(self, name: str) -> None:
        peers = ";".join(f"{one}-127.0.0.1:{port}" for one, port in self.ports.items())
        config = NamesrvConfig(
            listen_host="127.0.0.1",
            listen_port=0,
            kv_path=self.folder / name / "kv.json",
            access=self.access,
            controller=ControllerSettings(
                enabled=True,
                group_name="group1",
                peers=peers,
                self_id=name,
                store_path=self.folder / name,
            ),
        )
        scope = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[NamesrvReady]) -> None:
            with scope:
                await run_namesrv(config, task_status=task_status)

        self.running[name] = (await self.nursery.start(run), scope)

    def kill(self, name: str) -> None:
        self.running.pop(name)[1].cancel()

    async def ask(self, name: str, code: Code, header: object = None) -> Command:
        async with FrameClient(self.ports[name]) as client:
            return await client.call(code, header)

    async def metadata(self, name: str) -> ControllerMetadataHeader:
        answer = await self.ask(name, Code.CONTROLLER_GET_METADATA_INFO)
        return answer.header(ControllerMetadataHeader)

    async def leader(self) -> str:
        """Wait until all that run agree on who leads."""
        with trio.fail_after(60):
            while True:
                said = [await self.metadata(name) for name in self.running]
                leaders = {one.controller_leader_id for one in said}
                leader = leaders.pop()
                if not leaders and leader and sum(bool(one.is_leader) for one in said) == 1:
                    return leader
                await trio.sleep(0.02)

    async def change(self, leader: str, change: str, name: str) -> set[str]:
        """Add or remove a controller, as `mqadmin controller` does; return those that remain."""
        header = ChangeControllersHeader(change, name, f"127.0.0.1:{self.ports[name]}")
        answer = await self.ask(leader, Code.CHANGE_CONTROLLERS, header)
        assert answer.code == ResponseCode.SUCCESS, answer
        peers = answer.header(ControllerMetadataHeader).peers or ""
        return {peer.partition(":")[0] for peer in peers.split(";") if peer}

    async def give_id(self, leader: str) -> int:
        answer = await self.ask(
            leader, Code.CONTROLLER_GET_NEXT_BROKER_ID, NextBrokerIdHeader("C", "a")
        )
        found = answer.header(NextBrokerIdResponseHeader).next_broker_id or 0
        header = ApplyBrokerIdHeader("C", "a", found, f"x:{found};1")
        answer = await self.ask(leader, Code.CONTROLLER_APPLY_BROKER_ID, header)
        assert answer.code == ResponseCode.SUCCESS, answer
        return found


@asynccontextmanager
async def three(folder: Path, access: WriterSettings | None = None) -> AsyncIterator[Trio]:
    async with trio.open_nursery() as nursery:
        controllers = Trio(folder, nursery, access or WriterSettings())
        for name in IDS:
            await controllers.start(name)
        try:
            yield controllers
        finally:
            nursery.cancel_scope.cancel()


async def test_what_was_answered_survives_the_leader(tmp_path: Path) -> None:
    async with three(tmp_path) as controllers:
        first = await controllers.leader()
        assert await controllers.give_id(first) == 1
        controllers.kill(first)
        second = await controllers.leader()
        assert second != first
        assert await controllers.give_id(second) == 2
        await controllers.start(first)  # it has missed a command
        controllers.kill(second)
        third = await controllers.leader()
        assert await controllers.give_id(third) == 3


async def test_controllers_come_and_go(tmp_path: Path) -> None:
    """One that has lost its folder comes back, a fourth is added, and the first leader removed."""
    async with three(tmp_path) as controllers:
        leader = await controllers.leader()
        emptied, other = (name for name in IDS if name != leader)
        assert await controllers.give_id(leader) == 1
        controllers.kill(emptied)
        shutil.rmtree(tmp_path / emptied)
        await controllers.start(emptied)
        assert await controllers.change(leader, "remove", emptied) == {leader, other}
        assert await controllers.change(leader, "add", emptied) == set(IDS)
        controllers.kill(other)
        assert await controllers.give_id(leader) == 2
        await controllers.start(other)
        controllers.ports["n3"] = free_port()
        await controllers.start("n3")
        assert await controllers.change(leader, "add", "n3") == {*IDS, "n3"}
        assert await controllers.change(leader, "remove", leader) == {emptied, other, "n3"}
        controllers.kill(leader)
        second = await controllers.leader()
        assert await controllers.give_id(second) == 3
        third = "n3" if second != "n3" else other
        controllers.kill(({emptied, other, "n3"} - {second, third}).pop())
        assert await controllers.give_id(second) == 4
        await controllers.start(leader)  # it believes that it is a member, and disturbs nobody
        assert await controllers.give_id(second) == 5
        assert (await controllers.metadata(third)).controller_leader_id == second


async def test_a_follower_answers_as_in_java(tmp_path: Path) -> None:
    async with three(tmp_path) as controllers:
        leader = await controllers.leader()
        follower = next(name for name in IDS if name != leader)
        said = await controllers.metadata(follower)
        address = f"127.0.0.1:{controllers.ports[leader]}"
        assert (said.controller_leader_address, said.is_leader) == (address, False)
        peers = "".join(f"{name}:127.0.0.1:{controllers.ports[name]};" for name in IDS)
        assert said.peers == peers
        for code, header in (
            (Code.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoHeader("a")),
            (Code.CONTROLLER_GET_NEXT_BROKER_ID, NextBrokerIdHeader("C", "a")),
            (Code.CONTROLLER_ELECT_MASTER, ElectMasterHeader("C", "a", 1, False)),
            (Code.CONTROLLER_APPLY_BROKER_ID, ApplyBrokerIdHeader("C", "a", 1, "x;1")),
            (Code.CONTROLLER_GET_SYNC_STATE_DATA, None),
        ):
            answer = await controllers.ask(follower, code, header)
            assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER, code
            assert answer.remark == "The controller is not in leader state"
        beat = BrokerHeartbeatHeader("C", "x:1", "a", 1)
        answer = await controllers.ask(follower, Code.BROKER_HEARTBEAT, beat)
        assert answer.code == ResponseCode.SUCCESS


async def test_a_leader_without_the_others_says_so(tmp_path: Path) -> None:
    async with three(tmp_path) as controllers:
        leader = await controllers.leader()
        for name in IDS:
            if name != leader:
                controllers.kill(name)
        with trio.fail_after(30):
            while (await controllers.metadata(leader)).controller_leader_id is not None:
                await trio.sleep(0.05)
        answer = await controllers.ask(
            leader, Code.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoHeader("a")
        )
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER


@pytest.mark.parametrize("signed", [False, True])
async def test_who_may_send_messages_of_the_log(tmp_path: Path, signed: bool) -> None:
    access = WriterSettings(
        authentication=signed, inner=Credentials(access_key="broker", secret_key="12345678")
    )
    async with three(tmp_path, access) as controllers:
        await controllers.leader()  # so they sign what they send to each other
        async with FrameClient(controllers.ports["n0"]) as stranger:

            async def say(
                group: str, sender: str, target: str, body: bytes, **more: str
            ) -> Command:
                ext = {"group": group, "sender": sender, "target": target, **more}
                asked = Command(code=Code.RAFT_MESSAGE, opaque=7, ext=ext, body=body)
                return await stranger.exchange(encode_command(asked))

            body = encode_message(TimeoutNow(0))
            told = await say("group1", "n1", "n0", body)
            if signed:
                assert told.code == ResponseCode.NO_PERMISSION
                return
            assert told.code == ResponseCode.SUCCESS
            for wrong in (
                ("group2", "n1", "n0", body),
                ("group1", "n3", "n0", body),
                ("group1", "n0", "n0", body),
                ("group1", "n1", "n2", body),
                ("group1", "n1", "n0", b"?"),
            ):
                answer = await say(*wrong)
                assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST, wrong
            added = await say("group1", "n3", "n0", body, address="127.0.0.1:1")
            assert added.code == ResponseCode.SUCCESS, "n0 may not have the entry yet"


async def listening_at(port: int) -> trio.SocketListener:
    """Take a port as soon as it is free."""
    while True:
        with suppress(OSError):
            (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
            return listener
        await trio.sleep(0.01)


async def test_a_peer_that_hangs_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n2 takes connections and answers nothing, like a stopped process."""
    async with trio.open_nursery() as nursery:
        controllers = Trio(tmp_path, nursery, WriterSettings())
        for name in IDS:
            await controllers.start(name)
        await controllers.leader()
        controllers.kill("n2")
        listener = await listening_at(controllers.ports["n2"])
        outboxes: list[int] = []
        send = PeerMessages.send

        def counting(self: PeerMessages, target: str, message: object) -> None:
            send(self, target, message)  # type: ignore[arg-type]
            outboxes.append(max(len(one.messages) for one in self._outboxes.values()))

        monkeypatch.setattr(PeerMessages, "send", counting)
        async with listener:
            leader = await controllers.leader()
            for _ in range(30):
                await controllers.give_id(leader)
            assert max(outboxes) <= 9  # kinds of messages, two of them twice
        nursery.cancel_scope.cancel()
