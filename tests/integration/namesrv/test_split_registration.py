"""A registration in parts, of which one is lost or not answered in time: routes follow all later
changes.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from triomq.broker.services import registration
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.name_servers import NameServerTable
from triomq.broker.services.persisted import Version
from triomq.broker.services.registration import Registrar, RegistrationSettings
from triomq.broker.services.topics import TopicSettings, new_topic, open_topics
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RequestTimeout
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.route import GetRouteHeader

TOPICS = [f"T{number}" for number in range(6)]


@attrs.define(eq=False)
class LossyConnector:
    """Loses one registration, ahead of the name server or behind it."""

    connector: Connector
    lost: int
    """its number"""
    arrives: bool
    registrations: int = 0

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        own = command.code == RequestCode.REGISTER_BROKER
        is_lost = own and self.registrations == self.lost
        self.registrations += own
        if is_lost and not self.arrives:
            raise RequestTimeout(address, command.code, timeout)
        answer = await self.connector.invoke(address, command, timeout=timeout)
        if is_lost:
            raise RequestTimeout(address, command.code, timeout)
        return answer


async def queues_of(connector: Connector, address: str, topic: str) -> int:
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic))
    answer = await connector.invoke(address, command, timeout=5)
    (data,) = TopicRoute.decode(bytes(answer.body)).queue_datas
    return data.read_queue_count


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("part", [0, 1, 2])
async def test_later_changes_of_every_part_reach_the_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, second: bool, arrives: bool
) -> None:
    monkeypatch.setattr(registration, "RETRY_SECONDS_FIRST", 0.01)
    config = NamesrvConfig(listen_host="127.0.0.1", listen_port=0, kv_path=tmp_path / "kv.json")
    table = NameServerTable.of([])
    topics = open_topics(
        tmp_path,
        TopicSettings(cluster_name="C", broker_name="b"),
        LiveSettings(),
        Version(lambda: 1),
        on_change=table.topics_changed,
    )
    for name in TOPICS:
        topics.put(new_topic(name, 4))
    size = -(-len(topics.configs) // 3)
    async with (
        trio.open_nursery() as serving,
        Connector(ConnectorConfig()) as connector,
    ):
        namesrv = await serving.start(run_namesrv, config)
        address = f"127.0.0.1:{namesrv.port}"
        table.update(NameServerTable.of([address]))
        lossy = LossyConnector(connector, 3 * second + part, arrives)
        registrar = Registrar(
            RegistrationSettings(
                cluster_name="C",
                broker_name="b",
                broker_id=0,
                broker_address="h:1",
                ha_address="h:2",
                period_seconds=300,
                split_count=size,
            ),
            topics,
            LiveSettings(),
            table,
            lossy,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(registrar.keep_registered)
            server = table[address]
            with trio.fail_after(10):
                while not server.registered:
                    await server.progress.wait()
                if second:  # all topics are sent again, in parts
                    for name in TOPICS:
                        topics.put(new_topic(name, 6))
                    table.connection_lost(address, "cut")
                    while lossy.registrations <= lossy.lost or not server.registered:
                        await server.progress.wait()
                    await registrar.wait_announced()
                    found = [await queues_of(connector, address, name) for name in TOPICS]
                    assert found == [6] * len(TOPICS)
                for name in TOPICS:  # each is announced alone
                    topics.put(new_topic(name, 8))
                    await registrar.wait_announced()
                found = [await queues_of(connector, address, name) for name in TOPICS]
                assert found == [8] * len(TOPICS)
            nursery.cancel_scope.cancel()
        namesrv.stop()
