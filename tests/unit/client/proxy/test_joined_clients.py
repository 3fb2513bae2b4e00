"""The groups of many clients as one heartbeat."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from triomq.client.proxy.joined_clients import GroupKey, JoinedClients
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.bodies.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    SQL92,
    TAG,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)


def consumer(
    client_id: str,
    *subscriptions: tuple[str, str],
    group: str = "G",
    kind: str = CONSUME_PASSIVELY,
    expression_type: str = TAG,
) -> HeartbeatData:
    return HeartbeatData(
        client_id=client_id,
        consumers=[
            ConsumerData(
                group=group,
                consume_type=kind,
                subscriptions=[
                    SubscriptionData(
                        topic=topic, sub_string=expression, expression_type=expression_type
                    )
                    for topic, expression in subscriptions
                ],
            )
        ],
    )


def producer(client_id: str, *topics: str) -> HeartbeatData:
    return HeartbeatData(client_id=client_id, producers=[ProducerData(topic) for topic in topics])


def subscribed(joined: JoinedClients, group: str = "G") -> dict[str, str]:
    (data,) = (
        data for data in joined.heartbeat("P", joined.groups()).consumers if data.group == group
    )
    return {one.topic: one.sub_string for one in data.subscriptions}


def test_a_group_has_the_subscriptions_of_all_its_members_once() -> None:
    joined = JoinedClients()
    assert joined.put(consumer("1", ("A", "*")), 10)
    assert joined.put(consumer("2", ("B", "x || y")), 20)
    assert not joined.put(consumer("3", ("A", "*")), 30)
    assert not joined.put(consumer("2", ("B", "x || y")), 40)
    made = joined.heartbeat("P", joined.groups())
    assert made.client_id == "P"
    (group,) = made.consumers
    assert (group.group, group.consume_type) == ("G", CONSUME_PASSIVELY)
    assert subscribed(joined) == {"A": "*", "B": "x || y"}
    tags = {one.topic: (one.tags, one.sub_version) for one in group.subscriptions}
    assert tags == {"A": (frozenset(), 10), "B": (frozenset({"x", "y"}), 20)}
    assert joined.topics() == {"A", "B"}


def test_the_newer_of_two_different_subscriptions_wins_while_it_has_a_member() -> None:
    joined = JoinedClients()
    joined.put(consumer("1", ("A", "x")), 10)
    assert joined.put(consumer("2", ("A", "y")), 20)
    assert subscribed(joined) == {"A": "y"}
    assert joined.remove("2")
    assert subscribed(joined) == {"A": "x"}


def test_a_clock_that_goes_back_does_not_make_a_newer_subscription_older() -> None:
    """Brokers of RocketMQ ignore a subscription whose version is not greater."""
    joined = JoinedClients()
    joined.put(consumer("1", ("A", "red")), 3_600_000)
    joined.put(consumer("2", ("A", "blue")), 5)
    assert subscribed(joined) == {"A": "blue"}
    joined.put(consumer("1", ("A", "green")), 6)
    assert subscribed(joined) == {"A": "green"}
    (data,) = joined.heartbeat("P", joined.groups()).consumers
    (one,) = data.subscriptions
    assert one.sub_version == 3_600_002


def test_a_heartbeat_changes_only_with_the_first_and_the_last_member() -> None:
    joined = JoinedClients()
    changes: Sequence[bool] = [
        joined.put(producer("1", "A"), 1),
        joined.put(producer("2", "A"), 2),
        joined.leave("1", ["A"], []),
        joined.leave("1", ["A"], []),
        joined.leave("2", [], ["A"]),  # no consumer group of that name
        joined.leave("2", ["A"], []),
    ]
    assert changes == [True, False, False, False, False, True]
    assert joined.version == 2
    assert joined.heartbeat("P", joined.groups()).producers == []
    assert list(joined.groups()) == []
    assert len(joined) == 0


def test_clients_are_found_by_their_groups() -> None:
    joined = JoinedClients()
    joined.put(producer("1", "A", "B"), 1)
    joined.put(consumer("2", ("A", "*"), group="A"), 2)
    joined.put(producer("3", "A"), 3)
    assert list(joined.producers("A")) == ["1", "3"]
    assert list(joined.consumers("A")) == ["2"]
    assert list(joined.producers("none")) == []
    # A client's new settings replace what it had.
    assert joined.put(producer("1", "B"), 4) is False
    assert list(joined.producers("A")) == ["3"]
    joined.remove("3")
    assert list(joined.producers("A")) == []
    assert list(joined.groups()) == [GroupKey(False, "B"), GroupKey(True, "A")]


def test_kinds_of_consumers_and_filters() -> None:
    joined = JoinedClients()
    joined.put(consumer("1", ("A", "x > 1"), kind=CONSUME_ACTIVELY, expression_type=SQL92), 1)
    (group,) = joined.heartbeat("P", joined.groups()).consumers
    assert group.consume_type == CONSUME_ACTIVELY
    (one,) = group.subscriptions
    assert (one.sub_string, one.expression_type, one.tags) == ("x > 1", SQL92, frozenset())
    joined.put(consumer("2", ("A", "x > 1"), expression_type=SQL92), 2)
    (group,) = joined.heartbeat("P", joined.groups()).consumers
    assert group.consume_type == CONSUME_PASSIVELY
    # A filter that names no tag is refused at a receive; the heartbeat still goes out.
    joined.put(consumer("3", ("B", "||")), 3)
    assert subscribed(joined)["B"] == "||"
    # A group without subscriptions is known as well.
    joined.put(consumer("4", group="empty"), 4)
    assert subscribed(joined, "empty") == {}
    assert joined.topics() == {"A", "B"}


def test_what_changed_is_told_once() -> None:
    joined = JoinedClients()
    joined.put(producer("1", "A", "B"), 1)
    joined.put(consumer("2", ("A", "*")), 2)
    assert set(joined.take_changed()) == {
        GroupKey(False, "A"),
        GroupKey(False, "B"),
        GroupKey(True, "G"),
    }
    assert not joined.take_changed()
    joined.put(consumer("3", ("A", "*")), 3)
    assert not joined.take_changed(), "one more member changes nothing"
    joined.put(consumer("3", ("C", "*")), 4)
    joined.put(producer("1", "B"), 5)
    changed = list(joined.take_changed())
    assert set(changed) == {GroupKey(True, "G"), GroupKey(False, "A")}
    assert joined.topics() == {"A", "B", "C"}
    assert joined.topics_of(changed) == {"A", "C"}, "A has a consumer"
    made = joined.heartbeat("P", changed)
    assert (made.producers, [data.group for data in made.consumers]) == ([], ["G"])


def test_too_many_groups_are_refused_and_change_nothing() -> None:
    joined = JoinedClients(groups_max=3)
    joined.put(producer("1", "A", "B"), 1)
    joined.put(consumer("2", ("A", "*")), 2)
    with pytest.raises(Refused, match="heartbeatConnectionsMax"):
        joined.put(producer("3", "A", "C"), 3)
    assert (joined.version, joined.refused, list(joined.producers("A"))) == (2, 1, ["1"])
    joined.put(producer("3", "A"), 4)
    joined.put(consumer("4", ("C", "*")), 5)
