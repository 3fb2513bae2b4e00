"""Brokers that left are missed by mqadmin and mqconsole, until they return or are forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from access_callers import ROOT, SETTINGS
from brokers import running_broker
from frames import FrameClient
from mqadmin_calls import call, failed, mqadmin
from processes import free_port

from triomq.client.admin.admin import Admin
from triomq.client.admin.cluster_poller import ClusterPoller
from triomq.client.core.errors import BrokerError
from triomq.client.mqadmin.commands import load
from triomq.client.mqadmin.core.command_list import LIST
from triomq.remoting.protocol.bodies.cluster import MISSING_BROKERS_NAMESPACE
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import PutKvConfigHeader, RegisterBrokerHeader
from triomq.testing import InProcessCluster, local_cluster

EVERYWHERE = ("-c", "DefaultCluster")
ACCOUNTS = Path(__file__).parents[2] / "golden" / "access" / "plain_acl.yml"
RULE = "-s User:billing -r Topic:orders -a Pub -d Allow"
PLACES = {
    "createAcl": RULE,
    "brokerDisk": "",
    "cleanExpiredCQ": "",
    "cleanUnusedTopic": "",
    "deleteExpiredCommitLog": "",
    "brokerStatus": "",
    "exportConfigs": "-f FOLDER",
    "exportMetadata": "-f FOLDER",
    "exportMetrics": "-f FOLDER",
    "exportPopRecord": "",
    "getAcl": "-s User:billing",
    "getBrokerConfig": "",
    "getUser": "-u billing",
    "haStatus": "",
    "listAcl": "",
    "listUser": "",
    "whoami": "",
    "can": "billing Pub Topic:orders",
    "createUser": "-u other -p secret",
    "updateUser": "-u billing -s enable",
    "updateAcl": RULE,
    "convertAcl": str(ACCOUNTS),
    "setConsumeMode": "-g billing -t orders -m POP",
    "updateTopicPerm": "-t orders -p 6",
    "updateBrokerConfig": "-k brokerPermission -v 6",
    "updateTopic": "-t later",
    "updateSubGroup": "-g billing",
    "updateTopicList": "-f FILE",
    "updateSubGroupList": "-f FILE",
    "deleteAcl": "-s User:billing --yes",
    "deleteUser": "-u billing --yes",
    "deleteSubGroup": "-g billing --yes",
}
"""commands that work at one broker or at those of a cluster → their other options"""


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster(brokers=2, namesrvs=2) as running:
        await running.create_topic("orders", queues=1)
        yield running


def finding(document: dict[str, list[dict[str, str]]]) -> dict[str, str] | None:
    return next(
        (one for one in document["findings"] if one["check"] == "broker-b:0 is missing"), None
    )


async def test_a_broker_that_is_gone_is_missed(cluster: InProcessCluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    assert (await call(cluster, "cluster", "export", "-o", file)).code == 0
    await cluster.crash_broker("broker-b")

    listed = await call(cluster, "cluster", "list", "--json")
    rows = {row["brokerName"]: row for row in listed.document["brokers"]}
    assert listed.code == 3
    assert rows["broker-a"]["missing"] is None
    assert rows["broker-b"]["reachable"] is False
    assert rows["broker-b"]["missing"].startswith("connection lost ")
    assert "mqadmin broker forget broker-b" in listed.err
    assert "connection lost" in (await call(cluster, "cluster", "list")).rows[2][4]

    doctor = await call(cluster, "doctor", "--cluster", "--json")
    found = finding(doctor.document)
    assert doctor.code == 1
    assert found is not None
    assert found["level"] == "problem"

    for words in (
        ("group", "lag"),
        ("group", "lag", "--alert", 10),
        ("topic", "create", *EVERYWHERE, "-t", "later"),
        ("group", "create", *EVERYWHERE, "-g", "billing"),
        ("topic", "delete", *EVERYWHERE, "-t", "later", "--yes"),
        ("cluster", "diff", file),
    ):
        done = await call(cluster, *words)
        assert (done.code, "broker-b" in done.err) == (3, True), done
    await cluster.create_topic("of-a-program", queues=1)  # it does not need every broker

    async with cluster.admin() as admin:
        poller = ClusterPoller(admin, None, 1.0)
        await poller.poll()
        (gone,) = (row for row in poller.view.brokers if row.gone_since is not None)
        assert (gone.name, gone.answers) == ("broker-b", False)

    await cluster.start_broker("broker-b")
    assert (await call(cluster, "cluster", "list")).code == 0
    assert finding((await call(cluster, "doctor", "--cluster", "--json")).document) is None


async def test_each_command_at_all_brokers_of_a_cluster_names_one_that_is_gone(
    tmp_path: Path,
) -> None:
    ours = {name for name in LIST if LIST[name].module != "cold"}  # our brokers refuse these
    assert {name for name in ours if load(name).names_places} == PLACES.keys() - {
        "exportConfigs",
        "exportMetrics",
        "cleanExpiredCQ",
        "cleanUnusedTopic",
        "deleteExpiredCommitLog",
    }
    (file := tmp_path / "list.json").write_text("[]")
    (keys := tmp_path / "keys").write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    always = (*EVERYWHERE, "--credentials", keys)
    wrong = {}
    async with local_cluster(brokers=2, settings=SETTINGS) as cluster:
        for words in ("topic create -t orders", "user create -u billing -p secret"):
            assert (await call(cluster, *words.split(), *always)).code == 0
        await cluster.crash_broker("broker-b")
        for name, words in PLACES.items():
            given = words.replace("FOLDER", str(tmp_path)).replace("FILE", str(file)).split()
            done = await call(cluster, name, *given, *always)
            if done.code != 3 or done.err.count("broker-b:0 is missing") != 1:
                wrong[name] = done
        for words in ("getUser -u stranger", "getAcl -s User:stranger"):  # it may be there
            done = await call(cluster, *words.split(), *always)
            if done.code != 3 or done.err.count("broker-b:0 is missing") != 1:
                wrong[words] = done
    assert wrong == {}


async def test_a_broker_that_was_stopped_for_good_is_forgotten(cluster: InProcessCluster) -> None:
    await cluster.stop_broker("broker-b")
    listed = await call(cluster, "cluster", "list", "--json")
    assert listed.code == 3
    assert listed.document["brokers"][1]["missing"].startswith("unregistered ")
    found = finding((await call(cluster, "doctor", "--cluster", "--json")).document)
    assert found is not None
    assert found["level"] == "advice"

    living = await call(cluster, "broker", "forget", "broker-a")
    assert failed(living, 4, "that is missing: use one of broker-b")
    nowhere = await mqadmin("broker", "forget", "broker-b", "-n", f"127.0.0.1:{free_port()}")
    assert failed(nowhere, 6)
    tried = await call(cluster, "broker", "forget", "broker-b", "--dry-run", "--json")
    assert (tried.code, len(tried.document["changes"])) == (0, 2)
    assert (await call(cluster, "cluster", "list")).code == 3
    for change in ("drain", "undrain"):
        assert failed(await call(cluster, "broker", change, "broker-b"), 1, "broker-b:0 is missing")
    assert (await call(cluster, "broker", "forget", "broker-b")).code == 0
    assert failed(await call(cluster, "broker", "drain", "broker-b"), 4, "there is no broker")
    assert (await call(cluster, "cluster", "list")).code == 0
    assert (await call(cluster, "group", "lag")).code == 0


async def test_all_brokers_of_a_cluster_are_gone(cluster: InProcessCluster) -> None:
    for name in ("broker-a", "broker-b"):
        await cluster.crash_broker(name)
    done = await call(cluster, "cluster", "list", *EVERYWHERE)
    assert (done.code, len(done.rows)) == (1, 3)


async def test_a_broker_that_one_name_server_knows_is_not_missing(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    """A name server that restarted remembers none; one that lost a connection is not believed."""
    first = cluster.namesrvs[0]
    await cluster.stop_namesrv(first.name)
    await cluster.crash_broker("broker-b")
    await cluster.start_namesrv(first.name)
    async with Admin(first.address) as admin:
        with trio.fail_after(10):
            while [one.name for one in await admin.brokers()] != ["broker-a"]:
                await trio.sleep(0.05)
        assert await admin.missing_brokers() == []
    assert (await call(cluster, "cluster", "list")).code == 3
    async with running_broker(
        tmp_path / "other",
        namesrvAddr=first.address,
        brokerName="broker-b",
        brokerClusterName="DefaultCluster",
    ):
        done = await call(cluster, "cluster", "list")
        assert done.code == 0, done.out


async def test_nobody_writes_what_is_missing(cluster: InProcessCluster) -> None:
    async with cluster.admin() as admin:
        with pytest.raises(BrokerError, match="is not written"):
            await admin.ask(
                admin.namesrv_addresses[0],
                RequestCode.PUT_KV_CONFIG,
                PutKvConfigHeader(MISSING_BROKERS_NAMESPACE, "broker-x", "{}"),
            )


async def test_two_masters_that_live_are_named(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    first = cluster.namesrvs[0]
    address = cluster.broker("broker-a").address

    async def other_registers() -> None:
        header = RegisterBrokerHeader("broker-a", "127.0.0.1:1", "DefaultCluster", "", 0)
        body = RegisterBrokerBody(
            TopicTable({name: TopicConfig(topic_name=name) for name in ("broker-a", "T")})
        )
        assert (await other.call(RequestCode.REGISTER_BROKER, header, body.encode())).code == 0

    async def listed() -> dict[str, str | None]:
        document = (await mqadmin("cluster", "list", "--json", "-n", first.address)).document
        rows = [row for row in document["brokers"] if row["brokerName"] == "broker-a"]
        return {row["address"]: row["missing"] for row in rows}

    async with FrameClient(int(first.address.rpartition(":")[2])) as other:
        await other_registers()
        assert await listed() == {"127.0.0.1:1": None}, "so far it may have moved"
        for number in range(2):
            words = ("-b", address, "-t", f"again-{number}")
            assert (await call(cluster, "topic", "create", *words)).code == 0
            assert set(await listed()) == {address, "127.0.0.1:1"}
            await other_registers()
        assert set(await listed()) == {address, "127.0.0.1:1"}
        assert caplog.text.count("stop the one that you do not want") == 1
        doctor = await call(cluster, "doctor", "--cluster", "--json", "--timeout", 3)
        (found,) = (
            one for one in doctor.document["findings"] if one["check"] == "broker-a:0 lives twice"
        )
        assert found["level"] == "problem"
        assert address in found["found"]
    with trio.fail_after(20):  # its connection ended
        while set(await listed()) != {address}:
            assert (await call(cluster, "topic", "create", "-b", address, "-t", "end")).code == 0
