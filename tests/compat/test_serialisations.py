"""Both header serialisations, in all directions: Java's clients on our cluster, our client on
Java's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from frame_tap import frame_tap
from processes import java_broker, java_home, java_name_server, java_peer

from triomq import Message, Producer, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin
from triomq.client.core.config import ClientSettings, ConsumerSettings, ProducerSettings
from triomq.remoting.protocol.codes import SerializeType

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180)]

COUNT = 20


@pytest.mark.loss
@pytest.mark.compatible("header {form.name}", peer="java-client-{java_version}")
@pytest.mark.feature("16a")
@pytest.mark.parametrize("form", SerializeType, ids=lambda form: form.name)
async def test_java_clients_on_our_cluster(
    our_cluster: str, java_version: str, form: SerializeType
) -> None:
    topic = f"Form_{java_version.replace('.', '_')}_{form.name}"
    define = (f"rocketmq.serialize.type={form.name}",)

    async def peer(*arguments: str) -> list[list[str]]:
        return await trio.to_thread.run_sync(
            lambda: java_peer(java_version, *arguments, define=define)
        )

    async with frame_tap(
        our_cluster
    ) as tap:  # Java asks the name server in the form in which it asks brokers
        for mode in ("sync", "batch"):
            sent = [
                line
                for line in await peer("send", tap.address, topic, str(COUNT), "TagA", mode)
                if line[0] == "SENT"
            ]
            assert {line[1] for line in sent} == {"SEND_OK"}
        lines = await peer(
            "consume", tap.address, topic, f"group-{form.name}", "TagA", str(2 * COUNT), "60"
        )
        got = [line for line in lines if line[0] == "GOT"]
        assert sorted(line[7] for line in got) == sorted(
            2 * [f"body-{number}" for number in range(COUNT)]
        )
        found = [
            line for line in await peer("query", tap.address, topic, "java-3") if line[0] == "FOUND"
        ]
        assert {line[3] for line in found} == {"body-3"}
        assert {command.serialize for command in tap.asked} == {form}
        assert {command.serialize for command in tap.answered} == {form}  # as it was asked


SERVERS = [
    ("5.5.0", SerializeType.JSON),
    ("5.5.0", SerializeType.ROCKETMQ),
    ("4.9.4", SerializeType.JSON),
]


@pytest.fixture(scope="module", params=SERVERS, ids=lambda server: f"{server[0]}-{server[1].name}")
def java_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, SerializeType | None]]:
    """Java's name server and broker, told to write headers in one form; the name server's address,
    and that form if it keeps to it.
    """
    version, form = request.param
    if java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")
    folder: Path = tmp_path_factory.mktemp(f"java-{version}-{form.name}")
    define = (f"rocketmq.serialize.type={form.name}",)
    with (
        java_name_server(version, folder / "namesrv", define=define) as namesrv,
        java_broker(version, folder / "broker", "broker-java", namesrv, define=define),
    ):
        yield namesrv, form if version == "5.5.0" else None


@pytest.mark.loss
@pytest.mark.compatible(
    "header {form.name}", "send", "batch", "push", peer="java-server-{java_servers[0]}"
)
@pytest.mark.parametrize("form", SerializeType, ids=lambda form: form.name)
async def test_our_client_on_java(
    java_servers: tuple[str, SerializeType | None], form: SerializeType
) -> None:
    java_cluster, answered = java_servers
    topic = f"Ours_{form.name}"
    async with Admin(java_cluster) as admin:
        await admin.create_topic(topic, cluster="TestCluster", read_queues=2, write_queues=2)
    client = ClientSettings(serialize=form)
    async with frame_tap(java_cluster) as tap:
        async with Producer(
            tap.address, group="forms", settings=ProducerSettings(client=client)
        ) as producer:
            sent = {
                (await producer.send(topic, f"body-{number}".encode(), tag="TagA")).message_id
                for number in range(COUNT)
            }
            batch = await producer.send_batch(
                [Message(topic=topic, body=b"in a batch", tag="TagA") for _ in range(3)]
            )
        settings = ConsumerSettings(client=client)
        got: list[ReceivedMessage] = []
        with trio.fail_after(60):
            async with PushConsumer(
                tap.address,
                group=f"forms-{form.name}",
                subscriptions={topic: "TagA"},
                consume_from="first",
                settings=settings,
            ) as consumer:
                async for message in consumer:
                    got.append(message)
                    await message.ack()
                    if len({(one.queue, one.queue_offset) for one in got}) == COUNT + 3:
                        break
        assert sent <= {message.message_id for message in got}
        if answered is not None:  # 4.9 gives every message of a batch the id of the batch
            assert {receipt.message_id for receipt in batch} <= {
                message.message_id for message in got
            }
        assert {command.serialize for command in tap.asked} == {form}
        # Java 5.x writes its own form, whatever it was asked in; 4.9 writes the form of the
        # request.
        assert {command.serialize for command in tap.answered} == {
            form if answered is None else answered
        }
