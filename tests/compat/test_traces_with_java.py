"""Message traces of our clients and of Java's, each read by both kinds of ``mqadmin``.

On our broker; the records are text, so a broker has no part in them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from mqadmin_calls import mqadmin
from processes import (
    java_command,
    java_home,
    java_mqadmin,
    our_broker,
    our_name_server,
    wait_registered,
)

from triomq import Producer, ProducerSettings, PushConsumer
from triomq.client.admin.admin import Admin
from triomq.client.core.config import ClientSettings, ConsumerSettings
from triomq.client.receiving.received import ReceivedMessage

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]

TRACED = ClientSettings(trace=True)


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    folder = tmp_path_factory.mktemp("traces")
    with (
        our_name_server(folder) as address,
        our_broker(folder, "broker-a", address, traceTopicEnable="true"),
    ):
        wait_registered(address, "broker-a")
        yield address


@pytest.mark.compatible("message trace", peer="java-client-{version}")
@pytest.mark.parametrize("version", ["5.5.0", "4.9.4"])
@pytest.mark.feature("133a", "133b")
async def test_java_s_mqadmin_reads_our_traces(namesrv: str, version: str) -> None:
    if java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")
    settings = ProducerSettings(client=TRACED)
    async with Producer(namesrv, group="py-tracing", settings=settings) as producer:
        receipt = await producer.send("Ours", b"body", tag="TagP", keys=["py-key"])
    handled = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        if message.message_id == receipt.message_id:  # the topic has that of the other version, too
            handled.set()

    with trio.fail_after(30):
        async with PushConsumer(
            namesrv,
            group=f"py-billing-{version[0]}",
            subscriptions="Ours",
            consume_from="first",
            handler=handle,
            settings=ConsumerSettings(client=TRACED),
        ):
            await handled.wait()
    commands = [["queryMsgTraceById", "-i", receipt.message_id]]
    (output,) = await trio.to_thread.run_sync(lambda: java_mqadmin(version, namesrv, commands))
    rows = [line.split() for line in output.splitlines() if line.startswith(("Pub", "Sub"))]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("Pub", "py-tracing", "success"),
        ("Sub", f"py-billing-{version[0]}", "success"),
    ]
    assert {row[2] for row in rows} == {"127.0.0.1"}


@pytest.mark.compatible("message trace", peer="java-client-5.5.0")
@pytest.mark.feature("133a", "133b")
async def test_our_mqadmin_reads_java_s_traces(namesrv: str, tmp_path: Path) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic("Java", cluster="TestCluster", queues=1)
    command = java_command("5.5.0", "TracePeer", namesrv, "Java", "java-billing")
    done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT)
    lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
    (message_id,) = (line[1] for line in lines if line[0] == "SENT")
    assert ["COMPLETE"] in lines
    found = (await mqadmin("queryMsgTraceById", "-i", message_id, "-n", namesrv, "--json")).document
    pub, first, second = found["events"]
    assert (pub["type"], pub["group"], pub["topic"], pub["status"]) == (
        "Pub",
        "java-tracing",
        "Java",
        "success",
    )
    assert (pub["tags"], pub["keys"], pub["bodyLength"]) == (
        "TagJ",
        ["java-key-1", "java-key-2"],
        4,
    )
    assert [
        (event["type"], event["group"], event["retryTimes"], event["status"], event["outcome"])
        for event in (first, second)
    ] == [
        ("Sub", "java-billing", 0, "failed", "FAILED"),
        ("Sub", "java-billing", 1, "success", "SUCCESS"),
    ]
    by_key = await mqadmin("queryMsgTraceById", "-i", "java-key-2", "-n", namesrv, "--json")
    assert by_key.document == found
