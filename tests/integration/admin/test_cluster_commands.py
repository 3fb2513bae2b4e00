"""cluster export, diff, apply and import on clusters of ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mqadmin_calls import call, failed
from silent_servers import silent_broker

from triomq import MessageQueue, Producer, PushConsumer
from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import UsageError
from triomq.client.core.errors import RouteNotFound
from triomq.client.mqadmin.commands.cluster_file import chosen_cluster
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import KvConfigHeader
from triomq.testing import InProcessCluster, local_cluster

EVERYWHERE = ("-c", "DefaultCluster")


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster(brokers=2) as running:
        await running.create_topic("orders", queues=2)
        yield running


async def filled(cluster: InProcessCluster) -> None:
    """Brokers that differ, a group with offsets, messages."""
    address = cluster.broker("broker-b").address
    for words in (
        ("updateTopic", "-b", address, "-t", "orders", "-r", 4, "-a", "+message.type=NORMAL"),
        ("updateTopic", "-b", address, "-t", "only-b", "-p", 4),
        ("updateSubGroup", *EVERYWHERE, "-g", "billing", "-r", 3),
        ("updateTopic", *EVERYWHERE, "-t", "%RETRY%billing", "-r", 1, "-w", 1),
    ):
        assert (await call(cluster, *words)).code == 0, words
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        for _ in range(5):
            await producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 1))
    first = cluster.broker("broker-a").address
    moved = ("resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", 0, "-b", first)
    assert (await call(cluster, *moved, "-q", 1, "-o", 3)).code == 0


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster.json"])
async def test_a_cluster_goes_to_another_one(
    cluster: InProcessCluster, tmp_path: Path, name: str
) -> None:
    await filled(cluster)
    file = tmp_path / name
    done = await call(cluster, "cluster", "export", "-o", file, "--offsets")
    assert (done.code, done.err) == (0, "")
    written = yaml.safe_load(file.read_text())
    assert set(written["topics"]) == {"orders", "only-b"}
    assert written["topics"]["only-b"]["brokers"] == {"broker-a": "absent"}
    different = {"readQueueNums": 4, "attributes": {"message.type": "NORMAL"}}
    assert written["topics"]["orders"]["brokers"] == {"broker-b": different}
    (queues,) = written["offsets"]["billing"]["orders"].values()
    assert {int(queue): offset for queue, offset in queues.items()} == {1: 3}
    assert (await call(cluster, "cluster", "diff", file, "--offsets")).code == 0

    async with local_cluster(brokers=2) as other:
        differs = await call(other, "cluster", "diff", file)
        assert differs.code == 1
        assert "+ topic only-b at broker-b\n" in differs.out
        assert "+ group billing at broker-a, broker-b\n" in differs.out
        applied = await call(other, "cluster", "apply", file, "--json")
        assert applied.code == 0, applied
        assert (applied.document["created"], applied.document["updated"]) == (5, 0)
        again = await call(other, "cluster", "apply", file)
        assert (again.code, again.out.splitlines()[0]) == (
            0,
            "nothing to change: cluster DefaultCluster is as the file says",
        )
        assert (await call(other, "cluster", "diff", file)).code == 0
        await other.create_topic("orders", queues=2)  # waits for the routes
        async with Producer(other.namesrv_address, group="shop") as producer:
            for _ in range(2):
                await producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 1))
        assert (await call(other, "cluster", "apply", file)).code == 0
        moved = await call(other, "cluster", "import", file)
        assert moved.code == 0, moved
        assert "orders@billing queue 1 at broker-a: offset 3 is behind the end" in moved.err
        same = await call(other, "cluster", "diff", file, "--offsets")
        assert same.code == 0, "it differs by what import cannot do"
        again = await call(other, "cluster", "import", file)
        assert again.out.startswith("nothing to change: ")
        lag = (await call(other, "group", "lag", "-g", "billing", "--json")).document
        offsets = {(q["brokerName"], q["queueId"]): q["consumerOffset"] for q in lag["queues"]}
        assert offsets["broker-a", 1] == 2
        (tmp_path / "again").mkdir()
        copy = tmp_path / "again" / name
        assert (await call(other, "cluster", "export", "-o", copy)).code == 0
        assert (await call(cluster, "cluster", "export", "-o", file)).code == 0
        assert copy.read_text() == file.read_text()


async def test_offsets_of_groups_with_members_are_left_alone(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    await filled(cluster)
    file = tmp_path / "c.json"
    await call(cluster, "cluster", "export", "-o", file, "--offsets")
    address = cluster.broker("broker-a").address
    words = ("resetOffsetByTime", "-g", "billing", "-t", "orders", "-s", 0, "-b", address)
    assert (await call(cluster, *words, "-q", 1, "-o", 5)).code == 0
    async with PushConsumer(
        cluster.namesrv_address, group="billing", subscriptions="only-b"
    ) as consumer:
        refused = await call(cluster, "cluster", "import", file)
        assert failed(refused, 1, "nothing was done", "billing (1)", "--force"), consumer.client_id
        forced = await call(cluster, "cluster", "import", file, "--force", "--json")
        (row,) = forced.document["items"]
        assert (row["kind"], row["name"], row["done"]) == ("offsets", "orders@billing", True)
    assert (await call(cluster, "cluster", "diff", file, "--offsets")).code == 0
    await call(cluster, "cluster", "export", "-o", file)
    assert failed(await call(cluster, "cluster", "import", file), 2, "no offsets", "--offsets")


async def test_a_silent_broker_makes_an_export_fail_or_is_named_in_it(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    file = tmp_path / "c.json"
    async with silent_broker(cluster.namesrv_address, ["orders"]) as ghost:
        words = ("cluster", "export", "-o", file, "--timeout", 3)
        refused = await call(cluster, *words)
        assert failed(refused, 1, "nothing was written", "ghost", ghost, "--partial")
        assert not file.exists()
        partial = await call(cluster, *words, "--partial")
        assert partial.code == 3
        assert "ghost  failed: " in partial.out
        assert json.loads(file.read_text())["missing"] == ["ghost"]
        assert failed(await call(cluster, "cluster", "export", "--partial"), 2, "-o")
        same = await call(cluster, "cluster", "diff", file, "--prune")
        assert same.code == 0
        assert "ghost did not answer the export" in same.err
        file.write_text(file.read_text().replace('"missing"', '"failures"'))
        assert (await call(cluster, "cluster", "diff", file, "--timeout", 3)).code == 3


def write(path: Path, **sections: Any) -> Path:
    path.write_text(json.dumps({"format": 1, "cluster": "DefaultCluster", **sections}))
    return path


async def test_a_refused_step_does_not_stop_the_others(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    topics = {"bad": {"attributes": {"nonsense": "x"}}, "good": {}}
    file = write(tmp_path / "c.json", topics=topics, users={"ann": {"userType": "Normal"}})
    done = await call(cluster, "cluster", "apply", file, "--json")
    assert done.code == 3
    rows = {(row["name"], row["broker"]): row["done"] for row in done.document["items"]}
    assert rows == {
        (name, broker): name == "good"
        for name in ("bad", "good")
        for broker in ("broker-a", "broker-b")
    }
    failures = done.document["failures"]
    assert "nonsense" in failures["broker-a topics bad"]
    assert "authenticationMetadataProvider" in failures["broker-b"]
    text = await call(cluster, "cluster", "apply", file)
    assert "broker-a  topics  bad    create   failed\n" in text.out


async def test_prune_deletes_what_the_file_does_not_name(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    await filled(cluster)
    file = write(tmp_path / "c.json", topics={"orders": {"brokers": {"broker-b": "absent"}}})
    kept = await call(cluster, "cluster", "apply", file)
    assert "2 items that the file does not name stay; --prune deletes them\n" in kept.out
    refused = await call(cluster, "cluster", "apply", file, "--prune")
    assert failed(refused, 2, "--yes", "what the file does not name")
    assert (await call(cluster, "cluster", "diff", file, "--prune")).code == 1
    pruned = await call(cluster, "cluster", "apply", file, "--prune", "--yes", "--json")
    assert [(row["broker"], row["name"], row["action"]) for row in pruned.document["items"]] == [
        ("broker-b", "only-b", "delete"),
        ("broker-b", "orders", "delete"),
    ]
    assert (await call(cluster, "cluster", "diff", file, "--prune")).code == 0
    async with Admin(cluster.namesrv_address) as admin:
        with pytest.raises(RouteNotFound):
            await admin.route("only-b")
        assert await admin.topic_config("orders", cluster.broker("broker-a").address) is not None
        groups = (await admin.groups()).values
        assert all("billing" in names for names in groups.values()), "the file has no groups"


async def test_queues_of_an_ordered_topic_are_stored(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    topic = {"order": True, "writeQueueNums": 3, "brokers": {"broker-b": {"writeQueueNums": 5}}}
    file = write(tmp_path / "c.json", topics={"steps": topic})
    assert (await call(cluster, "cluster", "apply", file)).code == 0
    async with Admin(cluster.namesrv_address) as admin:
        header = KvConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="steps")
        answer = await admin.ask(cluster.namesrv_address, RequestCode.GET_KV_CONFIG, header)
    assert (answer.ext or {})["value"] == "broker-a:3;broker-b:5"


async def test_names_of_clusters_and_brokers_are_checked(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    file = write(tmp_path / "c.json", topics={"orders": {"brokers": {"old": {"perm": 4}}}})
    apply = ("cluster", "apply", file)
    assert failed(await call(cluster, *apply), 4, "'old'", "topic orders", "--rename old=NEW")
    assert (await call(cluster, *apply, "--rename", "old=broker-b")).code == 0
    async with Admin(cluster.namesrv_address) as admin:
        perms = [
            getattr(await admin.topic_config("orders", cluster.broker(name).address), "perm", None)
            for name in ("broker-a", "broker-b")
        ]
    assert perms == [6, 4]
    assert failed(await call(cluster, *apply, "--rename", "old"), 2, "OLD=NEW")
    assert failed(await call(cluster, *apply, "-c", "Nowhere"), 4, "Nowhere", "DefaultCluster")
    assert failed(await call(cluster, "cluster", "export", "-c", "Nowhere"), 4, "DefaultCluster")


async def test_of_several_clusters_one_must_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin("127.0.0.1:1")

    async def table() -> ClusterTable:
        return ClusterTable(cluster_addr_table={"north": ["a"], "south": ["b"]})

    monkeypatch.setattr(admin, "cluster", table)
    with pytest.raises(UsageError, match=r"2 clusters \(north, south\).*-c/--clusterName"):
        await chosen_cluster(admin, None)
    assert await chosen_cluster(admin, None, "south") == "south"
    assert await chosen_cluster(admin, "north", "south") == "north"


async def test_groups_keep_what_no_file_has(cluster: InProcessCluster, tmp_path: Path) -> None:
    """A change must not reset members of a group's settings that the file cannot name."""
    address = cluster.broker("broker-a").address
    (tmp_path / "groups").write_text('[{"groupName": "billing", "consumeTimeoutMinute": 77}]')
    words = ("updateSubGroupList", "-b", address, "-f", tmp_path / "groups")
    assert (await call(cluster, *words)).code == 0
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000}}
    groups = {"billing": {"retryMaxTimes": 2, "groupRetryPolicy": policy}}
    file = write(tmp_path / "c.json", groups=groups)
    assert (await call(cluster, "cluster", "apply", file)).code == 0
    assert (await call(cluster, "cluster", "diff", file)).code == 0
    async with Admin(cluster.namesrv_address) as admin:
        config = await admin.group_config("billing", address)
    assert config is not None
    assert (config.consume_timeout_minute, config.retry_max_times) == (77, 2)
    assert config.retry_policy.type == "EXPONENTIAL"
