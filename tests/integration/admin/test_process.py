"""mqadmin as a process: exit codes, a terminal, a closed pipe, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import trio

from triomq.testing import InProcessCluster, local_cluster

MQADMIN = [sys.executable, "-m", "triomq.client.mqadmin.cli"]


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster() as running:
        yield running


async def call(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(
        [*MQADMIN, *words], capture_stdout=True, capture_stderr=True, check=False, **options
    )  # type: ignore[arg-type]


@pytest.mark.feature("170a", "170b", "170c")
async def test_exit_codes_and_streams(cluster: InProcessCluster) -> None:
    namesrv = cluster.namesrv_address
    done = await call("topicList", "--json", "-n", namesrv)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "TBW102" in json.loads(done.stdout)["topics"]
    for words, code, complaint in (
        (["topicRoute", "-t", "nope", "-n", namesrv], 4, b"mqadmin: no broker offers topic 'nope'"),
        (["topicRoute", "-n", namesrv], 2, b"mqadmin: -t/--topic is missing"),
        (["topicList", "-n", "127.0.0.1:1"], 6, b"mqadmin: no name server answered (127.0.0.1:1: "),
    ):
        done = await call(*words)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1)
        assert done.stderr.startswith(complaint)


async def test_a_terminal_gets_a_table_that_fits(cluster: InProcessCluster) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    await trio.run_process(
        [*MQADMIN, "topicStatus", "-t", "TBW102", "-n", cluster.namesrv_address],
        stdout=theirs,
        env=environment,
    )
    os.close(theirs)
    text = b""
    while chunk := _read(ours):
        text += chunk
    os.close(ours)
    lines = text.decode().splitlines()
    assert any("Broker Name" in line and "Max Offset" in line for line in lines)
    assert "#Broker" not in text.decode()
    assert any("─" in line for line in lines)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # so Linux reports the end of a terminal
        return b""


async def test_a_reader_that_closes_the_pipe_is_not_a_failure(cluster: InProcessCluster) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = await trio.run_process(
        [*MQADMIN, "topicList", "-n", cluster.namesrv_address],
        stdout=writer,
        capture_stderr=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_interval_repeats_until_ctrl_c(cluster: InProcessCluster) -> None:
    words = [*MQADMIN, "clusterList", "-i", "1", "--json", "-n", cluster.namesrv_address]
    process = await trio.lowlevel.open_process(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    text = b""
    with trio.fail_after(60):
        while text.count(b"\n") < 2:
            text += await process.stdout.receive_some()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert await process.stderr.receive_some() == b""
    assert [len(json.loads(line)["brokers"]) for line in text.splitlines()[:2]] == [1, 1]
    await process.stdout.aclose()
    await process.stderr.aclose()


async def test_watch_redraws_a_terminal_until_ctrl_c(cluster: InProcessCluster) -> None:
    ours, theirs = pty.openpty()
    words = [*MQADMIN, "clusterList", "--watch", "1", "-n", cluster.namesrv_address]
    process = await trio.lowlevel.open_process(
        words, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    )
    os.close(theirs)
    text = b""
    with trio.fail_after(60):
        while text.count(b"true") < 2:
            text += await trio.to_thread.run_sync(_read, ours)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    os.close(ours)
    first, *rounds = text.split(b"\x1b[H\x1b[2J")
    assert first == b""
    for drawn in rounds[:2]:
        assert drawn.startswith(b"mqadmin clusterList --watch 1 -n ")
        assert drawn.count(b"broker-a") == 1


async def test_watch_in_a_pipe_goes_on_after_a_failure(cluster: InProcessCluster) -> None:
    """The topic is deleted between two rounds, and comes back."""
    namesrv = cluster.namesrv_address
    await cluster.create_topic("orders", queues=1)
    process = await trio.lowlevel.open_process(
        [*MQADMIN, "topicStatus", "-t", "orders", "--watch", "1", "--csv", "-n", namesrv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    title = b"brokerName,queueId,minOffset,maxOffset,lastUpdateTimestamp\n"
    text = b""
    with trio.fail_after(60):
        while title not in text:
            text += await process.stdout.receive_some()
        assert (
            await call(
                "deleteTopic", "-t", "orders", "-c", "DefaultCluster", "--yes", "-n", namesrv
            )
        ).returncode == 0
        complaint = await process.stderr.receive_some()
        assert complaint.startswith(b"mqadmin: no broker offers topic 'orders'")
        await cluster.create_topic("orders", queues=1)
        rounds = text.count(title)
        while text.count(title) == rounds:
            text += await process.stdout.receive_some()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    await process.stdout.aclose()
    await process.stderr.aclose()


@pytest.mark.feature("92a")
async def test_a_consumer_killed_in_its_listener_shows_as_lag_and_the_message_comes_again(
    cluster: InProcessCluster,
) -> None:
    namesrv = cluster.namesrv_address
    await cluster.create_topic("orders", queues=1)
    assert (
        await call("sendMessage", "-t", "orders", "-p", "only one", "-n", namesrv)
    ).returncode == 0
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", CONSUMER, namesrv, "hang"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with trio.fail_after(60):
        heard = b""
        while not heard.endswith(b"\n"):
            heard += await process.stdout.receive_some()
        assert heard == b"only one\n"
        process.kill()
        await process.wait()
    document = json.loads(
        (
            await call("consumerProgress", "-g", "billing", "-t", "orders", "-n", namesrv, "--json")
        ).stdout
    )
    assert document["diffTotal"] in (0, 1), "a group without a committed offset has no row yet"
    assert all(row["consumerOffset"] == 0 for row in document["queues"])
    with trio.fail_after(60):
        again = await trio.run_process(
            [sys.executable, "-c", CONSUMER, namesrv, "ack"], capture_stdout=True
        )
    assert again.stdout == b"only one\n"
    document = json.loads(
        (
            await call("consumerProgress", "-g", "billing", "-t", "orders", "-n", namesrv, "--json")
        ).stdout
    )
    assert [(row["brokerOffset"], row["consumerOffset"]) for row in document["queues"]] == [(1, 1)]
    await process.stdout.aclose()


CONSUMER = """
import sys, trio
from triomq.client.sdk.push_consumer import PushConsumer

async def main():
    async with PushConsumer(
        sys.argv[1], group="billing", subscriptions="orders", consume_from="first"
    ) as consumer:
        message = await anext(consumer)
        print(message.body.decode(), flush=True)
        if sys.argv[2] == "hang":
            await trio.sleep_forever()
        await message.ack()

trio.run(main)
"""
