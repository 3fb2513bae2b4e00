"""Both header serialisations, in all directions: Java's clients on our cluster, our client on Java's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from frame_tap import frame_tap
from processes import java_broker, java_home, java_name_server, java_peer

from triomq import Message, Producer, PushConsumer
from triomq.client.admin.admin import Admin
from triomq.client.config import ClientSettings, ConsumerSettings, ProducerSettings
from triomq.remoting.protocol.codes import SerializeType

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

COUNT = 20


@pytest.mark.feature(16, 17)
@pytest.mark.parametrize("form", SerializeType, ids=lambda form: form.name)
async def test_java_clients_on_our_cluster(our_cluster: str, java_version: str, form: SerializeType) -> None:
    topic = f"Form_{java_version.replace('.', '_')}_{form.name}"
    define = (f"rocketmq.serialize.type={form.name}",)

    async def peer(*arguments: str) -> list[list[str]]:
        return await trio.to_thread.run_sync(lambda: java_peer(java_version, *arguments, define=define))

    async with frame_tap(our_cluster) as tap:  # Java asks the name server in the form in which it asks brokers
        for mode in ("sync", "batch"):
            sent = [line for line in await peer("send", tap.address, topic, str(COUNT), "TagA", mode) if line[0] == "SENT"]
            assert {line[1] for line in sent} == {"SEND_OK"}
        lines = await peer("consume", tap.address, topic, f"group-{form.name}", "TagA", str(2 * COUNT), "60")
        got = [line for line in lines if line[0] == "GOT"]
        assert sorted(line[7] for line in got) == sorted(2 * [f"body-{number}" for number in range(COUNT)])
        found = [line for line in await peer("query", tap.address, topic, "java-3") if line[0] == "FOUND"]
        assert {line[3] for line in found} == {"body-3"}
        assert {command.serialize for command in tap.asked} == {form}
        assert {command.serialize for command in tap.answered} == {form}  # as it was asked


@pytest.fixture(scope="module", params=SerializeType, ids=lambda form: form.name)
def java_servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SerializeType]]:
    """Name server and broker of Java 5.5.0 that write headers in one form; the name server's address, and that form."""
    if java_home("5.5.0") is None:
        pytest.skip("the Java peers 5.5.0 are not installed: run `make peers`")
    form: SerializeType = request.param
    folder: Path = tmp_path_factory.mktemp(f"java-{form.name}")
    define = (f"rocketmq.serialize.type={form.name}",)
    with (
        java_name_server("5.5.0", folder / "namesrv", define=define) as namesrv,
        java_broker("5.5.0", folder / "broker", "broker-java", namesrv, define=define),
    ):
        yield namesrv, form


@pytest.mark.feature(16, 17)
@pytest.mark.parametrize("form", SerializeType, ids=lambda form: form.name)
async def test_our_client_on_java(java_servers: tuple[str, SerializeType], form: SerializeType) -> None:
    java_cluster, answered = java_servers
    topic = f"Ours_{form.name}"
    async with Admin(java_cluster) as admin:
        await admin.create_topic(topic, cluster="TestCluster", read_queues=2, write_queues=2)
    client = ClientSettings(serialize=form)
    async with frame_tap(java_cluster) as tap:
        async with Producer(tap.address, group="forms", settings=ProducerSettings(client=client)) as producer:
            sent = {(await producer.send(topic, f"body-{number}".encode(), tag="TagA")).message_id for number in range(COUNT)}
            sent |= {receipt.message_id for receipt in await producer.send_batch([Message(topic=topic, body=b"in a batch", tag="TagA") for _ in range(3)])}
        settings = ConsumerSettings(client=client)
        got = set()
        with trio.fail_after(60):
            async with PushConsumer(tap.address, group=f"forms-{form.name}", subscriptions={topic: "TagA"}, consume_from="first", settings=settings) as consumer:
                async for message in consumer:
                    got.add(message.message_id)
                    await message.ack()
                    if len(got) == COUNT + 3:
                        break
        assert got == sent
        assert {command.serialize for command in tap.asked} == {form}
        # A Java 5.x server writes its own form, whatever it was asked in.
        assert {command.serialize for command in tap.answered} == {answered}
