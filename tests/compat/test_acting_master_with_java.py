"""``enableSlaveActingMaster`` beside Java: a Java consumer whose master is killed, our slave of a
Java master below a Java name server, a Java slave of our master.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import access_run
import processes
import pytest
import trio
from brokers import BrokerPeer
from java_consumers import java_consumer
from processes import (
    free_port,
    java_broker,
    java_command,
    our_broker,
    running,
    wait_registered,
    write_java_conf,
    write_logback,
)

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(240)]

JAVA = "5.5.0"
TOPIC = "T"
NAME = "broker-a"
SECONDS_MAX = 60
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
ON = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "slaveReadEnable": "true",
    "messageDelayLevel": "1s 5s",
    "totalReplicas": 2,
    **SMALL,
}
MASTER = {"brokerRole": "SYNC_MASTER", **ON}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, **ON}
NAMESRV = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}


@asynccontextmanager
async def peer_at(address: str) -> AsyncIterator[BrokerPeer]:
    async with Connector(ConnectorConfig(hooks=access_run.HOOKS)) as connector:
        yield BrokerPeer(connector, address)


async def until(condition: Callable[[], Any]) -> None:
    """Until it holds; what cannot be reached does not hold."""
    with trio.fail_after(SECONDS_MAX):
        while True:
            try:
                found = condition()
                if await found if hasattr(found, "__await__") else found:
                    return
            except RemotingError:
                pass
            await trio.sleep(0.1)


async def stored_twice(peer: BrokerPeer) -> bool:
    return (await peer.send_raw("Other")).code == 0


async def shown(peer: BrokerPeer, namesrv: str) -> tuple[dict[int, str], int]:
    """The group as clients see it: its members, and the permission of its queues."""
    answer = await peer.connector.invoke(
        namesrv, request(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(TOPIC, True)), timeout=5
    )
    route = TopicRoute.decode(bytes(answer.body))
    members = next(
        (data.broker_addrs for data in route.broker_datas if data.broker_name == NAME), {}
    )
    return members, next((data.perm for data in route.queue_datas if data.broker_name == NAME), 0)


async def locked(peer: BrokerPeer, group: str) -> list[int]:
    """Which queues a stranger gets."""
    asked = LockRequest(
        consumer_group=group,
        client_id="stranger",
        queues=[MessageQueue(TOPIC, NAME, number) for number in range(2)],
    )
    return sorted(
        queue.queue_id
        for queue in LockResponse.decode(
            bytes((await peer.call(Code.LOCK_BATCH_MQ, None, asked.encode())).body)
        ).queues
    )


async def delays(peer: BrokerPeer) -> dict[int, int]:
    return dict(
        DelayOffsetTable.decode(
            bytes((await peer.call(Code.GET_ALL_DELAY_OFFSET)).body)
        ).offset_table
    )


async def commits(peer: BrokerPeer, group: str, topic: str = TOPIC) -> int:
    table = ConsumerOffsetTable.decode(bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body))
    return sum(table.offset_table.get(f"{topic}@{group}", {}).values())


@pytest.mark.loss
@pytest.mark.feature("164b", "164c")
async def test_a_java_consumer_goes_on_in_order_when_the_master_is_killed(tmp_path: Path) -> None:
    """Java's orderly consumer, slow: the slave grants it the queues and takes its commits, and a
    delayed message comes by broker-b; the master is back: it goes on there.
    """
    port = free_port()
    define = [
        "peer.interval=500",
        "rocketmq.client.rebalance.waitInterval=1000",
        "rocketmq.client.rebalance.lockInterval=1000",
        "rocketmq.client.rebalance.minInterval=200",
    ]
    with (
        processes.our_name_server(tmp_path / "ns", define=["supportActingMaster=true"]) as namesrv,
        our_broker(tmp_path / "b", "broker-b", namesrv) as (other_address, _),
        our_broker(tmp_path / "s", NAME, namesrv, **SLAVE) as (slave_address, _),
        ExitStack() as masters,
    ):
        address, master = masters.enter_context(
            our_broker(tmp_path / "m", NAME, namesrv, port, **MASTER)
        )
        wait_registered(namesrv, NAME)
        async with (
            peer_at(other_address) as other,
            peer_at(slave_address) as slave,
            peer_at(address) as peer,
        ):
            await other.create_topic(TOPIC, 1)
            await until(lambda: created(peer))
            await until(lambda: stored_twice(peer))
            for number in range(120):
                await peer.send(TOPIC, b"m%d" % number, queue_id=number % 2)
            async with java_consumer(
                JAVA, namesrv, TOPIC, "G", mode="orderly", work_ms=50, define=define
            ) as java:
                await until(lambda: len(java.got) >= 10)
                await peer.send(TOPIC, b"delayed", queue_id=0, properties={"DELAY": "2"})
                master.kill()
                master.wait()
                before = len(java.got)
                await until(lambda: shows(slave, namesrv, {0: slave_address}, 4))
                await until(lambda: owned(slave))
                assert len(java.got) < 100, "the consumer was done before the slave was asked"
                await until(
                    lambda: (
                        bodies(java.got) >= {f"m{number}" for number in range(120)} | {"delayed"}
                    )
                )
                assert in_order(java.got)
                await until(lambda: all_committed(slave, 120))
                assert len(java.got) > before
                masters.enter_context(our_broker(tmp_path / "m", NAME, namesrv, port, **MASTER))
                await until(lambda: shows(slave, namesrv, {0: address, 1: slave_address}, 6))
                assert await commits(peer, "G") >= 120
                assert await delays(peer) == {2: 1}
                await until(lambda: stored_twice(peer))
                await peer.send(TOPIC, b"afterwards", queue_id=1)
                await until(lambda: "afterwards" in bodies(java.got))
                assert [body for *_, body in java.got].count("delayed") == 1


async def created(peer: BrokerPeer) -> bool:
    return (await peer.create_topic(TOPIC, 2)).code == 0


async def shows(peer: BrokerPeer, namesrv: str, members: dict[int, str], perm: int) -> bool:
    return await shown(peer, namesrv) == (members, perm)


async def owned(slave: BrokerPeer) -> bool:
    """Whether the slave has granted all queues to the consumer; what the stranger got is given
    back.
    """
    got = await locked(slave, "G")
    if got:
        asked = LockRequest(
            consumer_group="G",
            client_id="stranger",
            queues=[MessageQueue(TOPIC, NAME, number) for number in got],
        )
        await slave.call(Code.UNLOCK_BATCH_MQ, None, asked.encode())
    return not got


async def all_committed(peer: BrokerPeer, count: int) -> bool:
    return await commits(peer, "G") >= count


def bodies(got: list[tuple[int, int, int, str]]) -> set[str]:
    return {body for *_, body in got}


def in_order(got: list[tuple[int, int, int, str]]) -> bool:
    """Each message of the killed master's queues for the first time after the one before it."""
    first: dict[str, None] = dict.fromkeys(body for *_, body in got if body.startswith("m"))
    numbers = [int(body[1:]) for body in first]
    return all(
        one < two
        for parity in (0, 1)
        for one, two in itertools.pairwise(number for number in numbers if number % 2 == parity)
    )


@pytest.mark.loss
@pytest.mark.feature("164a", "164c")
async def test_our_slave_acts_for_a_java_master_below_a_java_name_server(tmp_path: Path) -> None:
    """The name server counts our signs of life, shows our slave as master, and tells it so (905);
    the master hears what was done in its place before it registers.
    """
    slow = {**SLAVE, "syncBrokerMemberGroupPeriod": 600_000, "brokerNotActiveTimeoutMillis": 6_000}
    with (
        processes.java_name_server(JAVA, tmp_path / "ns", **NAMESRV) as namesrv,
        our_broker(tmp_path / "b", "broker-b", namesrv) as (other_address, _),
        our_broker(tmp_path / "s", NAME, namesrv, **slow) as (slave_address, _),
    ):
        async with peer_at(other_address) as other, peer_at(slave_address) as slave:
            await other.create_topic(TOPIC, 1)
            with java_master(tmp_path / "m", namesrv) as (address, master):
                async with peer_at(address) as peer:
                    await until(lambda: created(peer))
                    await until(lambda: stored_twice(peer))
                    await until(lambda: shows(slave, namesrv, {0: address, 1: slave_address}, 6))
                    await peer.heartbeat(
                        group="G", subscriptions={TOPIC: "*"}
                    )  # it takes commits of groups that it knows
                    for _ in range(5):  # an offset beyond the end of its queue would not be kept
                        await peer.send(TOPIC, b"at once", queue_id=0)
                    await peer.send(TOPIC, b"delayed", queue_id=0, properties={"DELAY": "2"})
                    master.kill()
                    master.wait()
            await until(lambda: shows(slave, namesrv, {0: slave_address}, 4))
            await until(lambda: arrived(other))  # the slave asks by itself only every ten minutes
            await slave.commit("G", TOPIC, 0, 5)
            await until(lambda: delivered(slave, {2: 1}))
            with java_master(tmp_path / "m", namesrv, port=int(address.rpartition(":")[2])):
                await until(lambda: shows(slave, namesrv, {0: address, 1: slave_address}, 6))
                async with peer_at(address) as peer:
                    await until(lambda: got_to(peer, 2, 1))
                    assert await commits(peer, "G") == 5
        # It has never been silent for 6 s, or the name server would have hung up on it.
        assert (tmp_path / "s" / f"{NAME}.log").read_text().count(
            "registered with name server"
        ) == 1


@contextmanager
def java_master(
    folder: Path, namesrv: str, port: int = 0
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """(address, process); ``java_broker`` has no process to kill."""
    port = port or free_port()
    write_logback(folder)
    conf = write_java_conf(
        folder,
        NAME,
        namesrv,
        port,
        haSendHeartbeatInterval=500,
        brokerIP2="127.0.0.1",
        **{**MASTER, "inSyncReplicas": 2},
    )  # it waits for a slave from that address
    with running(
        java_command(
            JAVA, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=folder
        ),
        folder / "broker.log",
        port=port,
    ) as process:
        yield f"127.0.0.1:{port}", process


async def got_to(peer: BrokerPeer, level: int, offset: int) -> bool:
    """Java's table has other levels, too."""
    return (await delays(peer)).get(level) == offset


async def arrived(other: BrokerPeer) -> bool:
    return (await other.pull(TOPIC)).bodies == [b"delayed"]


async def delivered(peer: BrokerPeer, wanted: dict[int, int]) -> bool:
    return await delays(peer) == wanted


@pytest.mark.loss
async def test_a_java_slave_acts_for_our_master(tmp_path: Path) -> None:
    """It asks our master where its HA port is (906), acts while we are dead, and we take over what
    it has done before we register.
    """
    port = free_port()
    with (
        processes.our_name_server(
            tmp_path / "ns", define=["supportActingMaster=true", "notifyMinBrokerIdChanged=true"]
        ) as namesrv,
        our_broker(tmp_path / "b", "broker-b", namesrv) as (other_address, _),
        ExitStack() as masters,
    ):
        address, master = masters.enter_context(
            our_broker(tmp_path / "m", NAME, namesrv, port, haSendHeartbeatInterval=500, **MASTER)
        )
        async with peer_at(other_address) as other, peer_at(address) as peer:
            await other.create_topic(TOPIC, 1)
            await until(lambda: created(peer))
            with java_broker(
                JAVA, tmp_path / "s", NAME, namesrv, haSendHeartbeatInterval=500, **SLAVE
            ) as slave_address:
                async with peer_at(slave_address) as slave:
                    await until(lambda: shows(slave, namesrv, {0: address, 1: slave_address}, 6))
                    await until(lambda: stored_twice(peer))
                    for _ in range(5):  # an offset beyond the end of its queue would not be kept
                        await peer.send("TBW102", b"at once", queue_id=0)
                    await peer.send(TOPIC, b"delayed", queue_id=0, properties={"DELAY": "2"})
                    master.kill()
                    master.wait()
                    await until(lambda: shows(slave, namesrv, {0: slave_address}, 4))
                    await until(lambda: arrived(other))
                    await slave.heartbeat(group="G", subscriptions={TOPIC: "*"})
                    assert (
                        await slave.commit("G", "TBW102", 0, 5)
                    ).code == 0  # it copies topics once a minute only
                    await until(lambda: got_to(slave, 2, 1))
                    masters.enter_context(
                        our_broker(
                            tmp_path / "m",
                            NAME,
                            namesrv,
                            port,
                            haSendHeartbeatInterval=500,
                            **MASTER,
                        )
                    )
                    await until(lambda: shows(slave, namesrv, {0: address, 1: slave_address}, 6))
                    assert (await delays(peer)).get(2) == 1
                    assert await commits(peer, "G", "TBW102") == 5
