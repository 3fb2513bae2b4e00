"""The official Java, Python and Node clients of RocketMQ 5 (gRPC), unmodified, at every server that
they may talk to. What they send is read by our SDK from the brokers; what they receive was sent by
our SDK. All scenarios of all clients run side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
import trio
from grpc_endpoints import ENDPOINTS, GrpcEndpoint
from grpc_peers import CLIENTS, GrpcPeer, grpc_peer, need_grpc_clients
from grpc_scenarios import COUNT, MESSAGE_TYPES, prepare
from topic_reader import read_topic

from triomq import ReceivedMessage

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]
Event = dict[str, Any]

NUMBERS = [str(number) for number in range(COUNT)]
EVEN, ODD = NUMBERS[::2], NUMBERS[1::2]
TLS_SCENARIOS = "send-normal", "filter-tag"


@attrs.frozen
class Day:
    """The clients at work at one endpoint."""

    namesrv: str
    peers: dict[str, GrpcPeer]

    def events(self, client: str, scenario: str, kind: str, *, tls: bool = False) -> list[Event]:
        """What the client has printed of the scenario, which is over then."""
        peer = self.peers[prefix(client, tls=tls)]
        return [event for event in peer.done(scenario) if event["event"] == kind]

    async def stored(
        self, client: str, scenario: str, count: int, *, tls: bool = False
    ) -> list[ReceivedMessage]:
        """The messages of the scenario's topic, when there are so many."""
        return await read_topic(self.namesrv, f"{prefix(client, tls=tls)}-{scenario}", count)


def prefix(client: str, *, tls: bool) -> str:
    """What the client's topics begin with."""
    return f"{'tls' if tls else 'plain'}-{client.replace('.', '_')}"


@pytest.fixture(scope="module", params=ENDPOINTS)
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcEndpoint]:
    need_grpc_clients()
    with ENDPOINTS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def day(endpoint: GrpcEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("clients")
    with ExitStack() as stack:
        peers = {}
        for tls, scenarios in ((False, tuple(MESSAGE_TYPES)), (True, TLS_SCENARIOS)):
            names = {client: prefix(client, tls=tls) for client in CLIENTS}
            trio.run(prepare, endpoint.namesrv, names.values(), scenarios)
            for client, name in names.items():
                ca = endpoint.ca if tls else None
                peer = grpc_peer(client, endpoint.address, scenarios, name, folder, ca=ca)
                peers[name] = stack.enter_context(peer)
        yield Day(endpoint.namesrv, peers)


def each_client(*rows: str) -> Any:
    """Run the test for each client; it fills the rows of the endpoint's table."""
    names = [f"{{endpoint}}: {row}" for row in rows]
    mark = pytest.mark.compatible(*names, peer="{client}")
    return lambda test: mark(pytest.mark.parametrize("client", CLIENTS)(test))


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


@each_client("send")
@pytest.mark.feature(142, 146)
async def test_a_message_arrives_with_all_that_it_has(day: Day, client: str) -> None:
    sent = day.events(client, "send-normal", "sent")
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


@each_client("send in order")
@pytest.mark.feature("101a", "101c")
async def test_a_message_group_stays_in_one_queue(day: Day, client: str) -> None:
    day.events(client, "send-fifo", "sent")
    stored = await day.stored(client, "send-fifo", COUNT)
    for expected in (EVEN, ODD):
        of_group = [message for message in stored if suffix(message.body) in expected]
        assert len({message.queue for message in of_group}) == 1
        of_group.sort(key=lambda message: message.queue_offset)
        assert [suffix(message.body) for message in of_group] == expected


@each_client("time of delivery")
async def test_a_delayed_message_comes_not_earlier(day: Day, client: str) -> None:
    sent = day.events(client, "send-delay", "sent")
    stored = await day.stored(client, "send-delay", COUNT)
    due = {event["id"]: event["due"] for event in sent}
    assert sorted(due) == sorted(message.message_id for message in stored)
    early = [
        message.body for message in stored if message.store_timestamp < due[message.message_id]
    ]
    assert early == []


@each_client("recall")
async def test_a_recalled_message_does_not_come(day: Day, client: str) -> None:
    ids = {event["body"]: event["id"] for event in day.events(client, "recall", "sent")}
    recalled = day.events(client, "recall", "recalled")
    assert {suffix(event["body"]) for event in recalled} == set(ODD)
    assert all(event["id"] == ids[event["body"]] for event in recalled)
    # The last one that was not recalled is due after all that were.
    stored = await day.stored(client, "recall", len(EVEN))
    assert sorted(suffix(message.body) for message in stored) == EVEN


@each_client("refused send")
async def test_a_message_of_the_wrong_type_is_refused(day: Day, client: str) -> None:
    """The route tells the client the type of the topic; Node names types by their numbers."""
    (refused,) = day.events(client, "send-refused", "refused")
    words = refused["error"].upper()
    assert ("DELAY" in words and "NORMAL" in words) or "TYPE=3, ACCEPTMESSAGETYPES=[1]" in words
    (sent,) = day.events(client, "send-refused", "sent")
    (stored,) = await day.stored(client, "send-refused", 1)
    assert (sent["body"], stored.body, stored.message_id) == ("plain", b"plain", sent["id"])


@each_client("transactions")
async def test_transactions_end_as_the_client_says(day: Day, client: str) -> None:
    checked = [
        event
        for event in day.events(client, "send-transaction", "checked")
        if event["body"].startswith("unknown")
    ]
    assert {(event["body"], event["resolution"]) for event in checked} == {
        (f"unknown-{number}", "ROLLBACK" if number % 2 else "COMMIT")
        for number in range(2, COUNT, 3)
    }
    ids = {event["body"]: event["id"] for event in day.events(client, "send-transaction", "sent")}
    expected = {f"commit-{number}" for number in range(0, COUNT, 3)}
    expected |= {event["body"] for event in checked if event["resolution"] == "COMMIT"}
    stored = await day.stored(client, "send-transaction", len(expected))
    assert {message.body.decode() for message in stored} == expected
    assert len(stored) == len(expected)
    assert all(message.message_id == ids[message.body.decode()] for message in stored)


@each_client("receive and acknowledge")
@pytest.mark.feature(145)
async def test_what_is_not_acknowledged_comes_again(day: Day, client: str) -> None:
    got = day.events(client, "simple-receive-ack", "got")
    check_got(got, await day.stored(client, "simple-receive-ack", COUNT))
    assert numbers(got) == Counter(NUMBERS) + Counter("0")
    first, second = (event for event in got if suffix(event["body"]) == "0")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    asked = [event["at"] for event in day.events(client, "simple-receive-ack", "asked")]
    taken_after = max(at for at in asked if at <= first["at"])
    assert second["at"] - taken_after >= 10_000


@each_client("change the invisible time")
async def test_the_invisible_time_is_made_shorter(day: Day, client: str) -> None:
    got = day.events(client, "simple-change-invisible", "got")
    check_got(got, await day.stored(client, "simple-change-invisible", COUNT))
    assert numbers(got) == Counter(NUMBERS * 2)
    attempts = sorted((suffix(event["body"]), event["attempt"]) for event in got)
    assert attempts == [(number, attempt) for number in NUMBERS for attempt in (1, 2)]


@each_client("tag filter")
async def test_tags_filter(day: Day, client: str) -> None:
    got = day.events(client, "filter-tag", "got")
    check_got(got, await day.stored(client, "filter-tag", COUNT))
    assert numbers(got) == Counter(number for number in NUMBERS if int(number) % 3 != 2)


@each_client("SQL filter")
async def test_sql_filters(day: Day, client: str) -> None:
    got = day.events(client, "filter-sql", "got")
    check_got(got, await day.stored(client, "filter-sql", COUNT))
    assert numbers(got) == Counter(number for number in EVEN if int(number) >= 3)


@each_client("push", "retry")
@pytest.mark.feature(144)
async def test_what_failed_is_pushed_again(day: Day, client: str) -> None:
    got = day.events(client, "push-consume", "got")
    check_got(got, await day.stored(client, "push-consume", COUNT))
    attempts = sorted((suffix(event["body"]), event["attempt"]) for event in got)
    expected = [(number, 1) for number in NUMBERS] + [(number, 2) for number in ODD]
    assert attempts == sorted(expected)


@each_client("push in order")
@pytest.mark.feature("102a")
async def test_a_failure_holds_back_the_rest_of_its_group(day: Day, client: str) -> None:
    got = day.events(client, "push-fifo", "got")
    check_got(got, await day.stored(client, "push-fifo", COUNT))
    for group, expected in (("group-0", ["0", "2", *EVEN[1:]]), ("group-1", ODD)):
        assert [suffix(event["body"]) for event in got if event["group"] == group] == expected


@each_client("TLS")
async def test_with_tls(day: Day, client: str) -> None:
    sent = day.events(client, "send-normal", "sent", tls=True)
    stored = await day.stored(client, "send-normal", COUNT, tls=True)
    assert sorted(event["id"] for event in sent) == sorted(message.message_id for message in stored)
    got = day.events(client, "filter-tag", "got", tls=True)
    check_got(got, await day.stored(client, "filter-tag", COUNT, tls=True))
    assert numbers(got) == Counter(number for number in NUMBERS if int(number) % 3 != 2)
