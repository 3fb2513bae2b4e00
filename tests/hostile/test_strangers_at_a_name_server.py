"""Anybody may register at a name server: what that does to the brokers that are there, and how much
of it is kept.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from frames import FrameClient
from processes import free_port
from prometheus_client.parser import text_string_to_metric_families

from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.table_limits import NamesrvTableLimits
from triomq.remoting.monitor.monitor_settings import MonitorSettings
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicNames, TopicTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.registration import (
    BrokerHeader,
    PutKvConfigHeader,
    RegisterBrokerHeader,
)


@asynccontextmanager
async def name_server(tmp_path: Path, **settings: Any) -> AsyncIterator[NamesrvReady]:
    config = NamesrvConfig(
        listen_host="127.0.0.1", listen_port=0, kv_path=tmp_path / "kvConfig.json", **settings
    )
    async with trio.open_nursery() as nursery:
        ready: NamesrvReady = await nursery.start(run_namesrv, config)
        yield ready
        ready.stop()


OURS = RegisterBrokerHeader("broker-a", "127.0.0.1:10911", "C", "127.0.0.1:10912", 0)


async def register(
    client: FrameClient, header: RegisterBrokerHeader = OURS, *topics: str, **more: Any
) -> tuple[int, str]:
    table = TopicTable(
        {name: TopicConfig(topic_name=name) for name in topics or ("T", "U")},
        DataVersion(0, 1, len(topics)),
    )
    body = RegisterBrokerBody(table, **more).encode()
    answer = await client.call(
        Code.REGISTER_BROKER, attrs.evolve(header, body_crc=zlib.crc32(body) & 0x7FFFFFFF), body
    )
    return answer.code, answer.remark or ""


async def brokers(client: FrameClient) -> dict[str, dict[int, str]]:
    table = ClusterTable.decode(
        (await client.call(Code.GET_BROKER_CLUSTER_INFO)).body
    ).broker_addr_table
    return {name: dict(data.broker_addrs) for name, data in table.items()}


async def figures(port: int, name: str) -> dict[str, float]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
    page = b""
    while data := await stream.receive_some():
        page += data
    await stream.aclose()
    text = page.partition(b"\r\n\r\n")[2].decode()
    return {
        sample.labels.get("limit", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.parametrize("cluster", ["C", "another"])
async def test_moves_and_foreign_unregistrations_are_counted_and_can_be_refused(
    tmp_path: Path, cluster: str
) -> None:
    for refuse in (False, True):
        port = free_port()
        folder = tmp_path / str(refuse)
        monitor = MonitorSettings(port=port)
        async with (
            name_server(folder, refuse_foreign=refuse, monitor=monitor) as ready,
            FrameClient(ready.port) as owner,
            FrameClient(ready.port) as stranger,
        ):
            assert await register(owner) == (0, "")
            unregister = BrokerHeader("broker-a", "127.0.0.1:10911", cluster, 0)
            if refuse:
                code, remark = await register(
                    stranger,
                    attrs.evolve(OURS, broker_addr="127.0.0.9:1", cluster_name=cluster),
                    "T",
                    "U",
                    "V",
                )
                assert (code, remark.partition(":")[0]) == (
                    16,
                    "broker broker-a (id 0) lives at 127.0.0.1",
                )
                assert "refuseForeignBrokers" in remark
                assert (await stranger.call(Code.UNREGISTER_BROKER, unregister)).code == 16
                assert await brokers(owner) == {"broker-a": {0: "127.0.0.1:10911"}}, (
                    "something was changed before the refusal"
                )
                assert await register(owner) == (0, "")
            else:
                assert (await stranger.call(Code.UNREGISTER_BROKER, unregister)).code == 0
                assert await brokers(owner) == {}
                assert await register(owner) == (0, "")
                assert await register(
                    stranger,
                    attrs.evolve(OURS, broker_addr="127.0.0.9:1", cluster_name=cluster),
                    "T",
                    "U",
                    "V",
                ) == (0, "")
                assert await brokers(owner) == {"broker-a": {0: "127.0.0.9:1"}}
            assert await figures(port, "triomq_namesrv_moved_brokers_total") == {"": 1}
            assert await figures(port, "triomq_namesrv_foreign_unregistrations_total") == {"": 1}


@pytest.mark.parametrize("refuse", [False, True])
async def test_an_address_has_one_name_and_a_stranger_may_be_kept_from_taking_it(
    tmp_path: Path, refuse: bool
) -> None:
    """Names beyond number at one address are one broker, whatever the limit of brokers is; the
    connection that has the address may rename it.
    """
    port = free_port()
    async with (
        name_server(tmp_path, refuse_foreign=refuse, monitor=MonitorSettings(port=port)) as ready,
        FrameClient(ready.port) as owner,
        FrameClient(ready.port) as stranger,
    ):
        assert await register(owner) == (0, "")
        code, remark = await register(stranger, attrs.evolve(OURS, broker_name="false"))
        if refuse:
            assert (code, remark.partition(",")[0]) == (
                16,
                "broker broker-a lives at 127.0.0.1:10911",
            )
            assert await brokers(owner) == {"broker-a": {0: "127.0.0.1:10911"}}
        else:
            assert code == 0
            assert await brokers(owner) == {"false": {0: "127.0.0.1:10911"}}
            assert await register(owner) == (0, "")
        assert await figures(port, "triomq_namesrv_moved_brokers_total") == {"": 1 if refuse else 2}
        for number in range(5):
            assert await register(owner, attrs.evolve(OURS, broker_name=f"name-{number}")) == (
                0,
                "",
            )
        assert await brokers(owner) == {"name-4": {0: "127.0.0.1:10911"}}


async def test_a_broker_that_is_gone_may_come_back_elsewhere(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path, refuse_foreign=True) as ready,
        FrameClient(ready.port) as other,
    ):
        async with FrameClient(ready.port) as first:
            assert await register(first) == (0, "")
        with trio.fail_after(5):
            while await brokers(other):
                await trio.sleep(0.01)
        assert await register(other, attrs.evolve(OURS, broker_addr="127.0.0.9:1")) == (0, "")


async def test_tables_end_at_their_limits_and_living_brokers_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    limits = NamesrvTableLimits(brokers_max=3, topics_max=4, filter_servers_max=2, kv_bytes_max=100)
    async with (
        name_server(tmp_path, limits=limits, monitor=MonitorSettings(port=port)) as ready,
        FrameClient(ready.port) as client,
    ):
        assert await register(client) == (0, "")
        for number in range(5):
            code, remark = await register(
                client,
                attrs.evolve(
                    OURS,
                    broker_name=f"false-{number}",
                    broker_addr=f"127.0.0.2:{number}",
                    broker_id=1,
                ),
            )
            assert (code, remark) == (
                (0, "")
                if number < 2
                else (
                    29,
                    (
                        f"broker false-{number} is not registered: the name server's limit is 3;"
                        " use fewer, or raise brokersMax in its settings"
                    ),
                )
            )
        assert await register(client, OURS, "T", "U", "V", "W", "X", "Y") == (0, ""), (
            "a broker with too many topics must stay in the routes"
        )
        topics = TopicNames.decode(
            (await client.call(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body
        ).topic_list
        assert sorted(topics) == ["T", "U", "V", "W"]
        assert "registers 2 topics that are not in the routes: the limit is 4" in caplog.text
        code, remark = await register(client, OURS, filter_server_list=["a", "b", "c"])
        assert (code, "filterServersMax" in remark) == (29, True)
        answers = [
            await client.call(Code.PUT_KV_CONFIG, PutKvConfigHeader("N", f"key-{number}", "x" * 20))
            for number in range(4)
        ]
        assert [answer.code for answer in answers] == [0, 0, 0, 29]
        assert "kvConfigBytesMax" in (answers[-1].remark or "")
        assert (
            await client.call(Code.PUT_KV_CONFIG, PutKvConfigHeader("N", "key-0", "y"))
        ).code == 0
        assert (await brokers(client))["broker-a"] == {0: "127.0.0.1:10911"}
        assert await figures(port, "triomq_limit_refusals_total") == {
            "brokersMax": 3,
            "topicsMax": 2,
            "filterServersMax": 1,
            "kvConfigBytesMax": 1,
        }


async def test_registrations_and_unregistrations_fill_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with name_server(tmp_path) as ready, FrameClient(ready.port) as client:
        for number in range(400):
            header = attrs.evolve(OURS, broker_name=f"broker-{number}")
            await register(client, header)
            await client.call(
                Code.UNREGISTER_BROKER, BrokerHeader(header.broker_name, header.broker_addr, "C", 0)
            )
    lines = [record.getMessage() for record in caplog.records]
    assert 190 < sum("registered 2 topics" in line for line in lines) < 250
    assert 190 < sum("left: it unregistered" in line for line in lines) < 250
