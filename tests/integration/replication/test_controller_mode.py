"""Brokers of ours under a controller of ours, as processes: who is master, what is acknowledged,
and what is there when the master has changed.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, running_broker
from controlled_group import (
    NAME,
    WAIT_SECONDS,
    ControlledGroup,
    controlled_group,
    controller_alone,
)
from monitor_pages import get, value
from mqadmin_calls import mqadmin
from processes import free_port
from replicated_brokers import log_bytes

from triomq import Producer, ProducerSettings, SendStatus
from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.assignment import (
    MessageRequestMode,
    MessageRequestModeTable,
)
from triomq.remoting.protocol.bodies.groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.controller import ElectMasterHeader
from triomq.remoting.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
)
from triomq.remoting.protocol.refused_sends import NOT_CONFIRMED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def history(root: Path) -> EpochHistory:
    return EpochHistory.decode((root / "store" / "epochFileCheckpoint").read_bytes())


@pytest.mark.parametrize(
    "flush", ["ASYNC_FLUSH", pytest.param("SYNC_FLUSH", marks=pytest.mark.nightly)]
)
async def test_a_killed_master_is_replaced_and_comes_back_as_slave(
    tmp_path: Path, flush: str
) -> None:
    async with controlled_group(tmp_path, flushDiskType=flush, minInSyncReplicas=1) as group:
        sent = [b"%d" % number for number in range(50)]
        for body in sent:
            await group.send_until_ok(1, "T", body)
        settings = ProducerSettings(send_timeout=WAIT_SECONDS)
        async with Producer(group.namesrv, group="p", settings=settings) as p:
            await p.send("S", b"before")

            async def slave_has_topic() -> bool:
                return b'"S"' in (await group.peer(2).call(Code.GET_ALL_TOPIC_CONFIG)).body

            await group.until(slave_has_topic)
            await group.brokers[1].end(9)
            for queue in (None, 0):  # the first may find the connection still open
                assert (await p.send("S", b"after", queue=queue)).status is SendStatus.STORED
        after = await group.settled(2, {2})
        assert after.master_epoch == 2
        examined = await mqadmin("doctor", "--cluster", "-n", group.namesrv, "--json")
        found = {one["check"]: one for one in examined.document["findings"]}
        assert found[group.controllers]["found"] == "leads"
        incomplete = found["broker-a sync state set"]
        assert incomplete["level"] == "problem"
        assert incomplete["found"] == "master 2; not alive or not in the set: 1"
        await group.send_until_ok(2, "T", b"next")
        assert await group.bodies(2, "T", 51) == [*sent, b"next"]
        assert await group.master_in_route("T") == group.brokers[2].address
        await group.brokers[1].start()
        await group.settled(2, {1, 2})
        await group.send_until_ok(2, "T", b"both")
        await group.brokers[2].end(9)
        await group.settled(1, {1})
        await group.send_until_ok(1, "T", b"last")
        assert await group.bodies(1, "T", 53) == [*sent, b"next", b"both", b"last"]
        numbers = [epoch.number for epoch in history(tmp_path / "broker-1").entries]
        assert numbers == [1, 2, 3]


async def answer_of(
    group: ControlledGroup, number: int, code: Code, header: object | None = None
) -> Command:
    """The answer of a broker that may be between two roles."""
    found: Command | None = None

    async def answers() -> bool:
        nonlocal found
        with suppress(RemotingError):
            found = await group.peer(number).call(code, header)
        return found is not None

    await group.until(answers)
    assert found is not None
    return found


async def test_what_was_answered_beside_the_log_is_there_at_the_next_master(
    tmp_path: Path,
) -> None:
    """A topic, a group, an offset, a mode; the master is killed as soon as it has answered."""
    settings = {"minInSyncReplicas": 1, "autoCreateTopicEnable": "false"}
    async with controlled_group(tmp_path, **settings) as group:
        master = 1
        for number, change in enumerate(("topic", "group", "offset", "mode")):
            topic, name = f"T{number}", f"G{number}"
            peer = group.peer(master)
            if change == "group":
                config = SubscriptionGroupConfig(group_name=name)
                answer = await peer.call(
                    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config.encode()
                )
            else:
                answer = await peer.create_topic(topic)
            assert answer.code == 0
            if change == "offset":
                await group.send_until_ok(master, topic, b"1")
                await group.send_until_ok(master, topic, b"2")
                assert (await peer.commit(name, topic, 0, 1)).code == 0
                assert (await peer.commit(name, topic, 0, 2)).code == 0
            if change == "mode":
                mode = MessageRequestMode(topic=topic, consumer_group=name, mode="POP")
                answer = await peer.call(Code.SET_MESSAGE_REQUEST_MODE, None, mode.encode())
                assert answer.code == 0
            await group.brokers[master].end(signal.SIGKILL)
            other = 3 - master
            await group.settled(other, {other})

            ask = partial(answer_of, group, other)
            if change == "group":
                body = (await ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
                assert name in SubscriptionGroupTable.decode(body).subscription_group_table
            else:
                body = (await ask(Code.GET_ALL_TOPIC_CONFIG)).body
                assert topic in TopicTable.decode(body).topic_config_table
            if change == "offset":
                found = await ask(
                    Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(name, topic, 0)
                )
                assert found.header(OffsetResponseHeader).offset == 2
            if change == "mode":
                body = (await ask(Code.GET_ALL_MESSAGE_REQUEST_MODE)).body
                assert name in MessageRequestModeTable.decode(body).message_request_mode_map[topic]
            await group.brokers[master].start()
            await group.settled(other, {1, 2})
            master = other


async def test_what_no_slave_has_is_neither_acknowledged_nor_shown_and_then_cut(
    tmp_path: Path,
) -> None:
    """The slave hangs, so sends end in an error that is tried again; then both are killed."""
    async with controlled_group(tmp_path, minInSyncReplicas=1) as group:
        await group.send_until_ok(1, "T", b"first")
        slave = group.brokers[2].process
        assert slave is not None
        slave.send_signal(signal.SIGSTOP)
        answer = await group.peer(1).send_raw("T", b"lost")
        assert (answer.code, answer.remark) == (1, NOT_CONFIRMED)
        page = (await get(group.monitors[1], "/metrics"))[2]
        assert value(page, "triomq_master_epoch") == 1
        assert value(page, "triomq_sync_state_set_size") == 2
        assert value(page, "triomq_replication_sends_refused_total") == 1
        assert await group.bodies(1, "T", 1) == [b"first"]
        assert (await group.peer(1).pull("T", 0, 1)).code != 0  # nothing more is shown
        await group.brokers[1].end(signal.SIGKILL)
        await group.brokers[2].end(signal.SIGKILL)  # with what its socket has
        await group.brokers[2].start()
        await group.settled(2, {2})
        await group.send_until_ok(2, "T", b"second")
        await group.brokers[1].start()
        await group.settled(2, {1, 2})
        await group.send_until_ok(2, "T", b"third")
        assert "the log ends at" in group.brokers[1].log.read_text()
        stores = [tmp_path / f"broker-{number}" / "store" for number in (1, 2)]
        assert log_bytes(stores[0]) == log_bytes(stores[1])
        assert b"lost" not in b"".join(await group.bodies(2, "T", 3))


@pytest.mark.nightly  # the schedules of test_faults.py stop masters in CI
async def test_a_master_that_hung_follows_the_next_one(tmp_path: Path) -> None:
    async with controlled_group(tmp_path, minInSyncReplicas=1) as group:
        await group.send_until_ok(1, "T", b"first")
        master = group.brokers[1].process
        assert master is not None
        master.send_signal(signal.SIGSTOP)
        await group.settled(2, {2})
        await group.send_until_ok(2, "T", b"second")
        master.send_signal(signal.SIGCONT)
        # It has missed everything, and says so: nothing is acknowledged in the old epoch.
        assert not await group.send(1, "T", b"lost")
        await group.settled(2, {1, 2})
        assert not await group.send(1, "T", b"lost")
        assert await group.bodies(2, "T", 2) == [b"first", b"second"]


async def test_a_slave_finds_its_master_without_name_servers(tmp_path: Path) -> None:
    """They know a new master later than the controllers, and the old one for longer."""
    async with controlled_group(tmp_path, 0) as group:
        group.namesrv = f"127.0.0.1:{free_port()}"
        for number in (1, 2):
            await group.add(number).start()
        await group.settled(None, {1, 2})


async def test_a_drain_moves_the_master_first(tmp_path: Path) -> None:
    """Nothing is closed: the group goes on with another member, and the drained broker follows."""
    async with controlled_group(tmp_path) as group:
        await group.send_until_ok(1, "T", b"first")
        words = ("-n", group.namesrv, "--json")
        elect = ("broker", "elect", "-a", group.controllers, "-bn", NAME, "-c", "DefaultCluster")
        for command in (("broker", "drain", NAME), (*elect, "-b", 2)):
            tried = await mqadmin(*command, "--dry-run", *words)
            (change,) = tried.document["changes"]
            asked = (change["server"], change["request"])
            assert asked == (group.brokers[1].address, "CONTROLLER_ELECT_MASTER")
        await group.settled(1, {1, 2})
        for number, successor, refusal in ((2, 1, "not the master"), (1, 7, "still the master")):
            header = ElectMasterHeader("DefaultCluster", NAME, successor, True)
            answer = await group.peer(number).call(Code.CONTROLLER_ELECT_MASTER, header)
            assert refusal in (answer.remark or "")
        drained = await mqadmin("broker", "drain", NAME, "--timeout", 100, *words)
        assert drained.code == 0, drained.err
        assert drained.document["drained"]
        await group.settled(2, {1, 2})
        top = await mqadmin("top", "--once", *words)
        seen = {one["address"]: (one["inSet"], one["epoch"]) for one in top.document["servers"]}
        assert [seen[group.brokers[number].address] for number in (1, 2)] == [(True, 2)] * 2
        await group.send_until_ok(2, "T", b"second")
        elected = await mqadmin(*elect, "-b", 1, *words)
        assert (elected.document["masterBrokerId"], elected.document["masterEpoch"]) == (1, 3)
        await group.settled(1, {1, 2})
        await group.brokers[2].end(signal.SIGKILL)
        await group.settled(1, {1})
        again = await mqadmin("broker", "drain", NAME, *words)
        assert again.code == 1
        assert "no other living broker" in again.err


async def test_a_master_that_stops_has_another_one_elected_first(tmp_path: Path) -> None:
    """So senders do not wait for the end of its process."""
    async with controlled_group(tmp_path, minInSyncReplicas=1) as group:
        await group.send_until_ok(1, "T", b"first")
        await group.brokers[1].end(signal.SIGTERM)
        log = group.brokers[1].log.read_text()
        assert (
            f"broker 2 ({group.brokers[2].address}) is master in epoch 2; this is broker 1" in log
        )
        await group.settled(2, {2})
        await group.send_until_ok(2, "T", b"second")
        assert await group.bodies(2, "T", 2) == [b"first", b"second"]


async def test_a_full_disk_at_a_change_of_the_role_ends_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses with the reason, the other one goes on, and with room it follows by itself."""
    full = trio.Event()
    write = Disk.write_file

    def write_file(disk: Disk, path: Path, data: bytes) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(disk, path, data)

    monkeypatch.setattr(Disk, "write_file", write_file)
    monkeypatch.setattr("triomq.broker.full_disk.AGAIN_SECONDS", 0.2)
    async with controller_alone(tmp_path) as group:
        settings = {
            "namesrvAddr": group.namesrv,
            "enableControllerMode": True,
            "controllerAddr": group.controllers,
            "minInSyncReplicas": 1,
            "brokerName": NAME,
            "haListenPort": 0,
        }
        async with running_broker(tmp_path / "one", **settings) as one:
            await group.add(2, minInSyncReplicas=1).start()
            peer = BrokerPeer(group.connector, one.address)

            async def members(count: int) -> bool:
                found = await group.state()
                return found is not None and len(found.in_sync_replicas) == count

            await group.until(partial(members, 2))
            assert (await peer.send_raw("T", b"first")).code == 0
            full.set()
            await mqadmin("broker", "drain", NAME, "-n", group.namesrv)
            await group.send_until_ok(2, "T", b"second")

            async def refuses() -> bool:
                with suppress(RemotingError):
                    answer = await peer.send_raw("T", b"no")
                    return answer.code == 2 and "no space left for" in (answer.remark or "")
                return False

            await group.until(refuses)
            monkeypatch.setattr(Disk, "write_file", write)
            await group.until(partial(members, 2))
            await group.send_until_ok(2, "T", b"third")
            assert await group.bodies(2, "T", 3) == [b"first", b"second", b"third"]


@pytest.mark.nightly
async def test_two_copies_are_the_rule_and_a_third_broker_keeps_it(tmp_path: Path) -> None:
    """``minInSyncReplicas`` is 2 unless set: of three brokers one may die, of two none."""
    async with controlled_group(tmp_path, 3) as group:
        await group.send_until_ok(1, "T", b"first")
        await group.brokers[1].end(signal.SIGKILL)

        async def another() -> bool:
            found = await group.state()
            return found is not None and len(found.in_sync_replicas) == 2

        await group.until(another)
        found = await group.state()
        assert found is not None
        second = next(
            number
            for number, broker in group.brokers.items()
            if broker.address == found.master_address
        )
        await group.send_until_ok(second, "T", b"second")
        await group.brokers[5 - second].end(signal.SIGKILL)
        await group.settled(second, {second})
        answer = await group.peer(second).send_raw("T", b"third")
        assert answer.code == 1
        assert "minInSyncReplicas=2" in (answer.remark or "")
        assert await group.bodies(second, "T", 2) == [b"first", b"second"]
