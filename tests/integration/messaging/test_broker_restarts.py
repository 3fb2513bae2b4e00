"""A broker that stops, and one that is killed, while gRPC clients are at work: all messages come,
and nothing that was acknowledged comes again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import grpc
import trio
from grpc_broker import TOPIC, GrpcClient, listening, telemetry
from process_cluster import ProcessCluster, process_cluster
from processes import free_port

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc

Code = pb.Code
BROKER = "broker-a"
PAUSE = 0.05


@attrs.define(eq=False)
class Consumed:
    """What one group got. ``acknowledged``: bodies whose acknowledgement was answered with OK."""

    acknowledged: set[bytes] = attrs.field(factory=set)
    again: list[bytes] = attrs.field(factory=list)
    """Bodies that came although they were acknowledged."""

    @property
    def numbers(self) -> set[int]:
        return {int(body.partition(b"/")[0]) for body in self.acknowledged}


async def produce(
    client: GrpcClient, sent: set[int], stop: trio.Event, refusals: Counter[str]
) -> None:
    """Send numbers, each until it is stored; each attempt has a body of its own."""
    number = 0
    while not stop.is_set():
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = await client.send(client.message(b"%d/%d" % (number, attempt)))
                if answer.status.code == Code.OK:
                    break
                refusals[str(answer.status)] += 1
            except grpc.RpcError as error:
                refusals[f"{error.code()} {error.details()}"] += 1
            await trio.sleep(PAUSE)
        sent.add(number)
        number += 1
        await trio.sleep(0.005)


async def consume(client: GrpcClient, consumed: Consumed, **more: Any) -> None:
    """Receive and acknowledge until cancelled, over broken connections."""
    while True:
        try:
            status, messages = await client.receive(long_polling_timeout={"seconds": 5}, **more)
        except grpc.RpcError:
            await trio.sleep(PAUSE)
            continue
        assert status.code != Code.INVALID_RECEIPT_HANDLE
        for message in messages:
            if message.body in consumed.acknowledged:
                consumed.again.append(message.body)
        await trio.sleep(0.02)
        for message in messages:
            with contextlib.suppress(grpc.RpcError):
                answer = await client.acknowledge(message)
                if answer.status.code == Code.OK:
                    consumed.acknowledged.add(message.body)


async def stay_registered(client: GrpcClient, *, publishing: bool) -> None:
    """Have a Telemetry stream, as official clients have; open it again when it ends."""
    while True:
        with contextlib.suppress(grpc.RpcError):
            async with telemetry(client) as stream:
                settings = client.settings(publishing=publishing)
                stream.put(rpc.TelemetryCommand(settings=settings))
                while await stream.take() is not None:
                    pass
        await trio.sleep(PAUSE)


@contextlib.asynccontextmanager
async def one_broker(folder: Path, port: int) -> AsyncIterator[ProcessCluster]:
    settings = {
        "grpcServerPort": port,
        "minInvisibleTimeMillsForRecv": 100,
        "defaultInvisibleTimeMills": 5_000,
        "renewAheadTimeMillis": 3_000,
        "renewSchedulePeriodMillis": 500,
        "grpcShutdownTimeSeconds": 1,
    }
    async with process_cluster(folder, brokers=[BROKER], namesrvs=1, settings=settings) as cluster:
        await cluster.create_topic(TOPIC, 2)
        await listening(port)
        yield cluster


async def test_clients_go_on_after_a_stop_and_a_crash(tmp_path: Path) -> None:
    port = free_port()
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 300),
    ]
    pushed, simple, sent, refusals = Consumed(), Consumed(), set[int](), Counter[str]()

    async def fifty_more() -> None:
        begun = len(sent)
        refusals.clear()
        with trio.move_on_after(60) as scope:
            while len(sent) < begun + 50:
                await trio.sleep(PAUSE)
        assert not scope.cancelled_caught, (len(sent) - begun, refusals)

    async with one_broker(tmp_path, port) as cluster:
        with contextlib.ExitStack() as channels:

            def client(group: str) -> GrpcClient:
                channel = channels.enter_context(
                    grpc.insecure_channel(f"127.0.0.1:{port}", options=options)
                )
                return GrpcClient(channel, f"restart-{group}", group=group)

            producer, push, pull = client("none"), client("pushed"), client("simple")
            enough = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: stay_registered(producer, publishing=True))
                for consumer in (push, pull):
                    nursery.start_soon(
                        lambda each=consumer: stay_registered(each, publishing=False)
                    )
                nursery.start_soon(lambda: consume(push, pushed, auto_renew=True))
                visible = {"seconds": 3}
                nursery.start_soon(lambda: consume(pull, simple, invisible_duration=visible))
                await trio.sleep(0.5)
                nursery.start_soon(produce, producer, sent, enough, refusals)
                for end in (cluster.stop_broker, cluster.crash_broker):
                    await fifty_more()
                    await end(BROKER)
                    await cluster.start_broker(BROKER)
                    await listening(port)
                await fifty_more()
                enough.set()
                with trio.fail_after(90):  # a message that was renewed is hidden for 60 s
                    while not (pushed.numbers >= sent and simple.numbers >= sent):
                        await trio.sleep(PAUSE)
                await trio.sleep(3.5)  # what comes again comes within its invisible time
                nursery.cancel_scope.cancel()
    assert len(sent) > 150
    assert (pushed.again, simple.again) == ([], [])
