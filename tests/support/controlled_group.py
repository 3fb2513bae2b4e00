"""Brokers of one group in controller mode, and their controller, as real processes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio
from brokers import BrokerPeer
from process_cluster import ServiceProcess
from processes import (
    free_port,
    java_command,
    our_name_server,
    write_broker_conf,
    write_java_conf,
    write_logback,
)

from triomq.in_process import SMALL_STORE
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.client.rpc_hooks import RpcHook
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.controller import GroupReplicas, SyncStateData
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.fastjson import dumps
from triomq.remoting.protocol.headers.route import GetRouteHeader

NAME = "broker-a"
WAIT_SECONDS = 100.0
JAVA_SETTINGS: dict[str, object] = {
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    **SMALL_STORE,
    "timerWheelEnable": "false",
    "controllerHeartBeatTimeoutMills": 3000,
}


@attrs.define(eq=False)
class ControlledGroup:
    """A name server with a controller, and brokers numbered from 1 in the order of their start."""

    folder: Path
    namesrv: str
    controllers: str
    connector: Connector
    brokers: dict[int, ServiceProcess] = attrs.field(factory=dict)
    monitors: dict[int, int] = attrs.field(factory=dict)
    """the ports with the brokers' figures"""

    def add(self, number: int, **settings: object) -> ServiceProcess:
        port, self.monitors[number] = free_port(), free_port()
        values: dict[str, object] = {
            **SMALL_STORE,
            "haListenPort": port + 1,
            "monitorPort": self.monitors[number],
            "enableControllerMode": "true",
            "controllerAddr": self.controllers,
            "controllerHeartBeatTimeoutMills": 3000,
            "autoCreateTopicEnable": "true",
            **settings,
        }
        folder = self.folder / f"broker-{number}"
        conf = write_broker_conf(folder, NAME, self.namesrv, port, **values)
        lines = [line for line in conf.read_text().splitlines() if not line.startswith("brokerId")]
        conf.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "triomq.broker", "-c", str(conf)]
        log = self.folder / "logs" / f"broker-{number}.log"
        self.brokers[number] = ServiceProcess(f"broker-{number}", port, command, log)
        return self.brokers[number]

    def add_java(self, number: int, **settings: object) -> ServiceProcess:
        """A Java broker; it listens only when it has a role."""
        port = free_port()
        folder = self.folder / f"broker-{number}"
        write_logback(folder)
        values = {**JAVA_SETTINGS, "controllerAddr": self.controllers, **settings}
        conf = write_java_conf(folder, NAME, self.namesrv, port, **values)
        command = java_command(
            "5.5.0", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=folder
        )
        log = self.folder / "logs" / f"broker-{number}.log"
        self.brokers[number] = ServiceProcess(f"broker-{number}", port, command, log)
        return self.brokers[number]

    def peer(self, number: int) -> BrokerPeer:
        return BrokerPeer(self.connector, self.brokers[number].address)

    async def state(self) -> GroupReplicas | None:
        """What the controller says of the group; None without an answer."""
        for address in self.controllers.split(";"):
            command = request(Code.CONTROLLER_GET_SYNC_STATE_DATA, None, dumps([NAME]))
            try:
                answer = await self.connector.invoke(address, command, timeout=2)
            except RemotingError:
                continue
            if answer.code == 0:
                return SyncStateData.decode(bytes(answer.body)).replicas_info_table.get(NAME)
        return None

    async def settled(self, master: int | None, members: set[int]) -> GroupReplicas:
        """Wait for a master and a set, by the brokers' addresses here."""
        addresses = {self.brokers[number].address for number in members}
        found: GroupReplicas | None = None

        async def is_so() -> bool:
            nonlocal found
            found = await self.state()
            return found is not None and (
                {replica.broker_address for replica in found.in_sync_replicas} == addresses
                and (master is None or found.master_address == self.brokers[master].address)
            )

        await self.until(is_so, lambda: f"{found}")
        assert found is not None
        return found

    async def until(
        self, holds: Callable[[], Awaitable[bool]], told: Callable[[], str] = lambda: ""
    ) -> None:
        with trio.move_on_after(WAIT_SECONDS):
            while not await holds():
                await trio.sleep(0.02)
            return
        raise AssertionError(f"it does not come to that: {told()}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(
            f"== {broker.name}\n{broker.log.read_text()[-5000:]}"
            for broker in self.brokers.values()
            if broker.log.exists()
        )

    async def master_in_route(self, topic: str) -> str | None:
        """Return the address of id 0 that a client gets."""
        command = request(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic))
        answer = await self.connector.invoke(self.namesrv, command, timeout=5)
        if answer.code:
            return None
        (broker,) = TopicRoute.decode(bytes(answer.body)).broker_datas
        return broker.broker_addrs.get(0)

    async def send(self, number: int, topic: str, body: bytes) -> bool:
        """Return whether SEND_OK came."""
        try:
            answer = await self.peer(number).send_raw(topic, body)
        except RemotingError:
            return False
        return answer.code == 0

    async def send_until_ok(self, number: int, topic: str, body: bytes) -> float:
        """Return the seconds until SEND_OK came."""
        begun = time.monotonic()

        async def is_sent() -> bool:
            return await self.send(number, topic, body)

        await self.until(is_sent)
        return time.monotonic() - begun

    async def bodies(self, number: int, topic: str, count: int) -> list[bytes]:
        found = await self.peer(number).next_bodies(topic, count)
        return list(found)


@asynccontextmanager
async def brokers_of(
    folder: Path, namesrv: str, controllers: str, hooks: Sequence[RpcHook] = ()
) -> AsyncIterator[ControlledGroup]:
    """A group without brokers at a name server and controllers; what is added ends with it."""
    async with Connector(ConnectorConfig(hooks=hooks)) as connector:
        group = ControlledGroup(folder, namesrv, controllers, connector)
        try:
            yield group
        finally:
            with trio.CancelScope(shield=True):
                for broker in group.brokers.values():
                    if broker.process is not None and broker.process.poll() is None:
                        broker.process.send_signal(signal.SIGCONT)
                        await broker.end(signal.SIGKILL)


@asynccontextmanager
async def controller_alone(
    folder: Path, define: Sequence[str] = (), hooks: Sequence[RpcHook] = ()
) -> AsyncIterator[ControlledGroup]:
    """Start a name server with a controller; the group has no brokers yet.

    ``define``: more settings of both; ``hooks`` see our requests.
    """
    controller = free_port()
    define = [
        *define,
        "enableControllerInNamesrv=true",
        "controllerDLegerGroup=g",
        f"controllerDLegerPeers=n0-127.0.0.1:{controller}",
        "controllerDLegerSelfId=n0",
        f"controllerStorePath={folder / 'controller'}",
        f"kvConfigPath={folder / 'kvConfig.json'}",
    ]
    with our_name_server(folder, define=define) as namesrv:
        async with brokers_of(folder, namesrv, f"127.0.0.1:{controller}", hooks) as group:
            yield group


@asynccontextmanager
async def controlled_group(
    folder: Path,
    count: int = 2,
    *,
    define: Sequence[str] = (),
    hooks: Sequence[RpcHook] = (),
    **settings: object,
) -> AsyncIterator[ControlledGroup]:
    """Start a controller and ``count`` brokers: the first is master, and all are in its set."""
    async with controller_alone(folder, define, hooks) as group:
        for number in range(1, count + 1):
            await group.add(number, **settings).start()
            await group.settled(1, set(range(1, number + 1)))
        yield group
