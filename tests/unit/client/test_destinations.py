"""What a producer keeps for each topic, and the properties text that is written by the short way."""

from __future__ import annotations

import pytest

from triomq.client.config import ProducerSettings
from triomq.client.errors import MessageInvalid
from triomq.client.producer.destinations import TOPICS_REMEMBERED, TopicDestinations
from triomq.client.producer.encoding import Outgoing, prepare
from triomq.client.producer.request import TEMPLATES_REMEMBERED, SendRequests
from triomq.client.routes import RouteTable
from triomq.remoting.protocol.bodies.route import BrokerData, MessageQueue, QueueData, TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.message import KEYS, TAGS, UNIQ_KEY, WAIT, properties_text

SEND = RequestCode.SEND_MESSAGE_V2
OUTGOING = Outgoing("T", b"body", "WAIT\x01true\x02UNIQ_KEY\x01ID\x02", "ID", 3, 1, 1_700_000_000_000)


def route(address: str = "a:1", queues: int = 2) -> TopicRoute:
    return TopicRoute([QueueData("a", queues, queues)], [BrokerData("c", "a", {0: address})])


def all_topics(routes: RouteTable) -> TopicDestinations:
    return TopicDestinations(routes, SendRequests("g", ProducerSettings()))


@pytest.mark.parametrize("tag", [None, "", "paid", "订单", "100%"])
@pytest.mark.parametrize("wait_stored", [True, False])
@pytest.mark.parametrize("message_id", ["7F00000100002A9F0000000000000001", "a" * 65, "with-dash", "né"])
def test_the_short_way_writes_the_same_properties(tag: str | None, wait_stored: bool, message_id: str) -> None:
    wanted = {**({TAGS: tag} if tag else {}), WAIT: "true" if wait_stored else "false", UNIQ_KEY: message_id}
    for _ in range(2):  # the second time by what the first one kept
        made = prepare("T", b"x", ProducerSettings(), message_id, 0, tag=tag, wait_stored=wait_stored)
        assert made.properties == properties_text(wanted)
    with_key = prepare("T", b"x", ProducerSettings(), message_id, 0, tag=tag, wait_stored=wait_stored, keys=["k"])
    assert f"{KEYS}\x01k\x02" in with_key.properties


def test_the_short_way_refuses_the_same() -> None:
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


def test_a_topic_is_made_ready_once_for_each_route_and_goes_on_at_its_turn() -> None:
    routes = RouteTable()
    known = all_topics(routes)
    assert known.find("T") is None
    routes.update("T", route())
    first = known.find("T")
    assert first is not None
    assert known.find("T") is first
    assert not first.several_brokers
    chosen = [first.turn.choose(first.ways).queue.queue_id for _ in range(3)]
    routes.update("T", route("b:2", queues=3))
    second = known.find("T")
    assert second is not None
    assert second is not first
    assert second.turn is first.turn
    assert {destination.address for destination in second.ways} == {"b:2"}
    assert len(second.ways) == 3
    assert chosen[0] == chosen[2] != chosen[1]


def test_any_queue_can_be_named() -> None:
    routes = RouteTable()
    routes.update("T", route())
    known = all_topics(routes)
    info = known.find("T")
    assert info is not None
    assert info.of_queue(MessageQueue("T", "a", 1)) is info.ways[1]
    assert info.of_queue(MessageQueue("T", "a", 9)) is None
    assert known.destination(MessageQueue("T", "a", 9)).address == "a:1"
    assert known.destination(MessageQueue("T", "gone", 0)).address is None


def test_the_request_is_the_one_of_the_ordinary_way() -> None:
    routes = RouteTable()
    routes.update("T", route())
    known = all_topics(routes)
    for code in (SEND, RequestCode.SEND_BATCH_MESSAGE):
        destination = known.destination(MessageQueue("T", "a", 1))
        requests = SendRequests("g", ProducerSettings())
        assert destination.request(OUTGOING, code).encode() == requests.make(OUTGOING, destination.queue, code).encode()


def test_ever_new_topics_do_not_pile_up() -> None:
    routes = RouteTable()
    known = all_topics(routes)
    routes.update("T", route(queues=1))
    for number in range(TOPICS_REMEMBERED + 10):
        routes._queues[f"T{number}"] = routes._queues["T"]
        assert known.find(f"T{number}") is not None
    assert len(known._topics) == TOPICS_REMEMBERED
    for number in range(TEMPLATES_REMEMBERED + 10):
        known.requests.template(MessageQueue("T", "a", number), SEND)
    assert len(known.requests._templates) <= TEMPLATES_REMEMBERED
