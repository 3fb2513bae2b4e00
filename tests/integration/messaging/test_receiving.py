"""ReceiveMessage: what comes, when it comes again, and who holds it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
from grpc_broker import GROUP, TOPIC, GrpcClient, grpc_broker, telemetry

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.codes import RequestCode, ResponseCode

Code = pb.Code
FAST = {"minInvisibleTimeMillsForRecv": 100, "grpcClientConsumerMinLongPollingTimeoutMillis": 0}


def invisible(seconds: float) -> dict[str, object]:
    return {"invisible_duration": {"nanos": round(seconds % 1 * 1e9), "seconds": int(seconds)}}


async def change(client: GrpcClient, message: pb.Message, seconds: float) -> Any:
    request = rpc.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=client.group),
        topic=pb.Resource(name=client.topic),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
        **invisible(seconds),
    )
    return await client.call("ChangeInvisibleDuration", request)


@pytest.mark.feature("145a")
async def test_a_receive_gives_at_most_as_many_messages_as_it_asks_for(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        for number in range(24):
            await client.send(client.message(b"%02d" % number))
        sizes: list[int] = []
        found: list[bytes] = []
        while len(found) < 24:
            _, messages = await client.receive(batch_size=10)
            sizes.append(len(messages))
            found += [message.body for message in messages]
        assert max(sizes) == 10
        assert sorted(found) == [b"%02d" % number for number in range(24)]


async def test_an_unacknowledged_message_comes_again_and_an_acknowledged_one_does_not(
    tmp_path: Path,
) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        await client.send(client.message(b"kept"))
        await client.send(client.message(b"done"))
        found = []
        while len(found) < 2:
            found += (await client.receive(**invisible(1)))[1]
        done = next(message for message in found if message.body == b"done")
        kept = next(message for message in found if message.body == b"kept")
        assert (await client.acknowledge(done)).status.code == Code.OK
        begun = time.monotonic()
        status, (again,) = await client.receive(**invisible(5))
        assert time.monotonic() - begun < 3
        assert status.code == Code.OK
        assert again.body == b"kept"
        system = again.system_properties
        assert system.message_id == kept.system_properties.message_id
        assert system.delivery_attempt == 2
        assert again.topic.name == TOPIC

        expired = await client.acknowledge(kept)
        assert expired.status.code == Code.INVALID_RECEIPT_HANDLE
        assert "delivered again" in expired.entries[0].status.message
        mixed = await client.acknowledge(kept, again)
        assert mixed.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in mixed.entries] == [
            Code.INVALID_RECEIPT_HANDLE,
            Code.OK,
        ]


async def test_another_invisible_time_gives_another_handle(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        await client.send(client.message(b"one"))
        _, (message,) = await client.receive(**invisible(30))
        answer = await change(client, message, 0)
        assert answer.status.code == Code.OK
        _, (again,) = await client.receive(**invisible(30))
        assert again.system_properties.delivery_attempt == 2
        longer = await change(client, again, 60)
        assert longer.receipt_handle != again.system_properties.receipt_handle
        again.system_properties.receipt_handle = longer.receipt_handle
        assert (await client.acknowledge(again)).status.code == Code.OK
        too_long = await change(client, again, 13 * 3600)
        assert too_long.status.code == Code.ILLEGAL_INVISIBLE_TIME
        broken = await change(client, pb.Message(), 1)
        assert broken.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_an_empty_topic_says_so_and_bad_times_are_refused(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, grpcClientConsumerMinLongPollingTimeoutMillis=200) as broker:
        client = broker.client()
        status, messages = await client.receive(long_polling_timeout={"seconds": 0})
        assert (status.code, messages) == (Code.MESSAGE_NOT_FOUND, [])
        status, _ = await client.receive(**invisible(9))
        assert status.code == Code.ILLEGAL_INVISIBLE_TIME
        assert "minInvisibleTimeMillsForRecv" in status.message
        status, _ = await client.receive(
            filter_expression=pb.FilterExpression(type=pb.FilterType.SQL, expression="a >")
        )
        assert status.code == Code.ILLEGAL_FILTER_EXPRESSION
        status, _ = await client.receive(attempt_id="a" * 129)
        assert status.code == Code.BAD_REQUEST
        assert "attempt id" in status.message
        nowhere = broker.client(topic="Nowhere")
        status, _ = await nowhere.receive()
        assert status.code == Code.TOPIC_NOT_FOUND
        assert status.message.startswith(
            "CODE: 17  DESC: No topic route info in name server for the topic: Nowhere"
        )


async def test_a_message_that_a_cancelled_receive_took_comes_again_soon(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        with trio.move_on_after(0.5):
            await client.receive(**invisible(60), long_polling_timeout={"seconds": 15})
        client.channel.close()  # the client is gone, its poll waits in the broker
        other = broker.client()
        await other.send(other.message(b"one"))
        begun = time.monotonic()
        _, messages = await other.receive(**invisible(60))
        assert [message.body for message in messages] == [b"one"]
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("kind", ["tag", "sql"])
async def test_filters(tmp_path: Path, kind: str) -> None:
    async with grpc_broker(tmp_path, enablePropertyFilter=True, **FAST) as broker:
        client = broker.client()
        for number in range(4):
            made = client.message(b"%d" % number, tag="even" if number % 2 == 0 else "odd")
            made.user_properties["n"] = str(number)
            await client.send(made)
        expression = (
            pb.FilterExpression(type=pb.FilterType.TAG, expression="even || none")
            if kind == "tag"
            else pb.FilterExpression(type=pb.FilterType.SQL, expression="n between 2 and 3")
        )
        wanted = {b"0", b"2"} if kind == "tag" else {b"2", b"3"}
        found: set[bytes] = set()
        while found != wanted:
            _, messages = await client.receive(filter_expression=expression)
            assert messages
            found |= {message.body for message in messages}
            await client.acknowledge(*messages)


@pytest.mark.feature(103)
async def test_a_group_without_order_gets_messages_of_one_message_group_at_once(
    tmp_path: Path,
) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        first, second = broker.client(topic="FIFO"), broker.client(topic="FIFO")
        for number in range(2):
            sent = await first.send(first.message(b"%d" % number, message_group="g"))
            assert sent.status.code == Code.OK
        _, held = await first.receive(**invisible(60), batch_size=1)
        _, other = await second.receive(**invisible(60), batch_size=1)
        assert [message.body for message in (*held, *other)] == [b"0", b"1"]


@pytest.mark.feature(139)
async def test_too_many_parked_receives_are_told_so(tmp_path: Path) -> None:
    async with (
        grpc_broker(tmp_path, popPollingSize=1, **FAST) as broker,
        trio.open_nursery() as nursery,
    ):
        refusals: list[pb.Status] = []

        async def poll(client: GrpcClient) -> None:
            while True:
                status, _ = await client.receive(long_polling_timeout={"nanos": 300_000_000})
                if status.code != Code.MESSAGE_NOT_FOUND:
                    refusals.append(status)

        for _ in range(2):
            nursery.start_soon(poll, broker.client())
        with trio.fail_after(30):
            while not refusals:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert {status.code for status in refusals} == {Code.TOO_MANY_REQUESTS}
    assert refusals[0].message


async def make_orderly(broker: Any) -> None:
    config = SubscriptionGroupConfig(group_name=GROUP, consume_message_orderly=True)
    answer = await broker.peer.call(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode()
    )
    assert answer.code == 0


async def test_a_group_in_order_waits_for_acknowledgements(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        await make_orderly(broker)
        client, other = broker.client(topic="FIFO"), broker.client(topic="FIFO")
        for number in range(3):
            sent = await client.send(client.message(b"%d" % number, message_group="g"))
            assert sent.status.code == Code.OK
        _, first = await client.receive(**invisible(2), batch_size=1, attempt_id="a1")
        assert [message.body for message in first] == [b"0"]
        status, _ = await other.receive(
            **invisible(2), attempt_id="b1", long_polling_timeout={"nanos": 200_000_000}
        )
        assert status.code == Code.MESSAGE_NOT_FOUND
        _, again = await client.receive(**invisible(2), batch_size=1, attempt_id="a1")
        assert [message.body for message in again] == [b"0"]
        await change(client, again[0], 0)
        _, again = await client.receive(**invisible(2), batch_size=1, attempt_id="a2")
        assert [message.body for message in again] == [b"0"]
        attempts = [each.system_properties.delivery_attempt for each in (*first, *again)]
        assert attempts[0] == 1
        assert attempts[1] > 1
        assert (await client.acknowledge(*again)).status.code == Code.OK
        _, second = await other.receive(**invisible(2), batch_size=1, attempt_id="b2")
        assert [message.body for message in second] == [b"1"]


async def test_the_time_of_a_push_consumer_is_renewed_until_it_leaves(tmp_path: Path) -> None:
    settings = {
        "defaultInvisibleTimeMills": 600,
        "renewAheadTimeMillis": 400,
        "renewSchedulePeriodMillis": 100,
        **FAST,
    }
    async with grpc_broker(tmp_path, **settings) as broker:
        client, other = broker.client("holder"), broker.client("other")
        async with telemetry(client) as stream:
            stream.put(rpc.TelemetryCommand(settings=client.settings()))
            await stream.take()
            await client.send(client.message(b"held"), client.message(b"acked"))
            found: list[pb.Message] = []
            while len(found) < 2:
                found += (await client.receive(auto_renew=True))[1]
            await trio.sleep(1.5)  # the first time is over, the renewed one is not
            acked = next(message for message in found if message.body == b"acked")
            assert (await client.acknowledge(acked)).status.code == Code.OK
            status, _ = await other.receive(long_polling_timeout={"nanos": 300_000_000})
            assert status.code == Code.MESSAGE_NOT_FOUND
            await client.call(
                "NotifyClientTermination",
                rpc.NotifyClientTerminationRequest(group=pb.Resource(name=GROUP)),
            )
            _, again = await other.receive()
            assert [message.body for message in again] == [b"held"]


async def test_dead_letters(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        client = broker.client()
        await client.send(client.message(b"bad", tag="t"))
        _, (message,) = await client.receive(**invisible(1))
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=GROUP),
            topic=pb.Resource(name=TOPIC),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            delivery_attempt=1,
            max_delivery_attempts=1,
        )
        answer = await client.call("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == Code.OK, answer
        dead = broker.client(topic=f"%DLQ%{GROUP}", group="Readers")
        _, (letter,) = await dead.receive()
        assert letter.body == b"bad"
        status, _ = await client.receive(long_polling_timeout={"seconds": 2})
        assert status.code == Code.MESSAGE_NOT_FOUND


async def test_an_invented_handle_makes_no_dead_letter(tmp_path: Path) -> None:
    """Else a group could read messages of any topic, as its dead letters."""
    async with grpc_broker(tmp_path, **FAST) as broker:
        client, other = broker.client(), broker.client(topic="FIFO", group="Others")
        for body in (b"one", b"two"):
            await client.send(client.message(body))
        group = "secret"
        secret = other.message(b"secret", message_type=pb.MessageType.FIFO, message_group=group)
        assert (await other.send(secret)).status.code == Code.OK
        messages: list[pb.Message] = []
        while len(messages) < 2:
            messages += (await client.receive(**invisible(60)))[1]
        _, (foreign,) = await other.receive(**invisible(60))
        mine = messages[0].system_properties.receipt_handle.split(" ")
        theirs = foreign.system_properties.receipt_handle.split(" ")

        async def forward(*parts: str) -> int:
            request = rpc.ForwardMessageToDeadLetterQueueRequest(
                group=pb.Resource(name=GROUP),
                topic=pb.Resource(name=TOPIC),
                receipt_handle=" ".join(parts),
                message_id=messages[0].system_properties.message_id,
            )
            return int((await client.call("ForwardMessageToDeadLetterQueue", request)).status.code)

        for parts in (
            [*mine[:8], theirs[8]],  # a message of another topic
            [*mine[:8], str(int(mine[8]) + 1)],  # the middle of a message
            [*mine[:7], str(int(mine[7]) + 1), mine[8]],  # another place in the queue
            [*mine[:6], str(1 - int(mine[6])), *mine[7:]],  # another queue
            mine[:8],
        ):
            assert await forward(*parts) == Code.INVALID_RECEIPT_HANDLE, parts
        nothing = await broker.peer.pull_raw(f"%DLQ%{GROUP}")
        assert nothing.code == ResponseCode.TOPIC_NOT_EXIST
        # As Java's proxy: its client repeats a refusal of this call at once, and for ever.
        late = [*mine[:1], str(int(mine[1]) - 3_600_000), *mine[2:]]
        assert await forward(*late) == Code.OK
        assert (await broker.peer.pull(f"%DLQ%{GROUP}", 0, 0)).bodies == [messages[0].body]


async def test_a_message_that_was_delivered_too_often_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path, **FAST) as broker:
        config = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=1)
        await broker.peer.call(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode()
        )
        client = broker.client()
        await client.send(client.message(b"bad"))
        for attempt in (1, 2):
            _, (message,) = await client.receive(**invisible(60))
            assert message.system_properties.delivery_attempt == attempt
            await change(client, message, 0)
        dead = broker.client(topic=f"%DLQ%{GROUP}", group="Readers")
        with trio.fail_after(10):
            status = pb.Status(code=Code.TOPIC_NOT_FOUND)
            while status.code != Code.OK:
                await client.receive(**invisible(60), long_polling_timeout={"nanos": 200_000_000})
                status, letters = await dead.receive(long_polling_timeout={"nanos": 200_000_000})
        assert [letter.body for letter in letters] == [b"bad"]


async def test_a_stop_does_not_wait_for_parked_receives_and_streams(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker, trio.open_nursery() as nursery:
        client = broker.client()
        statuses = []

        async def park() -> None:
            statuses.append((await client.receive(long_polling_timeout={"seconds": 15}))[0].code)

        async with telemetry(client) as stream:
            stream.put(rpc.TelemetryCommand(settings=client.settings()))
            await stream.take()
            nursery.start_soon(park)
            await trio.sleep(0.5)
            broker.ready.stop()
            with trio.fail_after(5):
                assert await stream.take() is None
                while not statuses:
                    await trio.sleep(0.01)
        assert statuses == [Code.MESSAGE_NOT_FOUND]
