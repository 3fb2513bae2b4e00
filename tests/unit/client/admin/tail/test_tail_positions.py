"""Where ``topic tail`` goes on in each queue, and what it says about brokers."""

from __future__ import annotations

from triomq.client.admin.tail.tail_position import BrokerReports, TailPositions
from triomq.remoting.protocol.bodies.route import MessageQueue

QUEUE, NEW = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def test_a_queue_is_read_from_where_it_was_seen_to_its_end() -> None:
    positions = TailPositions({QUEUE: 5})
    assert positions.pending({QUEUE: (0, 5)}) == []
    assert positions.pending({QUEUE: (0, 7)}) == [(QUEUE, 5, 7)]
    positions.advance(QUEUE, 7)
    assert positions.pending({QUEUE: (0, 7)}) == []


def test_expired_messages_are_skipped_and_new_queues_are_read_from_their_first_message() -> None:
    positions = TailPositions({QUEUE: 5})
    bounds = {QUEUE: (8, 9), NEW: (0, 2)}
    assert positions.pending(bounds) == [(QUEUE, 8, 9), (NEW, 0, 2)]


def test_a_queue_that_was_created_again_is_read_from_its_first_message() -> None:
    positions = TailPositions({QUEUE: 5})
    assert positions.pending({QUEUE: (0, 2)}) == [(QUEUE, 0, 2)]


def test_a_broker_has_one_line_when_it_fails_and_one_when_it_is_back() -> None:
    reports = BrokerReports()
    assert reports.failed("a", "silent") == "a  failed: silent; it is tried again"
    assert reports.failed("a", "silent") is None
    assert reports.works("a") == "a  answers again"
    assert reports.works("a") is None
    assert reports.failing == {}


def test_only_brokers_that_never_answered_end_a_tail() -> None:
    reports = BrokerReports()
    reports.failed("a", "silent")
    assert not reports.hopeless(["a", "b"])
    reports.failed("b", "silent")
    assert reports.hopeless(["a", "b"])
    reports.works("b")
    reports.failed("b", "silent")
    assert not reports.hopeless(["a", "b"])
