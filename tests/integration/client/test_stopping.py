"""The end of consumers: running handlers end, what is finished is stored, the rest comes again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import stopped_program
import trio
from serving import until
from threaded_cluster import cluster_in_a_thread

import triomq
from triomq import (
    ClientSettings,
    ConsumerSettings,
    NotRunning,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    sync,
)
from triomq.testing import InProcessCluster

SLOW = ConsumerSettings(
    offset_interval=3600.0, client=ClientSettings(shutdown_timeout=30.0, farewell_timeout=5.0)
)
HASTY = attrs.evolve(SLOW, client=attrs.evolve(SLOW.client, shutdown_timeout=0.05))
KINDS: dict[str, dict[str, Any]] = {
    "pull": {},
    "ordered": {"ordered": True},
    "pop": {"mode": "pop"},
    "ordered pop": {"mode": "pop", "ordered": True},
}


async def send(cluster: InProcessCluster, count: int) -> None:
    await cluster.create_topic("T", queues=1)
    async with Producer(cluster.namesrv_address, group="p") as producer:
        for number in range(count):
            await producer.send("T", b"%d" % number)


async def left_over(cluster: InProcessCluster, kind: dict[str, Any], count: int) -> list[bytes]:
    """Return what a later member gets, which joins at once: all of its queues are free."""
    async with PushConsumer(
        cluster.namesrv_address, group="g", subscriptions="T", consume_from="first", **kind
    ) as later:
        bodies = []
        with trio.fail_after(30):
            while len(bodies) < count:
                for message in await later.take():
                    bodies.append(message.body)
                    await message.ack()
        return bodies


class Broken(Exception):
    """Raised in the body of a block."""


@pytest.mark.parametrize(
    ("begun_by", "ended_by"),
    [
        ("handler", "end"),
        ("handler", "error"),
        ("handler", "cancel"),
        ("run", "error"),
        ("run", "cancel"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_running_handlers_end_and_count(
    triomq_cluster: InProcessCluster, kind: str, ended_by: str, begun_by: str
) -> None:
    await send(triomq_cluster, 3)
    began, finish, handled = trio.Event(), trio.Event(), []

    async def handle(message: ReceivedMessage) -> None:
        began.set()
        await finish.wait()
        handled.append(message.body)

    async def member(scope: trio.CancelScope) -> None:
        settings = {"settings": SLOW, "group": "g", "subscriptions": "T", "consume_from": "first"}
        given = {"handler": handle, "concurrency": 1} if begun_by == "handler" else {}
        with scope:
            async with PushConsumer(
                triomq_cluster.namesrv_address, **settings, **given, **KINDS[kind]
            ) as consumer:
                async with trio.open_nursery() as inner:
                    if begun_by == "run":
                        inner.start_soon(partial(consumer.run, handle, concurrency=1))
                    await began.wait()
                    if ended_by == "error":
                        raise Broken
                    if ended_by == "cancel":
                        scope.cancel()
                        await trio.sleep_forever()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def run_member() -> None:
                try:
                    await member(trio.CancelScope())
                except* Broken:
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(run_member)
            await began.wait()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert not handled
            finish.set()
            await trio.sleep_forever()
    assert handled == [b"0"]
    assert await left_over(triomq_cluster, KINDS[kind], 2) == [b"1", b"2"]


@pytest.mark.parametrize("begun_by", ["handler", "run"])
async def test_a_handler_that_does_not_end_is_cancelled(
    triomq_cluster: InProcessCluster, caplog: pytest.LogCaptureFixture, begun_by: str
) -> None:
    await send(triomq_cluster, 1)
    began = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        began.set()
        await trio.sleep_forever()

    given = {"handler": handle} if begun_by == "handler" else {}
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with PushConsumer(
            triomq_cluster.namesrv_address, group="g", subscriptions="T", consume_from="first",
            settings=HASTY, **given,
        ) as consumer, trio.open_nursery() as nursery:  # fmt: skip
            if begun_by == "run":
                nursery.start_soon(consumer.run, handle)
            await began.wait()
            scope.cancel()
    (record,) = [each for each in caplog.records if "shutdown_timeout" in each.message]
    assert "a handler of T did not end within shutdown_timeout 0.05 s" in record.message
    assert await left_over(triomq_cluster, {}, 1) == [b"0"]


async def test_a_cancelled_member_works_on_until_its_handlers_have_ended(
    triomq_cluster: InProcessCluster,
) -> None:
    """Heartbeats and renewals go on, and so do sends by another object in the same scope."""
    await send(triomq_cluster, 1)
    began, seen = trio.Event(), trio.Event()
    settings = triomq.ProducerSettings(auto_batch=True)
    quick = attrs.evolve(SLOW, client=attrs.evolve(SLOW.client, heartbeat_interval=0.05))
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with Producer(triomq_cluster.namesrv_address, group="p", settings=settings) as out:

            async def handle(message: ReceivedMessage) -> None:
                began.set()
                await seen.wait()
                await out.send("T", b"sent later")

            async with PushConsumer(
                triomq_cluster.namesrv_address, group="g", subscriptions="T",
                consume_from="first", settings=quick, handler=handle,
            ) as consumer:  # fmt: skip
                await began.wait()
                heartbeats = consumer._membership.session.heartbeats
                before = dict(heartbeats._heard)
                scope.cancel()

                async def watch() -> None:
                    await until(lambda: heartbeats._heard != before)
                    seen.set()

                trio.lowlevel.spawn_system_task(watch)
    assert await left_over(triomq_cluster, {}, 1) == [b"sent later"]


async def test_a_failed_body_commits_what_earlier_polls_returned(
    triomq_cluster: InProcessCluster,
) -> None:
    await send(triomq_cluster, 3)
    with contextlib.suppress(Broken):
        async with PullConsumer(
            triomq_cluster.namesrv_address, group="g", subscriptions="T", consume_from="first",
            settings=SLOW,
        ) as consumer:  # fmt: skip
            await consumer.poll(max_messages=1)
            await consumer.poll(max_messages=1)
            raise Broken
    assert await left_over(triomq_cluster, {}, 2) == [b"1", b"2"]


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with cluster_in_a_thread(topic="T") as address:
        yield address


@pytest.mark.parametrize(
    ("interface", "number", "code"),
    [
        ("trio", signal.SIGTERM, 0),
        ("aio", signal.SIGTERM, 0),
        ("sync", signal.SIGTERM, 0),
        ("trio", signal.SIGINT, 130),
    ],
)
def test_a_signal_ends_a_program_in_order(
    namesrv: str, interface: str, number: signal.Signals, code: int
) -> None:
    topic = f"{interface}{number}"
    trio.run(create, namesrv, topic)
    with started(interface, namesrv, topic, 0.3) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "handling 0\n"
        process.send_signal(number)
        rest = process.stdout.read().splitlines()
    assert process.returncode == code
    assert rest == ["handled 0", *(["ended"] if code == 0 else [])]
    with sync.PushConsumer(namesrv, group="stopped", subscriptions=topic) as later:
        later.wait_assigned(timeout=10)
        assert [message.body for message in later.take(timeout=10)] == [b"1"]


def test_a_second_signal_ends_a_program_at_once(namesrv: str) -> None:
    trio.run(create, namesrv, "twice")
    with started("trio", namesrv, "twice", 3600) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "stopping; a second signal ends" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


def test_run_returns_and_raises_what_main_does_and_leaves_no_handler() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def give(value: int) -> int:
        return value

    async def fail() -> None:
        raise Broken

    assert triomq.run(give, 3) == triomq.aio.run(give, 3) == sync.run(int, 3) == 3
    for run in (triomq.run, triomq.aio.run):
        with pytest.raises(Broken):
            run(fail)
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            triomq.run(give, 3)
        except NotRunning as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "in the main thread only" in str(errors[0])


async def create(namesrv: str, topic: str) -> None:
    async with triomq.Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    async with Producer(namesrv, group="p") as producer:
        for number in range(2):
            await producer.send(topic, b"%d" % number)


def started(interface: str, namesrv: str, topic: str, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(stopped_program.__file__)), interface, namesrv, topic,
         str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
