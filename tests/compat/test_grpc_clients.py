"""The official Java, Python, Node and Go clients of RocketMQ 5 (gRPC), unmodified, at every server
that they may talk to. What they send is read by our SDK from the brokers; what they receive was
sent by our SDK. All scenarios of all clients run side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from grpc_endpoints import ENDPOINTS, GrpcEndpoint
from grpc_peers import CLIENTS, GrpcPeer, grpc_peer, need_grpc_clients
from grpc_scenarios import COUNT, MESSAGE_TYPES, prepare
from topic_reader import read_topic

from triomq import ReceivedMessage
from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]
Event = dict[str, Any]

NUMBERS = [str(number) for number in range(COUNT)]
EVEN, ODD = NUMBERS[::2], NUMBERS[1::2]
TLS_SCENARIOS = "send-normal", "filter-tag"


@attrs.define(eq=False)
class Day:
    """The clients at work at one endpoint."""

    endpoint: GrpcEndpoint
    folder: Path
    programs: ExitStack
    _peers: dict[str, GrpcPeer] = attrs.field(factory=dict)
    tries: int = 1

    def prefix(self, client: str, scenario: str, *, tls: bool) -> str:
        """What the topic begins with. Each client carries out all scenarios at once in one process;
        TLS, and a test's second try, get processes when they are asked for.
        """
        words = [client.replace(".", "_")]
        words += ["tls"] if tls else []
        words += [f"{scenario}-{self.tries}"] if self.tries > 1 else []
        return "-".join(words)

    async def begin(self, prefix: str, client: str, scenarios: Sequence[str], *, tls: bool) -> None:
        await prepare(self.endpoint.namesrv, [prefix], scenarios)
        ca = self.endpoint.ca if tls else None
        peer = grpc_peer(client, self.endpoint.address, scenarios, prefix, self.folder, ca=ca)
        self._peers[prefix] = self.programs.enter_context(peer)

    async def begin_all(self, scenarios: Sequence[str], *, tls: bool) -> None:
        for client in CLIENTS:
            await self.begin(self.prefix(client, "", tls=tls), client, scenarios, tls=tls)

    async def events(
        self, client: str, scenario: str, *kinds: str, tls: bool = False
    ) -> list[Event]:
        """What the client has printed of the scenario, which is over then."""
        prefix = self.prefix(client, scenario, tls=tls)
        if prefix not in self._peers:
            if tls and self.tries == 1:
                await self.begin_all(TLS_SCENARIOS, tls=True)
            else:
                await self.begin(prefix, client, [scenario], tls=tls)
        events = await trio.to_thread.run_sync(self._peers[prefix].done, scenario)
        return [event for event in events if event["event"] in kinds]

    async def stored(
        self, client: str, scenario: str, count: int, *, tls: bool = False
    ) -> list[ReceivedMessage]:
        """The messages of the scenario's topic, when there are so many."""
        prefix = self.prefix(client, scenario, tls=tls)
        return await read_topic(self.endpoint.namesrv, f"{prefix}-{scenario}", count)

    async def progress(self, client: str, scenario: str) -> tuple[int, int]:
        """How many messages our brokers have for the scenario's group, and how many are done."""
        topic = f"{self.prefix(client, scenario, tls=False)}-{scenario}"
        async with Admin(self.endpoint.namesrv) as admin:
            answers = await admin.consume_stats(topic, topic)
        queues = [
            offsets for stats in answers.values.values() for offsets in stats.offset_table.values()
        ]
        stored = sum(offsets.broker_offset for offsets in queues)
        return stored, sum(offsets.consumer_offset for offsets in queues)

    async def dead(self, client: str, scenario: str) -> list[ReceivedMessage]:
        """What the group has given up, when there is some."""
        prefix = self.prefix(client, scenario, tls=False)
        return await read_topic(self.endpoint.namesrv, f"%DLQ%{prefix}-{scenario}", 1)


@pytest.fixture(scope="module", params=ENDPOINTS)
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcEndpoint]:
    need_grpc_clients()
    with ENDPOINTS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def whole_day(endpoint: GrpcEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    with ExitStack() as programs:
        day = Day(endpoint, tmp_path_factory.mktemp("clients"), programs)
        trio.run(partial(day.begin_all, tuple(MESSAGE_TYPES), tls=False))
        yield day


@pytest.fixture
def day(whole_day: Day, request: pytest.FixtureRequest) -> Day:
    """``make test-all ARGS=--again`` gives a second try."""
    whole_day.tries = getattr(request.node, "execution_count", 1)
    return whole_day


def each_client(*rows: str, but: str = "none") -> Any:
    """Run the test for each client; it fills the rows of the endpoint's table.

    ``but``: the language of a client that cannot do it.
    """
    names = [f"{{endpoint}}: {row}" for row in rows]
    mark = pytest.mark.compatible(*names, peer="{client}")
    clients = [client for client in CLIENTS if f"-{but}-" not in client]
    return lambda test: mark(pytest.mark.parametrize("client", clients)(test))


def suffix(body: str | bytes) -> str:
    return (body.decode() if isinstance(body, bytes) else body).rpartition("-")[2]


def numbers(events: list[Event]) -> Counter[str]:
    """How often each message is in the events, by the number in its body."""
    return Counter(suffix(event["body"]) for event in events)


def check_got(events: list[Event], stored: list[ReceivedMessage]) -> None:
    """Compare what a client got with what is stored."""
    messages = {message.body.decode(): message for message in stored}
    for event in events:
        message = messages[event["body"]]
        assert event["id"] == message.message_id
        assert (event["topic"], event["tag"]) == (message.topic, message.tag)
        assert sorted(event["keys"]) == sorted(message.keys)
        own = {name: message.properties[name] for name in ("number", "color")}
        assert own.items() <= event["properties"].items()


@pytest.mark.loss
@each_client("send")
@pytest.mark.feature(142, 146)
async def test_a_message_arrives_with_all_that_it_has(day: Day, client: str) -> None:
    sent = await day.events(client, "send-normal", "sent")
    stored = await day.stored(client, "send-normal", COUNT)
    assert Counter(message.body.decode() for message in stored) == {
        f"send-normal-{number}": 1 for number in NUMBERS
    }
    ids = {event["body"]: event["id"] for event in sent}
    for message in stored:
        number = suffix(message.body)
        assert message.message_id == ids[message.body.decode()]
        assert message.tag == ("TagB" if number in ODD else "TagA")
        assert sorted(message.keys) == [f"key-{number}", f"other-{number}"]
        assert message.properties["number"] == number
        assert message.properties["text"] == "Grüße 你好"


@pytest.mark.loss
@each_client("send in order")
@pytest.mark.feature("101a", "101c")
async def test_a_message_group_stays_in_one_queue(day: Day, client: str) -> None:
    await day.events(client, "send-fifo", "sent")
    stored = await day.stored(client, "send-fifo", COUNT)
    for expected in (EVEN, ODD):
        of_group = [message for message in stored if suffix(message.body) in expected]
        assert len({message.queue for message in of_group}) == 1
        of_group.sort(key=lambda message: message.queue_offset)
        assert [suffix(message.body) for message in of_group] == expected


@pytest.mark.loss
@each_client("time of delivery")
async def test_a_delayed_message_comes_not_earlier(day: Day, client: str) -> None:
    sent = await day.events(client, "send-delay", "sent")
    stored = await day.stored(client, "send-delay", COUNT)
    due = {event["id"]: event["due"] for event in sent}
    assert sorted(due) == sorted(message.message_id for message in stored)
    early = [
        message.body for message in stored if message.store_timestamp < due[message.message_id]
    ]
    assert early == []


@pytest.mark.loss
@each_client("recall")
async def test_a_recalled_message_does_not_come(day: Day, client: str) -> None:
    ids = {event["body"]: event["id"] for event in await day.events(client, "recall", "sent")}
    recalled = await day.events(client, "recall", "recalled")
    assert {suffix(event["body"]) for event in recalled} == set(ODD)
    assert all(event["id"] == ids[event["body"]] for event in recalled)
    # The last one that was not recalled is due after all that were.
    stored = await day.stored(client, "recall", len(EVEN))
    assert sorted(suffix(message.body) for message in stored) == EVEN


@each_client("refused send")
async def test_a_message_of_the_wrong_type_is_refused(day: Day, client: str) -> None:
    """The route tells the client the type of the topic. Node names types by their numbers, and Go
    names none.
    """
    (refused,) = await day.events(client, "send-refused", "refused")
    words = refused["error"].upper()
    assert (
        ("DELAY" in words and "NORMAL" in words)
        or "TYPE=3, ACCEPTMESSAGETYPES=[1]" in words
        or ("GO" in client.upper() and "TYPE NOT MATCH WITH TOPIC" in words)
    )
    (sent,) = await day.events(client, "send-refused", "sent")
    (stored,) = await day.stored(client, "send-refused", 1)
    assert (sent["body"], stored.body, stored.message_id) == ("plain", b"plain", sent["id"])


@pytest.mark.loss
@each_client("transactions")
async def test_transactions_end_as_the_client_says(day: Day, client: str) -> None:
    checked = [
        event
        for event in await day.events(client, "send-transaction", "checked")
        if event["body"].startswith("unknown")
    ]
    assert {(event["body"], event["resolution"]) for event in checked} == {
        (f"unknown-{number}", "ROLLBACK" if number % 2 else "COMMIT")
        for number in range(2, COUNT, 3)
    }
    ids = {
        event["body"]: event["id"] for event in await day.events(client, "send-transaction", "sent")
    }
    expected = {f"commit-{number}" for number in range(0, COUNT, 3)}
    expected |= {event["body"] for event in checked if event["resolution"] == "COMMIT"}
    stored = await day.stored(client, "send-transaction", len(expected))
    assert {message.body.decode() for message in stored} == expected
    assert len(stored) == len(expected)
    assert all(message.message_id == ids[message.body.decode()] for message in stored)


@pytest.mark.loss
@each_client("receive and acknowledge")
@pytest.mark.feature("145b")
async def test_what_is_not_acknowledged_comes_again(day: Day, client: str) -> None:
    got = await day.events(client, "simple-receive-ack", "got")
    check_got(got, await day.stored(client, "simple-receive-ack", COUNT))
    assert numbers(got) == Counter(NUMBERS) + Counter("0")
    first, second = (event for event in got if suffix(event["body"]) == "0")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    asked = [event["at"] for event in await day.events(client, "simple-receive-ack", "asked")]
    taken_after = max(at for at in asked if at <= first["at"])
    assert second["at"] - taken_after >= 30_000


@pytest.mark.loss
@each_client("change the invisible time")
async def test_the_invisible_time_is_made_shorter(day: Day, client: str) -> None:
    got = await day.events(client, "simple-change-invisible", "got")
    check_got(got, await day.stored(client, "simple-change-invisible", COUNT))
    assert numbers(got) == Counter(NUMBERS * 2)
    attempts = sorted((suffix(event["body"]), event["attempt"]) for event in got)
    assert attempts == [(number, attempt) for number in NUMBERS for attempt in (1, 2)]


@pytest.mark.loss
@each_client("tag filter")
async def test_tags_filter(day: Day, client: str) -> None:
    got = await day.events(client, "filter-tag", "got")
    check_got(got, await day.stored(client, "filter-tag", COUNT))
    assert numbers(got) == Counter(number for number in NUMBERS if int(number) % 3 != 2)


@pytest.mark.loss
@each_client("SQL filter")
async def test_sql_filters(day: Day, client: str) -> None:
    got = await day.events(client, "filter-sql", "got")
    check_got(got, await day.stored(client, "filter-sql", COUNT))
    assert numbers(got) == Counter(number for number in EVEN if int(number) >= 3)


@pytest.mark.loss
@each_client("push", "retry")
@pytest.mark.feature(144)
async def test_what_failed_is_pushed_again(day: Day, client: str) -> None:
    got = await day.events(client, "push-consume", "got")
    check_got(got, await day.stored(client, "push-consume", COUNT))
    attempts = sorted((suffix(event["body"]), event["attempt"]) for event in got)
    expected = [(number, 1) for number in NUMBERS] + [(number, 2) for number in ODD]
    assert attempts == sorted(expected)


@pytest.mark.loss
@each_client("receive in order")
@pytest.mark.feature(104)
async def test_while_one_is_not_acknowledged_none_of_its_group_comes(day: Day, client: str) -> None:
    events = await day.events(client, "simple-fifo", "got", "acked")
    for expected in (EVEN, ODD):
        of_group = [
            (event["event"], suffix(event["body"]))
            for event in events
            if suffix(event["body"]) in expected
        ]
        pairs = [[("got", number), ("acked", number)] for number in expected]
        assert of_group == [step for pair in pairs for step in pair]
    with trio.fail_after(30):  # the last acknowledgement is on its way
        while await day.progress(client, "simple-fifo") != (COUNT, COUNT):
            await trio.sleep(0.1)


def check_order(got: list[Event]) -> None:
    for group, expected in (("group-0", ["0", "2", *EVEN[1:]]), ("group-1", ODD)):
        assert [suffix(event["body"]) for event in got if event["group"] == group] == expected


@pytest.mark.loss
@each_client("push in order", but="go")
@pytest.mark.feature("102a")
async def test_a_failure_holds_back_the_rest_of_its_group(day: Day, client: str) -> None:
    got = await day.events(client, "push-fifo", "got")
    check_got(got, await day.stored(client, "push-fifo", COUNT))
    check_order(got)


@pytest.mark.loss
@each_client("dead letter")
async def test_what_fails_too_often_is_a_dead_letter(day: Day, client: str) -> None:
    got = await day.events(client, "push-dead", "got")
    assert numbers(got) == Counter(NUMBERS) + Counter("2")
    (dead,) = await day.dead(client, "push-dead")
    assert dead.body == b"push-dead-2"


@pytest.mark.loss
@each_client("dead letter in order", but="go")
@pytest.mark.feature("102b")
async def test_a_dead_letter_lets_its_group_go_on(day: Day, client: str) -> None:
    got = await day.events(client, "push-fifo-dead", "got")
    check_order(got)
    (dead,) = await day.dead(client, "push-fifo-dead")
    assert dead.body == b"group-0-2"


@pytest.mark.loss
@pytest.mark.compatible("{endpoint}: TLS", peer="{client}")
@pytest.mark.parametrize(
    "client",
    [
        pytest.param(client, marks=pytest.mark.feature(f"195{clause}"))
        for client, clause in zip(CLIENTS, "abcd", strict=True)
    ],
)
async def test_with_tls(day: Day, client: str) -> None:
    sent = await day.events(client, "send-normal", "sent", tls=True)
    stored = await day.stored(client, "send-normal", COUNT, tls=True)
    assert sorted(event["id"] for event in sent) == sorted(message.message_id for message in stored)
    got = await day.events(client, "filter-tag", "got", tls=True)
    check_got(got, await day.stored(client, "filter-tag", COUNT, tls=True))
    assert numbers(got) == Counter(number for number in NUMBERS if int(number) % 3 != 2)
