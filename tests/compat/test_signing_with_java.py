"""Request signing with the official Java classes: the same signatures, its client and its mqadmin
against our users and rules, our client against its broker.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import processes
import pytest
import trio
from access_callers import ROOT, SETTINGS, Caller
from hooked_cluster import hooked_cluster
from processes import java_command, java_peer

from triomq.client import (
    ClientSettings,
    ConsumeFrom,
    ConsumerSettings,
    Credentials,
    ProducerSettings,
)
from triomq.client.core.errors import SendFailed
from triomq.remoting.client.access import Access
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.signing import signed
from triomq.sync import Producer, PullConsumer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

ME = Credentials(access_key="rocketmq2", secret_key="12345678")
KEYS = ["peer.accessKey=rocketmq2", "peer.secretKey=12345678"]


@pytest.mark.parametrize(
    ("ext", "body", "token"),
    [
        ({"topic": "TopicA", "queueId": "3"}, "body", None),
        ({"a": "g", "_UNIQUE_KEY_QUERY": "true", "Topic": "Ä", "empty": ""}, "ünïcode", None),
        ({"z": "1", "Z": "2", "\U0001f600": "3", "\uffee": "4"}, "", "sts-token"),
    ],
)
def test_signatures_are_java_s(
    java_version: str, ext: dict[str, str], body: str, token: str | None
) -> None:
    define = [*KEYS, "sun.jnu.encoding=UTF-8", *([f"peer.securityToken={token}"] if token else [])]
    fields = [f"{name}={value}" for name, value in ext.items()]
    (line,) = [
        line
        for line in java_peer(java_version, "sign", body, *fields, define=define)
        if line[0] == "FOUND"
    ]
    mine = Credentials(access_key="rocketmq2", secret_key="12345678", security_token=token)
    assert line[1] == signed(ext, body.encode(), mine)["Signature"]


@asynccontextmanager
async def with_access_control(folder: Path) -> AsyncIterator[str]:
    """A cluster of ours with users and rules; yields the name server's address."""
    async with hooked_cluster(folder, (), **SETTINGS) as namesrv:
        yield namesrv


def broker_of(namesrv: str) -> str:
    with BlockingConnection(namesrv) as connection:
        answer = connection.invoke(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    parts = bytes(answer.body).decode().split('"')
    return next(part for part in parts if part.startswith("127.0.0.1:"))


def give_rights(namesrv: str) -> None:
    """Let a user send to one topic and read it as one group."""
    with BlockingConnection(broker_of(namesrv)) as connection:
        caller = Caller(connection)
        caller.create_user(ME.access_key, ME.secret_key)
        topic, group = "Topic:SignedByJava", "Group:signed-group"
        rights = [[topic, ["Pub"]], [topic, ["Sub"]], [topic, ["Get"]], [group, ["Sub"]]]
        caller.grant(ME.access_key, rights, None)


@pytest.mark.loss
@pytest.mark.compatible("signed requests", peer="java-client-{java_version}")
@pytest.mark.feature("167b")
@pytest.mark.parametrize("serialize", ["JSON", "ROCKETMQ"])
async def test_a_java_client_does_what_its_rules_allow(
    java_version: str, serialize: str, tmp_path: Path
) -> None:
    define = [*KEYS, f"rocketmq.serialize.type={serialize}"]
    async with with_access_control(tmp_path) as namesrv:

        def talk() -> tuple[list[list[str]], list[list[str]]]:
            give_rights(namesrv)
            sent = java_peer(
                java_version, "send", namesrv, "SignedByJava", "10", "TagA", "sync", define=define
            )
            return sent, java_peer(
                java_version,
                "consume",
                namesrv,
                "SignedByJava",
                "signed-group",
                "*",
                "10",
                "60",
                define=define,
            )

        sent, got = await trio.to_thread.run_sync(talk)
        assert [line[1] for line in sent if line[0] == "SENT"] == ["SEND_OK"] * 10
        assert {line[7] for line in got if line[0] == "GOT"} == {
            f"body-{number}" for number in range(10)
        }


@pytest.mark.compatible("unsigned refused", "refused send", peer="java-client-{java_version}")
@pytest.mark.parametrize(
    ("define", "remark"),
    [
        ([], "username cannot be null"),
        ([KEYS[0], "peer.secretKey=wrong"], "check signature failed"),
        (KEYS, "no permission to access Topic:Refused"),
    ],
)
async def test_a_java_client_with_wrong_credentials_is_refused(
    java_version: str, define: list[str], remark: str, tmp_path: Path
) -> None:
    async with with_access_control(tmp_path) as namesrv:
        await trio.to_thread.run_sync(give_rights, namesrv)
        command = java_command(
            java_version, "Peer", "send", namesrv, "Refused", "1", "TagA", "sync", define=define
        )
        done = await trio.to_thread.run_sync(
            lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        )
    assert done.returncode != 0
    assert remark in done.stderr, "the caller sees our remark"


@pytest.mark.loss
@pytest.mark.feature("167f")
async def test_a_java_client_does_what_its_account_of_acl_1_0_allows(
    java_version: str, tmp_path: Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(
        "accounts:\n- {accessKey: rocketmq2, secretKey: 12345678,"
        " topicPerms: [SignedByJava=PUB|SUB], groupPerms: [signed-group=SUB]}\n"
    )
    settings = {"aclEnable": True, "plainAclFile": file, "grpcServerPort": 0}
    async with hooked_cluster(tmp_path, (), **settings) as namesrv:

        def talk() -> tuple[list[list[str]], list[list[str]], list[str]]:
            topic = [namesrv, "SignedByJava"]
            sent = java_peer(java_version, "send", *topic, "10", "TagA", "sync", define=KEYS)
            got = java_peer(
                java_version, "consume", *topic, "signed-group", "*", "10", "60", define=KEYS
            )
            refusals = []
            for keys in ([], [KEYS[0], "peer.secretKey=wrong-key"], KEYS):
                words = ("send", namesrv, "Refused", "1", "TagA", "sync")
                command = java_command(java_version, "Peer", *words, define=keys)
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=60, check=False
                )
                assert done.returncode != 0
                refusals.append(done.stderr)
            return sent, got, refusals

        sent, got, refusals = await trio.to_thread.run_sync(talk)
    assert [line[1] for line in sent if line[0] == "SENT"] == ["SEND_OK"] * 10
    assert {line[7] for line in got if line[0] == "GOT"} == {f"body-{n}" for n in range(10)}
    texts = (
        "No accessKey is configured",
        "Check signature failed for accessKey=rocketmq2",
        "No default permission for topic:Refused",
    )
    for text, output in zip(texts, refusals, strict=True):
        assert text in output


@pytest.mark.feature("167c")
async def test_java_s_mqadmin_creates_users_and_rules(tmp_path: Path) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "tools.yml").write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    async with with_access_control(tmp_path) as namesrv:
        address = await trio.to_thread.run_sync(broker_of, namesrv)
        commands = f"""
            createUser -b {address} -u rocketmq2 -p 12345678
            createAcl -b {address} -s User:rocketmq2 -r Topic:T*,Group:G -a Pub,Sub -d Allow
            getAcl -b {address} -s User:rocketmq2
            updateUser -b {address} -u rocketmq2 -s disable
            listUser -b {address}
            deleteUser -b {address} -u rocketmq2
            listUser -b {address}
        """
        words = [line.split() for line in commands.strip().splitlines()]

        def run() -> list[str]:
            return processes.java_mqadmin("5.5.0", namesrv, words, home=tmp_path / "home")

        outputs = await trio.to_thread.run_sync(run)
    assert "success" in outputs[0]
    assert "success" in outputs[1]
    for part in "Topic:T*", "Group:G", "Allow", "Pub":
        assert part in outputs[2]
    assert "disable" in outputs[4]
    assert "rocketmq2" in outputs[4]
    assert "rocketmq2" not in outputs[6]
    assert "root" in outputs[6]


async def test_java_s_old_mqadmin_changes_accounts_of_acl_1_0(tmp_path: Path) -> None:
    """Codes 50 to 54, as the mqadmin of 4.9.4 sends them; the file has what it changed."""
    if processes.java_home("4.9.4") is None:
        pytest.skip("the Java peers 4.9.4 are not installed: run `make peers`")
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "tools.yml").write_text("accessKey: rocketmq2\nsecretKey: 12345678\n")
    file = tmp_path / "plain_acl.yml"
    file.write_text("accounts:\n- {accessKey: rocketmq2, secretKey: 12345678, admin: true}\n")
    settings = {"aclEnable": True, "plainAclFile": file, "grpcServerPort": 0}
    async with hooked_cluster(tmp_path, (), **settings) as namesrv:
        address = await trio.to_thread.run_sync(broker_of, namesrv)
        commands = f"""
            updateAclConfig -b {address} -a billing-key -s 87654321 -i DENY -u SUB -t T1=PUB,T2=SUB
            updateGlobalWhiteAddr -b {address} -g 10.0.0.1,10.0.0.2
            clusterAclConfigVersion -b {address}
            getAccessConfigSubCommand -b {address}
            deleteAclConfig -b {address} -a billing-key
            getAccessConfigSubCommand -b {address}
        """
        words = [line.split() for line in commands.strip().splitlines()]

        def run() -> list[str]:
            return processes.java_mqadmin("4.9.4", namesrv, words, home=tmp_path / "home")

        outputs = await trio.to_thread.run_sync(run)
    assert "success" in outputs[0]
    assert "success" in outputs[1]
    assert "plain_acl.yml" in outputs[2]
    assert "billing-key" in outputs[3]
    assert "success" in outputs[4]
    assert "rocketmq2" in outputs[5]
    assert "billing-key" not in outputs[5]
    assert "10.0.0.2" in file.read_text()


# Our client and Java's broker


@contextmanager
def guarded_java(version: str, folder: Path) -> Iterator[str]:
    """A Java cluster that demands signatures: ACL 1.0 in 4.9.4, authentication of ACL 2.0
    in 5.5.0.
    """
    settings: dict[str, object] = {}
    if version == "4.9.4":
        conf = folder / "broker" / "conf"
        conf.mkdir(parents=True)
        (conf / "plain_acl.yml").write_text(
            "accounts:\n  - accessKey: rocketmq2\n    secretKey: 12345678\n    admin: true\n"
        )
        (conf / "logback_broker.xml").write_text(
            "<configuration/>\n"
        )  # 4.9.4 does not start without it
        settings["aclEnable"] = "true"
    else:
        settings |= {
            "authenticationEnabled": "true",
            "authenticationProvider": (
                "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"
            ),
            "authenticationMetadataProvider": (
                "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
            ),
            "initAuthenticationUser": '{"username":"rocketmq2","password":"12345678"}',
            "innerClientAuthenticationCredentials": (
                '{"accessKey":"rocketmq2","secretKey":"12345678"}'
            ),
            "authConfigPath": str(folder / "auth"),
        }
    with (
        processes.java_name_server("5.5.0", folder / "namesrv") as namesrv,
        processes.java_broker(version, folder / "broker", "broker-java", namesrv, **settings),
    ):
        yield namesrv


@pytest.fixture(scope="module", params=["4.9.4", "5.5.0"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if processes.java_home(request.param) is None:
        pytest.skip(f"the Java peers {request.param} are not installed: run `make peers`")
    with guarded_java(request.param, tmp_path_factory.mktemp("guarded")) as namesrv:
        yield namesrv


@pytest.mark.loss
@pytest.mark.compatible("signed requests", peer="java-server-{guarded}")
def test_our_client_signs_for_java(guarded: str) -> None:
    client = ClientSettings(credentials=ME)
    bodies = {b"body-%d" % number for number in range(10)}
    with Producer(guarded, group="ours", settings=ProducerSettings(client=client)) as producer:
        for body in bodies:
            producer.send("SignedByUs", body, timeout=20)
    got: set[bytes] = set()
    settings = ConsumerSettings(client=client)
    with PullConsumer(
        guarded,
        group="our-readers",
        subscriptions="SignedByUs",
        consume_from=ConsumeFrom.FIRST,
        settings=settings,
    ) as consumer:
        for _ in range(60):
            got |= {bytes(message.body) for message in consumer.poll(timeout=1.0)}
            if got == bodies:
                break
    assert got == bodies


@pytest.mark.compatible("unsigned refused", "refused send", peer="java-server-{guarded}")
def test_java_refuses_who_does_not_sign(guarded: str) -> None:
    with (
        Producer(guarded, group="nobody") as producer,
        pytest.raises(SendFailed, match=r"No accessKey|username cannot be null"),
    ):
        producer.send("SignedByUs", b"x", timeout=20)


def test_both_serialisations_are_accepted_by_java(guarded: str) -> None:
    access = Access(credentials=ME)
    with BlockingConnection(guarded) as connection:
        answer = connection.invoke(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    address = next(
        part for part in bytes(answer.body).decode().split('"') if part.startswith("127.0.0.1:")
    )
    for serialize in (0, 1):
        with BlockingConnection(address, **access.options()) as connection:
            command = Command(
                RequestCode.GET_MAX_OFFSET,
                ext={"topic": "SignedByUs", "queueId": "0", "committed": ""},
            )
            command.serialize = type(command.serialize)(serialize)
            answer = connection.invoke(command)
            assert answer.code == 0, answer.remark
