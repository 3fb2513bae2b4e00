"""The clock of a broker jumps while clients hold messages: what is acknowledged never comes again,
all else comes when its invisible time is over, neither sooner nor much later.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from grpc_broker import GrpcClient, grpc_broker, telemetry
from jumping_clock import DAY, JumpingClock, jumping_clock

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc

Code = pb.Code
SETTINGS = {
    "minInvisibleTimeMillsForRecv": 100,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 0,
    "defaultInvisibleTimeMills": 6000,
    "renewAheadTimeMillis": 5000,
    "renewSchedulePeriodMillis": 100,
}
JUMPS = [3_600.0, -40 * DAY]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> JumpingClock:
    real = SimpleNamespace(**vars(time))
    monkeypatch.setattr("grpc._channel.time", real)  # time-outs of its client are dates
    return jumping_clock(monkeypatch)


async def taken(client: GrpcClient, count: int, **more: Any) -> list[pb.Message]:
    found: list[pb.Message] = []
    with trio.fail_after(30):
        while len(found) < count:
            poll = {"nanos": 200_000_000}
            status, messages = await client.receive(long_polling_timeout=poll, **more)
            assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
            found += messages
    return found


def bodies(messages: list[pb.Message]) -> Counter[bytes]:
    return Counter(message.body for message in messages)


@pytest.mark.parametrize("jump", JUMPS)
async def test_messages_with_an_invisible_time(
    tmp_path: Path, clock: JumpingClock, jump: float
) -> None:
    async with grpc_broker(tmp_path, **SETTINGS) as broker:
        client = broker.client()
        for number in range(8):
            await client.send(client.message(b"%d" % number))
        begun = time.monotonic()
        before = await taken(client, 8, invisible_duration={"seconds": 10})
        done, after, later = before[:3], before[3:5], before[5:]
        assert (await client.acknowledge(*done)).status.code == Code.OK
        clock.offset = jump
        assert (await client.acknowledge(*after)).status.code == Code.OK
        again = await taken(client, 3, invisible_duration={"seconds": 60})
        assert time.monotonic() - begun > 10, "they came before their time was over"
        assert bodies(again) == bodies(later)
        assert (await client.acknowledge(*again)).status.code == Code.OK
        # New ones are hidden for their time, too.
        await client.send(client.message(b"new"))
        begun = time.monotonic()
        (new,) = await taken(client, 1, invisible_duration={"seconds": 2})
        (new,) = await taken(client, 1, invisible_duration={"seconds": 60})
        assert (new.body, new.system_properties.delivery_attempt) == (b"new", 2)
        assert time.monotonic() - begun > 2, "it came before its time was over"
        assert (await client.acknowledge(new)).status.code == Code.OK
        # Nothing comes twice when the clock is set right.
        clock.offset = 0.0
        assert (await client.receive(long_polling_timeout={"seconds": 3}))[1] == []


@pytest.mark.parametrize("jump", JUMPS)
async def test_messages_whose_time_is_renewed(
    tmp_path: Path, clock: JumpingClock, jump: float
) -> None:
    async with grpc_broker(tmp_path, **SETTINGS) as broker:
        holder, other = broker.client("holder"), broker.client("other")
        async with telemetry(holder) as stream:
            stream.put(rpc.TelemetryCommand(settings=holder.settings()))
            await stream.take()
            for number in range(4):
                await holder.send(holder.message(b"%d" % number))
            held = await taken(holder, 4, auto_renew=True)
            clock.offset = jump
            for _ in range(4):
                poll = {"seconds": 2}
                came = (await other.receive(long_polling_timeout=poll))[1]
                assert came == [], "their time goes on to be renewed"
            assert (await holder.acknowledge(*held)).status.code == Code.OK
            # Renewals of what comes later work.
            await holder.send(holder.message(b"later"))
            (later,) = await taken(holder, 1, auto_renew=True)
            assert (await other.receive(long_polling_timeout={"seconds": 2}))[1] == []
            assert (await holder.acknowledge(later)).status.code == Code.OK
            assert (await other.receive(long_polling_timeout={"seconds": 2}))[1] == []
