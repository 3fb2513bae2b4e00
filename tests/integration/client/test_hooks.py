"""Hooks of an application, over real sockets: they see every send, request and handler call.

A check may forbid a send.
"""

from __future__ import annotations

import pytest
import trio
from scripted_cluster import ScriptedCluster, refuse, scripted_cluster

from triomq import (
    ConsumeContext,
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendContext,
)
from triomq.client.core.config import ClientSettings
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.testing import InProcessCluster

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


def producer(cluster: ScriptedCluster, **settings: object) -> Producer:
    return Producer(cluster.namesrv.address, group="g", settings=ProducerSettings(**settings))  # type: ignore[arg-type]


class NoFarewell:
    """An RPC hook that fails on unregistering."""

    def before_request(self, address: str, command: Command) -> None:
        if command.code == RequestCode.UNREGISTER_CLIENT:
            raise LookupError("no key for this request")

    def after_response(self, address: str, command: Command, answer: Command) -> None:
        """Ignore responses."""


async def test_a_hook_that_fails_on_unregistering_does_not_stop_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_cluster() as cluster:
        with trio.fail_after(30):
            async with producer(cluster, client=ClientSettings(rpc_hooks=[NoFarewell()])) as p:
                await p.send("T", b"x")
                # The client is registered, so it must unregister at the end.
                await p._active().session.heartbeats.send_all()
    assert "not unregistered from" in caplog.text
    assert "no key for this request" in caplog.text


class Recorder:
    """A send hook that records its calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, SendContext]] = []

    def before_send(self, context: SendContext) -> None:
        context.attributes["began"] = trio.current_time()
        self.seen.append(("before", context))

    def after_send(self, context: SendContext) -> None:
        assert "began" in context.attributes
        self.seen.append(("after", context))
        raise RuntimeError("an error of the hook itself")


async def test_send_hooks_see_every_try(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    async with scripted_cluster(2) as cluster:
        bad, _ = cluster.brokers
        bad.script[SEND] = refuse(ResponseCode.SYSTEM_BUSY)
        async with producer(cluster, send_hooks=[recorder]) as p:
            while not any(context.error for _, context in recorder.seen):
                receipt = await p.send("T", b"x", tag="t")
            await p.send_oneway("T", b"y")
            await p.send_batch([Message(topic="T", body=b"z")])
    kinds = [kind for kind, _ in recorder.seen]
    assert kinds == ["before", "after"] * (len(kinds) // 2)
    failed = next(context for _, context in recorder.seen if context.error)
    assert (failed.queue.broker_name, failed.address, failed.receipt) == (
        bad.name,
        bad.address,
        None,
    )
    tries = [context for kind, context in recorder.seen if kind == "after"]
    assert (tries[-3].receipt, tries[-3].message_id, tries[-3].group) == (
        receipt,
        failed.message_id,
        "g",
    )
    assert tries[-3].properties["TAGS"] == "t"
    assert (tries[-2].oneway, tries[-2].receipt, tries[-1].batch) == (True, None, True)
    assert "an error of the hook itself" in caplog.text


async def test_a_check_may_forbid_a_send() -> None:
    class Secret(Exception):
        pass

    def check(context: SendContext) -> None:
        if b"secret" in context.body:
            raise Secret(context.topic)

    async with scripted_cluster() as cluster, producer(cluster, check_forbidden=[check]) as p:
        await p.send("T", b"public")
        for send in (p.send("T", b"secret"), p.send_oneway("T", b"secret")):
            with pytest.raises(Secret, match="T"):
                await send
        with pytest.raises(Secret):
            await p.send_batch([Message(topic="T", body=b"secret")])
        assert (cluster.broker.count(SEND), cluster.broker.count(BATCH)) == (1, 0)


async def test_rpc_hooks_see_requests_and_answers() -> None:
    class Tracer:
        def __init__(self) -> None:
            self.answered: list[tuple[int, int]] = []

        def before_request(self, address: str, command: Command) -> None:
            assert command.ext is not None or command.code == RequestCode.HEART_BEAT
            if command.code == SEND:
                assert command.ext is not None
                command.ext["trace"] = "42"

        def after_response(self, address: str, command: Command, answer: Command) -> None:
            self.answered.append((int(command.code), answer.code))

    tracer = Tracer()
    async with scripted_cluster() as cluster:
        async with producer(cluster, client=ClientSettings(rpc_hooks=[tracer])) as p:
            receipt = await p.send("T", b"x")
            await p.send_oneway("T", b"y")
        request = next(request for request in cluster.broker.asked if request.code == SEND)
        assert request.ext()["trace"] == "42"
        assert receipt.message_id in request.header.properties
    assert (int(RequestCode.GET_ROUTEINFO_BY_TOPIC), int(ResponseCode.SUCCESS)) in tracer.answered
    assert tracer.answered.count((int(SEND), 0)) == 1


async def test_consume_hooks_see_every_call_of_a_handler(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("Orders", queues=1)

    class Counting:
        def __init__(self) -> None:
            self.calls: list[tuple[str, int, bool, str]] = []

        def before_consume(self, context: ConsumeContext) -> None:
            self.calls.append(("before", len(context.messages), context.success, context.group))

        def after_consume(self, context: ConsumeContext) -> None:
            self.calls.append(
                (
                    type(context.error).__name__,
                    len(context.messages),
                    context.success,
                    context.group,
                )
            )

    hook, batches, seen = Counting(), Counting(), 0
    done = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            done.set()
            raise ValueError("the second one fails")

    async def handle_list(messages: list[ReceivedMessage]) -> None:
        done.set()

    namesrv = triomq_cluster.namesrv_address
    async with Producer(namesrv, group="g") as p:
        await p.send_batch([Message(topic="Orders", body=b"1"), Message(topic="Orders", body=b"2")])
    settings = ConsumerSettings(consume_hooks=[hook])
    consume = {"namesrv": namesrv, "subscriptions": "Orders", "consume_from": "first"}
    with trio.fail_after(10):
        async with PushConsumer(
            group="one", handler=handle, concurrency=1, settings=settings, **consume
        ):  # type: ignore[arg-type]
            await done.wait()
        done = trio.Event()
        settings = ConsumerSettings(consume_hooks=[batches])
        async with PushConsumer(
            group="all", batch_handler=handle_list, settings=settings, **consume
        ):  # type: ignore[arg-type]
            await done.wait()
    assert hook.calls == [
        ("before", 1, False, "one"),
        ("NoneType", 1, True, "one"),
        ("before", 1, False, "one"),
        ("ValueError", 1, False, "one"),
    ]
    assert batches.calls[:2] == [("before", 2, False, "all"), ("NoneType", 2, True, "all")]


async def test_consume_hooks_of_consumers_without_a_handler(
    triomq_cluster: InProcessCluster,
) -> None:
    """Around a block, around a settlement without one, and with what a poll returns."""

    class Noting:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def before_consume(self, context: ConsumeContext) -> None:
            (message,) = context.messages
            self.calls.append(f"{message.body.decode()} {round(context.elapsed, 1)}")

        def after_consume(self, context: ConsumeContext) -> None:
            (message,) = context.messages
            outcome = type(context.error).__name__ if context.error else "ended"
            given_back = ", given back" if message.given_back else ""
            self.calls.append(f"{outcome}{given_back}{', polled' if context.polled else ''}")

    await triomq_cluster.create_topic("Orders", queues=1)
    namesrv = triomq_cluster.namesrv_address
    bodies = [b"block", b"error", b"ack", b"retry", b"cut"]
    async with Producer(namesrv, group="g") as p:
        await p.send_batch([Message(topic="Orders", body=body) for body in bodies])
    hook = Noting()
    consume = {
        "namesrv": namesrv,
        "subscriptions": "Orders",
        "consume_from": "first",
        "settings": ConsumerSettings(consume_hooks=[hook]),
    }
    with trio.fail_after(10):
        async with PushConsumer(group="one", **consume) as consumer:  # type: ignore[arg-type]
            async with await anext(consumer):
                hook.calls.append("inside")
            with pytest.raises(ValueError, match="mine"):
                async with await anext(consumer):
                    raise ValueError("mine")
            message = await anext(consumer)
            await trio.sleep(0.3)
            await message.ack()
            await (await anext(consumer)).retry()
            with trio.CancelScope() as scope:
                async with await anext(consumer):
                    scope.cancel()
                    await trio.sleep_forever()
        assert hook.calls == [
            *("block 0.0", "inside", "ended"),
            *("error 0.0", "ValueError"),
            *("ack 0.3", "ended"),
            *("retry 0.0", "ended, given back"),
            *("cut 0.0", "Cancelled"),
        ]
        hook.calls.clear()
        async with PullConsumer(group="two", **consume) as polling:  # type: ignore[arg-type]
            for _ in bodies:
                await polling.poll(max_messages=1)
    assert hook.calls[:2] == ["block 0.0", "ended, polled"]
    assert len(hook.calls) == 10


async def test_an_error_of_a_check_reaches_every_sender_of_an_automatic_batch() -> None:
    class Veto(Exception):
        def __init__(self, one: str, two: str) -> None:  # cannot be copied by its arguments
            super().__init__(one)

    def check(context: SendContext) -> None:
        raise Veto("not", "today")

    vetoed = 0
    async with scripted_cluster() as cluster:
        async with producer(
            cluster, check_forbidden=[check], auto_batch=True, auto_batch_hold=0
        ) as p:

            async def send() -> None:
                nonlocal vetoed
                with pytest.raises(Veto):
                    await p.send("T", b"x")
                vetoed += 1

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(send)
        assert cluster.broker.count(BATCH) == 0
    assert vetoed == 3
