"""Producer and consumer groups from heartbeats: members join, subscribe, leave, fall silent."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from triomq.broker.services.groups import ClientGroups, GroupTable, Member
from triomq.broker.services.table_limits import BrokerTableLimits, broker_limits
from triomq.remoting.core.periodic import every
from triomq.remoting.protocol.bodies.heartbeat import (
    BROADCASTING,
    CLUSTERING,
    ConsumerData,
    SubscriptionData,
)
from triomq.remoting.protocol.limits import LimitReached


def member(connection: str, client_id: str | None = None, now: float = 0.0) -> Member[str]:
    return Member(connection, client_id or f"client of {connection}", 12, 479, now)


def data(group: str = "G", *topics: tuple[str, str, int], model: str = CLUSTERING) -> ConsumerData:
    subscriptions = [
        SubscriptionData(topic=topic, sub_string=text, sub_version=version)
        for topic, text, version in topics
    ]
    return ConsumerData(group=group, message_model=model, subscriptions=subscriptions)


def test_a_new_member_is_a_change_and_a_repeated_heartbeat_is_not() -> None:
    table: GroupTable[str] = GroupTable()
    first = table.consumer_heartbeat(member("c1"), data("G", ("T", "*", 1)))
    assert first.members_changed
    assert first.subscriptions_changed
    again = table.consumer_heartbeat(member("c1", now=30.0), data("G", ("T", "*", 1)))
    assert not again.notice_due
    second = table.consumer_heartbeat(member("c2"), data("G", ("T", "*", 1)))
    assert second.members_changed
    assert table.consumers["G"].client_ids == ["client of c1", "client of c2"]


def test_a_restarted_client_on_one_connection_counts_as_new() -> None:
    table: GroupTable[str] = GroupTable()
    table.consumer_heartbeat(member("c1", "old"), data())
    assert table.consumer_heartbeat(member("c1", "new"), data()).members_changed
    assert table.consumers["G"].client_ids == ["new"]


@pytest.mark.parametrize(
    ("later", "changed", "expected"),
    [
        ([("T", "A", 1)], False, {"T": "A"}),
        ([("T", "B", 1)], True, {"T": "B"}),  # of the same client, whose clock may go back
        ([("T", "B", 0)], True, {"T": "B"}),
        ([("T", "B", 2)], True, {"T": "B"}),
        ([("T", "A", 2)], False, {"T": "A"}),  # newer, with the same content
        ([("T", "A", 1), ("U", "*", 1)], True, {"T": "A", "U": "*"}),
        ([("U", "*", 1)], True, {"U": "*"}),
        ([], True, {}),
    ],
)
def test_subscriptions_follow_the_newest_heartbeat(
    later: list[tuple[str, str, int]], changed: bool, expected: dict[str, str]
) -> None:
    table: GroupTable[str] = GroupTable()
    table.consumer_heartbeat(member("c1"), data("G", ("T", "A", 1)))
    assert (
        table.consumer_heartbeat(member("c1"), data("G", *later)).subscriptions_changed is changed
    )
    assert {
        topic: kept.sub_string for topic, kept in table.consumers["G"].subscriptions.items()
    } == expected


def test_versions_order_what_two_clients_say_while_both_are_there() -> None:
    table: GroupTable[str] = GroupTable()
    table.consumer_heartbeat(member("c1"), data("G", ("T", "A", 9)))
    assert not table.consumer_heartbeat(
        member("c2"), data("G", ("T", "B", 5))
    ).subscriptions_changed
    assert table.consumers["G"].subscriptions["T"].sub_string == "A"
    table.forget_connection("c1")
    assert table.consumer_heartbeat(member("c2"), data("G", ("T", "B", 5))).subscriptions_changed
    assert table.consumers["G"].subscriptions["T"].sub_string == "B"


def test_the_second_form_of_heartbeats_may_leave_subscriptions_out() -> None:
    table: GroupTable[str] = GroupTable()
    assert table.consumer_heartbeat(member("c1"), data("G", ("T", "*", 1))).fingerprint_changed, (
        "the first form always says so"
    )
    assert table.consumer_heartbeat(
        member("c1"), data("G", ("T", "*", 1)), fingerprint=77
    ).fingerprint_changed
    short = table.consumer_heartbeat(
        member("c1"), data("G"), fingerprint=77, without_subscriptions=True
    )
    assert not short.fingerprint_changed
    assert "T" in table.consumers["G"].subscriptions
    other = table.consumer_heartbeat(
        member("c1"), data("G"), fingerprint=78, without_subscriptions=True
    )
    assert other.fingerprint_changed, "the client must send everything"
    assert "T" in table.consumers["G"].subscriptions


def test_leaving_by_request_by_closing_and_by_silence() -> None:
    table: GroupTable[str] = GroupTable()
    for connection, now in (("c1", 0.0), ("c2", 100.0), ("c3", 100.0)):
        table.consumer_heartbeat(member(connection, now=now), data("G"))
        table.consumer_heartbeat(member(connection, now=now), data("H"))
        table.producer_heartbeat(member(connection, now=now), "P")
    assert [one for one in table.connections if table.is_silent(one, 121.0, 120.0)] == ["c1"]
    assert not any(table.is_silent(one, 119.0, 120.0) for one in table.connections)
    assert table.leave("c2", consumer_group="G", producer_group="P") == ["G"]
    assert table.leave("c2", consumer_group="G", producer_group="P") == [], "gone already"
    assert sorted(table.forget_connection("c1")) == ["G", "H"]
    assert list(table.producers["P"]) == ["c3"]
    assert sorted(table.forget_connection("c3")) == ["G", "H"]
    assert table.forget_connection("c2") == ["H"]
    assert table.consumers == {}
    assert table.producers == {}


def test_groups_that_only_pull_are_known_for_a_while() -> None:
    table: GroupTable[str] = GroupTable()
    table.consumer_heartbeat(member("c1"), data("G", ("T", "*", 1)))
    table.note_pull("G", "T", 1.0)
    table.note_pull("only pulls", "T", 1.0)
    table.note_pull("only pulls", "U", 9.0)
    assert table.groups_subscribing("T") == ["G", "only pulls"]
    table.forget_pulls(5.0)
    assert table.groups_subscribing("T") == ["G"]
    assert table.groups_subscribing("U") == ["only pulls"]


def test_notices_go_to_every_member_unless_there_is_nothing_to_divide() -> None:
    notices: list[tuple[str, str]] = []
    clients: ClientGroups[str] = ClientGroups(
        lambda connection, group: notices.append((connection, group)),
        lambda connection, reason: None,
        lambda group: group != "quiet",
    )
    for group, model in (("G", CLUSTERING), ("B", BROADCASTING), ("quiet", CLUSTERING)):
        for connection in ("c1", "c2"):
            clients.table.consumer_heartbeat(member(connection), data(group, model=model))
    clients.announce_change(["G", "B", "quiet", "unknown"])
    assert notices == [("c1", "G"), ("c2", "G")]
    notices.clear()
    clients.connection_closed("c1")
    assert notices == [("c2", "G")]


async def test_silent_clients_lose_their_connection(autojump_clock: trio.testing.MockClock) -> None:
    closed: list[tuple[str, str]] = []
    clients: ClientGroups[str] = ClientGroups(
        lambda connection, group: None,
        lambda connection, reason: closed.append((connection, reason)),
        lambda group: True,
    )
    clients.table.consumer_heartbeat(member("silent", now=trio.current_time()), data())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(every, 10.0, clients.expire)
        for _ in range(11):
            clients.table.consumer_heartbeat(member("alive", now=trio.current_time()), data())
            await trio.sleep(11)
        assert {connection for connection, _ in closed} <= {"silent"}
        await trio.sleep(11)
        nursery.cancel_scope.cancel()
    assert closed
    assert closed[0] == ("silent", "no heartbeat for 120 s")


# Whether all members subscribe the same


def test_a_mismatch_of_subscriptions_is_reported_once_and_so_is_its_end() -> None:
    table: GroupTable[str] = GroupTable()
    table.consumer_heartbeat(member("c1", "one"), data("G", ("T", "A || B", 1)))
    assert not table.consumer_heartbeat(
        member("c2", "two"), data("G", ("T", " B||A ", 1))
    ).agreement_changed
    assert table.consumer_heartbeat(
        member("c3", "three", now=5.0), data("G", ("T", "*", 1))
    ).agreement_changed
    group = table.consumers["G"]
    assert (group.mismatch, group.mismatch_since) == ("one, two: T [A || B]; three: T [*]", 5.0)
    assert not table.consumer_heartbeat(
        member("c3", "three", now=35.0), data("G", ("T", "*", 1))
    ).agreement_changed
    assert group.mismatch_since == 5.0
    table.forget_connection("c3")
    assert group.mismatch is None


def test_a_heartbeat_without_subscriptions_keeps_the_known_ones() -> None:
    table: GroupTable[str] = GroupTable()
    table.consumer_heartbeat(member("c1"), data("G", ("T", "*", 1)), fingerprint=7)
    table.consumer_heartbeat(member("c2"), data("G", ("T", "*", 1)), fingerprint=7)
    short = table.consumer_heartbeat(
        member("c1"), data("G"), fingerprint=7, without_subscriptions=True
    )
    assert not short.agreement_changed
    assert table.consumers["G"].members["c1"].wants == {("T", "*")}
    unknown = table.consumer_heartbeat(
        member("c3"), data("G"), fingerprint=7, without_subscriptions=True
    )
    assert (unknown.agreement_changed, table.consumers["G"].mismatch) == (False, None), (
        "what it wants has not been said"
    )


def test_a_closed_connection_leaves_its_groups_without_a_scan_of_the_others() -> None:
    class Watched(dict[str, object]):
        def values(self) -> object:  # type: ignore[override]
            raise AssertionError("all groups were walked")

        __iter__ = items = values  # type: ignore[assignment]

    table: GroupTable[str] = GroupTable()
    for number in range(3):
        table.consumer_heartbeat(member(f"c{number}"), data(f"G{number}"))
        table.producer_heartbeat(member(f"c{number}"), f"P{number}")
    table.consumers, table.producers = Watched(table.consumers), Watched(table.producers)  # type: ignore[assignment]
    assert table.forget_connection("c1") == ["G1"]
    assert not table.is_silent("c2", 100.0, 120.0)
    assert dict.keys(table.consumers) == {"G0", "G2"}
    assert dict.keys(table.producers) == {"P0", "P2"}
    assert table.connections.keys() == {"c0", "c2"}


def test_a_heartbeat_beyond_a_limit_is_refused_as_a_whole() -> None:
    limits = broker_limits(
        BrokerTableLimits(groups_per_connection_max=3, subscriptions_per_group_max=2, groups_max=4)
    )
    table: GroupTable[str] = GroupTable(limits=limits)
    table.consumer_heartbeat(member("c1"), data("G1"))
    table.producer_heartbeat(member("c1"), "P1")
    table.require_room("c1", [data("G1"), data("G2")], ["P1"])
    with pytest.raises(
        LimitReached,
        match=(
            r"a member of 4 groups: the broker's limit is 3; use fewer, or raise"
            r" groupsPerConnectionMax in its settings"
        ),
    ):
        table.require_room("c1", [data("G2"), data("G3")], [])
    table.require_room("c2", [data("G2"), data("G3")], [])
    with pytest.raises(LimitReached, match="subscriptionsPerGroupMax"):
        table.require_room("c2", [data("G", *((f"T{number}", "*", 1) for number in range(3)))], [])
    for number in range(3):
        table.producer_heartbeat(member(f"other {number}"), f"P{number + 2}")
    table.require_room("c1", [], ["P1", "P2"])
    with pytest.raises(
        LimitReached,
        match=(
            "brings 1 more producer groups: the broker's limit is 4; use fewer, or raise groupsMax"
        ),
    ):
        table.require_room("c1", [], ["P1", "P9"])
    assert limits.refused == {
        "groupsPerConnectionMax": 1,
        "subscriptionsPerGroupMax": 1,
        "groupsMax": 1,
    }


def test_a_connection_that_leaves_its_last_group_is_forgotten() -> None:
    """It leaves by request or because it closes, as a producer or a consumer."""
    table: GroupTable[str] = GroupTable()
    for leave in (
        lambda: table.leave("c1", consumer_group="G", producer_group=None),
        lambda: table.leave("c1", consumer_group=None, producer_group="P"),
        lambda: table.forget_connection("c1"),
    ):
        table.consumer_heartbeat(member("c1"), data("G", ("T", "*", 1)))
        table.producer_heartbeat(member("c1"), "P")
        leave()
        left = table.leave("c1", consumer_group="G", producer_group="P")
        assert (table.connections, table.consumers, table.producers) == ({}, {}, {}), left


def test_a_member_expires_exactly_after_its_time() -> None:
    table: GroupTable[str] = GroupTable()
    table.consumer_heartbeat(member("c1", now=10.0), data("G", ("T", "*", 1)))
    assert not table.is_silent("c1", 130.0, 120.0)
    assert table.is_silent("c1", 130.1, 120.0)
    table.note_pull("H", "T", 10.0)
    table.forget_pulls(10.0)
    assert table.consumes_now("H", "T")
    table.forget_pulls(10.1)
    assert not table.consumes_now("H", "T")


def test_pulls_of_a_deleted_topic_are_forgotten_and_those_of_others_are_not() -> None:
    table: GroupTable[str] = GroupTable()
    for topic in ("T", "U"):
        table.note_pull("H", topic, 10.0)
    table.forget_topic("T")
    assert (table.groups_subscribing("T"), table.groups_subscribing("U")) == ([], ["H"])


def test_the_fingerprint_follows_each_change() -> None:
    """A client with the group's fingerprint need not send its subscriptions again."""
    table: GroupTable[str] = GroupTable()
    for fingerprint, changed in ((1, True), (1, False), (2, True), (2, False), (1, True)):
        outcome = table.consumer_heartbeat(
            member("c1"), data("G", ("T", "*", fingerprint)), fingerprint=fingerprint
        )
        assert outcome.fingerprint_changed is changed


def test_a_mismatch_is_as_old_as_its_beginning() -> None:
    """A third member with other subscriptions changes the text, not the time; nor does a member
    that leaves.
    """
    table: GroupTable[str] = GroupTable()
    for number, now in enumerate((1.0, 2.0, 3.0)):
        table.consumer_heartbeat(member(f"c{number}", now=now), data("G", ("T", f"tag{number}", 1)))
    group = table.consumers["G"]
    assert (group.mismatch is not None, group.mismatch_since) == (True, 2.0)
    table.forget_connection("c2")
    assert (group.mismatch is not None, group.mismatch_since) == (True, 2.0)
    table.forget_connection("c1")
    assert group.mismatch is None
    table.consumer_heartbeat(member("c3", now=9.0), data("G", ("T", "tag3", 1)))
    assert group.mismatch_since == 9.0
