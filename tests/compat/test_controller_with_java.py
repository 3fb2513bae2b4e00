"""Java's brokers in controller mode under our three controllers: ids, a master, its death, its
return, and the death and the silence of the leading controller; no
acknowledged message is lost. Java's own mqadmin shows what we answer.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
import trio
from brokers import BrokerPeer
from controller_processes import ControllerProcesses, controller_processes
from processes import free_port, java_command, running, write_java_conf, write_logback

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.controller import GroupReplicas, SyncStateData
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(300)]

JAVA = "5.5.0"
NAME = "broker-a"
TOPIC = "Kept"
SECONDS_MAX = 60
SETTINGS = {
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "timerWheelEnable": "false",
    "controllerHeartBeatTimeoutMills": 3000,
}


@contextmanager
def java_replica(
    folder: Path, namesrv: str, controller: str, port: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A Java broker in controller mode; it listens only when it has a role."""
    write_logback(folder)
    conf = write_java_conf(folder, NAME, namesrv, port, controllerAddr=controller, **SETTINGS)
    command = java_command(
        JAVA, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=folder
    )
    with running(command, folder / "broker.log", port=port) as process:
        yield process


def replicas(controllers: ControllerProcesses, *besides: str) -> GroupReplicas:
    asked = request(Code.CONTROLLER_GET_SYNC_STATE_DATA, None, b'["%s"]' % NAME.encode())
    answer = controllers.ask(asked, *besides)
    table = SyncStateData.decode(answer.body).replicas_info_table
    return table.get(NAME, GroupReplicas())


def wait_group(
    controllers: ControllerProcesses, master: int, *in_sync: int, besides: Sequence[str] = ()
) -> GroupReplicas:
    """Until the group has this master, and these brokers in its set."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        found = replicas(controllers, *besides)
        ids = tuple(replica.broker_id for replica in found.in_sync_replicas)
        if (found.master_broker_id, ids) == (master, in_sync):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


async def send_for(port: int, first: int, seconds: float, sent: dict[bytes, bool]) -> int:
    """Send one message after the other for a while or until an error; the next number."""
    async with Connector(ConnectorConfig()) as connector:
        peer = BrokerPeer(connector, f"127.0.0.1:{port}")
        number = first
        with trio.move_on_after(seconds):
            while True:
                body = b"m%06d" % number
                number += 1
                sent[body] = False
                try:
                    answer = await peer.send_raw(TOPIC, body, queue_id=number % 2)
                except RemotingError:
                    return number
                sent[body] = answer.code == ResponseCode.SUCCESS
        return number


async def send_until_taken(port: int, number: int, sent: dict[bytes, bool]) -> int:
    before = sum(sent.values())
    with trio.fail_after(SECONDS_MAX):
        while sum(sent.values()) == before:
            number = await send_for(port, number, 1, sent)
            await trio.sleep(0.1)
    return number


async def create_topic(port: int) -> None:
    """Until it is there: a broker of Java's that becomes a master closes connections."""
    async with Connector(ConnectorConfig()) as connector:
        with trio.fail_after(SECONDS_MAX):
            while True:
                try:
                    await BrokerPeer(connector, f"127.0.0.1:{port}").create_topic(TOPIC, 2)
                    return
                except RemotingError:
                    await trio.sleep(0.1)


async def bodies_at(port: int) -> list[bytes]:
    async with Connector(ConnectorConfig()) as connector:
        return await BrokerPeer(connector, f"127.0.0.1:{port}").all_bodies(TOPIC, 2)


async def ended_while_sending(
    port: int, process: subprocess.Popen[bytes], end: int, number: int, sent: dict[bytes, bool]
) -> int:
    """Send this signal to a master that gets messages; the next number."""
    async with trio.open_nursery() as nursery:

        async def signalled() -> None:
            await trio.sleep(1)
            process.send_signal(end)

        nursery.start_soon(signalled)
        return await send_for(port, number, 10, sent)


@pytest.mark.loss
async def test_java_brokers_fail_over_under_our_controllers(tmp_path: Path) -> None:
    """The leading controller is killed, then the first master, which comes back; the second one
    hangs for a while, and the leading controller hangs with it; then a tool names the master.
    """
    one, two = free_port(span=2), free_port(span=2)
    sent: dict[bytes, bool] = {}
    with controller_processes(tmp_path) as controllers:
        namesrv, addresses = controllers.name_servers, controllers.addresses

        def ask(*words: object) -> str:
            where = controllers.address(controllers.leader())
            (shown,) = processes.java_mqadmin(JAVA, namesrv, [[*words, "-a", where]])
            return shown

        with java_replica(tmp_path / "1", namesrv, addresses, one) as first:
            assert wait_group(controllers, 1, 1).master_epoch == 1
            await create_topic(one)
            with java_replica(tmp_path / "2", namesrv, addresses, two) as second:
                before = wait_group(controllers, 1, 1, 2)
                assert before.sync_state_set_epoch == 2
                killed = controllers.leader()
                controllers.kill(killed)
                assert wait_group(controllers, 1, 1, 2) == before
                number = await send_until_taken(one, 0, sent)
                number = await ended_while_sending(one, first, signal.SIGKILL, number, sent)
                first.wait()
                after = wait_group(controllers, 2, 2)
                assert after.master_epoch == 2
                assert after.not_in_sync_replicas[0].alive is False
                number = await send_until_taken(two, number, sent)
                controllers.start(killed)
                with java_replica(tmp_path / "1", namesrv, addresses, one):
                    assert wait_group(controllers, 2, 1, 2).master_epoch == 2
                    silent = controllers.leader()
                    controllers.signal(silent, signal.SIGSTOP)
                    try:
                        number = await ended_while_sending(
                            two, second, signal.SIGSTOP, number, sent
                        )
                        after = wait_group(controllers, 1, 1, besides=[silent])
                        assert after.master_epoch == 3
                        number = await send_until_taken(one, number, sent)
                    finally:
                        second.send_signal(signal.SIGCONT)
                        controllers.signal(silent, signal.SIGCONT)
                    wait_group(controllers, 1, 1, 2)
                    found = await bodies_at(one)
                    shown = ask("getSyncStateSet", "-b", NAME)
                    metadata = ask("getControllerMetaData")
                    settings = ask("getControllerConfig")
                    named = ask("electMaster", "-b", 2, "-bn", NAME, "-c", "TestCluster")
                    assert wait_group(controllers, 2, 2).master_epoch == 4
                    controller = controllers.address(controllers.leader())
    taken = {body for body, acknowledged in sent.items() if acknowledged}
    assert len(taken) > 50
    assert taken - set(found) == set()
    assert set(found) <= sent.keys()
    assert len(found) == len(set(found))
    assert "#MasterBrokerId\t1" in shown, shown
    assert "#MasterEpoch\t3" in shown
    assert f"brokerAddress='127.0.0.1:{two}', alive=true" in shown
    assert f"#ControllerLeaderAddress\t{controller}" in metadata, metadata
    assert metadata.count("#Peer:\tn") == 3
    assert "enableElectUncleanMaster" in settings, settings
    assert f"#BrokerMasterAddr\t127.0.0.1:{two}" in named, named  # Java's controller: an exception
    assert "#MasterEpoch\t4" in named
