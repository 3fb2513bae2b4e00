"""POP while the master is down: a slave that acts serves it, and the master that is back goes on
with what the slave has done. Nothing that was acknowledged comes again, the rest comes.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker
from pop_peer import Popped, acknowledge, pop
from processes import free_port
from replicated_brokers import Group, Member, broker_group, eventually

from triomq.remoting.protocol.bodies.check_point import CheckPoint
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.pop import ChangeInvisibleTimeHeader, PopMessageHeader

ON = {
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "syncBrokerMemberGroupPeriod": 100,
}
ALONE = {**ON, "enableRemoteEscape": False}
LONG_MS = 6_000
HANDLED_MS = 20_000
"""Of messages that are acknowledged at once, on a machine that may stand still for a while."""


@attrs.define(eq=False)
class Pair:
    """broker-a with a master and a slave, and with ``other`` the master of broker-b."""

    group: Group
    master: Member
    slave: Member
    settings: dict[str, Any]
    other: Member | None = None

    async def serves(self) -> bool:
        """Return whether the slave serves POP."""
        return (await pop(self.slave.peer, topic="Other"))[0] != ResponseCode.SYSTEM_BUSY

    async def master_back(self) -> Member:
        self.master = await self.group.start(0, "SYNC_MASTER", **self.settings)
        return self.master

    async def followed(self) -> bool:
        """Return whether the slave has what the master stores."""
        return await stored_twice(self.master.peer, "Other")


@asynccontextmanager
async def pair(
    folder: Path,
    settings: dict[str, Any],
    *,
    other: bool = True,
    slave: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[Pair]:
    async with broker_group(folder, acting_master=True) as group:
        second = None
        if other:
            second = await group.start(0, folder="other", brokerName="broker-b")
            await second.peer.create_topic("T", 1)
        master = await group.start(0, "SYNC_MASTER", **settings)
        await master.peer.create_topic("T", 2)
        await master.peer.create_topic("Other", 1)
        member = await group.start(1, **{**settings, **slave})
        await eventually(lambda: stored_twice(master.peer, "T"))
        yield Pair(group, master, member, settings, second)


async def stored_twice(peer: BrokerPeer, topic: str) -> bool:
    return (await peer.send_raw(topic, b"first")).code == 0


async def bodies_within(peer: BrokerPeer, seconds: float, **more: Any) -> list[bytes]:
    """Pop and acknowledge everything that comes within a time."""
    return sorted(each.body for each in await drained(peer, seconds, **more))


async def drained(
    peer: BrokerPeer, seconds: float, count: int = 1_000, **more: Any
) -> list[Popped]:
    found: list[Popped] = []
    end = trio.current_time() + seconds
    while trio.current_time() < end and len(found) < count:
        _, taken = await pop(peer, poll_ms=300, invisible_ms=HANDLED_MS, **more)
        found += taken
        for each in taken:
            await acknowledge(peer, each)
    return found


async def taken_from(peer: BrokerPeer, count: int, **more: Any) -> list[Popped]:
    found: list[Popped] = []
    with trio.fail_after(20):
        while len(found) < count:
            found += (await pop(peer, poll_ms=300, **more))[1]
    return found


async def send(peer: BrokerPeer, *bodies: bytes) -> None:
    for number, body in enumerate(bodies):
        await peer.send("T", body, queue_id=number % 2)


async def positions(peer: BrokerPeer) -> dict[int, int]:
    table = ConsumerOffsetTable.decode(bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body))
    return table.offset_table.get("T@G", {})


@pytest.mark.feature("164c")
async def test_acknowledgements_at_the_acting_slave_reach_the_master_that_is_back(
    tmp_path: Path,
) -> None:
    """Of what both have handed out; each broker brings again what it must, and nothing else."""
    async with pair(tmp_path, ALONE, other=False) as two:
        peer = two.master.peer
        await bodies_within(peer, 0.5)  # the first ones
        await send(peer, *(b"m%d" % number for number in range(8)))
        taken = await taken_from(peer, 8, invisible_ms=LONG_MS)
        await acknowledge(peer, taken[0])
        await send(peer, *(b"s%d" % number for number in range(6)))
        await two.master.crash()
        await eventually(two.serves)
        for each in taken[1:5]:
            await acknowledge(two.slave.peer, each)
        here = await taken_from(two.slave.peer, 6, invisible_ms=LONG_MS)
        assert sorted(each.body for each in here) == [b"s%d" % number for number in range(6)]
        for each in here[:2]:
            await acknowledge(two.slave.peer, each)

        master = await two.master_back()
        assert await positions(master.peer) == await positions(two.slave.peer)
        await eventually(two.followed)
        await acknowledge(master.peer, taken[5])
        await acknowledge(master.peer, here[2])
        rest = {each.body for each in (*taken[6:], *here[3:])}
        again = await bodies_within(master.peer, LONG_MS / 1000 + 4)
        assert again == sorted(rest)
        assert not json.loads((two.slave.root / "config/popActing.json").read_bytes())["acks"]


@pytest.mark.feature("164c")
async def test_messages_come_again_at_another_master_while_their_own_is_down(
    tmp_path: Path,
) -> None:
    """Then they do not come a second time from the master that is back."""
    async with pair(tmp_path, ON) as two:
        peer = two.master.peer
        assert two.other is not None
        await bodies_within(peer, 0.5)
        await send(peer, *(b"m%d" % number for number in range(6)))
        taken = await taken_from(peer, 6, invisible_ms=4_000)
        await acknowledge(peer, taken[0])
        await send(peer, b"s0", b"s1")
        await two.master.crash()
        await eventually(two.serves)
        await acknowledge(two.slave.peer, taken[1])
        here = await taken_from(two.slave.peer, 2, invisible_ms=1_500)
        await acknowledge(two.slave.peer, here[0])
        wanted = sorted([here[1].body, *(each.body for each in taken[2:])])
        again = await drained(two.other.peer, 20, len(wanted))
        assert sorted(each.body for each in again) == wanted
        assert {each.message.reconsume_times for each in again} == {1}
        assert {each.message.topic for each in again} == {"T"}
        master = await two.master_back()
        await eventually(two.followed)
        assert await bodies_within(master.peer, 6) == []
        assert await bodies_within(two.other.peer, 1) == []


@pytest.mark.parametrize("listed", [True, False], ids=["lists nobody", "is not there"])
async def test_a_name_server_that_knows_no_slave_hides_nothing_from_the_master(
    tmp_path: Path, listed: bool
) -> None:
    """It has just been started, or is down: the slave says itself that it is there."""
    settings = {**ALONE, "listenPort": free_port()}
    async with pair(tmp_path, settings, other=False, slave={"listenPort": 0}) as two:
        peer = two.master.peer
        await bodies_within(peer, 0.5)
        await send(peer, b"m0", b"m1")
        taken = await taken_from(peer, 2, invisible_ms=LONG_MS)
        await send(peer, b"s0", b"s1")
        await two.master.crash()
        await eventually(two.serves)
        for each in (*taken, *await taken_from(two.slave.peer, 2, invisible_ms=LONG_MS)):
            await acknowledge(two.slave.peer, each)
        async with broker_group(tmp_path / "new", acting_master=True) as new:
            two.settings["namesrvAddr"] = new.namesrv if listed else f"127.0.0.1:{free_port()}"
            master = await two.master_back()
            assert await positions(master.peer) == await positions(two.slave.peer)
            assert await bodies_within(master.peer, LONG_MS / 1000 + 4) == []
            await master.crash()


async def test_another_invisible_time_at_the_acting_slave(tmp_path: Path) -> None:
    """The new check point is the slave's own; the master gets it."""
    async with pair(tmp_path, ALONE, other=False) as two:
        peer = two.master.peer
        await bodies_within(peer, 0.5)
        await send(peer, b"m0")
        (taken,) = await taken_from(peer, 1, invisible_ms=LONG_MS)
        await two.master.crash()
        await eventually(two.serves)
        handle = taken.handle
        header = ChangeInvisibleTimeHeader(
            "G", "T", handle.queue_id, handle.encode(), handle.offset, 3_000
        )
        answer = await two.slave.peer.call(Code.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == 0, answer.remark
        master = await two.master_back()
        assert await bodies_within(master.peer, LONG_MS / 1000 + 3) == [b"m0"]


async def test_a_check_point_of_another_broker_brings_no_message_of_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's acting slave stores it here; the offsets are those of its own queues."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send(peer, b"ours")
        assert [each.body for each in await taken_from(peer, 1, invisible_ms=HANDLED_MS)]
        point = CheckPoint(
            start_offset=0,
            pop_time=int(time.time() * 1000),
            invisible_ms=500,
            count=1,
            queue_id=0,
            topic="T",
            group="G",
            differences=[0],
            broker_name="broker-x",
        )
        names = {"TAGS": "ck", "UNIQ_KEY": point.unique_key}
        await peer.send("rmq_sys_REVIVE_LOG_TestCluster", point.encode(), properties=names)
        await eventually(lambda: "a slave of broker broker-x has stored" in caplog.text)
        assert await bodies_within(peer, 1) == []


async def test_a_slave_that_does_not_act_refuses_pops_with_the_reason(tmp_path: Path) -> None:
    async with pair(tmp_path, ALONE, other=False) as two:
        header = PopMessageHeader("G", "T", -1, 1, 1_000, 0, 0, 0)
        answer = await two.slave.peer.call(Code.POP_MESSAGE, header)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "does not act for its master" in (answer.remark or "")
        assert "enableSlaveActingMaster" in (answer.remark or "")


@pytest.mark.parametrize("acts", [True, False])
async def test_a_slave_that_starts_as_a_master_goes_on(tmp_path: Path, acts: bool) -> None:
    """With what it did while it acted, and with what the master did after the last copy."""
    settings = ALONE if acts else {"syncBrokerMemberGroupPeriod": 100}
    async with pair(tmp_path, settings, other=False) as two:
        peer = two.master.peer
        await bodies_within(peer, 0.5)
        await send(peer, *(b"m%d" % number for number in range(6)))
        taken = await taken_from(peer, 6, invisible_ms=LONG_MS)
        for each in taken[:3]:
            await acknowledge(peer, each)
        await send(peer, b"s0", b"s1", b"s2")
        await two.master.crash()
        left = [each.body for each in taken[3:]]
        if acts:
            await eventually(two.serves)
            here = await taken_from(two.slave.peer, 3, invisible_ms=LONG_MS)
            await acknowledge(two.slave.peer, here[0])
            await acknowledge(two.slave.peer, taken[3])
            left = [each.body for each in (*taken[4:], *here[1:])]
            await trio.sleep(0.2)  # the saver
        else:
            await two.slave.peer.commit("Puller", "T", 0, 1)  # its table is saved once more
            left += [b"s0", b"s1", b"s2"]
        await two.slave.crash()
        promoted = await two.group.start(0, "ASYNC_MASTER", folder="broker-1")
        assert await bodies_within(promoted.peer, LONG_MS / 1000 + 4) == sorted(left)
