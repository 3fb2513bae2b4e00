"""What producers do beyond plain sends, between our SDK and the official clients, through our
cluster and through Java's broker.
"""

from __future__ import annotations

import ipaddress
import subprocess
import time
import zlib
from collections import defaultdict

import pytest
import trio
from processes import java_command, java_home
from sent_requests import COMPRESSED_FLAG, COMPRESSION_BITS, SentRequests
from topic_reader import read_topic

from triomq import Message, Producer, ProducerSettings
from triomq.client.admin.admin import Admin

JAVA_VERSIONS = ("5.5.0", "4.9.4")

COMPRESSED = ("compressed zlib", "compressed lz4", "compressed zstd")


pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]


def peer(version: str, *arguments: str) -> list[list[str]]:
    """Run a verb of ProducerPeer.java to its end; its lines, split at tabs."""
    command = java_command(version, "ProducerPeer", *arguments)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, (
        f"{arguments} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return [
        line.split("\t")
        for line in done.stdout.splitlines()
        if line.split("\t")[0] in {"SENT", "GOT", "FOUND", "OWN"}
    ]


async def peer_in_thread(version: str, *arguments: str) -> list[list[str]]:
    return await trio.to_thread.run_sync(lambda: peer(version, *arguments))


@pytest.fixture(params=["ours", "java"])
def namesrv(request: pytest.FixtureRequest) -> str:
    """Our cluster, then one with Java's broker 5.5.0."""
    if any(java_home(version) is None for version in JAVA_VERSIONS):
        pytest.skip("the Java peers are not installed: run `make peers`")
    address: str = request.getfixturevalue(
        "our_cluster" if request.param == "ours" else "java_cluster"
    )
    return address


async def batch_requests(namesrv: str) -> int:
    """Return how many batches (code 320) our brokers have taken."""
    async with Admin(namesrv) as admin:
        answers = await admin.statuses(await admin.brokers())
    counts = [
        status.get("request_320_SEND_BATCH_MESSAGE", "count 0,")
        for status in answers.values.values()
    ]
    return sum(int(count.split()[1].strip(",")) for count in counts)


async def create(namesrv: str, topic: str, queues: int) -> None:
    async with Admin(namesrv) as admin:
        await admin.create_topic(
            topic, cluster="TestCluster", read_queues=queues, write_queues=queues
        )


@pytest.mark.loss
@pytest.mark.compatible(
    "push in order", *COMPRESSED, peer="java-client-5.5.0", only={"namesrv": "ours"}
)
@pytest.mark.compatible(
    "push in order", *COMPRESSED, peer="java-client-4.9.4", only={"namesrv": "ours"}
)
@pytest.mark.compatible(
    "send",
    "send async",
    "send one-way",
    "batch",
    "automatic batch",
    "properties",
    *COMPRESSED,
    peer="java-server-5.5.0",
    only={"namesrv": "java"},
)
@pytest.mark.feature("73b", "161a")
async def test_java_consumes_what_we_compress_batch_and_order(namesrv: str) -> None:
    """One topic with everything: three compressions, explicit and automatic batches, keyed
    messages; Java's orderly consumer reads it.
    """
    await create(namesrv, "FromPython", 4)
    sent: dict[str, tuple[int, int, bytes]] = {}
    by_key: dict[str, list[str]] = defaultdict(list)

    async def send(producer: Producer, body: bytes, **more: str) -> str:
        receipt = await producer.send("FromPython", body, tag="TagP", keys=["k"], **more)  # type: ignore[arg-type]
        sent[receipt.message_id] = receipt.queue.queue_id, receipt.queue_offset, body
        return receipt.message_id

    for name in ("zlib", "lz4", "zstd"):
        async with Producer(
            namesrv, group="py", settings=ProducerSettings(compression=name)
        ) as producer:
            for number in range(3):
                await send(
                    producer,
                    b"%s %d " % (name.encode(), number) + b"0123456789" * 1000 * (number + 1),
                )
    async with Producer(namesrv, group="py") as producer:
        for number in range(40):
            key = f"k{number % 7}"
            by_key[key].append(
                await send(producer, b"%s step %d" % (key.encode(), number), sharding_key=key)
            )
        bodies = [b"batch %d" % number for number in range(50)]
        receipts = await producer.send_batch(
            [Message(topic="FromPython", body=body, tag="TagP", keys=("k",)) for body in bodies]
        )
        for receipt, body in zip(receipts, bodies):
            sent[receipt.message_id] = receipt.queue.queue_id, receipt.queue_offset, body
    requests = SentRequests()
    automatic = ProducerSettings(auto_batch=True, send_hooks=[requests])
    async with (
        Producer(namesrv, group="py", settings=automatic) as producer,
        trio.open_nursery() as nursery,
    ):
        for number in range(30):
            nursery.start_soon(send, producer, b"auto %d" % number)
    assert requests.batches > 0
    assert requests.batches + requests.singles < 30
    async with Producer(namesrv, group="py") as producer:
        for number in range(5):
            await producer.send_oneway("FromPython", b"one-way %d" % number, keys=["one-way"])
    assert len(sent) == 9 + 40 + 50 + 30
    stored = {
        message.message_id: message._stored.sys_flag & COMPRESSION_BITS
        for message in await read_topic(namesrv, "FromPython", len(sent) + 5)
    }
    for message_id, (_, _, body) in sent.items():
        assert stored[message_id] == COMPRESSED_FLAG.get(body.partition(b" ")[0].decode(), 0), body[
            :20
        ]
    for version in JAVA_VERSIONS:
        group = f"java-readers-{version.replace('.', '_')}"
        lines = await peer_in_thread(
            version, "orderly", namesrv, "FromPython", group, str(len(sent) + 5)
        )
        got = [line for line in lines if line[0] == "GOT"]
        assert {line[9] for line in got if line[7] == "one-way"} == {
            f"one-way {number}" for number in range(5)
        }
        check([line for line in got if line[7] != "one-way"], sent, by_key)


def check(
    got: list[list[str]], sent: dict[str, tuple[int, int, bytes]], by_key: dict[str, list[str]]
) -> None:
    """Whether Java's consumer saw every message where its receipt said, whole, and each key's
    messages in order.
    """
    seen = {line[1]: line for line in got}
    assert set(seen) == set(sent)
    for message_id, (queue, offset, body) in sent.items():
        line = seen[message_id]
        assert (int(line[2]), int(line[3]), int(line[4]), int(line[5])) == (
            queue,
            offset,
            len(body),
            zlib.crc32(body),
        )
        assert line[6:8] == ["TagP", "k"]
    order = list(dict.fromkeys(line[1] for line in got))
    for key, ids in by_key.items():
        assert [message_id for message_id in order if message_id in ids] == ids, key
        assert {seen[message_id][8] for message_id in ids} == {key}


@pytest.mark.loss
@pytest.mark.compatible(
    *COMPRESSED,
    "batch",
    "automatic batch",
    "send by key",
    "properties",
    peer="java-client-5.5.0",
    only={"namesrv": "ours"},
)
@pytest.mark.compatible(
    "lite assign", "send by key", peer="java-server-5.5.0", only={"namesrv": "java"}
)
@pytest.mark.feature("73b")
async def test_we_consume_what_java_compresses_batches_and_orders(
    namesrv: str, request: pytest.FixtureRequest
) -> None:
    ours = request.node.callspec.params["namesrv"] == "ours"
    await create(namesrv, "FromJava", 4)
    modes = ["ZLIB", "LZ4", "ZSTD", "batch", "auto", "hash"]
    batches_before = await batch_requests(namesrv) if ours else 0
    lines = await peer_in_thread("5.5.0", "send", namesrv, "FromJava", ",".join(modes), "21")
    assert {line[1] for line in lines} == {"SEND_OK"}
    if ours:  # one explicit batch, and automatic ones; a Java broker does not count them
        assert await batch_requests(namesrv) - batches_before >= 2
    by_key = {
        f"k{key}": {line[3] for line in lines if line[5] == "hash" and int(line[6]) % 7 == key}
        for key in range(7)
    }
    expected = 21 * len(modes)
    messages = await read_topic(namesrv, "FromJava", expected)
    assert len(messages) == expected
    modes_sent = {line[2]: line[5].lower() for line in lines if line[5] not in ("batch", "auto")}
    for message in messages:
        how = modes_sent.get(message.message_id, "in a batch")
        assert message._stored.sys_flag & COMPRESSION_BITS == COMPRESSED_FLAG.get(how, 0), how
    for message in messages:
        assert int(message.properties["crc"]) == zlib.crc32(message.body)
        assert (message.tag, message.keys) == ("TagJ", (f"key-{message.properties['number']}",))
    # Equal keys go to equal queues, from any client.
    async with Producer(namesrv, group="py") as producer:
        for key, queues in by_key.items():
            assert {
                str((await producer.send("FromJava", b"x", sharding_key=key)).queue.queue_id)
            } == queues


@pytest.mark.compatible("unique ids", peer="java-client-{java_version}")
async def test_java_reads_address_and_time_from_our_ids(
    our_cluster: str, java_version: str
) -> None:
    async with Producer(our_cluster, group="py") as producer:
        ids = [producer.new_message_id() for _ in range(3)]
        address = producer.client_id.partition("@")[0]
        before = time.time()
        lines = await peer_in_thread(java_version, "ids", ",".join(ids))
    found = [line for line in lines if line[0] == "FOUND"]
    assert [line[1] for line in found] == ids
    for line in found:
        assert ipaddress.ip_address(line[2]) == ipaddress.ip_address(address)
        assert abs(int(line[3]) / 1000 - before) < 60
    (own,) = [line[1] for line in lines if line[0] == "OWN"]
    assert len(own) in {32, 56}  # the latter if Java takes an IPv6 address for its own
    assert own == own.upper()
