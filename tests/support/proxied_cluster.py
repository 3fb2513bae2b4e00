"""A name server, two brokers and proxies before them, all inside the test's loop."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import grpc
import trio
from brokers import BrokerPeer, broker_config
from grpc_broker import TOPIC, GrpcClient
from processes import free_port

from triomq.broker.app import BrokerReady, run_broker
from triomq.client.proxy.app import ProxyReady, run_proxy
from triomq.client.proxy.proxy_config import PROXY_KEYS, ProxyConfig
from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import Source, load
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader

BROKERS = "broker-a", "broker-b"
_ids = itertools.count(1)


def proxy_config(**settings: object) -> ProxyConfig:
    """Settings under Java's names; a free port, short polls, and caches that do not outlive a
    test's change.
    """
    lines = {
        "bindAddress": "127.0.0.1",
        "grpcServerPort": 0,
        "grpcClientConsumerMinLongPollingTimeoutMillis": 100,
        "grpcClientConsumerMaxLongPollingTimeoutMillis": 500,
        "topicRouteServiceCacheRefreshSeconds": 1,
        "topicConfigCacheRefreshSeconds": 1,
        "subscriptionGroupConfigCacheRefreshSeconds": 1,
        **settings,
    }
    entries = tuple(Entry(key, str(value)) for key, value in lines.items())
    return load(ProxyConfig, [Source("test", entries)], PROXY_KEYS).config


@attrs.define(eq=False)
class RunningProxy:
    """One proxy, and clients with connections of their own."""

    ready: ProxyReady
    channels: contextlib.ExitStack

    def client(self, client_id: str = "", **values: Any) -> GrpcClient:
        channel = self.channels.enter_context(
            grpc.insecure_channel(
                f"127.0.0.1:{self.ready.port}", options=[("grpc.use_local_subchannel_pool", 1)]
            )
        )
        return GrpcClient(channel, client_id or f"proxied-{next(_ids)}", **values)


@attrs.define(eq=False)
class ProxiedCluster:
    """The cluster. ``brokers``: those that run, by name."""

    folder: Path
    namesrv: str
    nursery: trio.Nursery
    connector: Connector
    channels: contextlib.ExitStack
    settings: dict[str, object]
    ports: dict[str, int] = attrs.field(factory=dict)
    brokers: dict[str, BrokerReady] = attrs.field(factory=dict)
    _ended: dict[str, trio.Event] = attrs.field(factory=dict, init=False)

    async def start_broker(self, name: str, port: int = 0) -> BrokerPeer:
        """Start a broker at its port of before, or at another one."""
        self.ports[name] = port or self.ports.get(name) or free_port(span=2)
        config = broker_config(
            self.folder / name,
            brokerName=name,
            namesrvAddr=self.namesrv,
            listenPort=self.ports[name],
            haListenPort=0,
            fastListenPort=0,
            grpcServerPort=0,
            **self.settings,
        )
        self._ended[name] = trio.Event()

        async def run(ended: trio.Event, *, task_status: Any) -> None:
            await run_broker(config, task_status=task_status)
            ended.set()

        self.brokers[name] = await self.nursery.start(run, self._ended[name])
        await self._wait_listed(name)
        return self.peer(name)

    async def stop_broker(self, name: str) -> None:
        self.brokers.pop(name).stop()
        await self._ended[name].wait()

    def peer(self, name: str) -> BrokerPeer:
        return BrokerPeer(self.connector, self.brokers[name].address)

    async def _wait_listed(self, name: str) -> None:
        """Wait until the name server has the broker at its address."""
        with trio.fail_after(20):
            while True:
                answer = await self.connector.invoke(
                    self.namesrv, request(Code.GET_BROKER_CLUSTER_INFO)
                )
                table = ClusterTable.decode(bytes(answer.body)).broker_addr_table
                if (
                    name in table
                    and self.brokers[name].address in table[name].broker_addrs.values()
                ):
                    return
                await trio.sleep(0.02)

    async def create_topic(self, topic: str, queues: int = 2, **more: Any) -> None:
        for name in self.brokers:
            await self.peer(name).create_topic(topic, queues, **more)
        await self.wait_route(topic, len(self.brokers))

    async def wait_route(self, topic: str, brokers: int) -> None:
        """Wait until the name server's route of a topic has as many brokers."""
        with trio.fail_after(20):
            while True:
                answer = await self.connector.invoke(
                    self.namesrv, request(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic))
                )
                if (
                    answer.code == 0
                    and len(TopicRoute.decode(bytes(answer.body)).queue_datas) == brokers
                ):
                    return
                await trio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def proxy(self, **settings: object) -> AsyncIterator[RunningProxy]:
        """Run a proxy for the block; stop it in order at its end."""
        config = proxy_config(**{"namesrvAddr": self.namesrv, **settings})
        async with trio.open_nursery() as nursery:
            ready: ProxyReady = await nursery.start(run_proxy, config)
            yield RunningProxy(ready, self.channels)
            ready.stop()


@contextlib.asynccontextmanager
async def proxied_cluster(folder: Path, **settings: object) -> AsyncIterator[ProxiedCluster]:
    """Run a name server and two brokers with the topic ``Orders``, of two queues each."""
    async with trio.open_nursery() as nursery:
        namesrv: NamesrvReady = await nursery.start(
            run_namesrv,
            NamesrvConfig(
                listen_host="127.0.0.1", listen_port=0, kv_path=folder / "namesrv" / "kv.json"
            ),
        )
        async with Connector() as connector:
            with contextlib.ExitStack() as channels:
                cluster = ProxiedCluster(
                    folder,
                    f"127.0.0.1:{namesrv.port}",
                    nursery,
                    connector,
                    channels,
                    dict(settings),
                )
                for name in BROKERS:
                    await cluster.start_broker(name)
                await cluster.create_topic(TOPIC)
                yield cluster
                for name in list(cluster.brokers):
                    await cluster.stop_broker(name)
        namesrv.stop()
