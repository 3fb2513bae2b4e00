"""Documents of mqadmin: the JSON fields that a command declares are those that it prints, and its
CSV has them as columns.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import trio
from mqadmin_calls import mqadmin

from triomq import ClientSettings, Producer, ProducerSettings, PushConsumer
from triomq.client.mqadmin.commands import load
from triomq.client.mqadmin.core.command_list import LIST, VERBS
from triomq.client.mqadmin.core.csv_output import csv_text
from triomq.client.mqadmin.core.shapes import differences, fitting, shapes_of
from triomq.testing import InProcessCluster, local_cluster

BROKER, FILE, CLIENT, ID, DIR = "BROKER", "FILE", "CLIENT", "ID", "DIR"
CLUSTER, TOPIC = "-c DefaultCluster", "-t orders"
CALLS: dict[str, list[str]] = {
    "clusterList": [""],
    "top": ["", "--once --filter order"],
    "brokerStatus": [f"-b {BROKER}"],
    "brokerDisk": [f"-b {BROKER}"],
    "doctor": ["--cluster"],
    "topicList": ["", "-c"],
    "topicRoute": [TOPIC],
    "topicStatus": [TOPIC],
    "updateTopic": [f"{TOPIC} {CLUSTER} -a +message.type=NORMAL"],
    "consumerProgress": ["", "-g billing", "--alert 0 --alert-seconds 0"],
    "consumerConnection": ["-g billing"],
    "updateSubGroup": [f"-g billing {CLUSTER} -r 3"],
    "producerConnection": [f"-g shop {TOPIC}"],
    "sendMessage": [f"{TOPIC} -p text -k key"],
    "consumeMessage": [TOPIC],
    "benchProducer": ["--count 10 --rate 1000"],
    "benchConsumer": ["--count 10", f"{TOPIC} --count 1"],
    "queryMsgByKey": [f"{TOPIC} -k key"],
    "queryMsgById": [f"{TOPIC} -i {ID}"],
    "queryMsgByUniqueKey": [f"{TOPIC} -i {ID}"],
    "queryMsgTraceById": [f"-i {ID}"],
    "messageExplain": [f"{ID} {TOPIC}"],
    "groupWhy": ["billing --seconds 1"],
    "getConsumerConfig": ["-g billing"],
    "setConsumeMode": [f"{TOPIC} -g other -m POP {CLUSTER}"],
    "brokerConsumeStats": [f"-b {BROKER}"],
    "consumerStatus": ["-g billing", f"-g billing -i {CLIENT} -s"],
    "statsAll": [""],
    "producer": [f"-b {BROKER}"],
    "topicClusterList": [TOPIC],
    "resetOffsetByTime": [f"-g other {TOPIC} -s -1h"],
    "skipAccumulatedMessage": [f"-g other {TOPIC}"],
    "cloneGroupOffset": [f"-s billing -d copy {TOPIC}"],
    "clusterExport": ["", f"-o {DIR}/cluster.yaml --offsets"],
    "clusterDiff": [f"{DIR}/cluster.yaml --offsets", f"{DIR}/wanted.json"],
    "clusterApply": [f"{DIR}/wanted.json", f"{DIR}/wanted.json"],
    "clusterImport": [f"{DIR}/cluster.yaml"],
    "brokerDrain": ["broker-a --timeout 2"],
    "brokerUndrain": ["broker-a"],
    "wipeWritePerm": ["-b broker-a"],
    "addWritePerm": ["-b broker-a"],
    "updateTopicPerm": [f"{TOPIC} {CLUSTER} -p 4", f"{TOPIC} {CLUSTER} -p 6"],
    "getBrokerConfig": [CLUSTER],
    "updateBrokerConfig": [f"{CLUSTER} -k brokerPermission -v 6"],
    "getNamesrvConfig": [""],
    "updateNamesrvConfig": ["-k orderMessageEnable -v true"],
    "updateKvConfig": ["-s space -k key -v value"],
    "deleteKvConfig": ["-s space -k key --yes"],
    "updateOrderConf": [f"{TOPIC} -m put -v broker-a:4", f"{TOPIC} -m get", f"{TOPIC} -m delete"],
    "updateTopicList": [f"{CLUSTER} -f {FILE}"],
    "updateSubGroupList": [f"{CLUSTER} -f {FILE}"],
    "queryCq": [f"{TOPIC} -q 0 -i 0"],
    "deleteExpiredCommitLog": [f"-b {BROKER}"],
    "cleanExpiredCQ": [f"-b {BROKER}"],
    "cleanUnusedTopic": [f"-b {BROKER}"],
    "printMsg": [TOPIC, f"{TOPIC} -d false"],
    "printMsgByQueue": [
        f"{TOPIC} -a broker-a -i 0 {more}" for more in ("-p true", "-p true -d true", "-f true")
    ],
    "queryMsgByOffset": [f"{TOPIC} -b broker-a -i 0 -o 0"],
    "checkMsgSendRT": [f"{TOPIC} -a 2"],
    "sendMsgStatus": ["-b broker-a -c 2"],
    "haStatus": [CLUSTER],
    "allocateMQ": [f"{TOPIC} -i one,two"],
    "exportMetadata": [f"{CLUSTER} -f {DIR}"],
    "exportConfigs": [f"{CLUSTER} -f {DIR}"],
    "exportMetrics": [f"{CLUSTER} -f {DIR}"],
    "topicTail": ["orders --from 0 --limit 1"],
    "messageReplay": [f"{TOPIC} --from 0 --limit 1 --yes"],
    "dlqList": ["", "billing"],
    "dlqShow": ["billing"],
    "dlqResend": ["billing --yes", "billing --yes --topic missing"],
    "dlqPurge": ["billing --yes"],
    "deleteSubGroup": [f"-g billing {CLUSTER} --yes"],
    "deleteTopic": [f"{TOPIC} {CLUSTER} --yes"],
    "securityInit": [f"--dir {DIR}/security"],
    "tlsInit": [f"--dir {DIR}"],
    "tlsCheck": [f"--tls {DIR}/tls.properties"],
    "contextSet": ["test -n 127.0.0.1:1"],
    "contextUse": ["test"],
    "contextList": [""],
    "contextShow": ["test"],
    "contextDelete": ["test --yes"],
    "completion": ["bash"],
}
"""command → calls, in an order in which each finds what it needs"""


ELSEWHERE = {
    "clusterRT": "endless",
    "brokerForget": "needs a missing broker: test_missing_brokers.py",
    "startMonitoring": "endless",
    "dumpCompactionLog": "needs a file of a compaction log",
    "exportPopRecord": "our brokers have no such records",
    **dict.fromkeys(VERBS["user"].values(), "our brokers have files of users"),
    **dict.fromkeys(VERBS["acl"].values(), "our brokers have files of rules"),
    **dict.fromkeys(
        (name for name in LIST if "Cold" in name), "our brokers do not slow down reads"
    ),
    "resetMasterFlushOffset": "for slaves only",
    "getBrokerEpoch": "our brokers have no epochs yet: test_controller_commands.py",
    **dict.fromkeys(
        (
            *("getSyncStateSet", "electMaster", "cleanBrokerMetadata", "getControllerMetaData"),
            *("getControllerConfig", "updateControllerConfig", "addController", "removeController"),
        ),
        "they need a controller: test_controller_commands.py",
    ),
    "setCommitLogReadAheadMode": "our brokers do not map their log",
}
"""Commands that this cluster cannot show: why."""


async def shown(cluster: InProcessCluster, name: str, words: list[str]) -> list[str]:
    """Return what a call prints that the command does not declare."""
    command = load(name)
    words += (
        [] if command.local is not None and name != "doctor" else ["-n", cluster.namesrv_address]
    )
    done = await mqadmin(name, *words, "--json")
    if done.code not in (0, 1) or done.out == "":
        return [f"{name} {' '.join(words)}: exit code {done.code}: {done.err}"]
    document = json.loads(done.out)
    wrong = list(differences(fitting(command.document, document), document))
    columns, *rows = csv.reader(io.StringIO(csv_text(command.document, document)))
    if any(len(row) != len(columns) for row in rows) or len(set(columns)) != len(columns):
        wrong.append(f"CSV: {columns}, {rows}")
    return [f"{name} {' '.join(words)}: {text}" for text in wrong]


async def until_dead(cluster: InProcessCluster) -> None:
    """Wait for the dead letter: members send back in the background."""
    words = ("dlqShow", "billing", "-n", cluster.namesrv_address, "--json")
    with trio.fail_after(20):
        while (await mqadmin(*words)).document["messages"] == []:
            await trio.sleep(0.02)


async def test_a_command_prints_the_fields_that_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "list").write_text("[]")
    (tmp_path / "wanted.json").write_text(
        '{"format": 1, "cluster": "DefaultCluster", "topics": {"orders": {"perm": 6}, "new": {}}}'
    )
    wrong = []
    async with local_cluster(settings={"traceTopicEnable": True}) as cluster:
        namesrv = cluster.namesrv_address
        await cluster.create_topic("orders", queues=1)
        async with Producer(
            namesrv, group="tracing", settings=ProducerSettings(client=ClientSettings(trace=True))
        ) as tracing:
            receipt = await tracing.send("orders", b"x", keys=["key"])
        async with (
            PushConsumer(
                namesrv, group="billing", subscriptions="orders", consume_from="first"
            ) as consumer,
            Producer(namesrv, group="shop") as producer,
        ):
            await producer.send("orders", b"y")
            await (await anext(consumer)).ack()
            await (await anext(consumer)).dead_letter()
            await until_dead(cluster)
            values = {
                BROKER: cluster.brokers[0].address,
                FILE: str(tmp_path / "list"),
                CLIENT: consumer.client_id,
                ID: receipt.message_id,
                DIR: str(tmp_path),
            }
            for name, calls in CALLS.items():
                for call in calls:
                    for word, value in values.items():
                        call = call.replace(word, value)
                    wrong += await shown(cluster, name, call.split())
    assert wrong == []


def test_every_command_is_tried() -> None:
    assert set(CALLS) | set(ELSEWHERE) == set(LIST)


def test_every_command_declares_its_fields() -> None:
    for name in LIST:
        shapes = shapes_of(load(name).document)
        assert shapes, name
        assert "…" not in load(name).document, name


def test_the_check_of_fields_finds_a_field_that_is_missing_and_one_that_is_not_declared() -> None:
    (shape,) = shapes_of('{"topic", "queues": [{"queueId", with -d "offset"}], "by": {key: value}}')
    document = {"topic": "t", "queues": [{"queueID": 0}], "by": {"a": [1]}}
    assert list(differences(shape, document)) == [
        "/queues[]/queueId is missing",
        "/queues[]/queueID is not documented",
        "/by/a has parts that are not documented",
    ]


@pytest.mark.parametrize("notation", ['{"a"', '{"a": [b}', '{"a": {b: c}'])
def test_a_notation_that_is_not_closed_is_refused(notation: str) -> None:
    with pytest.raises(ValueError, match="not closed"):
        shapes_of(notation)
