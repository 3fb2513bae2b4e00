"""exportMetadata, exportConfigs, exportMetrics, exportPopRecord, haStatus, startMonitoring, and the
commands that only Java's brokers take, on a cluster of ours.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import trio
from mqadmin_calls import call, document, failed, mqadmin, run
from replicated_brokers import broker_group

from triomq import Producer, PushConsumer
from triomq.testing import InProcessCluster, local_cluster

pytestmark = pytest.mark.feature("169a")
EVERYWHERE = ("-c", "DefaultCluster")


def written(path: str) -> Any:
    return json.loads(Path(path).read_text())


async def test_topics_and_groups_go_to_another_cluster(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    """What the file has, updateTopicList and updateSubGroupList take."""
    await document(cluster, "updateTopic", *EVERYWHERE, "-t", "small", "-r", 1, "-w", 1, "-p", 4)
    address = cluster.broker("broker-b").address
    await document(cluster, "updateTopic", "-b", address, "-t", "small", "-r", 3, "-w", 2)
    await document(cluster, "updateSubGroup", *EVERYWHERE, "-g", "billing", "-r", 5)
    await document(cluster, "updateTopic", *EVERYWHERE, "-t", "%RETRY%billing", "-r", 1, "-w", 1)
    folder = ("-f", tmp_path / "deep" / "folder")
    done = await call(cluster, "exportMetadata", *EVERYWHERE, *folder)
    assert "different settings of topic small;" in done.err
    exported = written(tmp_path / "deep" / "folder" / "metadata.json")  # type: ignore[arg-type]
    topics, groups = exported["topicConfigTable"], exported["subscriptionGroupTable"]
    assert (set(topics), set(groups)) == ({"orders", "small"}, {"billing"})
    assert (topics["small"]["readQueueNums"], topics["small"]["writeQueueNums"]) == (3, 2)
    assert (topics["small"]["perm"], groups["billing"]["retryMaxTimes"]) == (4, 5)
    only = await document(cluster, "exportMetadata", "-b", address, *folder, "-t", "-s")
    assert only["file"].endswith("topic.json")
    assert set(written(only["file"])["topicConfigTable"]) == {"orders", "small", "%RETRY%billing"}
    only = await document(cluster, "exportMetadata", "-b", address, *folder, "-g")
    assert set(written(only["file"])) == {"exportTime", "subscriptionGroupTable"}

    for name, table in (("topics", topics), ("groups", groups)):
        (tmp_path / name).write_text(json.dumps(list(table.values())))
    async with local_cluster() as other:
        await document(other, "updateTopicList", *EVERYWHERE, "-f", tmp_path / "topics")
        await document(other, "updateSubGroupList", *EVERYWHERE, "-f", tmp_path / "groups")
        again = await document(other, "exportMetadata", *EVERYWHERE, "-f", tmp_path / "again")
        copied = written(again["file"])
    assert copied["topicConfigTable"] == topics
    assert copied["subscriptionGroupTable"] == groups

    assert failed(await call(cluster, "exportMetadata", *folder), 2, "one of")
    assert failed(
        await call(cluster, "exportMetadata", *EVERYWHERE, "-f", tmp_path / "topics"),
        2,
        "cannot be written",
    )


async def test_settings_and_figures_are_written(cluster: InProcessCluster, tmp_path: Path) -> None:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        for _ in range(4):
            await producer.send("orders", b"x" * 100)
    async with PushConsumer(
        cluster.namesrv_address, group="billing", subscriptions="orders", consume_from="first"
    ) as consumer:
        for _ in range(4):
            await (await anext(consumer)).ack()
        shown = await document(cluster, "exportMetrics", *EVERYWHERE, "-f", tmp_path)
    figures = written(shown["file"])
    assert set(figures) == {"evaluateReport", "totalData"}
    for broker in ("broker-a", "broker-b"):
        report = figures["evaluateReport"][broker]
        assert report["runtimeQuota"]["topicSize"] == 1
        assert report["runtimeQuota"]["groupSize"] == 1
        assert len(report["runtimeVersion"]["clientInfo"]) == 1
        assert float(report["runtimeQuota"]["diskRatio"]["commitLogDiskRatio"]) > 0
    sizes = [
        float(figures["evaluateReport"][broker]["runtimeQuota"]["messageAverageSize"])
        for broker in ("broker-a", "broker-b")
    ]
    assert max(sizes) > 100
    shown = await document(cluster, "exportConfigs", *EVERYWHERE, "-f", tmp_path)
    configs = written(shown["file"])
    assert configs["clusterScale"] == {
        "namesrvSize": 1,
        "masterBrokerSize": 2,
        "slaveBrokerSize": 0,
    }
    assert {name: one["brokerName"] for name, one in configs["brokerConfigs"].items()} == {
        name: name for name in ("broker-a", "broker-b")
    }
    assert configs["brokerConfigs"]["broker-a"]["flushDiskType"] == "ASYNC_FLUSH"
    assert failed(await call(cluster, "exportConfigs", "-c", "nobody"), 4, "DefaultCluster")


async def test_pop_records_are_asked_for_unless_it_is_a_trial(cluster: InProcessCluster) -> None:
    trial = await call(cluster, "exportPopRecord", *EVERYWHERE, "-d", "true")
    assert trial.out.count("dryRun=true") == 2
    addresses = sorted(broker.address for broker in cluster.brokers)
    done = await document(cluster, "exportPopRecord", *EVERYWHERE)
    assert done == {"brokers": addresses, "dryRun": False, "failures": {}}
    (cluster.broker("broker-a").store_dir / "kvStore").mkdir()
    (cluster.broker("broker-a").store_dir / "kvStore" / "CURRENT").touch()
    half = await call(cluster, "exportPopRecord", *EVERYWHERE)
    assert (half.code, half.out.count("broker-b")) == (3, 1)
    assert "in RocksDB, which this broker does not read" in half.err


async def test_a_master_shows_its_slave_and_a_slave_its_master(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        master, slave = await group.start(0), await group.start(1)
        words = ("-n", group.namesrv, "--json")
        with trio.fail_after(30):
            while True:
                known = await mqadmin("haStatus", "-b", master.peer.address, *words)
                (status,) = known.document["brokers"].values()
                if status["slaves"] and status["slaves"][0]["inSync"]:
                    break
                await trio.sleep(0.05)
        assert (status["slaveNum"], status["inSyncSlaveNum"]) == (1, 1)
        assert status["slaves"][0]["diff"] == 0
        whole = (await mqadmin("haStatus", "-c", "TestCluster", *words)).document
        assert list(whole["brokers"]) == [master.peer.address]
        done = await mqadmin("haStatus", "-b", slave.peer.address, "-n", group.namesrv)
        assert "#MasterAddr\t127.0.0.1:" in done.out
        assert "#LastReadTime\t" in done.out
        both = await mqadmin("haStatus", "-b", master.peer.address, "-n", group.namesrv)
        assert "  OK  " in both.out.splitlines()[-1]
        await master.crash()
        gone = await mqadmin("haStatus", "-c", "TestCluster", "-n", group.namesrv)
        assert failed(gone, 1, "no master of cluster 'TestCluster'")


async def test_monitoring_goes_on(cluster: InProcessCluster) -> None:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        await producer.send("orders", b"x")
    await document(cluster, "updateSubGroup", *EVERYWHERE, "-g", "slow")
    await document(cluster, "resetOffsetByTime", "-g", "slow", "-t", "orders", "-s", 0)
    out, err = io.StringIO(), io.StringIO()
    words = ["startMonitoring", "-n", cluster.namesrv_address, "-i", "1", "--json"]
    async with PushConsumer(
        cluster.namesrv_address, group="billing", subscriptions="orders"
    ) as consumer:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, words, out, err)
                while out.getvalue().count("\n") < 2:
                    await trio.sleep(0.02)
                nursery.cancel_scope.cancel()
        assert consumer.client_id
    for line in out.getvalue().splitlines():
        groups = {row["group"]: row for row in json.loads(line)["groups"]}
        assert (groups["slow"]["count"], groups["slow"]["diffTotal"]) == (0, 1)
        assert (groups["billing"]["count"], groups["billing"]["findings"]) == (1, [])


ONLY_JAVA = (
    ("resetMasterFlushOffset", "-o", 0),
    ("getColdDataFlowCtrInfo",),
    ("updateColdDataFlowCtrGroupConfig", "-g", "billing", "-v", 1),
    ("removeColdDataFlowCtrGroupConfig", "-g", "billing"),
    ("setCommitLogReadAheadMode", "-m", 1),
    ("createUser", "-u", "billing", "-p", "secret"),
    ("getUser", "-u", "billing"),
    ("listUser",),
    ("createAcl", "-s", "User:billing", "-r", "Topic:orders", "-a", "Pub", "-d", "Allow"),
    ("listAcl",),
)


@pytest.mark.parametrize("words", ONLY_JAVA, ids=lambda words: str(words[0]))
async def test_what_our_brokers_do_not_offer_is_refused(words: tuple[object, ...]) -> None:
    async with local_cluster() as cluster:
        address = cluster.brokers[0].address
        done = await call(cluster, *words, "-b", address)
        assert failed(done, 1, address, "REQUEST_CODE_NOT_SUPPORTED")
        assert "secret" not in done.err
