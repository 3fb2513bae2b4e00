"""The load of ``bench_messaging.py``: RocketMQ 5 clients on grpcio (``grpc.aio``) in a process of
their own. It reads requests as lines of JSON and answers each with a line: what it measured.

Headers and messages are what official clients send; HTTP/2 and gRPC are grpcio's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import grpc

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc

SERVICE = "/apache.rocketmq.v2.MessagingService/"
BODY = b"x" * 1024
RECEIVED_MAX = 32
RECEIVES = 8
"""in flight, one for each queue of the topic"""
INVISIBLE_MS = 60_000
POLL_MS = 20_000
"""the longest that a receive waits"""
SETTLE_SECONDS = 1.0
CALL_SECONDS_MAX = 30
_ids = itertools.count(1)
_run = uuid.uuid4().hex[:16].upper()


def metadata(client: str) -> list[tuple[str, str]]:
    return [
        ("x-mq-client-id", client),
        ("x-mq-language", "JAVA"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.0.7"),
        ("x-mq-request-id", "0b6d3f5e-2f0c-4b7e-9d0e-3c6f7a1b2c3d"),
        ("x-mq-date-time", "20261126T180000Z"),
    ]


def open_channel(address: str) -> grpc.aio.Channel:
    """With a connection of its own."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def method(channel: grpc.aio.Channel, name: str, kind: str = "unary_unary") -> Any:
    message = "TelemetryCommand" if name == "Telemetry" else name
    suffixes = ("", "") if name == "Telemetry" else ("Request", "Response")
    request, answer = (getattr(rpc, message + suffix) for suffix in suffixes)
    return getattr(channel, kind)(
        SERVICE + name,
        request_serializer=request.SerializeToString,
        response_deserializer=answer.FromString,
    )


def percentile(ordered: list[float], share: float) -> float:
    """Of values in order: the least one that at least this share does not exceed; 0 of none."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else 0.0


def chunks(messages: list[Any], size: int) -> list[list[Any]]:
    return [messages[first : first + size] for first in range(0, len(messages), size)]


def send_request(topic: str, count: int) -> Any:
    return rpc.SendMessageRequest(
        messages=[
            pb.Message(
                topic=pb.Resource(name=topic),
                system_properties=pb.SystemProperties(
                    message_id=f"{_run}{next(_ids):016X}",
                    tag="T",
                    message_type=pb.NORMAL,
                    born_host="bench",
                ),
                body=BODY,
            )
            for _ in range(count)
        ]
    )


def receive_request(topic: str) -> Any:
    """From a group that has the name of the topic."""
    made = rpc.ReceiveMessageRequest(
        group=pb.Resource(name=topic),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        batch_size=RECEIVED_MAX,
    )
    made.invisible_duration.FromMilliseconds(INVISIBLE_MS)
    made.long_polling_timeout.FromMilliseconds(POLL_MS)
    return made


def acknowledgement(topic: str, messages: Iterable[Any]) -> Any:
    return rpc.AckMessageRequest(
        group=pb.Resource(name=topic),
        topic=pb.Resource(name=topic),
        entries=[
            rpc.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ],
    )


@asynccontextmanager
async def consumer(channel: grpc.aio.Channel, client: str, topic: str) -> AsyncIterator[None]:
    """A simple consumer that the server knows: its Telemetry stream is open for the block."""
    command = rpc.TelemetryCommand()
    command.settings.client_type = pb.SIMPLE_CONSUMER
    command.settings.subscription.group.name = topic
    entry = command.settings.subscription.subscriptions.add()
    entry.topic.name, entry.expression.expression = topic, "*"
    entry.expression.type = pb.TAG
    stream = method(channel, "Telemetry", "stream_stream")(metadata=metadata(client))
    try:
        await stream.write(command)
        if await stream.read() is grpc.aio.EOF:
            raise SystemExit("the server ended a Telemetry stream")
        yield
    finally:
        stream.cancel()


@attrs.define(eq=False)
class GrpcLoad:
    """The clients of one server; one connection, but for idle consumers."""

    address: str
    channel: grpc.aio.Channel
    parked: list[asyncio.Task[None]] = attrs.field(factory=list)

    async def send(
        self,
        topic: str,
        in_flight: int,
        seconds: float,
        each: int = 1,
        requests_max: int = sys.maxsize,
    ) -> dict[str, float]:
        """Keep sends of so many messages each in flight. The times are milliseconds; refused sends
        count as failed only.
        """
        call, mine = method(self.channel, "SendMessage"), metadata("producer")
        took: list[float] = []
        begun_requests = failed = 0
        begun = time.perf_counter()

        async def repeat() -> None:
            nonlocal begun_requests, failed
            while (now := time.perf_counter()) - begun < seconds and begun_requests < requests_max:
                begun_requests += 1
                answer = await call(
                    send_request(topic, each), timeout=CALL_SECONDS_MAX, metadata=mine
                )
                if answer.status.code == pb.OK:
                    took.append((time.perf_counter() - now) * 1e3)
                else:
                    failed += 1

        await asyncio.gather(*(repeat() for _ in range(in_flight)))
        whole = time.perf_counter() - begun
        took.sort()
        return {
            "messages": len(took) * each,
            "failed": failed,
            "seconds": whole,
            "p50": percentile(took, 0.5),
            "p99": percentile(took, 0.99),
        }

    async def consume(self, topic: str, entries: int, seconds: float) -> dict[str, float]:
        """Receive and acknowledge, so many messages in each AckMessage."""
        mine = metadata("consumer")
        receive = method(self.channel, "ReceiveMessage", "unary_stream")
        acknowledge = method(self.channel, "AckMessage")
        count = failed = empty = 0

        async def settle(messages: list[Any]) -> None:
            nonlocal count, failed
            request = acknowledgement(topic, messages)
            answer = await acknowledge(request, timeout=CALL_SECONDS_MAX, metadata=mine)
            fine = sum(entry.status.code == pb.OK for entry in answer.entries)
            count += fine
            failed += len(messages) - fine

        async def repeat() -> None:
            nonlocal empty
            while time.perf_counter() - begun < seconds:
                stream = receive(receive_request(topic), timeout=CALL_SECONDS_MAX, metadata=mine)
                got = [
                    answer.message
                    async for answer in stream
                    if answer.WhichOneof("content") == "message"
                ]
                empty += not got
                await asyncio.gather(*map(settle, chunks(got, entries)))

        async with consumer(self.channel, "consumer", topic):
            begun = time.perf_counter()
            await asyncio.gather(*(repeat() for _ in range(RECEIVES)))
            whole = time.perf_counter() - begun
        return {"messages": count, "failed": failed, "empty": empty, "seconds": whole}

    async def park(self, topic: str, consumers: int, connections: int) -> dict[str, float]:
        """Leave receives waiting for a topic without messages, one for each consumer, until
        ``leave``; return when they wait.
        """
        channels = [open_channel(self.address) for _ in range(connections)]
        waiting = 0

        async def wait(number: int) -> None:
            nonlocal waiting
            channel, client = channels[number % connections], f"idle-{number}"
            receive = method(channel, "ReceiveMessage", "unary_stream")
            async with consumer(channel, client, topic):
                waiting += 1
                while True:
                    request = receive_request(topic)
                    stream = receive(request, timeout=CALL_SECONDS_MAX, metadata=metadata(client))
                    found = [answer async for answer in stream]
                    if found[0].status.code != pb.MESSAGE_NOT_FOUND:
                        raise SystemExit(f"an idle consumer was answered {found[0]}")

        self.parked = [asyncio.create_task(wait(number)) for number in range(consumers)]
        while waiting < consumers:
            await asyncio.sleep(0.01)
            self.look()
        await asyncio.sleep(SETTLE_SECONDS)
        return {"consumers": waiting}

    def look(self) -> None:
        """Fail if an idle consumer has ended."""
        for task in self.parked:
            if task.done():
                task.result()

    async def leave(self) -> dict[str, float]:
        """End the idle consumers."""
        self.look()
        for task in self.parked:
            task.cancel()
        await asyncio.gather(*self.parked, return_exceptions=True)
        self.parked = []
        return {}


async def main() -> None:
    loads: dict[str, GrpcLoad] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        address = request.pop("address")
        if address not in loads:
            loads[address] = GrpcLoad(address, open_channel(address))
        answer = await getattr(loads[address], request.pop("do"))(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
