"""``mqadmin topic tail``: what it shows, brokers that go and come back, and its end."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from mqadmin_calls import Done, failed, mqadmin, run
from silent_servers import silent_broker

from triomq import MessageQueue, Producer
from triomq.testing import InProcessCluster, local_cluster

QUEUES = {name: MessageQueue("orders", f"broker-{name}", 0) for name in "ab"}


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster(brokers=2, settings={"enablePropertyFilter": True}) as running:
        await running.create_topic("orders", queues=1)
        yield running


@pytest.fixture
async def producer(cluster: InProcessCluster) -> AsyncIterator[Producer]:
    async with Producer(cluster.namesrv_address, group="shop") as sending:
        yield sending


@asynccontextmanager
async def tailing(cluster: InProcessCluster, *words: str) -> AsyncIterator[io.StringIO]:
    """A running tail, which ends with the block; what it prints, stderr included."""
    out = io.StringIO()
    called = ["topic", "tail", "orders", "-n", cluster.namesrv_address, *words]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, called, out, out)
        yield out
        nursery.cancel_scope.cancel()


async def until(out: io.StringIO, true: Callable[[str], Any]) -> None:
    with trio.move_on_after(30):
        while not true(out.getvalue()):
            await trio.sleep(0.02)
    assert true(out.getvalue()), out.getvalue()


async def test_messages_are_shown_as_they_come(
    cluster: InProcessCluster, producer: Producer
) -> None:
    await producer.send("orders", b"old", queue=QUEUES["a"])
    async with tailing(cluster) as out:
        sent = 0
        while "new" not in out.getvalue():  # it begins at the ends of the queues, at some moment
            receipt = await producer.send("orders", b"new", tag="t", keys=["k"], queue=QUEUES["b"])
            sent += 1
            await trio.sleep(0.1)
        await until(out, lambda text: receipt.message_id in text)
        last = await producer.send("orders", b"a\x1b[2J\nb" + b"x" * 100, queue=QUEUES["a"])
        await until(out, lambda text: last.message_id in text)
    lines = out.getvalue().splitlines()
    assert not any(line.endswith(" old") for line in lines)
    time, place, *rest = lines[-2].rsplit("  ", 5)
    assert (place, rest) == (f"broker-b:0:{sent - 1}", [receipt.message_id, "k", "t", "new"])
    assert time.count(":") == 2
    assert lines[-1].endswith("  -  -  a\\x1b[2J b" + "x" * 70 + "\N{HORIZONTAL ELLIPSIS}")
    async with cluster.admin() as admin:
        assert await admin.topic_groups("orders") == [], "no offset, no member"


async def test_filters_and_the_limit(cluster: InProcessCluster, producer: Producer) -> None:
    for number in range(6):
        await producer.send(
            "orders",
            b"%d" % number,
            tag="even" if number % 2 == 0 else "odd",
            keys=[f"k{number}"],
            properties={"price": str(number)},
            queue=QUEUES["a"],
        )

    async def tail(*words: object) -> list[str]:
        called = ("topic", "tail", "orders", "--from", "-1h", "-n", cluster.namesrv_address)
        done = await mqadmin(*called, *words, "--json")
        assert done.code == 0, done
        return [json.loads(line)["body"] for line in done.out.splitlines()]

    assert await tail("--limit", 4) == ["0", "1", "2", "3"]
    assert await tail("--tag", "odd || other", "--limit", 2) == ["1", "3"]
    assert await tail("--key", "k5", "--limit", 1) == ["5"]
    assert await tail("--filter", "price > 2 AND price < 5", "--limit", 2) == ["3", "4"]


async def call(cluster: InProcessCluster, *words: object) -> Done:
    return await mqadmin("topic", "tail", *words, "-n", cluster.namesrv_address)


async def test_what_cannot_be_followed(cluster: InProcessCluster) -> None:
    assert failed(await call(cluster, "nowhere"), 4, "nowhere")
    assert failed(await call(cluster, "orders", "--csv"), 2, "--json")
    assert failed(await call(cluster, "orders", "--watch", 1), 2, "--watch")
    with trio.fail_after(30):
        wrong = await call(cluster, "orders", "--filter", "price >")
    assert failed(wrong, 1, "--filter 'price >' cannot be used", "refused PULL_MESSAGE")


async def test_a_broker_that_comes_back_is_read_from_where_it_was(
    cluster: InProcessCluster, producer: Producer
) -> None:
    await producer.send("orders", b"first", queue=QUEUES["b"])
    async with tailing(cluster, "--from", "-1h", "--timeout", "3") as out:
        await until(out, lambda text: "first" in text)
        await cluster.crash_broker("broker-b")
        await until(out, lambda text: "broker-b  failed: " in text)
        await producer.send("orders", b"beside", queue=QUEUES["a"])
        await until(out, lambda text: "beside" in text)
        await cluster.start_broker("broker-b")
        await until(out, lambda text: "broker-b  answers again" in text)
        await producer.send("orders", b"second", queue=QUEUES["b"])
        await until(out, lambda text: "second" in text)
    assert out.getvalue().count("first") == 1
    assert out.getvalue().count("failed: ") == 1


async def test_a_silent_broker_does_not_delay_the_others(
    cluster: InProcessCluster, producer: Producer
) -> None:
    await producer.send("orders", b"first", queue=QUEUES["a"])
    async with silent_broker(cluster.namesrv_address, ["orders"]) as ghost:
        async with tailing(cluster, "--from", "-1h", "--timeout", "3", "--json") as out:
            await until(out, lambda text: "first" in text)
            assert ghost not in out.getvalue()
            await until(out, lambda text: "mqadmin: warning: ghost  failed: " in text)
            await producer.send("orders", b"second", queue=QUEUES["a"])
            await until(out, lambda text: "second" in text)
    async with (
        local_cluster(brokers=0) as empty,
        silent_broker(empty.namesrv_address, ["orders"]) as ghost,
    ):
        assert failed(await call(empty, "orders", "--timeout", 1), 1, ghost)


async def test_ctrl_c_is_its_normal_end(cluster: InProcessCluster, producer: Producer) -> None:
    await producer.send("orders", b"first", queue=QUEUES["a"])
    code = "import sys; from triomq.client.mqadmin.cli import main; sys.exit(main())"
    words = ["topic", "tail", "orders", "--from", "-1h", "-n", cluster.namesrv_address]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with trio.fail_after(60):
        assert (await process.stdout.receive_some()).endswith(b"  first\n")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        assert await process.stderr.receive_some() == b""
    await process.stdout.aclose()
    await process.stderr.aclose()
