"""The clock of a broker jumps while clients hold messages: what is acknowledged never comes again,
all else comes, and new messages have their invisible time.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from grpc_broker import GrpcClient, grpc_broker, telemetry
from jumping_clock import JumpingClock, jumping_clock

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc

Code = pb.Code
SETTINGS = {
    "minInvisibleTimeMillsForRecv": 100,
    "grpcClientConsumerMinLongPollingTimeoutMillis": 0,
    "defaultInvisibleTimeMills": 1500,
    "renewAheadTimeMillis": 1000,
    "renewSchedulePeriodMillis": 100,
}
FORWARD, BACKWARD = 3_600.0, -2.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> JumpingClock:
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


@pytest.mark.parametrize("jump", [FORWARD, BACKWARD])
async def test_messages_with_an_invisible_time(
    tmp_path: Path, clock: JumpingClock, jump: float
) -> None:
    async with grpc_broker(tmp_path, **SETTINGS) as broker:
        client = broker.client()
        for number in range(8):
            await client.send(client.message(b"%d" % number))
        before = await taken(client, 8, invisible_duration={"seconds": 60 if jump > 0 else 2})
        done, after = before[:4], before[4:]
        assert (await client.acknowledge(*done)).status.code == Code.OK
        clock.offset = jump
        late = await client.acknowledge(after[0])
        # After a jump forward its time is over, so that it comes again.
        expected = Code.OK if jump < 0 else Code.INVALID_RECEIPT_HANDLE
        assert late.status.code == expected, late
        waiting = after[1:] if jump < 0 else after
        again = await taken(client, len(waiting), invisible_duration={"seconds": 30})
        assert bodies(again) == bodies(waiting)
        assert (await client.acknowledge(*again)).status.code == Code.OK
        # New ones are hidden for their time, not until the clock is where it was.
        await client.send(client.message(b"new"))
        (new,) = await taken(client, 1, invisible_duration={"seconds": 2})
        begun = time.monotonic()
        (new,) = await taken(client, 1, invisible_duration={"seconds": 30})
        assert (new.body, new.system_properties.delivery_attempt) == (b"new", 2)
        assert time.monotonic() - begun > 1.5, "it came before its time was over"
        assert (await client.acknowledge(new)).status.code == Code.OK
        assert (await client.receive(long_polling_timeout={"nanos": 800_000_000}))[1] == []


@pytest.mark.parametrize("jump", [FORWARD, BACKWARD])
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
            poll = {"seconds": 2}
            came = (await other.receive(long_polling_timeout=poll))[1]
            if jump < 0:
                assert came == [], "their time goes on to be renewed"
                await trio.sleep(-jump)
                assert (await other.receive(long_polling_timeout={"nanos": 1}))[1] == []
                assert (await holder.acknowledge(*held)).status.code == Code.OK
            else:
                # Their time is over by the clock, as at Java's: they come again, once.
                came += await taken(other, 4 - len(came))
                assert bodies(came) == bodies(held)
                assert (await other.acknowledge(*came)).status.code == Code.OK
                late = await holder.acknowledge(*held)
                assert {entry.status.code for entry in late.entries} <= {
                    Code.OK,
                    Code.INVALID_RECEIPT_HANDLE,
                }
            # Renewals of what comes later work.
            await holder.send(holder.message(b"later"))
            (later,) = await taken(holder, 1, auto_renew=True)
            assert (await other.receive(long_polling_timeout={"seconds": 2}))[1] == []
            assert (await holder.acknowledge(later)).status.code == Code.OK
            assert (await other.receive(long_polling_timeout={"nanos": 500_000_000}))[1] == []
