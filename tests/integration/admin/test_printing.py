"""printMsg, printMsgByQueue, queryMsgByOffset, dumpCompactionLog, allocateMQ, and the commands that
send and measure, on a cluster of ours.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from mqadmin_calls import call, document, failed, mqadmin, run

from triomq import MessageQueue, Producer
from triomq.client.admin.admin import Admin
from triomq.client.mqadmin.commands import compaction_log, reading
from triomq.testing import InProcessCluster, local_cluster

pytestmark = pytest.mark.feature("169a")


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    """Two brokers; ``orders`` has six messages in queue 0 of broker-a, one each in the others."""
    async with local_cluster(brokers=2) as running:
        await running.create_topic("orders", queues=2)
        async with Producer(running.namesrv_address, group="shop") as producer:
            for number in range(6):
                tag, queue = ("even", "odd")[number % 2], MessageQueue("orders", "broker-a", 0)
                await producer.send(
                    "orders", b"body %d" % number, tag=tag, keys=[f"k{number}"], queue=queue
                )
            for name, queue_id in (("broker-a", 1), ("broker-b", 0), ("broker-b", 1)):
                await producer.send(
                    "orders", b"\xff\xe4", queue=MessageQueue("orders", name, queue_id)
                )
        yield running


async def test_a_topic_is_printed_queue_by_queue(cluster: InProcessCluster) -> None:
    everything = await document(cluster, "printMsg", "-t", "orders")
    assert [
        (row["brokerName"], row["queueId"], row["minOffset"], row["maxOffset"], row["read"])
        for row in everything["queues"]
    ] == [
        ("broker-a", 0, 0, 6, 6),
        ("broker-a", 1, 0, 1, 1),
        ("broker-b", 0, 0, 1, 1),
        ("broker-b", 1, 0, 1, 1),
    ]
    bodies = [message["body"] for message in everything["messages"]]
    assert bodies == [*(f"body {number}" for number in range(6)), None, None, None]
    even = await document(cluster, "printMsg", "-t", "orders", "-s", "even || none", "-d", "false")
    assert [message["keys"] for message in even["messages"]] == [["k0"], ["k2"], ["k4"]]
    assert "body" not in even["messages"][0]
    latin = await document(cluster, "printMsg", "-t", "orders", "-c", "latin-1")
    assert [message["body"] for message in latin["messages"]][-1] == "ÿä"
    times = [message["storeTimestamp"] for message in everything["messages"][:6]]
    part = await document(cluster, "printMsg", "-t", "orders", "-b", times[3], "-e", times[5])
    assert [message["keys"][0] for message in part["messages"] if message["keys"]] == [
        f"k{number}" for number in range(6) if times[3] <= times[number] <= times[5]
    ]
    plain = await call(cluster, "printMsg", "-t", "orders")
    assert "minOffset=0, maxOffset=6, broker-a:0" in plain.out
    assert failed(await call(cluster, "printMsg", "-t", "nowhere"), 4, "nowhere")
    assert failed(
        await call(cluster, "printMsg", "-t", "orders", "-b", 2, "-e", 1), 2, "-b/--beginTimestamp"
    )
    assert failed(await call(cluster, "printMsg", "-t", "orders", "-s", "||"), 2, "names no tag")


async def test_a_queue_is_printed_and_counted(cluster: InProcessCluster) -> None:
    place = ("-t", "orders", "-a", "broker-a", "-i", 0)
    counted = await document(cluster, "printMsgByQueue", *place, "-f", "true", "-p", "true")
    assert counted["tags"] == [{"tag": "even", "count": 3}, {"tag": "odd", "count": 3}]
    assert [message["queueOffset"] for message in counted["messages"]] == list(range(6))
    assert "body" not in counted["messages"][0]
    shown = await call(cluster, "printMsgByQueue", *place, "-p", "true", "-d", "true", "-s", "odd")
    assert [row[-1] for row in shown.rows[1:]] == ["body 1", "body 3", "body 5"]
    quiet = await call(cluster, "printMsgByQueue", *place)
    assert (quiet.code, quiet.out) == (0, "")
    assert "6 messages match" in quiet.err
    assert failed(
        await call(cluster, "printMsgByQueue", "-t", "orders", "-a", "broker-a", "-i", 2),
        2,
        "no queue 2",
        "topic route",
    )


async def test_no_call_keeps_more_than_its_limit(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MESSAGES_MAX", 4)
    monkeypatch.setattr(reading, "CHUNK_MESSAGES", 2)
    done = await call(cluster, "printMsg", "-t", "orders")
    assert (done.code, done.out.count("body ")) == (0, 4)
    assert "ends after 4 messages" in done.err
    monkeypatch.setattr(reading, "MESSAGES_MAX", 100)
    monkeypatch.setattr(reading, "BODY_BYTES_MAX", 1)
    assert "ends after 2 messages" in (await call(cluster, "printMsg", "-t", "orders")).err


async def test_a_message_is_found_by_its_offset(cluster: InProcessCluster) -> None:
    place = ("-t", "orders", "-b", "broker-a", "-i", 0, "-o")
    (found,) = (await document(cluster, "queryMsgByOffset", *place, 4))["messages"]
    assert (found["keys"], found["body"], found["queueOffset"]) == (["k4"], "body 4", 4)
    lines = (await call(cluster, "queryMsgByOffset", *place, 4)).out
    assert f"{'Queue Offset:':<20} 4\n" in lines
    assert failed(await call(cluster, "queryMsgByOffset", *place, 6), 4, "offset 6")
    assert failed(
        await call(cluster, "queryMsgByOffset", "-t", "orders", "-b", "x", "-i", 0, "-o", 0),
        4,
        "broker-a",
    )


async def test_a_file_of_a_log_is_printed(
    cluster: InProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit log has the same records as a compaction log."""
    log = first_file(cluster.broker("broker-a").store_dir / "commitlog")
    dump = (await mqadmin("dumpCompactionLog", "-f", log, "--json")).document
    orders = [one for one in dump["messages"] if one["topic"] == "orders"]
    assert [one["body"] for one in orders] == [*(f"body {number}" for number in range(6)), None]
    data = log.read_bytes()
    cut, torn = tmp_path / "cut", tmp_path / "torn"
    cut.write_bytes(data[: orders[2]["commitLogOffset"] + 30])
    done = await mqadmin("dumpCompactionLog", "-f", cut)
    assert "the messages end at byte" in done.err
    assert "body 1" in done.out
    assert "body 2" not in done.out
    torn.write_bytes(data.replace(b"body 1", b"bodY 1", 1))
    assert "CRC" in (await mqadmin("dumpCompactionLog", "-f", torn)).err
    for name, words in (("nothing", "No such file"), ("list", "no log"), ("empty", "is empty")):
        (tmp_path / "list").write_text("[1,2,3,4,5,6,7]")
        (tmp_path / "empty").touch()
        assert failed(await mqadmin("dumpCompactionLog", "-f", tmp_path / name), 2, words)
    assert failed(await mqadmin("dumpCompactionLog"), 2, "-f/--file")
    monkeypatch.setattr(compaction_log, "MESSAGES_MAX", 3)
    assert "ends after 3 messages" in (await mqadmin("dumpCompactionLog", "-f", log)).err


async def test_the_queues_of_members_are_told_before_they_start(cluster: InProcessCluster) -> None:
    shares = (await document(cluster, "allocateMQ", "-t", "orders", "-i", "b,a,c"))["result"]
    assert {name: len(queues) for name, queues in shares.items()} == {"b": 2, "a": 1, "c": 1}
    queues = [(q["brokerName"], q["queueId"]) for share in shares.values() for q in share]
    assert sorted(queues) == [(b, q) for b in ("broker-a", "broker-b") for q in (0, 1)]
    done = await call(cluster, "allocateMQ", "-t", "orders", "-i", "1,2,3,4,5")
    assert "5 would get no queue" in done.err
    assert failed(await call(cluster, "allocateMQ", "-t", "orders", "-i", "a,a"), 2, "twice")


def first_file(folder: Path) -> Path:
    return min(path for path in folder.iterdir() if path.is_file())


async def end_offset(cluster: InProcessCluster, *queues: MessageQueue) -> int:
    async with Admin(cluster.namesrv_address) as admin:
        return sum([await admin.max_offset(queue) for queue in queues])


async def test_probes_send_and_measure(cluster: InProcessCluster) -> None:
    own = MessageQueue("broker-b", "broker-b", 0)
    sent = await document(cluster, "checkMsgSendRT", "-t", "orders", "-a", 8, "-s", 10)
    assert [send["sendResult"] for send in sent["sends"]] == ["SEND_OK"] * 8
    assert {(send["brokerName"], send["queueId"]) for send in sent["sends"]} == {
        (b, q) for b in ("broker-a", "broker-b") for q in (0, 1)
    }
    times = [send["rt"] for send in sent["sends"][1:]]
    assert sent["averageRt"] == pytest.approx(sum(times) / 7, abs=0.01)
    stored = (await document(cluster, "printMsg", "-t", "orders"))["messages"]
    assert sum(message["body"] == "a" * 10 for message in stored) == 8
    alone = await call(cluster, "checkMsgSendRT", "-t", "orders", "-a", 1)
    assert "Avg RT: N/A" in alone.out
    status = await call(cluster, "sendMsgStatus", "-b", "broker-b", "-c", 3)
    assert status.out.count("SendResult=SEND_OK") == 3
    assert await end_offset(cluster, own) == 3
    assert failed(await call(cluster, "sendMsgStatus", "-b", "nobody"), 4, "nobody")
    await document(cluster, "updateTopicPerm", "-c", "DefaultCluster", "-t", "orders", "-p", 4)
    closed = await call(cluster, "checkMsgSendRT", "-t", "orders")
    assert failed(closed, 1, "no queue that can be written", "topic permission")


async def test_the_probe_of_a_cluster_goes_on(cluster: InProcessCluster) -> None:
    own = [MessageQueue(name, name, 0) for name in ("broker-a", "broker-b")]
    words = ["clusterRT", "-n", cluster.namesrv_address, "-a", "3", "-i", "1", "--json"]
    out, err = io.StringIO(), io.StringIO()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, words, out, err)
            while out.getvalue().count("\n") < 2:
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    for line in out.getvalue().splitlines():
        rows = json.loads(line)["brokers"]
        assert [(row["brokerName"], row["success"], row["fail"]) for row in rows] == [
            ("broker-a", 3, 0),
            ("broker-b", 3, 0),
        ]
    assert await end_offset(cluster, *own) == 12
    words = ["clusterRT", "-n", cluster.namesrv_address, "-a", "2", "-p", "true", "-m", "lab"]
    out = io.StringIO()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, words, out, err)
            while out.getvalue().count("\n") < 2:
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    assert [line.split("|")[1:4] for line in out.getvalue().splitlines()] == [
        ["lab", "DefaultCluster", "broker-a"],
        ["lab", "DefaultCluster", "broker-b"],
    ]
