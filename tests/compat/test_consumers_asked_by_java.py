"""RocketMQ's own mqadmin looks at our running consumers and steers them, through a Java broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from processes import java_broker, java_home, java_mqadmin, java_name_server
from serving import until

from triomq import MessageQueue, Producer, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.bodies.offsets import ConsumerStatus
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import ConsumerStatusHeader

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def java_cluster_of_the_old_way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Java broker that tells consumers to move their offsets (request 220), as all brokers before
    5.x do.
    """
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    folder = tmp_path_factory.mktemp("java")
    with (
        java_name_server("5.5.0", folder / "namesrv") as namesrv,
        java_broker(
            "5.5.0", folder / "broker", "broker-java", namesrv, useServerSideResetOffset="false"
        ),
    ):
        yield namesrv


@pytest.mark.loss
@pytest.mark.compatible(
    "running information", "consume directly", "reset while running", peer="java-server-5.5.0"
)
@pytest.mark.feature("169a")
@pytest.mark.parametrize("ordered", [False, True])
async def test_java_s_mqadmin_asks_and_steers(
    java_cluster_of_the_old_way: str, ordered: bool
) -> None:
    namesrv, asked = java_cluster_of_the_old_way, f"asked-{ordered}"
    async with Admin(namesrv) as admin:
        await admin.create_topic(asked, cluster="TestCluster", read_queues=1, write_queues=1)
    seen: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append((message.body, message.queue_offset))

    async def mqadmin(*commands: list[object]) -> list[str]:
        return await trio.to_thread.run_sync(lambda: java_mqadmin("5.5.0", namesrv, commands))

    async with PushConsumer(
        namesrv,
        group=asked,
        subscriptions=asked,
        consume_from="first",
        handler=handle,
        ordered=ordered,
        concurrency=1,
    ) as consumer:
        async with Producer(namesrv, group="asking") as producer:
            receipts = [await producer.send(asked, b"%d" % number) for number in range(5)]
        await until(lambda: len(seen) == 5)
        assert seen == [(b"%d" % number, number) for number in range(5)]
        # 221, passed on by the Java broker: five messages are done
        async with Connector() as connector:
            ask = request(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                ConsumerStatusHeader(topic=asked, group=asked, client_id=""),
            )
            async with Admin(namesrv) as admin:
                (broker,) = await admin.brokers()
            answer = await connector.invoke(broker.address, ask, timeout=10)
            table = ConsumerStatus.decode(answer.body).consumer_table
        assert table == {consumer.client_id: {MessageQueue(asked, "broker-java", 0): 5}}
        status, handled, reset = await mqadmin(
            ["consumerStatus", "-g", asked, "-i", consumer.client_id, "-s"],
            [
                "queryMsgById",
                "-i",
                receipts[2].offset_message_id,
                "-g",
                asked,
                "-d",
                consumer.client_id,
                "-t",
                asked,
            ],
            ["resetOffsetByTime", "-g", asked, "-t", asked, "-s", "0", "-f", "true"],
        )
        # 307: its subscriptions, queues, settings and tasks
        assert f"%RETRY%{asked}" in status
        words = next(line for line in status.splitlines() if "PROP_CONSUMEORDERLY" in line).split()
        assert words[-1] == str(ordered).lower()
        assert "CONSUME_PASSIVELY" in status
        assert "handler-0" in status
        # 309: the message was handled at once, by our handler
        assert "CR_SUCCESS" in handled, handled
        # 220: and all five once more
        assert "broker-java" in reset, reset
        await until(lambda: len(seen) == 11)
    assert seen[5:] == [(b"2", 2), *((b"%d" % number, number) for number in range(5))]
