"""mqadmin and servers that accept connections and never answer: each command ends within its
``--timeout``, names the silent servers, and shows the answers of the others.
"""

from __future__ import annotations

import io
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
import trio
from mqadmin_calls import Done, call, mqadmin, run
from silent_servers import silent_broker, silent_server

from triomq import MessageQueue, Producer, PushConsumer
from triomq.client.admin.arguments import Option, parse, whole
from triomq.client.admin.errors import CommandTimeout
from triomq.client.mqadmin import execution
from triomq.client.mqadmin.command_line import Call
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.command_list import LIST, VERBS
from triomq.client.mqadmin.core.result import Result
from triomq.remoting.core.address import parse_address
from triomq.testing import local_cluster

CLUSTER = ("-c", "DefaultCluster")
TOPIC = ("-t", "orders")
ACCOUNTS = Path(__file__).parents[2] / "golden" / "access" / "plain_acl.yml"
BROKER, FILE, FOLDER = "BROKER", "FILE", "FOLDER"
DOCUMENT, EXPORT = "DOCUMENT", "EXPORT"
CLUSTER_FILE = """
{"format": 1, "cluster": "DefaultCluster", "topics": {"orders": {}},
 "offsets": {"billing": {"orders": {}}}}
"""
USER, SUBJECT = ("-u", "billing"), ("-s", "User:billing")
RULE = ("-r", "Topic:orders", "-a", "Pub", "-d", "Allow")
WORDS: dict[str, tuple[str, ...]] = {
    "clusterList": (),
    "top": (),
    "brokerStatus": ("-b", BROKER),
    "brokerDisk": ("-b", BROKER),
    "doctor": ("--cluster",),
    "topicList": ("-c",),
    "topicRoute": TOPIC,
    "topicStatus": TOPIC,
    "updateTopic": (*TOPIC, *CLUSTER),
    "deleteTopic": ("-t", "old", "--yes", *CLUSTER),
    "consumerProgress": (),
    "consumerConnection": ("-g", "billing"),
    "updateSubGroup": ("-g", "billing", *CLUSTER),
    "producerConnection": ("-g", "shop", *TOPIC),
    "sendMessage": (*TOPIC, "-p", "x"),
    "consumeMessage": TOPIC,
    "benchProducer": ("--duration", "1"),
    "benchConsumer": ("--duration", "1", "--rate", "100"),
    "queryMsgByKey": (*TOPIC, "-k", "key"),
    "queryMsgById": (*TOPIC, "-i", "7F0000010AC018B4AAC2514F3A9B0000"),
    "queryMsgByUniqueKey": (*TOPIC, "-i", "7F0000010AC018B4AAC2514F3A9B0000"),
    "messageExplain": ("7F0000010AC018B4AAC2514F3A9B0000", *TOPIC),
    "groupWhy": ("billing", "--seconds", "1"),
    "dlqList": (),
    "dlqShow": ("failing",),
    "dlqResend": ("failing", "--yes"),
    "dlqPurge": ("old", "--yes"),
    "messageReplay": (*TOPIC, "--from", "0", "--yes"),
    "topicTail": ("orders", "--from", "0", "--limit", "1"),
    "queryMsgTraceById": ("-t", "orders", "-i", "7F0000010AC018B4AAC2514F3A9B0000"),
    "deleteSubGroup": ("-g", "billing", "--yes", *CLUSTER),
    "getConsumerConfig": ("-g", "billing"),
    "setConsumeMode": ("-g", "billing", *TOPIC, "-m", "POP", *CLUSTER),
    "brokerConsumeStats": ("-b", BROKER),
    "consumerStatus": ("-g", "billing"),
    "statsAll": (),
    "producer": ("-b", BROKER),
    "topicClusterList": TOPIC,
    "resetOffsetByTime": ("-g", "billing", *TOPIC, "-s", "now"),
    "skipAccumulatedMessage": ("-g", "billing", *TOPIC),
    "cloneGroupOffset": ("-s", "billing", "-d", "copy", *TOPIC),
    "clusterExport": ("--partial", "-o", EXPORT),
    "clusterDiff": (DOCUMENT,),
    "clusterApply": (DOCUMENT,),
    "clusterImport": (DOCUMENT,),
    "brokerDrain": ("ghost",),
    "brokerUndrain": ("ghost",),
    "wipeWritePerm": ("-b", "ghost"),
    "addWritePerm": ("-b", "ghost"),
    "updateTopicPerm": (*TOPIC, *CLUSTER, "-p", "6"),
    "getBrokerConfig": CLUSTER,
    "updateBrokerConfig": (*CLUSTER, "-k", "brokerPermission", "-v", "6"),
    "getNamesrvConfig": (),
    "updateNamesrvConfig": ("-k", "orderMessageEnable", "-v", "true"),
    "updateKvConfig": ("-s", "space", "-k", "key", "-v", "value"),
    "deleteKvConfig": ("-s", "space", "-k", "key", "--yes"),
    "updateOrderConf": ("-m", "put", *TOPIC, "-v", "ghost:4"),
    "updateTopicList": (*CLUSTER, "-f", FILE),
    "updateSubGroupList": (*CLUSTER, "-f", FILE),
    "queryCq": (*TOPIC, "-q", "0", "-i", "0"),
    "deleteExpiredCommitLog": CLUSTER,
    "cleanExpiredCQ": CLUSTER,
    "cleanUnusedTopic": CLUSTER,
    "printMsg": TOPIC,
    "printMsgByQueue": (*TOPIC, "-a", "ghost", "-i", "0"),
    "queryMsgByOffset": (*TOPIC, "-b", "ghost", "-i", "0", "-o", "0"),
    "checkMsgSendRT": (*TOPIC, "-a", "1000"),
    "sendMsgStatus": ("-b", "ghost", "-c", "1000"),
    "haStatus": CLUSTER,
    "getSyncStateSet": ("-a", BROKER, "-b", "ghost"),
    "getBrokerEpoch": CLUSTER,
    "electMaster": ("-a", BROKER, "-b", "1", "-bn", "ghost", *CLUSTER),
    "cleanBrokerMetadata": ("-a", BROKER, "-bn", "ghost", "--yes"),
    "addController": ("-a", BROKER, "n3-ghost:9878"),
    "removeController": ("-a", BROKER, "n3"),
    "getControllerMetaData": ("-a", BROKER),
    "getControllerConfig": ("-a", BROKER),
    "updateControllerConfig": ("-a", BROKER, "-k", "enableElectUncleanMaster", "-v", "true"),
    "resetMasterFlushOffset": ("-b", BROKER, "-o", "0"),
    "allocateMQ": (*TOPIC, "-i", "one,two"),
    "exportMetadata": (*CLUSTER, "-f", FOLDER),
    "exportConfigs": (*CLUSTER, "-f", FOLDER),
    "exportMetrics": (*CLUSTER, "-f", FOLDER),
    "exportPopRecord": CLUSTER,
    "getColdDataFlowCtrInfo": CLUSTER,
    "updateColdDataFlowCtrGroupConfig": (*CLUSTER, "-g", "billing", "-v", "1"),
    "removeColdDataFlowCtrGroupConfig": (*CLUSTER, "-g", "billing"),
    "setCommitLogReadAheadMode": (*CLUSTER, "-m", "1"),
    "createUser": (*CLUSTER, *USER, "-p", "secret"),
    "updateUser": (*CLUSTER, *USER, "-s", "disable"),
    "deleteUser": (*CLUSTER, *USER, "--yes"),
    "getUser": (*CLUSTER, *USER),
    "listUser": CLUSTER,
    "copyUser": ("-f", BROKER, "-t", BROKER),
    "createAcl": (*CLUSTER, *SUBJECT, *RULE),
    "updateAcl": (*CLUSTER, *SUBJECT, *RULE),
    "deleteAcl": (*CLUSTER, *SUBJECT, "--yes"),
    "getAcl": (*CLUSTER, *SUBJECT),
    "convertAcl": (str(ACCOUNTS), *CLUSTER),
    "can": ("shop", "Pub", "Topic:T", *CLUSTER),
    "whoami": CLUSTER,
    "listAcl": CLUSTER,
    "copyAcl": ("-f", BROKER, "-t", BROKER),
}
TOPICS = ["orders", "old", "%RETRY%billing", "%DLQ%failing", "%DLQ%old"]
"""those of the silent broker; commands that delete have topics of their own"""
OF_NAME_SERVERS = {
    "topicRoute",
    "topicClusterList",
    "allocateMQ",
    "getNamesrvConfig",
    "updateNamesrvConfig",
    "updateKvConfig",
    "deleteKvConfig",
    "updateOrderConf",
    "wipeWritePerm",
    "addWritePerm",
}
"""Commands that ask no broker."""
WITHOUT_CLUSTER = {
    "securityInit",
    "tlsInit",
    "tlsCheck",
    "completion",
    "dumpCompactionLog",
    "brokerForget",  # needs a missing broker: test_missing_brokers.py
    *VERBS["context"].values(),
}
ENDLESS = {"startMonitoring", "clusterRT"}


def test_every_command_is_tried() -> None:
    assert set(LIST) == set(WORDS) | WITHOUT_CLUSTER | ENDLESS


async def all_commands(
    namesrv: str, broker: str, folder: Path, *, name_server_seconds: int = 2
) -> dict[str, Done]:
    """Run every command, a few at a time; a test that waits for a command fails with its name.
    *name_server_seconds*: the time-out of commands that ask no broker.

    Commands that change the name server run last, one after the other: ``wipeWritePerm`` would take
    the topic's permission from ``sendMessage``.
    """
    (folder / "list").write_text("[]")
    (folder / "cluster.json").write_text(CLUSTER_FILE)
    done: dict[str, Done] = {}
    few = trio.CapacityLimiter(
        10
    )  # all at once, the answers of the name server take more than 2 s on a busy machine

    async def one(name: str, words: tuple[str, ...]) -> None:
        places = {
            BROKER: broker,
            FILE: str(folder / "list"),
            FOLDER: str(folder),
            DOCUMENT: str(folder / "cluster.json"),
            EXPORT: str(folder / "export.json"),
        }
        given = (places.get(word, word) for word in words)
        async with few:
            seconds = name_server_seconds if name in OF_NAME_SERVERS else 2
            done[name] = await mqadmin(name, *given, "-n", namesrv, "--timeout", seconds)

    with trio.move_on_after(60):  # 2 s for each ten, and more on a busy machine
        async with trio.open_nursery() as nursery:
            for name in WORDS.keys() - OF_NAME_SERVERS:
                nursery.start_soon(one, name, WORDS[name])
        for name in sorted(OF_NAME_SERVERS):
            await one(name, WORDS[name])
    assert set(WORDS) - set(done) == set()
    return done


async def test_every_command_ends_at_a_silent_name_server(tmp_path: Path) -> None:
    with silent_server() as port:
        address = f"127.0.0.1:{port}"
        done = await all_commands(address, address, tmp_path)
    assert {
        name: result for name, result in done.items() if address not in result.out + result.err
    } == {}
    assert {name: result.code for name, result in done.items() if result.code not in (1, 6)} == {}


async def test_every_command_ends_at_a_silent_broker(tmp_path: Path) -> None:
    async with (
        local_cluster(brokers=0) as cluster,
        silent_broker(cluster.namesrv_address, TOPICS) as silent,
    ):
        namesrv = cluster.namesrv_address
        done = await all_commands(namesrv, silent, tmp_path, name_server_seconds=20)
    assert {
        name: result
        for name, result in done.items()
        if name in OF_NAME_SERVERS and result.code != 0
    } == {}
    asking = {name: result for name, result in done.items() if name not in OF_NAME_SERVERS}
    partly = {name: result.code for name, result in asking.items() if result.code not in (1, 6)}
    assert partly
    assert partly.items() <= {"deleteTopic": 3, "dlqPurge": 3}.items(), (
        "the name server has done its part, unless the time of the whole command (6) was over"
    )
    unnamed = {
        name: result for name, result in asking.items() if silent not in result.out + result.err
    }
    assert {
        name: result
        for name, result in unnamed.items()
        if result.code != 6 or namesrv not in result.err  # a busy machine: it answered too late
    } == {}


@pytest.mark.parametrize("name", sorted(ENDLESS))
async def test_an_endless_command_shows_a_silent_broker_and_goes_on(name: str) -> None:
    """Each round names it; a silent name server ends the command in the first."""
    async with (
        local_cluster() as cluster,
        silent_broker(cluster.namesrv_address, ["orders"]) as silent,
    ):
        words = [name, "-n", cluster.namesrv_address, "--timeout", "1", "-i", "1"]
        out, err = io.StringIO(), io.StringIO()
        with trio.move_on_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, words, out, err)
                while err.getvalue().count(silent) < 2:
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
        assert err.getvalue().count("answered") >= 2, (out.getvalue(), err.getvalue())
        assert out.getvalue().count("broker-a" if name == "clusterRT" else "#Group") >= 2
    with silent_server() as port:
        done = await mqadmin(name, "-n", f"127.0.0.1:{port}", "--timeout", 1)
    assert done.code == 6


async def test_a_handshake_with_a_silent_server_ends(tmp_path: Path) -> None:
    config = (await mqadmin("tls", "init", "--dir", tmp_path, "--json")).document["config"]
    with silent_server() as port:
        done = await mqadmin(
            "tls",
            "check",
            "--tls",
            config,
            "--connect",
            f"127.0.0.1:{port}",
            "--timeout",
            1,
            "--json",
        )
    assert done.code == 1
    assert (
        json.loads(done.out)["findings"][-1]["text"]
        == f"127.0.0.1:{port} did not answer within 1 s"
    )


def offset_id(address: str) -> str:
    """Return the id of a message at the beginning of a broker's log."""
    host, port = parse_address(address)
    return (socket.inet_aton(host) + struct.pack(">iq", port, 0)).hex().upper()


async def test_doctor_ends_with_many_silent_servers_and_groups(tmp_path: Path) -> None:
    """If they were asked one after the other, each would take its time-out."""
    (tmp_path / "groups").write_text(
        json.dumps([{"groupName": f"G{number}"} for number in range(100)])
    )
    with silent_server("0.0.0.0") as port:
        silent = [f"127.0.1.{number}:{port}" for number in range(1, 61)]
        async with (
            local_cluster() as cluster,
            silent_broker(cluster.namesrv_address, ["orders"]) as ghost,
        ):
            done = await call(
                cluster,
                "updateSubGroupList",
                "-b",
                cluster.brokers[0].address,
                "-f",
                tmp_path / "groups",
            )
            assert done.code == 0
            with trio.fail_after(40):
                done = await mqadmin(
                    "doctor",
                    "--cluster",
                    "--json",
                    "--timeout",
                    4,
                    "-n",
                    ";".join([*silent, cluster.namesrv_address]),
                )
    assert done.code == 1
    findings = json.loads(done.out)["findings"]
    assert {
        one["check"]
        for one in findings
        if one["area"] == "name server" and one["level"] == "problem"
    } == {*silent}
    assert next(one["found"] for one in findings if one["check"] == "ghost:0 address").startswith(
        ghost
    )
    (lag,) = (one for one in findings if one["area"] == "group")
    assert (lag["level"], lag["found"]) == (
        "unknown",
        (
            "100 of 100 groups could not be checked at every broker; no queue of the other groups"
            " is more than 100000 messages behind"
        ),
    )


async def test_listings_beside_a_silent_broker_show_the_other_brokers() -> None:
    async with local_cluster() as cluster:
        namesrv, live = cluster.namesrv_address, cluster.brokers[0].address
        await cluster.create_topic("orders", queues=2)
        async with Producer(namesrv, group="shop") as producer:
            for _ in range(3):
                receipt = await producer.send(
                    "orders", b"x", queue=MessageQueue("orders", "broker-a", 0)
                )
        created = await mqadmin("updateSubGroup", "-b", live, "-g", "billing", "-n", namesrv)
        assert created.code == 0
        assert (
            await mqadmin(
                "resetOffsetByTime",
                "-g",
                "billing",
                "-t",
                "orders",
                "-s",
                0,
                "-b",
                live,
                "-n",
                namesrv,
            )
        ).code == 0

        async with silent_broker(namesrv, ["orders", "ghostly"]) as ghost:

            async def listed(*words: object) -> Any:
                done = await mqadmin(*words, "-n", namesrv, "--json", "--timeout", 3)
                assert done.code == 3
                assert list(done.document["failures"]) == ["ghost"]
                assert ghost in done.document["failures"]["ghost"]
                return done.document

            groups = {
                row["topic"]: row["consumerGroup"]
                for row in (await listed("topicList", "-c"))["topics"]
            }
            assert (groups["orders"], groups["TBW102"], groups["ghostly"]) == ("billing", "", None)
            rows = {row["topic"]: row for row in (await listed("statsAll"))["topics"]}
            assert (
                rows["orders"]["group"],
                rows["orders"]["accumulation"],
                rows["orders"]["incomplete"],
            ) == ("billing", 3, True)
            assert "ghostly" not in rows
            messages = (await listed("consumeMessage", "-t", "orders"))["messages"]
            assert [message["queueOffset"] for message in messages] == [0, 1, 2]
            messages = (
                await listed(
                    "queryMsgById",
                    "-t",
                    "orders",
                    "-i",
                    f"{offset_id(ghost)},{receipt.offset_message_id}",
                )
            )["messages"]
            assert [message["offsetMsgId"] for message in messages] == [receipt.offset_message_id]


ONE_SERVER = {
    "sendMessage",
    "topicTail",
    *(name for name, words in WORDS.items() if BROKER in words or "ghost" in words),
}
"""Commands that need only one broker's answer."""
JAVA_ONLY = {
    *VERBS["user"].values(),
    *VERBS["acl"].values(),
    *(name for name in LIST if "Cold" in name),
    "exportPopRecord",
    "getBrokerEpoch",
    "setCommitLogReadAheadMode",
}
"""Commands whose requests our brokers refuse, so that no broker does what they ask."""


async def test_every_command_has_a_row_for_a_silent_broker_beside_another(tmp_path: Path) -> None:
    """On stdout, beside the rows of the broker that answers; and exit code 3."""
    wanted = WORDS.keys() - OF_NAME_SERVERS - ONE_SERVER - JAVA_ONLY - {"doctor"}
    (tmp_path / "list").write_text("[]")
    (tmp_path / "cluster.json").write_text(CLUSTER_FILE)
    done: dict[str, Done] = {}
    async with local_cluster() as cluster:
        namesrv = cluster.namesrv_address
        for topic in ("orders", "old", "%DLQ%failing", "%DLQ%old"):
            await cluster.create_topic(topic, queues=1)
        async with (
            PushConsumer(namesrv, group="billing", subscriptions="orders"),
            Producer(namesrv, group="shop") as producer,
        ):
            receipt = await producer.send("orders", b"x", keys=["key"])
            known = {
                FILE: str(tmp_path / "list"),
                FOLDER: str(tmp_path),
                DOCUMENT: str(tmp_path / "cluster.json"),
                EXPORT: str(tmp_path / "export.json"),
                WORDS["queryMsgById"][-1]: receipt.message_id,
            }

            async def one(name: str) -> None:
                given = (known.get(word, word) for word in WORDS[name])
                done[name] = await mqadmin(name, *given, "-n", namesrv, "--timeout", 10)

            async with silent_broker(namesrv, TOPICS) as silent:
                last = ["deleteTopic", "dlqPurge", "deleteSubGroup"]
                async with trio.open_nursery() as nursery:
                    for name in wanted - set(last):
                        nursery.start_soon(one, name)
                for name in last:
                    await one(name)
    rows = ("ghost", silent)
    wrong = {n: d for n, d in done.items() if d.code != 3 or not any(r in d.out for r in rows)}
    assert wrong == {}, list(wrong)


async def test_missing_members_of_a_silent_broker_are_reported() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        async with (
            PushConsumer(
                cluster.namesrv_address, group="billing", subscriptions="orders"
            ) as consumer,
            silent_broker(cluster.namesrv_address, ["orders"]) as ghost,
        ):
            done = await call(cluster, "consumerStatus", "-g", "billing", "--json", "--timeout", 5)
            assert done.code == 3
            assert list(done.document["clients"]) == [consumer.client_id]
            assert list(done.document["failures"]) == [ghost]


@pytest.mark.parametrize("interval", [[], ["--interval", "1"]])
async def test_a_command_that_does_not_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, interval: list[str]
) -> None:
    monkeypatch.setattr(execution, "GRACE_SECONDS", 0)

    async def hang(*_: object) -> Result:
        await trio.sleep_forever()
        raise AssertionError

    options = [Option("--interval VALUE", "", whole(1))]
    for command in (
        AdminCommand(name="clusterList", run=hang, options=options),
        AdminCommand(name="doctor", local=hang, options=options),
    ):
        values = parse(command.accepted, ["--timeout", "1", "-n", "127.0.0.1:1", *interval])
        with trio.fail_after(20), pytest.raises(CommandTimeout, match="did not end within 1 s"):
            await execution.perform(Call(command, values), io.StringIO(), io.StringIO())
