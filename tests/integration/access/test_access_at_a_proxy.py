"""mqproxy before brokers with access control: it knows their users, and they know it."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import pytest
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from grpc_broker import GrpcClient
from hooked_cluster import hooked_cluster
from proxied_cluster import RunningProxy, proxy_config
from replicated_brokers import eventually

from triomq.client.proxy import access_copy
from triomq.client.proxy.app import ProxyReady, run_proxy
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.topic import CreateTopicHeader

ACCESS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"innerpw123"}',
    "rocketMQClusterName": "DefaultCluster",
}


def broker_of(namesrv: str) -> str:
    with BlockingConnection(namesrv) as connection:
        answer = connection.invoke(Command(Code.GET_BROKER_CLUSTER_INFO))
    parts = bytes(answer.body).decode().split('"')
    return next(part for part in parts if part.startswith("127.0.0.1:"))


def set_quotas(namesrv: str, quotas: str) -> None:
    with BlockingConnection(broker_of(namesrv)) as connection:
        body = f"quotas={quotas}".encode()
        answer = Caller(connection).ask_root(Code.UPDATE_BROKER_CONFIG, None, body)
    assert answer.code == 0, answer.remark


def prepare(namesrv: str) -> None:
    with BlockingConnection(broker_of(namesrv)) as connection:
        caller = Caller(connection)
        made = caller.ask_root(
            Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("TA", "TBW102", 1, 1, 6)
        )
        assert made.code == 0
        caller.create_user("sender")
        caller.grant("sender", [["Topic:TA", ["Pub"]]], "127.0.0.0/8")
        caller.create_user("other")


async def test_quotas_count_for_the_user_behind_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_copy, "PERIOD_SECONDS", 0.2)
    settings = {**SETTINGS, "quotas": "User:sender bytes=1; User:root connections=1"}
    async with hooked_cluster(tmp_path, (), **settings) as namesrv, trio.open_nursery() as nursery:
        await trio.to_thread.run_sync(prepare, namesrv)
        ready: ProxyReady = await nursery.start(
            partial(run_proxy, proxy_config(namesrvAddr=namesrv, **ACCESS))
        )
        with contextlib.ExitStack() as channels:
            proxy = RunningProxy(ready, channels)

            def client(user: str, password: str) -> GrpcClient:
                return proxy.client(credentials=(user, password), topic="TA", group="GA")

            async def send(client: GrpcClient, size: int) -> pb.Status:
                return (await client.send(client.message(bytes(size)))).status

            sender, root, too_many = client("sender", PASSWORD), client(*ROOT), client(*ROOT)

            async def known() -> bool:
                return (await send(sender, 10_000)).code == pb.Code.OK

            await eventually(known)  # the debt lasts for hours
            assert (await send(sender, 1)).code == pb.Code.TOO_MANY_REQUESTS
            assert (await send(root, 1)).code == pb.Code.OK
            refused = await send(too_many, 1)
            assert refused.code == pb.Code.TOO_MANY_REQUESTS
            assert "the quota of User:root is 1 connections" in refused.message
            root.channel.close()

            async def has_room() -> bool:
                return (await send(too_many, 1)).code == pb.Code.OK

            await eventually(has_room)
            others = client(*ROOT), client(*ROOT)
            await trio.to_thread.run_sync(set_quotas, namesrv, "User:root connections=2")

            async def has_more_room() -> bool:
                return (await send(others[0], 1)).code == pb.Code.OK

            await eventually(has_more_room)  # with the proxy's next copy
            assert await has_room()
            assert (await send(others[1], 1)).code == pb.Code.TOO_MANY_REQUESTS
        ready.stop()


async def test_a_proxy_refuses_calls_as_its_brokers_would(tmp_path: Path) -> None:
    async with hooked_cluster(tmp_path, (), **SETTINGS) as namesrv, trio.open_nursery() as nursery:
        await trio.to_thread.run_sync(prepare, namesrv)
        config = proxy_config(namesrvAddr=namesrv, **ACCESS)
        ready: ProxyReady = await nursery.start(partial(run_proxy, config))
        with contextlib.ExitStack() as channels:
            proxy = RunningProxy(ready, channels)

            async def code(credentials: tuple[str, str] | None) -> int:
                client = proxy.client(credentials=credentials, topic="TA", group="GA")
                return (await client.send(client.message(b"x"))).status.code

            async def known() -> bool:
                return await code(("sender", PASSWORD)) == pb.Code.OK

            await eventually(known)
            assert await code(ROOT) == pb.Code.OK
            for refused in (None, ("sender", "wrong"), ("other", PASSWORD), ("ghost", PASSWORD)):
                assert await code(refused) == pb.Code.UNAUTHORIZED, refused
        ready.stop()
