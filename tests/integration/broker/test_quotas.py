"""A broker with quotas: what is refused, with which code, and that clients get along with it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from access_callers import ROOT, SETTINGS, Caller
from brokers import running_broker
from grpc_broker import TOPIC, grpc_broker
from hooked_cluster import hooked_cluster
from mqadmin_calls import mqadmin

from triomq.client import BusyBackoff, Producer, ProducerSettings
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.offset import GetMinOffsetHeader
from triomq.remoting.protocol.headers.pull import PullMessageHeader
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader
from triomq.remoting.protocol.signing import PROXIED_USER, Credentials


def send(topic: str, *, batch: int = 0) -> Command:
    header = SendMessageHeader(
        producer_group="P",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        batch=bool(batch),
    )
    code = Code.SEND_BATCH_MESSAGE if batch else Code.SEND_MESSAGE
    one = (23).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"x" + bytes(2)
    return request(code, header, one * batch if batch else b"body")


def codes(address: str, commands: list[Command], user: str | None = None) -> list[int]:
    with BlockingConnection(address) as connection:
        caller = Caller(connection)
        create = request(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("TA", "TBW102", 1, 1, 6))
        caller.ask(create, *(ROOT if user else (None,)))
        return [caller.ask(each, *(ROOT if user else (None,))).code for each in commands]


@pytest.mark.feature("212a", "212b", "212c")
async def test_a_topic_beyond_its_quota_is_refused_and_other_requests_are_not(
    tmp_path: Path,
) -> None:
    pull = PullMessageHeader(
        consumer_group="G",
        topic="TA",
        queue_id=0,
        queue_offset=0,
        message_count_max=1,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=1,
    )
    heartbeat = Command(Code.HEART_BEAT, body=HeartbeatData(client_id="c").encode())
    busy, flow = int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.FLOW_CONTROL)
    settings = {"quotas": "Topic:TA messages=1; Group:G requests=1", "grpcServerPort": 0}
    async with running_broker(tmp_path, **settings) as broker:
        commands = [
            send("TA", batch=50),  # leaves a debt of 49 s
            send("TA"),
            send("TA", batch=2),
            *[request(Code.PULL_MESSAGE, pull)] * 2,
            heartbeat,
            request(Code.GET_MIN_OFFSET, GetMinOffsetHeader("TA", 0)),
            send("TB"),
            Command(Code.GET_BROKER_RUNTIME_INFO),
        ]
        found = await trio.to_thread.run_sync(codes, broker.address, commands)
        assert found[:3] == [0, busy, busy]
        assert found[3] != flow
        assert found[4:] == [flow, 0, 0, 0, 0]

        def figures() -> KvTable:
            with BlockingConnection(broker.address) as connection:
                return KvTable.decode(connection.invoke(commands[-1]).body)

        table = (await trio.to_thread.run_sync(figures)).table
        assert table["quotaRefused_Topic:TA_messages"] == "2"
        assert table["quotaRefused_Group:G_requests"] == "1"


async def test_a_user_beyond_its_quota_is_refused(tmp_path: Path) -> None:
    settings = {**SETTINGS, "quotas": "User:root messages=1"}
    async with running_broker(tmp_path, **settings) as broker:
        commands = [send("TA", batch=50), send("TA")]
        found = await trio.to_thread.run_sync(codes, broker.address, commands, "root")
        assert found == [0, int(ResponseCode.SYSTEM_BUSY)]


async def test_a_super_user_alone_lets_requests_count_for_another_user(tmp_path: Path) -> None:
    """As mqproxy does, whose clients share its connection."""
    settings = {**SETTINGS, "quotas": "User:victim messages=1 connections=1"}
    async with running_broker(tmp_path, **settings) as broker:
        create = request(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("TA", "TBW102", 1, 1, 6))
        claiming = send("TA", batch=50)  # leaves a debt of 49 s
        claiming.ext = {**(claiming.ext or {}), PROXIED_USER: "victim"}

        def ask() -> list[int]:
            with ExitStack() as stack:
                first, second = (
                    Caller(stack.enter_context(BlockingConnection(broker.address)))
                    for _ in range(2)
                )
                first.ask(create, *ROOT)
                first.create_user("shop")
                first.grant("shop", [["Topic:TA", ["Pub"]]], None)
                found = [first.ask(claiming, "shop").code for _ in range(2)]
                return found + [caller.ask(claiming, *ROOT).code for caller in (first, second)]

        busy = int(ResponseCode.SYSTEM_BUSY)
        assert await trio.to_thread.run_sync(ask) == [0, 0, 0, busy]


async def test_a_user_s_connections_at_both_ports_count_together(tmp_path: Path) -> None:
    """Over one too many nothing is served, and one that is closed makes room."""
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    asked, busy = Command(Code.GET_BROKER_RUNTIME_INFO), int(ResponseCode.SYSTEM_BUSY)
    quotas = "User:root connections=3"
    async with grpc_broker(tmp_path, credentials=root, quotas=quotas, **settings) as broker:
        await broker.peer.create_topic(TOPIC, 1)  # the first connection
        client = broker.client(credentials=ROOT)
        status = (await client.send(client.message(b"x"))).status
        assert status.code == pb.Code.OK, "the second"

        def ask(count: int) -> list[int]:
            with ExitStack() as stack:
                connections = [
                    stack.enter_context(BlockingConnection(broker.ready.address))
                    for _ in range(count)
                ]
                return [Caller(each).ask(asked, *ROOT).code for each in connections * 2]

        assert await trio.to_thread.run_sync(ask, 2) == [0, busy] * 2
        with trio.fail_after(60):
            while await trio.to_thread.run_sync(ask, 1) != [0, 0]:
                await trio.sleep(0.05)


async def test_calls_over_grpc_count_for_their_user(tmp_path: Path) -> None:
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    quotas = "User:root bytes=1"
    async with grpc_broker(tmp_path, credentials=root, quotas=quotas, **settings) as broker:
        await broker.peer.create_topic(TOPIC, 1)
        client = broker.client(credentials=ROOT)
        large = client.message(bytes(10_000))  # leaves a debt of hours
        found = [(await client.send(large)).status.code for _ in range(2)]
        assert found == [pb.Code.OK, pb.Code.TOO_MANY_REQUESTS]
        remoting = await trio.to_thread.run_sync(codes, broker.ready.address, [send(TOPIC)], "root")
        assert remoting == [int(ResponseCode.SYSTEM_BUSY)], "one quota for both ports"


@pytest.mark.loss
@pytest.mark.feature("212d")
async def test_our_producer_waits_and_sends_everything(tmp_path: Path) -> None:
    async with hooked_cluster(tmp_path, (), quotas="Topic:T messages=20", grpcServerPort=0) as ns:
        waiting = ProducerSettings(retries=20, busy_backoff=BusyBackoff(longest=0.2))
        async with Producer(ns, group="p", settings=waiting) as producer:
            with trio.fail_after(60):
                for number in range(30):
                    await producer.send("T", b"%d" % number)


async def test_quotas_change_at_run_time_at_a_broker_that_has_some(tmp_path: Path) -> None:
    settings = {"quotas": "Topic:OTHER messages=1", "grpcServerPort": 0}
    async with running_broker(tmp_path, **settings) as broker:

        async def found(count: int) -> list[int]:
            return await trio.to_thread.run_sync(
                codes, broker.address, [send("TA", batch=50)] * count
            )

        async def change(quotas: str) -> None:
            change = ("broker", "set", "-b", broker.address, "-n", "127.0.0.1:1")
            done = await mqadmin(*change, "-k", "quotas", "-v", quotas)
            assert done.code == 0, done

        assert await found(2) == [0, 0]
        await change("Topic:TA messages=1")
        assert await found(2) == [0, int(ResponseCode.SYSTEM_BUSY)]
        await change("")
        assert await found(2) == [0, 0]


async def test_the_first_quotas_of_a_broker_need_a_start(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        change = ("broker", "set", "-b", broker.address, "-n", "127.0.0.1:1")
        done = await mqadmin(*change, "-k", "quotas", "-v", "Topic:TA messages=1")
        assert done.code != 0
        assert "started without any" in done.err


async def test_a_client_over_grpc_beyond_the_quota_is_told_too_many_requests(
    tmp_path: Path,
) -> None:
    """The code at which official clients of RocketMQ 5 wait before they try again."""
    async with grpc_broker(tmp_path, quotas=f"Topic:{TOPIC} bytes=1") as broker:
        client = broker.client()
        large = client.message(bytes(10_000))  # leaves a debt of hours
        found = [(await client.send(large)).status.code for _ in range(2)]
        assert found == [pb.Code.OK, pb.Code.TOO_MANY_REQUESTS]
