"""The audit log of running servers: every door, all refusals and changes, no secret."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from brokers import peer_of, running_broker
from grpc_broker import grpc_broker
from hooked_cluster import hooked_cluster
from processes import free_port
from proxied_cluster import RunningProxy, proxy_config
from replicated_brokers import broker_group

from triomq.client.proxy.app import ProxyReady, run_proxy
from triomq.remoting.access.access_settings import WriterSettings
from triomq.remoting.audit.audit_settings import AuditSettings
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.auth import UserHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader
from triomq.remoting.protocol.signing import Credentials


def lines_of(folder: Path, name: str = "audit.log") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def facts(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["user"], line["what"], line.get("resources"), line["why"]


@pytest.mark.feature("209a", "209b", "209c")
async def test_a_broker_writes_changes_and_refusals_and_no_secret(tmp_path: Path) -> None:
    port = free_port()
    settings = {
        **SETTINGS,
        "brokerClusterName": "DefaultCluster",
        "auditLogPath": tmp_path / "audit.log",
        "auditLogSampleEvery": 0,
        "monitorPort": port,
        "monitorToken": "token-12345678",
    }

    def work(address: str) -> None:
        with BlockingConnection(address) as connection:
            caller = Caller(connection)
            caller.ask_root(
                Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("TA", "TBW102", 1, 1, 6)
            )
            caller.create_user("shop")
            caller.grant("shop", [["Group:GA", ["Create"]]], "127.0.0.0/8")
            group = Command(
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=SubscriptionGroupConfig(group_name="GA").encode(),
            )
            assert caller.ask(group, "shop").code == 0
            other = Command(
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=SubscriptionGroupConfig(group_name="GB").encode(),
            )
            get = request(Code.AUTH_GET_USER, UserHeader("root"))
            for refused, user, password in (
                (other, "shop", PASSWORD),
                (get, "shop", PASSWORD),
                (get, "shop", "wrong"),
                (get, PASSWORD, "shop"),  # a password where the name belongs
                (get, None, PASSWORD),
            ):
                assert caller.ask(refused, user, password).code == 16
            assert caller.ask(Command(Code.GET_ALL_TOPIC_CONFIG), *ROOT).code == 0

    async with running_broker(tmp_path / "store", **settings) as broker:
        await trio.to_thread.run_sync(work, broker.address)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"GET /status HTTP/1.1\r\nAuthorization: Bearer guess-1\r\n\r\n")
            assert b"401" in await stream.receive_some(1000)

    allowed, refused = lines_of(tmp_path), lines_of(tmp_path, "audit-refused.log")
    everything = "a super user may do everything"
    cluster = ["Cluster:DefaultCluster Update"]
    assert [facts(line) for line in allowed] == [
        ("root", "UPDATE_AND_CREATE_TOPIC", ["Topic:TA Create"], everything),
        ("root", "AUTH_CREATE_USER", cluster, everything),
        ("root", "AUTH_DELETE_ACL", cluster, everything),
        ("root", "AUTH_CREATE_ACL", cluster, everything),
        (
            "shop",
            "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
            ["Group:GA Create"],
            "the rule allows Create on Group:GA from 127.0.0.0/8",
        ),
    ]
    assert allowed[1]["names"] == {"username": "shop"}
    assert allowed[1]["from"].startswith("127.0.0.1:")
    assert (allowed[1]["door"], allowed[1]["code"]) == ("remoting", Code.AUTH_CREATE_USER)
    assert [(line["user"], line.get("claimed"), line["what"]) for line in refused] == [
        ("shop", None, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP"),
        ("shop", None, "AUTH_GET_USER"),
        (None, "shop", "AUTH_GET_USER"),
        (None, None, "AUTH_GET_USER"),
        (None, None, "AUTH_GET_USER"),
        (None, None, "/status"),
    ]
    assert [line["why"] for line in refused[2:5]] == [
        "check signature failed.",
        "an unknown user",
        "username cannot be null.",
    ]
    text = json.dumps([*allowed, *refused])
    for secret in (PASSWORD, ROOT[1], "innerpw123", "token-12345678", "guess-1", 'ignature":'):
        assert secret not in text


async def test_sends_are_sampled_and_changes_are_written_without_authentication(
    tmp_path: Path,
) -> None:
    settings = {
        "grpcServerPort": 0,
        "auditLogPath": tmp_path / "audit.log",
        "auditLogSampleEvery": 10,
    }
    async with running_broker(tmp_path / "store", **settings) as broker, peer_of(broker) as peer:
        await peer.create_topic("TA", 1)
        for _ in range(40):
            await peer.send("TA", b"x")
    lines = lines_of(tmp_path)
    assert {line["why"] for line in lines} == {"authenticationEnabled is false"}
    assert lines[0]["what"] == "UPDATE_AND_CREATE_TOPIC"
    assert len(lines) == 5
    assert lines[-1]["resources"] == ["Topic:TA Pub"]
    assert lines_of(tmp_path, "audit-refused.log") == []


@pytest.mark.feature("209d")
async def test_a_second_server_with_the_same_file_does_not_start(tmp_path: Path) -> None:
    settings = {"auditLogPath": tmp_path / "audit.log"}
    async with running_broker(tmp_path / "a", **settings):
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="another server writes")):
            async with running_broker(tmp_path / "b", **settings):
                pass
    async with running_broker(tmp_path / "b", **settings):
        pass


async def test_calls_over_grpc_are_written(tmp_path: Path) -> None:
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    settings = {key: value for key, value in SETTINGS.items() if key != "grpcServerPort"}
    settings |= {"auditLogPath": tmp_path / "audit.log", "auditLogSampleEvery": 1}
    async with grpc_broker(tmp_path / "store", credentials=root, **settings) as broker:
        await broker.peer.create_topic("TA", 1)
        for credentials in (ROOT, (ROOT[0], "wrong"), ("ghost", PASSWORD)):
            client = broker.client(credentials=credentials, topic="TA", group="GA")
            await client.send(client.message(b"x"))
    sent = [line for line in lines_of(tmp_path) if line["door"] == "grpc"]
    assert facts(sent[-1])[:3] == ("root", "SendMessage", ["Topic:TA Pub"])
    refused = lines_of(tmp_path, "audit-refused.log")
    assert [(line["door"], line.get("claimed"), line["why"]) for line in refused] == [
        ("grpc", "root", "check signature failed."),
        ("grpc", None, "an unknown user"),
    ]


async def test_a_name_server_and_a_proxy_write_theirs(tmp_path: Path) -> None:
    access = WriterSettings(
        authentication=True,
        initial_user=Credentials(access_key=ROOT[0], secret_key=ROOT[1]),
        inner=Credentials(access_key="inner", secret_key="innerpw123"),
    )
    audit = AuditSettings(path=str(tmp_path / "audit.log"), sample_every=0)
    wiped = Command(Code.WIPE_WRITE_PERM_OF_BROKER, ext={"brokerName": "broker-a"})
    async with broker_group(tmp_path / "store", access=access, audit=audit) as group:

        def ask() -> None:
            with BlockingConnection(group.namesrv) as connection:
                assert Caller(connection).ask(wiped, None).code == 16
                assert Caller(connection).ask(wiped, *ROOT).code == 0

        await trio.to_thread.run_sync(ask)
    for name, user in (("audit.log", "root"), ("audit-refused.log", None)):
        (line,) = lines_of(tmp_path, name)
        assert (line["user"], line["what"], line["names"]) == (
            user,
            "WIPE_WRITE_PERM_OF_BROKER",
            {"brokerName": "broker-a"},
        )

    async with (
        hooked_cluster(tmp_path / "more", (), **SETTINGS) as namesrv,
        trio.open_nursery() as nursery,
    ):
        config = proxy_config(
            namesrvAddr=namesrv,
            authenticationEnabled="true",
            innerClientAuthenticationCredentials=SETTINGS["innerClientAuthenticationCredentials"],
            auditLogPath=str(tmp_path / "proxy.log"),
        )
        ready: ProxyReady = await nursery.start(partial(run_proxy, config))
        with contextlib.ExitStack() as channels:
            client = RunningProxy(ready, channels).client(credentials=None, topic="TA", group="GA")
            await client.send(client.message(b"x"))
        ready.stop()
    (line,) = lines_of(tmp_path, "proxy-refused.log")
    assert (line["server"], line["door"], line["what"]) == ("mqproxy", "grpc", "SendMessage")


async def test_a_stranger_at_the_port_for_slaves_is_written(tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "grpcServerPort": 0,
        "haListenPort": port,
        "haSlaveAddresses": "10.0.0.7",
        "auditLogPath": tmp_path / "audit.log",
    }
    async with running_broker(tmp_path / "store", **settings):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            assert await stream.receive_some(1) == b""
    (line,) = lines_of(tmp_path, "audit-refused.log")
    assert (line["door"], line["why"]) == ("ha", "it is none of haSlaveAddresses")
