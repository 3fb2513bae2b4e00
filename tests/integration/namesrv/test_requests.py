"""A name server in this Trio loop, with requests over real sockets."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from frames import FrameClient

from triomq.namesrv import registration_requests
from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.core.properties_file import parse_properties
from triomq.remoting.protocol.bodies.cluster import BrokerMembersBody, ClusterTable, KvTable
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, decode_registration
from triomq.remoting.protocol.bodies.route import QueueData, TopicRoute
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicNames, TopicTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.registration import (
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerMembersHeader,
    BrokerNameHeader,
    ClusterHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
    RegisterBrokerHeader,
)
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader, TopicHeader

Started = Callable[..., AbstractAsyncContextManager[NamesrvReady]]
OLD, NEW = 400, 401


@pytest.fixture
def started(tmp_path: Path) -> Started:
    @asynccontextmanager
    async def start(**settings: Any):
        config = NamesrvConfig(
            listen_host="127.0.0.1",
            listen_port=0,
            **{"kv_path": tmp_path / "kvConfig.json", **settings},
        )
        async with trio.open_nursery() as nursery:
            ready: NamesrvReady = await nursery.start(run_namesrv, config)
            try:
                yield ready
            finally:
                ready.stop()

    return start


def table(*names: str, version: int = 1, queues: int = 4) -> TopicTable:
    topics = {
        name: TopicConfig(topic_name=name, read_queue_count=queues, write_queue_count=queues)
        for name in names
    }
    return TopicTable(topics, DataVersion(0, 1_700_000_000_000, version))


def header(name: str = "broker-a", broker_id: int = 0, **more: Any) -> RegisterBrokerHeader:
    port = 10911 + broker_id + 100 * (ord(name[-1]) - ord("a"))
    return RegisterBrokerHeader(
        name, f"127.0.0.1:{port}", "C", f"127.0.0.1:{port + 10_000}", broker_id, **more
    )


async def register(
    client: FrameClient,
    name: str = "broker-a",
    broker_id: int = 0,
    topics: TopicTable | None = None,
    **more: Any,
):
    body = RegisterBrokerBody(topics or table("T", "U")).encode()
    return await client.call(
        Code.REGISTER_BROKER,
        header(name, broker_id, body_crc=zlib.crc32(body) & 0x7FFFFFFF, **more),
        body,
    )


async def until_gone(client: FrameClient, name: str, broker_id: int) -> None:
    """Wait until this broker is no longer listed; each request lets the name server run."""
    with trio.fail_after(10):
        while True:
            brokers = ClusterTable.decode(
                (await client.call(Code.GET_BROKER_CLUSTER_INFO)).body
            ).broker_addr_table
            if name not in brokers or broker_id not in brokers[name].broker_addrs:
                return


async def test_a_registration_that_repeats_the_last_one_is_not_read_again(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the topics of a large broker takes tens of milliseconds; they are read only after a
    change.
    """
    read: list[int] = []

    def counting(body: bytes, version: int) -> RegisterBrokerBody:
        read.append(len(body))
        return decode_registration(body, version)

    monkeypatch.setattr(registration_requests, "decode_registration", counting)
    async with started() as ready, FrameClient(ready.port) as client:
        for _ in range(3):
            assert (await register(client)).code == 0
        assert len(read) == 1
        await client.call(Code.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader(topic="T"))
        assert (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).code == 17
        await register(client)
        assert (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).code == 0, (
            "the broker still has it"
        )
        await register(client, topics=table("T", "U", "V"))
        assert (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("V"))).code == 0
        assert len(read) == 3


@pytest.mark.feature("2a", "2b")
async def test_a_broker_and_its_slave_appear_in_route_and_cluster(started: Started) -> None:
    async with (
        started() as ready,
        FrameClient(ready.port) as master,
        FrameClient(ready.port) as slave,
        FrameClient(ready.port) as client,
    ):
        answer = await register(master)
        assert (answer.code, answer.ext, answer.body) == (0, {}, b"")
        answer = await register(slave, broker_id=1)
        assert (answer.code, answer.ext) == (
            0,
            {"haServerAddr": "127.0.0.1:20911", "masterAddr": "127.0.0.1:10911"},
        )
        await register(master, "broker-b")
        answer = await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))
        route = TopicRoute.decode(answer.body)
        assert [(data.broker_name, data.broker_addrs) for data in route.broker_datas] == [
            ("broker-a", {0: "127.0.0.1:10911", 1: "127.0.0.1:10912"}),
            ("broker-b", {0: "127.0.0.1:11011"}),
        ]
        assert route.queue_datas == [QueueData("broker-a", 4, 4), QueueData("broker-b", 4, 4)]
        cluster = ClusterTable.decode((await client.call(Code.GET_BROKER_CLUSTER_INFO)).body)
        assert cluster.cluster_addr_table == {"C": ["broker-a", "broker-b"]}
        assert cluster.broker_addr_table["broker-a"] == route.broker_datas[0]
        members = BrokerMembersBody.decode(
            (
                await client.call(
                    Code.GET_BROKER_MEMBER_GROUP, BrokerMembersHeader("C", "broker-a")
                )
            ).body
        )
        assert members.broker_member_group is not None
        assert members.broker_member_group.broker_addrs == route.broker_datas[0].broker_addrs


async def test_old_clients_get_bare_ids_others_standard_json(started: Started) -> None:
    async with started() as ready, FrameClient(ready.port) as client:
        await register(client)
        loose = (
            await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"), version=OLD)
        ).body
        assert b'{"brokerAddrs":{0:"127.0.0.1:10911"}' in loose
        for standard in (
            await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"), version=NEW),
            await client.call(
                Code.GET_ROUTEINFO_BY_TOPIC,
                GetRouteHeader("T", accept_standard_json_only=True),
                version=OLD,
            ),
        ):
            assert json.loads(standard.body)["brokerDatas"][0]["brokerAddrs"] == {
                "0": "127.0.0.1:10911"
            }
        assert (
            b'{0:"127.0.0.1:10911"}'
            in (await client.call(Code.GET_BROKER_CLUSTER_INFO, version=NEW)).body
        )


async def test_unknown_topic_and_unknown_code_are_explained(started: Started) -> None:
    async with started() as ready, FrameClient(ready.port) as client:
        answer = await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("nope"))
        assert answer.code == 17
        assert (
            answer.remark == "No topic route info in name server for the topic: nope\nSee"
            " https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )
        answer = await client.call(Code.SEND_MESSAGE)
        assert (answer.code, answer.remark) == (3, " request type 10 not supported")


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        ({"body_crc": 1}, 1, "crc32 not match"),
        ({"body": RegisterBrokerBody(table("Single")).encode()}, 1, "register broker failed"),
        (
            {"body": b"\x78\x9cgarbage"},
            1,
            "register broker failed: the compressed registration cannot be inflated",
        ),
        ({"body": b"{"}, 1, "register broker failed: "),
        ({"body": b""}, 0, None),
    ],
)
async def test_bad_registrations_are_refused_and_change_nothing(
    started: Started, change: dict[str, Any], code: int, remark: str | None
) -> None:
    body = change.pop("body", RegisterBrokerBody(table("T", "U")).encode())
    async with started() as ready, FrameClient(ready.port) as client:
        answer = await client.call(Code.REGISTER_BROKER, header(**change), body)
        assert answer.code == code
        assert (answer.remark or "").startswith(remark or "")
        names = TopicNames.decode(
            (await client.call(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body
        ).topic_list
        assert names == []


async def test_a_compressed_body_is_recognised_without_the_header(started: Started) -> None:
    def piece(data: bytes) -> bytes:
        return len(data).to_bytes(4) + data

    topics = [b"T 8 4 6 SINGLE_TAG {}", b'U 1 1 4 SINGLE_TAG {"message.type":"FIFO"}']
    plain = (
        piece(DataVersion(0, 1, 2).encode())
        + (2).to_bytes(4)
        + b"".join(map(piece, topics))
        + piece(b"[]")
        + (0).to_bytes(4)
    )
    async with started() as ready, FrameClient(ready.port) as client:
        body = zlib.compress(plain)
        assert (
            await client.call(
                Code.REGISTER_BROKER,
                header(compressed=False, body_crc=zlib.crc32(body) & 0x7FFFFFFF),
                body,
            )
        ).code == 0
        route = TopicRoute.decode(
            (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).body
        )
        assert route.queue_datas == [QueueData("broker-a", 8, 4)]


@pytest.mark.feature("3a")
async def test_a_broker_leaves_at_once_when_its_connection_ends(started: Started) -> None:
    async with started() as ready, FrameClient(ready.port) as client:
        async with FrameClient(ready.port) as master, FrameClient(ready.port) as slave:
            await register(master)
            await register(slave, broker_id=1)
            await trio.aclose_forcefully(master.stream)
            await until_gone(client, "broker-a", 0)
            route = TopicRoute.decode(
                (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).body
            )
            assert route.broker_datas[0].broker_addrs == {1: "127.0.0.1:10912"}
        await until_gone(client, "broker-a", 1)
        assert (
            ClusterTable.decode((await client.call(Code.GET_BROKER_CLUSTER_INFO)).body)
            == ClusterTable()
        )
        assert (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).code == 17


@pytest.mark.feature("3b")
async def test_a_silent_broker_expires_and_is_disconnected_a_beating_broker_stays(
    started: Started,
) -> None:
    async with (
        started(scan_interval_ms=10) as ready,
        FrameClient(ready.port) as silent,
        FrameClient(ready.port) as alive,
    ):
        await register(silent, "broker-b", heartbeat_timeout_ms=1_500, topics=table("S", "R"))
        await register(alive, heartbeat_timeout_ms=1_500)
        with trio.move_on_after(30) as scope:
            async with trio.open_nursery() as nursery:

                async def beat() -> None:
                    while True:
                        await alive.call(
                            Code.BROKER_HEARTBEAT,
                            BrokerHeartbeatHeader("C", "127.0.0.1:10911", "broker-a"),
                        )
                        await trio.sleep(0.02)

                nursery.start_soon(beat)
                await silent.ended()
                await trio.sleep(0.1)  # ten more scans: the other broker registered later
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert (await alive.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("S"))).code == 17
        assert (await alive.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).code == 0


async def test_the_data_version_shows_whether_to_register_again(started: Started) -> None:
    asked = BrokerHeader("broker-a", "127.0.0.1:10911", "C", 0)
    current = table().data_version
    async with started() as ready, FrameClient(ready.port) as client:
        answer = await client.call(Code.QUERY_DATA_VERSION, asked, current.encode())
        assert (answer.code, answer.ext, answer.body) == (0, {"changed": "true"}, b"")
        await register(client)
        for version, changed in (
            (current, "false"),
            (attrs.evolve(current, counter=2), "true"),
            (attrs.evolve(current, state_version=1), "true"),
        ):
            answer = await client.call(Code.QUERY_DATA_VERSION, asked, version.encode())
            assert answer.ext == {"changed": changed}
            assert DataVersion.decode(answer.body) == current
        assert (await client.call(Code.QUERY_DATA_VERSION, asked)).ext == {"changed": "true"}
        assert (await client.call(Code.QUERY_DATA_VERSION, asked, b"[")).code == 1


async def test_topic_lists_permissions_and_deletion(started: Started) -> None:
    async with started() as ready, FrameClient(ready.port) as client:
        await register(client)

        async def listed(code: int, asked: object | None = None) -> TopicNames:
            return TopicNames.decode((await client.call(code, asked)).body)

        assert (await listed(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).topic_list == ["T", "U"]
        assert (await listed(Code.GET_TOPICS_BY_CLUSTER, ClusterHeader("C"))).topic_list == [
            "T",
            "U",
        ]
        assert await listed(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS) == TopicNames(
            ["C", "broker-a"], "127.0.0.1:10911"
        )
        for code in (
            Code.GET_UNIT_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        ):
            assert (await listed(code)).topic_list == []
        assert (
            await client.call(Code.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader("broker-a"))
        ).ext == {"wipeTopicCount": "2"}
        assert (
            TopicRoute.decode(
                (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).body
            )
            .queue_datas[0]
            .perm
            == 4
        )
        assert (
            await client.call(Code.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader("broker-a"))
        ).ext == {"addTopicCount": "2"}
        body = TopicRoute([QueueData("broker-a", 1, 1)]).encode()
        assert (await client.call(Code.REGISTER_TOPIC_IN_NAMESRV, TopicHeader("N"), body)).code == 0
        assert (
            await client.call(Code.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader("T", "C"))
        ).code == 0
        assert (await client.call(Code.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader("U"))).code == 0
        assert (await listed(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).topic_list == ["N"]
        assert (await client.call(Code.REGISTER_TOPIC_IN_NAMESRV, TopicHeader("N"), b"{")).code == 1


async def test_lists_can_be_switched_off(started: Started) -> None:
    async with (
        started(list_all_topics=False, list_topics=False) as ready,
        FrameClient(ready.port) as client,
    ):
        for code, asked in (
            (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
            (Code.GET_TOPICS_BY_CLUSTER, ClusterHeader("C")),
            (Code.GET_UNIT_TOPIC_LIST, None),
        ):
            answer = await client.call(code, asked)
            assert (answer.code, answer.remark) == (1, "disable")


async def test_key_value_table_is_kept_and_serves_order_topics(started: Started) -> None:
    async with started(order_messages=True) as ready, FrameClient(ready.port) as client:
        assert (
            await client.call(Code.GET_KVLIST_BY_NAMESPACE, KvNamespaceHeader("ORDER_TOPIC_CONFIG"))
        ).code == 22
        assert (
            await client.call(
                Code.PUT_KV_CONFIG, PutKvConfigHeader("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
            )
        ).code == 0
        assert KvTable.decode((await register(client)).body).table == {"T": "broker-a:4"}
        assert (
            TopicRoute.decode(
                (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).body
            ).order_topic_conf
            == "broker-a:4"
        )
        assert (
            TopicRoute.decode(
                (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("U"))).body
            ).order_topic_conf
            is None
        )
    async with started(return_order_config=False) as ready, FrameClient(ready.port) as client:
        assert (
            await client.call(Code.GET_KV_CONFIG, KvConfigHeader("ORDER_TOPIC_CONFIG", "T"))
        ).ext == {"value": "broker-a:4"}
        assert (await register(client)).body == b""
        assert (
            TopicRoute.decode(
                (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).body
            ).order_topic_conf
            is None
        )
        assert (
            await client.call(Code.DELETE_KV_CONFIG, KvConfigHeader("ORDER_TOPIC_CONFIG", "T"))
        ).code == 0
        answer = await client.call(Code.GET_KV_CONFIG, KvConfigHeader("ORDER_TOPIC_CONFIG", "T"))
        assert (answer.code, answer.remark) == (
            22,
            "No config item, Namespace: ORDER_TOPIC_CONFIG Key: T",
        )
        assert (
            KvTable.decode(
                (
                    await client.call(
                        Code.GET_KVLIST_BY_NAMESPACE, KvNamespaceHeader("ORDER_TOPIC_CONFIG")
                    )
                ).body
            ).table
            == {}
        )


async def test_a_key_value_file_that_cannot_be_written_is_reported(
    started: Started, tmp_path: Path
) -> None:
    (tmp_path / "kvConfig.json.tmp").mkdir()
    async with started() as ready, FrameClient(ready.port) as client:
        answer = await client.call(Code.PUT_KV_CONFIG, PutKvConfigHeader("N", "k", "v"))
        assert answer.code == 1
        assert "is a directory; make room" in (answer.remark or "")
        assert (await client.call(Code.GET_KV_CONFIG, KvConfigHeader("N", "k"))).code == 22


async def test_configuration_is_shown_and_partly_changed(started: Started) -> None:
    async with started() as ready, FrameClient(ready.port) as client:
        shown = parse_properties(bytes((await client.call(Code.GET_NAMESRV_CONFIG)).body).decode())
        assert shown["scanNotActiveBrokerInterval"] == "5000"
        assert (
            await client.call(Code.UPDATE_NAMESRV_CONFIG, body=b"enableAllTopicList=false\n")
        ).code == 0
        assert (await client.call(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).remark == "disable"
        for body, code, remark in (
            (
                b"kvConfigPath=/x\nenableAllTopicList=true\n",
                16,
                "Can not update config in black list.",
            ),
            (
                b"listenPort=1\nenableAllTopicList=true\n",
                1,
                "listenPort: takes effect at a start only; write it into the name server's file",
            ),
            (
                b"enableAllTopicList=yes\n",
                1,
                "enableAllTopicList=yes: neither true nor false; write one of the two",
            ),
            (b"a=\\u12\n", 1, "string2Properties error"),
        ):
            answer = await client.call(Code.UPDATE_NAMESRV_CONFIG, body=body)
            assert (answer.code, answer.remark) == (code, remark)
        assert (await client.call(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).remark == "disable"


async def test_no_routes_before_the_waiting_time_is_over(started: Started) -> None:
    async with started(wait_for_service=True) as ready, FrameClient(ready.port) as client:
        await register(client)
        answer = await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))
        assert (answer.code, answer.remark) == (1, "name server not ready")
        assert (
            await client.call(Code.UPDATE_NAMESRV_CONFIG, body=b"waitSecondsForService=0\n")
        ).code == 0
        assert (await client.call(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader("T"))).code == 0


async def test_routes_of_one_zone(started: Started) -> None:
    async with started() as ready, FrameClient(ready.port) as client:
        await register(client, zone_name="east")
        command_ext = {"topic": "T", "__ZONE_MODE": "true", "__ZONE_NAME": "WEST"}
        assert (await _zone_route(client, command_ext)).broker_datas == []
        assert (
            len((await _zone_route(client, {**command_ext, "__ZONE_NAME": "EAST"})).broker_datas)
            == 1
        )
        assert (
            len((await _zone_route(client, {**command_ext, "__ZONE_MODE": "false"})).broker_datas)
            == 1
        )


async def _zone_route(client: FrameClient, ext: dict[str, str]) -> TopicRoute:
    command = await client.command(Code.GET_ROUTEINFO_BY_TOPIC, ext)
    assert command.code == 0
    return TopicRoute.decode(command.body)


async def test_garbage_ends_that_connection_only(started: Started) -> None:
    async with (
        started() as ready,
        FrameClient(ready.port) as client,
        FrameClient(ready.port) as vandal,
    ):
        await vandal.stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await vandal.ended()
        assert (await client.call(Code.GET_BROKER_CLUSTER_INFO)).code == 0


async def test_a_move_or_unregistration_of_a_living_broker_is_logged_with_both_addresses(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as ready, FrameClient(ready.port) as one, FrameClient(ready.port) as other:
        await register(one)
        await register(one, topics=table("T", "U", "V", version=2))
        assert not [record for record in caplog.records if record.levelname == "WARNING"], (
            "its own news is no move"
        )
        body = RegisterBrokerBody(table("T", "U")).encode()
        moved = attrs.evolve(header(), broker_addr="127.0.0.9:1")
        assert (await other.call(Code.REGISTER_BROKER, moved, body)).code == 0
        assert "moved from 127.0.0.1:10911 to 127.0.0.9:1" in caplog.text
        await one.call(Code.UNREGISTER_BROKER, BrokerHeader("broker-a", "127.0.0.9:1", "C", 0))
        assert "broker broker-a (127.0.0.9:1) registered from" in caplog.text
        caplog.clear()
        await register(one, "broker-b")
        await one.call(
            Code.UNREGISTER_BROKER, BrokerHeader("broker-b", header("broker-b").broker_addr, "C", 0)
        )
        assert "is unregistered from" not in caplog.text
