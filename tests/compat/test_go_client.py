"""What the official Go client does together with others on our cluster: transactions, requests and
replies, times of delivery, traces.

test_a_day_of_foreign_clients.py has what every client does every day.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import processes
import pytest
import trio
from foreign_clients import ForeignClient, foreign_client
from mqadmin_calls import mqadmin
from topic_reader import read_topic

from triomq import ClientSettings, Producer, ProducerSettings, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]

GO = "go-client"
LONG = "x" * 10_000
SOON = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
LATE_MAX_MS = 2000
"""Of a timed message, on a machine that runs other tests."""


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ours")
    with (
        processes.our_name_server(folder) as address,
        processes.our_broker(folder, "broker-a", address, traceTopicEnable=True, **SOON),
    ):
        processes.wait_registered(address, "broker-a")
        yield address


@pytest.fixture(scope="module")
def client(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    if not (processes.PEERS / "go" / "peer").exists():
        pytest.skip("the Go client is not installed: run `make peers`")
    with foreign_client(GO, namesrv, tmp_path_factory.mktemp(GO)) as running:
        yield running


async def create(namesrv: str, *topics: str) -> None:
    async with Admin(namesrv) as admin:
        for topic in topics:
            await admin.create_topic(topic, queues=1)


async def ask(client: ForeignClient, *words: object) -> list[list[str]]:
    return await trio.to_thread.run_sync(lambda: client.ask(*words))


@pytest.mark.loss
@pytest.mark.compatible("transactions", peer=GO)
@pytest.mark.feature("105a", "106a", "108b", "109b")
async def test_transactions(namesrv: str, client: ForeignClient) -> None:
    """The first letter of a body is the local transaction's state, the second the answer to
    checks: commit, roll back, unknown.
    """
    await create(namesrv, "Tx")
    bodies = "c-,r-,uc,ur,uu"
    lines = await ask(client, "transact", "Tx", "go-tx", bodies, "uc,ur,uu")
    ok, (commit, roll_back, unknown) = "0", ("1", "2", "3")
    states = (commit, roll_back, unknown, unknown, unknown)
    assert [line[2:] for line in lines if line[1] == "SENT"] == [
        [body, ok, state] for body, state in zip(bodies.split(","), states, strict=True)
    ]
    checked = [line[2:] for line in lines if line[1] == "CHECKED"]
    assert {body for body, _, _ in checked} == {"uc", "ur", "uu"}
    assert {topic for _, _, topic in checked} == {"Tx"}
    times = [number for body, number, _ in checked if body == "uu"]
    assert times == [str(number) for number in range(1, len(times) + 1)]
    assert [body for body, _, _ in checked].count("uc") == 1
    found = await read_topic(namesrv, "Tx", 2)
    assert sorted(message.body for message in found) == [b"c-", b"uc"]


@pytest.mark.loss
@pytest.mark.compatible("request and reply", peer=GO)
@pytest.mark.feature("162d")
async def test_requests_and_replies(namesrv: str, client: ForeignClient) -> None:
    """Ours or Go's as the requester, ours or Go's as the replier.

    The first replier is ours: Go's gives up if the broker does not know the requester yet.
    """

    async def handler(message: ReceivedMessage) -> None:
        await message.reply(b"ours: " + message.body)

    ours, theirs = "RepliesOfOurs", "RepliesOfGo"
    await create(namesrv, ours, theirs)
    await ask(client, "replier", "replier", theirs, "go-repliers")
    try:
        async with (
            PushConsumer(
                namesrv, group="repliers", subscriptions=ours, handler=handler, consume_from="first"
            ) as consumer,
            Producer(namesrv, group="requesters") as producer,
        ):
            await consumer.wait_assigned()
            for topic, who in ((ours, "ours"), (theirs, "go")):
                for body in ("q0", LONG):
                    (line,) = await ask(client, "request", topic, body, 20)
                    assert line == ["VALUE", f"{who}: {body}", "TestCluster_REPLY_TOPIC"]
                    reply = await producer.request(topic, body.encode(), timeout=20)
                    assert reply.body.decode() == f"{who}: {body}"
        answered = await trio.to_thread.run_sync(lambda: client.wait_got("replier", 4))
        assert sorted(one.body for one in answered) == ["q0", "q0", LONG, LONG]
    finally:
        await ask(client, "stop", "replier")


@pytest.mark.compatible("time of delivery", peer=GO)
@pytest.mark.feature("115")
async def test_times_of_delivery(namesrv: str, client: ForeignClient) -> None:
    """The client has no function for it, but it sends the properties that say it."""
    await create(namesrv, "Timed")
    wanted = time.time_ns() // 1_000_000 + 2500
    for argument in (f"TIMER_DELIVER_MS={wanted}", "TIMER_DELAY_MS=700"):
        await trio.to_thread.run_sync(
            lambda argument=argument: client.send("Timed", "property", 1, argument=argument)
        )
    first, second = await read_topic(namesrv, "Timed", 2)
    assert 0 <= first.store_timestamp - first.born_timestamp - 700 < LATE_MAX_MS
    assert 0 <= second.store_timestamp - wanted < LATE_MAX_MS


@pytest.mark.compatible("message trace", peer=GO)
@pytest.mark.feature("133a", "133b")
async def test_our_mqadmin_reads_go_s_traces(namesrv: str, client: ForeignClient) -> None:
    """One message that Go sends, and one of ours, whose first delivery fails."""
    topic, group = "Traced", "go-billing"
    # Brokers make the retry topic at the first heartbeat, and clients look for it half a minute
    # later.
    await create(namesrv, topic, f"%RETRY%{group}")
    (sent,) = await trio.to_thread.run_sync(lambda: client.send(topic, "traced", 1, tag="TagG"))
    settings = ProducerSettings(client=ClientSettings(trace=True))
    async with Producer(namesrv, group="py-tracing", settings=settings) as producer:
        receipt = await producer.send(topic, b"again", tag="TagP", keys=["py-key"])

    def consume() -> None:
        with client.consuming(topic, group, mode="traced") as name:
            client.wait_got(name, 3)
            time.sleep(0.3)  # until the interceptor behind the listener has run

    await trio.to_thread.run_sync(consume)
    pub, sub = await events(namesrv, sent.message_id, 2)
    assert (pub["type"], pub["group"], pub["topic"], pub["tags"], pub["status"]) == (
        "Pub",
        "peer-producer",
        topic,
        "TagG",
        "success",
    )
    assert (pub["keys"], pub["bodyLength"]) == (["key-0"], len("body-0"))
    assert (sub["type"], sub["group"], sub["retryTimes"], sub["status"]) == (
        "Sub",
        group,
        0,
        "success",
    )
    found = await events(namesrv, receipt.message_id, 3)
    assert [(event["type"], event["group"], event["status"]) for event in found] == [
        ("Pub", "py-tracing", "success"),
        ("Sub", group, "failed"),
        ("Sub", group, "success"),
    ]


async def events(namesrv: str, message_id: str, count: int) -> list[dict[str, object]]:
    """What our mqadmin finds, as soon as it is so much."""
    deadline = time.monotonic() + 20
    while True:
        done = await mqadmin("queryMsgTraceById", "-i", message_id, "-n", namesrv, "--json")
        found: list[dict[str, object]] = done.document["events"] if done.code == 0 else []
        if len(found) >= count or time.monotonic() > deadline:
            assert len(found) == count, done
            return found
        await trio.sleep(0.1)
