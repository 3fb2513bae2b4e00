"""POP with Java: its push consumers on our brokers, and directories with messages in flight."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import access_run
import processes
import pytest
import trio
from brokers import BrokerPeer
from java_consumers import java_consumer
from mqadmin_calls import mqadmin
from pop_peer import Popped, acknowledge, pop

from triomq import Producer
from triomq.client.admin.admin import Admin
from triomq.remoting.client.connector import Connector, ConnectorConfig

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]
COUNT = 300


async def set_pop(namesrv: str, topic: str, group: str) -> None:
    """Let the group pop the topic, at every broker."""
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=1)
        await admin.update_group(group, lambda config: config)
        for cluster in {broker.cluster for broker in await admin.brokers()}:
            options = "-c", cluster, "-t", topic, "-g", group, "-m", "pop", "-n", namesrv
            done = await mqadmin("setConsumeMode", *options)
            assert f"topic[{topic}] group[{group}] consume mode[POP]" in done.out, done


@pytest.mark.loss
@pytest.mark.feature("143a")
async def test_members_share_every_queue(our_cluster: str) -> None:
    topic, group = "Popped", "poppers"
    await set_pop(our_cluster, topic, group)
    options = {"define": ["peer.pop=true"], "work_ms": 20}
    async with (
        java_consumer("5.5.0", our_cluster, topic, group, **options) as first,  # type: ignore[arg-type]
        java_consumer("5.5.0", our_cluster, topic, group, **options) as second,  # type: ignore[arg-type]
        java_consumer("5.5.0", our_cluster, topic, group, **options) as third,  # type: ignore[arg-type]
        Producer(our_cluster, group="p") as producer,
    ):
        members = first, second, third
        await trio.sleep(3)  # the broker knows all members
        for number in range(COUNT):
            await producer.send(topic, b"%d" % number)
            await trio.sleep(0.005)
        with trio.fail_after(60):
            while sum(len(member.got) for member in members) < COUNT:
                await trio.sleep(0.05)
        await trio.sleep(1)
        counts = Counter(got[3] for member in members for got in member.got)
        assert counts == Counter({str(number): 1 for number in range(COUNT)})
        assert all(member.got for member in members), [len(member.got) for member in members]


@contextmanager
def broker_on(
    kind: str, folder: Path, namesrv: str, store: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a broker of ours or of Java's on a directory; yield its address and process."""
    if kind == "ours":
        with processes.our_broker(folder, "broker-a", namesrv, storePathRootDir=store) as started:
            processes.wait_registered(namesrv, "broker-a")
            yield started
        return
    port = processes.free_port(span=2)
    processes.write_logback(folder)
    conf = processes.write_java_conf(folder, "broker-a", namesrv, port, storePathRootDir=store)
    main = "org.apache.rocketmq.broker.BrokerStartup"
    command = processes.java_command("5.5.0", main, "-c", str(conf), home=folder)
    with processes.running(command, folder / "broker.log", port=port) as process:
        processes.wait_registered(namesrv, "broker-a")
        yield f"127.0.0.1:{port}", process


async def take(peer: BrokerPeer) -> set[bytes]:
    """Pop ten messages and acknowledge four of them; return the others."""
    await peer.create_topic("T", 2)
    await trio.sleep(0.5)
    for number in range(10):
        await peer.send("T", b"%d" % number, queue_id=number % 2)
    taken: list[Popped] = []
    with trio.fail_after(10):
        while len(taken) < 10:
            taken += (await pop(peer, poll_ms=500, invisible_ms=10_000))[1]
    for each in taken[:4]:
        await acknowledge(peer, each)
    return {each.body for each in taken[4:]}


@pytest.mark.loss
@pytest.mark.parametrize(("first", "second"), [("ours", "java"), ("java", "ours")])
async def test_messages_in_flight_come_again_at_the_other_broker(
    tmp_path: Path, first: str, second: str
) -> None:
    if processes.java_home("5.5.0") is None:
        pytest.skip("the Java peers are not installed: run `make peers`")
    store = tmp_path / "store"
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with broker_on(first, tmp_path / "first", namesrv, store) as (address, process):
            async with Connector(ConnectorConfig(hooks=access_run.HOOKS)) as connector:
                expected = await take(BrokerPeer(connector, address))
            if first == "ours":  # Java does not look for positions that are not saved
                process.terminate()
            else:
                process.kill()  # an orderly stop takes 16 s
            process.wait()
        with broker_on(second, tmp_path / "second", namesrv, store) as (address, process):
            async with Connector(ConnectorConfig(hooks=access_run.HOOKS)) as connector:
                peer, again = BrokerPeer(connector, address), list[Popped]()
                with trio.fail_after(60):
                    while len(again) < len(expected):
                        again += (await pop(peer, poll_ms=2_000, invisible_ms=60_000))[1]
                again += (await pop(peer, poll_ms=3_000, invisible_ms=60_000))[1]
            process.kill()
            process.wait()
    assert sorted(each.body for each in again) == sorted(expected)
    assert {each.message.reconsume_times for each in again} == {1}
