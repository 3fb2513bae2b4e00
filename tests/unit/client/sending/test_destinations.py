"""What a producer keeps for each topic, and the fast path of the properties text."""

from __future__ import annotations

import pytest

from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import MessageInvalid
from triomq.client.core.routes import KnownRoutes
from triomq.client.sending.destinations import TOPICS_REMEMBERED, DestinationTable, SendRequests
from triomq.client.sending.encoding import prepare
from triomq.remoting.protocol.bodies.route import BrokerData, MessageQueue, QueueData, TopicRoute
from triomq.remoting.protocol.message_properties import KEYS, TAGS, UNIQ_KEY, WAIT, properties_text


def route(address: str = "a:1", queues: int = 2) -> TopicRoute:
    return TopicRoute([QueueData("a", queues, queues)], [BrokerData("c", "a", {0: address})])


def all_topics(routes: KnownRoutes) -> DestinationTable:
    return DestinationTable(routes, SendRequests("g", ProducerSettings()))


@pytest.mark.parametrize("tag", [None, "", "paid", "订单", "100%"])
@pytest.mark.parametrize("wait_stored", [True, False])
@pytest.mark.parametrize(
    "message_id", ["7F00000100002A9F0000000000000001", "a" * 65, "with-dash", "né"]
)
def test_the_fast_path_writes_the_same_properties(
    tag: str | None, wait_stored: bool, message_id: str
) -> None:
    wanted = {
        **({TAGS: tag} if tag else {}),
        WAIT: "true" if wait_stored else "false",
        UNIQ_KEY: message_id,
    }
    for _ in range(2):  # the second call uses the prefix that the first one kept
        made = prepare(
            "T", b"x", ProducerSettings(), message_id, 0, tag=tag, wait_stored=wait_stored
        )
        assert made.properties == properties_text(wanted)
    with_key = prepare(
        "T", b"x", ProducerSettings(), message_id, 0, tag=tag, wait_stored=wait_stored, keys=["k"]
    )
    assert f"{KEYS}\x01k\x02" in with_key.properties


def test_the_fast_path_refuses_the_same_tags() -> None:
    for bad in ("a||b", " a", "x" * 129):
        for _ in range(2):
            with pytest.raises(MessageInvalid, match="cannot be used"):
                prepare("T", b"x", ProducerSettings(), "ID", 0, tag=bad)
    with pytest.raises(MessageInvalid, match="0x01"):
        prepare("T", b"x", ProducerSettings(), "I\x01D", 0)
    with pytest.raises(MessageInvalid, match="empty body"):
        prepare("T", b"", ProducerSettings(), "ID", 0)
    with pytest.raises(MessageInvalid, match="the limit is 3"):
        prepare("T", b"1234", ProducerSettings(message_bytes_max=3), "ID", 0)


def test_destinations_are_made_once_for_each_route_and_keep_their_turn() -> None:
    routes = KnownRoutes()
    known = all_topics(routes)
    assert known.find("T") is None
    routes.update("T", route())
    first = known.find("T")
    assert first is not None
    assert known.find("T") is first
    assert not first.several_brokers
    chosen = [first.turn.choose(first.all).queue.queue_id for _ in range(3)]
    routes.update("T", route("b:2", queues=3))
    second = known.find("T")
    assert second is not None
    assert second is not first
    assert second.turn is first.turn
    assert {destination.address for destination in second.all} == {"b:2"}
    assert len(second.all) == 3
    assert chosen[0] == chosen[2] != chosen[1]


def test_any_queue_can_be_named() -> None:
    routes = KnownRoutes()
    routes.update("T", route())
    known = all_topics(routes)
    info = known.find("T")
    assert info is not None
    assert info.of_queue(MessageQueue("T", "a", 1)) is info.all[1]
    assert info.of_queue(MessageQueue("T", "a", 9)) is None
    assert known.destination(MessageQueue("T", "a", 9)).address == "a:1"
    assert known.destination(MessageQueue("T", "gone", 0)).address is None


def test_the_number_of_topics_kept_is_limited() -> None:
    routes = KnownRoutes()
    known = all_topics(routes)
    routes.update("T", route(queues=1))
    for number in range(TOPICS_REMEMBERED + 10):
        routes._queues[f"T{number}"] = routes._queues["T"]
        assert known.find(f"T{number}") is not None
    assert len(known._topics) == TOPICS_REMEMBERED
