"""RouteTable, rule by rule; the registration rules have the numbers of RocketMQ's documentation of
the name server.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from triomq.namesrv import routed_queues
from triomq.namesrv.broker_registration import (
    DEFAULT_TIMEOUT_MS,
    BrokerRegistration,
    Departed,
    Outcome,
    Registered,
)
from triomq.namesrv.route_views import in_zone
from triomq.namesrv.routes import RouteRules, RouteTable
from triomq.namesrv.table_limits import NamesrvTableLimits, namesrv_limits
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.fastjson import loads
from triomq.remoting.protocol.limits import LimitReached

CLUSTER = "C"
OWNER = object()


def topics(
    *names: str, version: int = 1, state: int = 0, perm: int = 6, queues: int = 4, **more: Any
) -> TopicTable:
    table = {
        name: TopicConfig(
            topic_name=name, read_queue_count=queues, write_queue_count=queues, perm=perm
        )
        for name in names
    }
    return TopicTable(table, DataVersion(state, 0, version), **more)


def broker(
    name: str = "a",
    broker_id: int = 0,
    address: str | None = None,
    table: TopicTable | None = None,
    **more: Any,
) -> BrokerRegistration:
    return BrokerRegistration(
        cluster=more.pop("cluster", CLUSTER),
        broker_name=name,
        broker_id=broker_id,
        address=address or f"{name}{broker_id}:1",
        ha_address=f"{name}{broker_id}:2",
        table=topics("T", "U") if table is None else table,
        **more,
    )


def register(
    routes: RouteTable, registration: BrokerRegistration, owner: object = OWNER, now_ms: int = 0
) -> Registered:
    return routes.register(registration, owner, now_ms)


def addresses(routes: RouteTable, name: str = "a") -> dict[int, str]:
    return routes.members(CLUSTER, name).broker_addrs


def perm(routes: RouteTable, topic: str = "T", name: str = "a") -> int:
    route = routes.route(topic)
    assert route is not None
    return next(data.perm for data in route.queue_datas if data.broker_name == name)


@pytest.fixture
def routes() -> RouteTable:
    return RouteTable()


# Registration


def many(count: int, *more: str, version: int = 1, queues: int = 4) -> TopicTable:
    return topics(*more, *(f"T{number}" for number in range(count)), version=version, queues=queues)


def test_many_topics_are_stored_in_steps(
    routes: RouteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 10)
    steps = routes.register_in_steps(broker(table=many(35)), OWNER, 0)
    assert [len(routes.topic_names()) for _ in steps] == [9, 19, 29, 35]
    assert register(routes, broker(table=many(35))) == Registered(Outcome.RENEWED)


def test_changes_of_a_later_part_arrive_although_its_version_is_known(routes: RouteTable) -> None:
    """A broker that splits its registration may send one version with all parts."""
    register(routes, broker(table=topics("T", "U")))
    register(routes, broker(table=topics("T", version=2, queues=8)))
    register(routes, broker(table=topics("U", version=2, queues=8)))
    assert routes.route("U").queue_datas == [QueueData("a", 8, 8)]  # type: ignore[union-attr]
    routes.delete_topic("U")
    register(routes, broker(table=topics("U", version=2, queues=8)))
    assert routes.route("U").queue_datas == [QueueData("a", 8, 8)]  # type: ignore[union-attr]


def test_the_last_word_of_a_process_does_not_remove_its_successor(routes: RouteTable) -> None:
    """A slave stops, and a master starts at its address before the unregistration arrives."""
    register(routes, broker(broker_id=0, address="h:1"))
    assert routes.unregister(CLUSTER, "a", "h:1", 1) is None
    assert addresses(routes) == {0: "h:1"}
    assert routes.unregister(CLUSTER, "a", "h:1", 0) == Departed(CLUSTER, "a", 0, "h:1")


def test_many_topics_are_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 10)
    routes = RouteTable(RouteRules(delete_missing_topics=True))
    register(routes, broker(table=many(35, "a")))
    steps = routes.register_in_steps(broker(table=topics("a", version=2)), OWNER, 0)
    assert [len(routes.topic_names()) for _ in steps] == [27, 17, 7, 1, 1]


def test_a_broker_that_leaves_between_two_steps_leaves_nothing(
    routes: RouteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 10)
    steps = routes.register_in_steps(broker(table=many(35)), OWNER, 0)
    next(steps)
    assert routes.lost(OWNER) == [Departed(CLUSTER, "a", 0, "a0:1")]
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == Registered(Outcome.OVERTAKEN)
    assert routes.topic_names() == []


def test_a_master_that_returns_while_its_topics_lose_the_write_permission_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 10)
    routes = RouteTable(RouteRules(acting_master=True))
    table = many(35)
    for broker_id in (0, 1):
        register(routes, broker(broker_id=broker_id, table=table, acting_master=True), object())
    routes.unregister(CLUSTER, "a", "a0:1")
    steps = routes.leaving.steps()
    next(steps)
    register(routes, broker(table=table, acting_master=True))
    for _ in steps:
        pass
    assert {data.perm for number in range(35) for data in shown(routes, f"T{number}")} == {6}


@pytest.mark.parametrize("version", [2, 3])
def test_a_registration_that_overtakes_another_is_stored_in_full(
    routes: RouteTable, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Also if both are equal: the first registration has not ended."""
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 10)
    register(routes, broker(table=many(35)))
    steps = routes.register_in_steps(broker(table=many(35, version=2, queues=8)), OWNER, 0)
    next(steps)
    assert routes.version(CLUSTER, "a0:1") not in (DataVersion(0, 0, 1), DataVersion(0, 0, 2))
    assert register(routes, broker(table=many(35, version=version, queues=8))) == Registered(
        Outcome.RENEWED
    )
    assert list(steps) == []
    assert {
        data.write_queue_count for number in range(35) for data in shown(routes, f"T{number}")
    } == {8}
    assert routes.version(CLUSTER, "a0:1") == DataVersion(0, 0, version)


def shown(routes: RouteTable, topic: str) -> list[QueueData]:
    route = routes.route(topic)
    return [] if route is None else route.queue_datas


def test_a_master_registers_its_topics(routes: RouteTable) -> None:
    assert register(routes, broker()) == Registered(Outcome.NEW)
    assert register(routes, broker()) == Registered(Outcome.RENEWED)
    assert routes.route("T") == TopicRoute(
        [QueueData("a", 4, 4)], [BrokerData(CLUSTER, "a", {0: "a0:1"})]
    )
    assert routes.topic_names() == ["T", "U"]
    assert routes.cluster_table().cluster_addr_table == {CLUSTER: ["a"]}
    assert routes.route("other") is None


def test_two_brokers_share_a_topic(routes: RouteTable) -> None:
    register(routes, broker("a"))
    register(routes, broker("b", table=topics("T", "V", queues=2)))
    route = routes.route("T")
    assert route is not None
    assert route.queue_datas == [QueueData("a", 4, 4), QueueData("b", 2, 2)]
    assert [data.broker_name for data in route.broker_datas] == ["a", "b"]
    assert routes.cluster_topics(CLUSTER) == ["T", "T", "U", "V"]
    assert routes.cluster_topics("nowhere") == []


def test_a_slave_gets_the_master_s_address_and_registers_no_topics(routes: RouteTable) -> None:
    assert register(routes, broker(broker_id=1, table=topics("S", "R"))) == Registered(Outcome.NEW)
    assert routes.topic_names() == []
    register(routes, broker())
    assert register(routes, broker(broker_id=1, table=topics("S", "R"))) == Registered(
        Outcome.RENEWED, "a0:1", "a0:2"
    )
    assert routes.topic_names() == ["T", "U"]
    assert addresses(routes) == {0: "a0:1", 1: "a1:1"}


@pytest.mark.parametrize(("newcomer", "wins"), [(4, False), (5, True), (6, True)])
def test_an_id_held_by_another_process_goes_to_the_newer_state(
    routes: RouteTable, newcomer: int, wins: bool
) -> None:
    register(routes, broker(table=topics("T", "U", state=5)))
    outcome = register(
        routes, broker(address="new:1", table=topics("T", "W", state=newcomer))
    ).outcome
    assert outcome is (Outcome.RENEWED if wins else Outcome.IGNORED)
    assert addresses(routes) == {0: "new:1" if wins else "a0:1"}
    assert ("W" in routes.topic_names()) is wins
    assert (routes.version(CLUSTER, "new:1") is not None) is wins


def test_a_dead_holder_gives_way(routes: RouteTable) -> None:
    register(routes, broker(table=topics("T", "U", state=5)))
    routes.touch(CLUSTER, "a0:1", 0)
    routes.lost(OWNER)
    assert (
        register(routes, broker(address="new:1", table=topics("T", "U", state=1))).outcome
        is Outcome.NEW
    )


def test_a_single_topic_is_too_early_and_leaves_no_trace(routes: RouteTable) -> None:
    assert register(routes, broker(table=topics("T"))).outcome is Outcome.TOO_EARLY
    assert routes.cluster_table().broker_addr_table == {}
    assert routes.cluster_table().cluster_addr_table == {}
    register(routes, broker())
    assert register(routes, broker(table=topics("New", version=2))).outcome is Outcome.RENEWED
    assert routes.topic_names() == ["T", "U", "New"]
    assert register(routes, broker("b", table=topics())).outcome is Outcome.NEW


def test_a_topic_that_is_no_longer_registered_stays_unless_the_setting_says_otherwise(
    routes: RouteTable,
) -> None:
    register(routes, broker(table=topics("T", "U", "V")))
    register(routes, broker(table=topics("T", "V", version=2)))
    assert routes.topic_names() == ["T", "U", "V"]
    strict = RouteTable(RouteRules(delete_missing_topics=True))
    register(strict, broker(table=topics("a", "T", "U", "V")))
    register(strict, broker("b", table=topics("b", "U", "V")))
    register(strict, broker(table=topics("a", "T", "V", version=2)))
    assert [data.broker_name for data in strict.route("U").queue_datas] == ["b"]  # type: ignore[union-attr]
    register(strict, broker("b", table=topics("b", "V", "W", version=2)))
    assert set(strict.topic_names()) == {"a", "b", "T", "V", "W"}


def test_a_registration_of_changed_topics_deletes_nothing() -> None:
    """The topic of the broker's own name is missing, so the registration has only the changed
    topics.
    """
    routes = RouteTable(RouteRules(delete_missing_topics=True))
    register(routes, broker(table=topics("a", "T", "U", "V")))
    register(routes, broker(table=topics("U", version=2)))
    register(routes, broker(table=topics("U", "new", version=3)))
    register(routes, broker(table=topics(version=4)))
    assert set(routes.topic_names()) == {"a", "T", "U", "V", "new"}
    register(routes, broker(table=topics("a", "T", "U", "new", version=5)))
    assert set(routes.topic_names()) == {"a", "T", "U", "new"}


def test_static_topics_are_never_deleted_by_registration() -> None:
    routes = RouteTable(RouteRules(delete_missing_topics=True))
    register(routes, broker(table=topics("a", "T", "U", "V")))
    register(
        routes,
        broker(
            table=topics(
                "a", "T", "V", version=2, topic_queue_mapping_info_map={"M": {"bname": "a"}}
            )
        ),
    )
    assert routes.topic_names() == ["a", "T", "U", "V"]


def test_mappings_of_static_topics_follow_the_version(routes: RouteTable) -> None:
    register(
        routes,
        broker(
            table=topics("T", "U", topic_queue_mapping_info_map={"T": {"bname": "a", "epoch": 1}})
        ),
    )
    register(
        routes,
        broker(
            table=topics("T", "U", topic_queue_mapping_info_map={"T": {"bname": "a", "epoch": 2}})
        ),
    )
    assert routes.route("T").topic_queue_mapping_by_broker == {"a": {"bname": "a", "epoch": 1}}  # type: ignore[union-attr]
    register(
        routes,
        broker(
            table=topics(
                "T",
                "U",
                version=2,
                topic_queue_mapping_info_map={"T": {"bname": "b", "epoch": 3}, "U": "odd"},
            )
        ),
    )
    assert routes.route("T").topic_queue_mapping_by_broker == {
        "a": {"bname": "a", "epoch": 1},
        "b": {"bname": "b", "epoch": 3},
    }  # type: ignore[union-attr]
    assert routes.route("U").topic_queue_mapping_by_broker == {"a": "odd"}  # type: ignore[union-attr]


def test_filter_servers(routes: RouteTable) -> None:
    register(routes, broker(filter_servers=["f:1"]))
    assert routes.route("T").filter_server_table == {"a0:1": ["f:1"]}  # type: ignore[union-attr]
    register(routes, broker())
    assert routes.route("T").filter_server_table == {"a0:1": ["f:1"]}  # type: ignore[union-attr]
    register(routes, broker(filter_servers=[]))
    assert routes.route("T").filter_server_table == {}  # type: ignore[union-attr]


def test_zone_and_acting_master_follow_the_last_registration(routes: RouteTable) -> None:
    register(routes, broker(zone_name="z1", acting_master=True))
    assert routes.route("T").broker_datas == [BrokerData(CLUSTER, "a", {0: "a0:1"}, True, "z1")]  # type: ignore[union-attr]
    register(routes, broker())
    assert routes.route("T").broker_datas == [BrokerData(CLUSTER, "a", {0: "a0:1"}, False, None)]  # type: ignore[union-attr]


# Acting masters


def test_the_smallest_slave_of_new_brokers_registers_topics_without_write_permission(
    routes: RouteTable,
) -> None:
    register(routes, broker(broker_id=2, table=topics("T", "U"), acting_master=True))
    assert perm(routes) == 4
    register(routes, broker(broker_id=1, table=topics("T", "V"), acting_master=False))
    assert perm(routes, "V") == 6
    register(routes, broker(broker_id=2, table=topics("X", "Y", version=2), acting_master=True))
    assert "X" not in routes.topic_names()
    old = RouteTable()
    register(old, broker(broker_id=1, table=topics("T", "U"), acting_master=None))
    assert old.topic_names() == []


def test_a_group_without_master_becomes_read_only_if_it_allows_an_acting_master(
    routes: RouteTable,
) -> None:
    register(routes, broker(acting_master=True))
    register(routes, broker(broker_id=1, acting_master=True))
    assert perm(routes) == 6
    routes.unregister(CLUSTER, "a", "a0:1")
    assert perm(routes) == 4
    classic = RouteTable()
    register(classic, broker())
    register(classic, broker(broker_id=1))
    classic.unregister(CLUSTER, "a", "a0:1")
    assert perm(classic) == 6
    assert addresses(classic) == {1: "a1:1"}


def test_acting_master_is_shown_as_master_only_when_enabled() -> None:
    for enabled, shown in ((False, {1: "a1:1", 2: "a2:1"}), (True, {0: "a1:1", 2: "a2:1"})):
        routes = RouteTable(RouteRules(acting_master=enabled))
        table = topics("T", "rmq_sys_SYNC_BROKER_MEMBER_a")
        for broker_id in (0, 1, 2):
            register(routes, broker(broker_id=broker_id, table=table, acting_master=True))
        assert routes.route("T").broker_datas[0].broker_addrs == {0: "a0:1", 1: "a1:1", 2: "a2:1"}  # type: ignore[union-attr]
        routes.unregister(CLUSTER, "a", "a0:1")
        assert routes.route("T").broker_datas[0].broker_addrs == shown  # type: ignore[union-attr]
        assert routes.route("rmq_sys_SYNC_BROKER_MEMBER_a").broker_datas[0].broker_addrs == {
            1: "a1:1",
            2: "a2:1",
        }  # type: ignore[union-attr]
        sum(routes.add_write_permission("a"))
        assert routes.route("T").broker_datas[0].broker_addrs == {1: "a1:1", 2: "a2:1"}  # type: ignore[union-attr]


# Heartbeats and time-outs


def test_silence_beyond_the_time_out_expires_a_broker(routes: RouteTable) -> None:
    first, second = object(), object()
    register(routes, broker("a"), first, now_ms=1000)
    register(routes, broker("b", timeout_ms=500), second, now_ms=1000)
    assert routes.expire(1500) == ([], [])
    assert routes.expire(1501) == ([Departed(CLUSTER, "b", 0, "b0:1")], [second])
    assert routes.expire(121_000) == ([], [])
    routes.touch(CLUSTER, "a0:1", 5000)
    routes.touch(CLUSTER, "unknown:1", 5000)
    assert routes.expire(125_000) == ([], [])
    register(routes, broker("a"), first, now_ms=125_000)
    assert routes.expire(245_000) == ([], [])
    assert routes.expire(245_001) == ([Departed(CLUSTER, "a", 0, "a0:1")], [first])
    assert routes.topic_names() == []


def test_a_lost_connection_removes_only_the_brokers_that_last_registered_on_it(
    routes: RouteTable,
) -> None:
    old, new, other = object(), object(), object()
    register(routes, broker("a"), old)
    register(routes, broker("b"), other)
    register(routes, broker("a"), new)
    assert routes.lost(old) == []
    assert routes.lost(new) == [Departed(CLUSTER, "a", 0, "a0:1")]
    assert routes.lost(new) == []
    assert routes.cluster_table().cluster_addr_table == {CLUSTER: ["b"]}


def test_an_ignored_broker_leaves_nothing_behind(routes: RouteTable) -> None:
    late = object()
    register(routes, broker(table=topics("T", "U", state=5)))
    register(routes, broker(address="late:1"), late)
    assert routes.lost(late) == []
    assert addresses(routes) == {0: "a0:1"}


# Brokers leave


def test_topics_name_and_cluster_go_with_the_last_process_of_a_name(routes: RouteTable) -> None:
    register(routes, broker("a", table=topics("T", "OnlyA")))
    register(routes, broker("b", table=topics("T", "OnlyB"), cluster="D"))
    register(routes, broker("a", 1))
    assert routes.unregister(CLUSTER, "a", "a1:1") == Departed(CLUSTER, "a", 1, "a1:1")
    assert routes.topic_names() == ["T", "OnlyA", "OnlyB"]
    assert routes.unregister(CLUSTER, "a", "a0:1") == Departed(CLUSTER, "a", 0, "a0:1")
    assert routes.topic_names() == ["T", "OnlyB"]
    assert routes.cluster_table().cluster_addr_table == {"D": ["b"]}
    assert routes.unregister(CLUSTER, "a", "a0:1") is None
    assert routes.unregister("D", "b", "other:1") is None
    assert routes.topic_names() == ["T", "OnlyB"]


# Operators


def test_write_permission_is_taken_and_given_back(routes: RouteTable) -> None:
    register(routes, broker("a", table=topics("T", "U", perm=7)))
    register(routes, broker("b"))
    assert sum(routes.wipe_write_permission("a")) == 2
    assert (perm(routes, "T", "a"), perm(routes, "T", "b")) == (5, 6)
    register(routes, broker("a", table=topics("T", "U", perm=7)))
    assert perm(routes, "T", "a") == 5
    assert sum(routes.add_write_permission("a")) == 2
    assert perm(routes, "T", "a") == 6
    register(routes, broker("a", table=topics("T", "U", perm=7, version=2)))
    assert perm(routes, "T", "a") == 7
    assert sum(routes.wipe_write_permission("nobody")) == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster_and_comes_back(routes: RouteTable) -> None:
    register(routes, broker("a"))
    register(routes, broker("b", cluster="D"))
    routes.delete_topic("T", "D")
    assert [data.broker_name for data in routes.route("T").queue_datas] == ["a"]  # type: ignore[union-attr]
    routes.delete_topic("T", "nowhere")
    routes.delete_topic("T", CLUSTER)
    assert routes.route("T") is None
    routes.delete_topic("U")
    routes.delete_topic("U")
    assert routes.topic_names() == []
    register(routes, broker("a"))
    assert routes.topic_names() == ["T", "U"]


def test_queues_of_one_topic_may_be_written_directly(routes: RouteTable) -> None:
    register(routes, broker("a"))
    assert not routes.set_topic("N", [])
    assert not routes.set_topic("N", [QueueData("a", 1, 1), QueueData("stranger", 1, 1)])
    assert routes.route("N") is None
    assert routes.set_topic("N", [QueueData("a", 1, 1)])
    assert not routes.set_topic("N", [QueueData("a", 2, 2), QueueData("stranger", 1, 1)])
    assert routes.route("N").queue_datas == [QueueData("a", 2, 2)]  # type: ignore[union-attr]


def test_lists_for_operators(routes: RouteTable) -> None:
    assert routes.system_names().topic_list == []
    assert routes.system_names().broker_addr is None
    register(routes, broker("a", 1))
    register(routes, broker("a"))
    register(routes, broker("b", cluster="D"))
    assert routes.system_names().topic_list == [CLUSTER, "a", "D", "b"]
    assert routes.system_names().broker_addr == "a0:1"
    assert routes.members(CLUSTER, "nobody").broker_addrs == {}
    assert routes.version(CLUSTER, "a0:1") == DataVersion(0, 0, 1)
    flags = {"unit": 1, "sub": 2, "both": 3, "none": 0}
    table = {
        name: TopicConfig(topic_name=name, topic_sys_flag=flag) for name, flag in flags.items()
    }
    register(routes, broker("c", table=TopicTable(table, DataVersion())))
    assert set(routes.flagged_topics(1)) == {"unit", "both"}
    assert set(routes.flagged_topics(2)) == {"sub", "both"}
    assert set(routes.flagged_topics(2, 1)) == {"sub"}


# Encodings


def test_encoded_forms_are_kept_until_something_changes(routes: RouteTable) -> None:
    register(routes, broker())
    first = routes.encoded_route("T", standard=True)
    cluster = routes.encoded_cluster_table()
    register(routes, broker(), now_ms=30_000)
    routes.touch(CLUSTER, "a0:1", 31_000)
    assert routes.encoded_route("T", standard=True) is first
    assert routes.encoded_cluster_table() is cluster
    changes = [
        lambda: register(routes, broker("b")),
        lambda: register(routes, broker("b", 1)),
        lambda: register(routes, broker("b", 1, address="moved:1")),
        lambda: register(routes, broker("b", zone_name="z")),
        lambda: register(routes, broker("b", filter_servers=["f:1"])),
        lambda: register(routes, broker("b", filter_servers=[])),
        lambda: register(routes, broker("b", table=topics("T", "U", version=9, queues=1))),
        lambda: register(
            routes,
            broker(
                "b",
                table=topics(
                    "T", "U", version=10, topic_queue_mapping_info_map={"T": {"bname": "b"}}
                ),
            ),
        ),
        lambda: sum(routes.wipe_write_permission("b")),
        lambda: routes.delete_topic("T", CLUSTER) or register(routes, broker("a")),
        lambda: routes.set_rules(RouteRules(acting_master=True)),
        lambda: routes.unregister(CLUSTER, "b", "moved:1"),
        lambda: routes.lost(OWNER),
    ]
    for number, change in enumerate(changes):
        before = routes.encoded_route("T", standard=True)
        change()
        after = routes.encoded_route("T", standard=True)
        fresh = routes.route("T")
        assert after is None if fresh is None else after == fresh.encode_standard(), number
        assert after is not before or after is None, number
    assert routes.encoded_route("T", standard=True) is None


def test_a_change_of_one_topic_keeps_the_encoded_forms_of_the_others(routes: RouteTable) -> None:
    register(routes, broker())
    kept, changed = (
        routes.encoded_route("U", standard=True),
        routes.encoded_route("T", standard=True),
    )
    register(routes, broker(table=topics("T", "New", version=2, queues=9)))
    assert routes.encoded_route("U", standard=True) is kept
    assert routes.encoded_route("T", standard=True) != changed
    routes.delete_topic("T")
    assert (routes.encoded_route("T", standard=True), routes.encoded_route("U", standard=True)) == (
        None,
        kept,
    )


def test_what_was_encoded_in_a_thread_is_kept_unless_something_changed_meanwhile(
    routes: RouteTable,
) -> None:
    before = routes.changes
    register(routes, broker("b"))
    routes.keep_route("T", (True, None), b"without b", before)
    routes.keep_clusters(b"without b", before)
    body, clusters = routes.encoded_route("T", standard=True), routes.encoded_cluster_table()
    assert isinstance(body, bytes)
    assert b"b0:1" in body
    assert isinstance(clusters, bytes)
    assert b"b0:1" in clusters
    routes.keep_route("T", (True, None), b"with b", routes.changes)
    routes.keep_clusters(b"with b", routes.changes)
    assert routes.encoded_route("T", standard=True) == b"with b"
    assert routes.encoded_cluster_table() == b"with b"


def test_many_brokers_leave_at_once(routes: RouteTable) -> None:
    """One pass over the topics removes them all: a master of two processes stays in its group, a
    group with an acting master loses the write bit.
    """
    owner = object()
    for number in range(50):
        register(routes, broker(f"b{number}", table=topics("T", f"own-{number}")), owner)
    register(routes, broker("stays", table=topics("T", "U")))
    register(routes, broker("pair", acting_master=True), owner)
    register(routes, broker("pair", 1, acting_master=True))
    lost = routes.lost(owner)
    assert {(gone.broker_name, gone.broker_id) for gone in lost} == {
        (f"b{number}", 0) for number in range(50)
    } | {("pair", 0)}
    assert sorted(routes.topic_names()) == ["T", "U"]
    assert routes.cluster_table().cluster_addr_table == {CLUSTER: ["stays", "pair"]}
    assert (addresses(routes, "pair"), perm(routes, "T", "pair"), perm(routes, "T", "stays")) == (
        {1: "pair1:1"},
        4,
        6,
    )
    assert routes.lost(owner) == []


def renewed(
    routes: RouteTable,
    registration: BrokerRegistration,
    digest: bytes = b"same",
    owner: object = OWNER,
    now_ms: int = 0,
) -> Registered | None:
    return routes.renew(attrs.evolve(registration, table=TopicTable()), digest, owner, now_ms)


def test_the_same_registration_again_is_only_a_sign_of_life(routes: RouteTable) -> None:
    register(routes, broker(), now_ms=0)
    assert renewed(routes, broker()) is None, "nothing is remembered yet"
    routes.remember(CLUSTER, "a0:1", b"same")
    first = routes.encoded_route("T", standard=True)
    newer = object()
    assert renewed(routes, broker(), owner=newer, now_ms=100_000) == Registered(Outcome.RENEWED)
    assert routes.encoded_route("T", standard=True) is first
    assert routes.expire(200_000) == ([], []), "it counts as life"
    assert routes.lost(OWNER) == []
    assert [gone.address for gone in routes.lost(newer)] == ["a0:1"], (
        "and the connection is the one that it came on"
    )
    assert renewed(routes, broker()) is None


@pytest.mark.parametrize(
    "other",
    [
        {"address": "a0:9"},
        {"broker_id": 1},
        {"acting_master": True},
        {"zone_name": "east"},
        {"ha_address": "x:1"},
        {"broker_name": "b"},
        {"cluster": "D"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_registration_is_read_in_full(routes: RouteTable, other: dict[str, Any]) -> None:
    register(routes, broker())
    routes.remember(CLUSTER, "a0:1", b"same")
    assert renewed(routes, attrs.evolve(broker(), **other)) is None
    assert renewed(routes, broker(), b"other") is None
    assert renewed(routes, broker()) is not None


def test_when_the_same_registration_is_read_in_full_again(routes: RouteTable) -> None:
    """A deleted topic comes back with the next registration, as in Java; when a process registers
    or leaves, other topics may count.
    """
    changes: list[Any] = [
        lambda: routes.delete_topic("T"),
        lambda: routes.set_rules(RouteRules(acting_master=True)),
        lambda: register(routes, broker(broker_id=1)),
        lambda: routes.unregister(CLUSTER, "a", "a1:1"),
    ]
    register(routes, broker())
    for change in changes:
        routes.remember(CLUSTER, "a0:1", b"same")
        assert renewed(routes, broker()) is not None
        change()
        assert renewed(routes, broker()) is None
        register(routes, broker())
        assert routes.route("T") is not None


def test_a_renewal_sets_its_time_out(routes: RouteTable) -> None:
    register(routes, broker(timeout_ms=10_000))
    routes.remember(CLUSTER, "a0:1", b"same")
    assert routes.renew(broker(timeout_ms=500), b"same", OWNER, 1_000) is not None
    assert routes.expire(1_500) == ([], [])
    assert routes.expire(1_501) == ([Departed(CLUSTER, "a", 0, "a0:1")], [OWNER])


def test_a_broker_that_comes_back_has_only_the_filter_servers_that_it_names(
    routes: RouteTable,
) -> None:
    register(routes, broker(filter_servers=["f:1"]))
    routes.unregister(CLUSTER, "a", "a0:1")
    register(routes, broker(filter_servers=None))
    assert routes.route("T").filter_server_table == {}  # type: ignore[union-attr]


def test_a_process_that_lost_its_id_is_no_living_broker(routes: RouteTable) -> None:
    register(routes, broker(address="old:1", table=topics("T", "U", state=1)), OWNER)
    register(routes, broker(address="new:1", table=topics("T", "U", state=2)))
    assert (
        register(routes, broker(address="old:1", table=topics("T", "U", state=1))).outcome
        is Outcome.IGNORED
    )
    assert routes.version(CLUSTER, "old:1") is None
    assert addresses(routes) == {0: "new:1"}


def test_limits_do_not_affect_known_brokers_and_topics() -> None:
    """Full tables accept registrations and changes of their brokers and topics."""
    routes = RouteTable(limits=namesrv_limits(NamesrvTableLimits(brokers_max=2, topics_max=2)))
    for name in ("a", "b"):
        register(routes, broker(name))
    for version in (2, 3):
        for name in ("a", "b"):
            registered = register(
                routes, broker(name, table=topics("T", "U", version=version, queues=version))
            )
            assert (registered.outcome, registered.topics_left_out) == (Outcome.RENEWED, 0)
        assert [data.write_queue_count for data in shown(routes, "T")] == [version, version]
    assert register(routes, broker("b", table=topics("T", "V", version=4))).topics_left_out == 1
    with pytest.raises(LimitReached, match="broker c is not registered"):
        register(routes, broker("c"))
    routes.unregister(CLUSTER, "b", "b0:1")
    assert register(routes, broker("c")).outcome is Outcome.NEW


def test_a_group_without_master_stays_read_only_when_another_slave_leaves(
    routes: RouteTable,
) -> None:
    for broker_id in (0, 1, 2):
        register(routes, broker(broker_id=broker_id, acting_master=True))
    routes.unregister(CLUSTER, "a", "a0:1")
    sum(routes.add_write_permission("a"))
    assert perm(routes) == 6
    routes.unregister(CLUSTER, "a", "a2:1")
    assert perm(routes) == 4


def test_a_process_that_comes_back_under_another_name_leaves_its_first_name(
    routes: RouteTable,
) -> None:
    """It crashed and got another brokerName: its old name is not unregistered, and would never
    expire.
    """
    register(routes, broker("a"))
    register(routes, broker("b", address="a0:1", table=topics("T", "V")))
    assert routes.members(CLUSTER, "a").broker_addrs == {}
    assert [data.broker_name for data in shown(routes, "T")] == ["b"]
    assert "U" not in routes.topic_names()
    assert routes.lost(OWNER) == [Departed(CLUSTER, "b", 0, "a0:1")]
    assert (routes.topic_names(), routes.cluster_table()) == ([], ClusterTable({}, {}))


def test_a_cluster_has_only_names_with_living_processes_in_it(routes: RouteTable) -> None:
    """Also if a process registers one name in two clusters, or is unregistered in a wrong
    cluster.
    """
    register(routes, broker("a"))
    for number in range(3):
        register(routes, broker("a", 1, address="x:1", cluster=f"D{number}"))
        assert routes.cluster_table().cluster_addr_table == {CLUSTER: ["a"], f"D{number}": ["a"]}
        routes.unregister(f"D{number}", "a", "x:1")
        assert routes.cluster_table().cluster_addr_table == {CLUSTER: ["a"]}
    register(routes, broker("a", 1))
    routes.unregister(CLUSTER, "a", "a0:1")
    assert routes.cluster_table().cluster_addr_table == {CLUSTER: ["a"]}
    routes.unregister("wrong", "a", "a1:1")
    assert routes.cluster_table() == ClusterTable({}, {})
    assert routes.expire(DEFAULT_TIMEOUT_MS + 1)[0] == []
    assert routes.cluster_table() == ClusterTable({}, {})


def test_an_unregistration_under_another_name_removes_no_broker(routes: RouteTable) -> None:
    register(routes, broker("a"))
    assert routes.unregister(CLUSTER, "b", "a0:1") is None
    assert routes.version(CLUSTER, "a0:1") == DataVersion(0, 0, 1)
    assert routes.expire(DEFAULT_TIMEOUT_MS + 1)[0] == [Departed(CLUSTER, "a", 0, "a0:1")]


def test_mappings_go_with_their_topic(routes: RouteTable) -> None:
    """Mappings of topics that no broker has are not kept: any peer could fill the memory
    with them.
    """
    mapping = {"T": {"bname": "a", "epoch": 1}, "stranger": {"bname": "a"}}
    register(routes, broker(table=topics("T", "U", topic_queue_mapping_info_map=mapping)))
    assert set(routes._topics.mappings) == {"T"}
    for forget in (
        lambda: routes.delete_topic("T"),
        lambda: routes.delete_topic("T", CLUSTER),
        lambda: routes.lost(OWNER),
    ):
        forget()
        assert routes._topics.mappings == {}
        register(routes, broker(table=topics("T", "U", version=2)))
        assert not routes.route("T").topic_queue_mapping_by_broker  # type: ignore[union-attr]
        routes.lost(OWNER)
        register(routes, broker(table=topics("T", "U", topic_queue_mapping_info_map=mapping)))


def test_a_slave_gets_the_master_s_address_by_a_renewal_too(routes: RouteTable) -> None:
    register(routes, broker())
    register(routes, broker(broker_id=1))
    routes.remember(CLUSTER, "a1:1", b"same")
    assert renewed(routes, broker(broker_id=1)) == Registered(Outcome.RENEWED, "a0:1", "a0:2")


def test_standard_and_legacy_forms(routes: RouteTable) -> None:
    register(routes, broker("brökér-中", table=topics("T", "U")))
    register(routes, broker("brökér-中", 1))
    standard = routes.encoded_route("T", standard=True)
    legacy = routes.encoded_route("T", standard=False)
    assert standard is not None
    assert legacy is not None
    assert standard.isascii()
    assert b'{"0":"br\\u00F6k\\u00E9r-\\u4E2D0:1","1":' in standard
    assert '{0:"brökér-中0:1",1:'.encode() in legacy
    assert loads(legacy) == json.loads(standard)
    assert routes.encoded_route("T", standard=True, order_conf="a:4") != standard
    assert b'{0:"' in routes.encoded_cluster_table()


def test_zone_filter_keeps_own_zone_and_groups_without_master() -> None:
    near, far, headless = (
        BrokerData("C", "near", {0: "n:1"}, False, "Z1"),
        BrokerData("C", "far", {0: "f:1"}, False, "z2"),
        BrokerData("C", "headless", {1: "h:1"}, False, "z2"),
    )
    route = TopicRoute(
        [QueueData(name, 1, 1) for name in ("near", "far", "headless")],
        [near, far, headless],
        None,
        {"f:1": ["x:1"], "n:1": ["y:1"]},
    )
    seen = in_zone(route, "z1")
    assert [data.broker_name for data in seen.broker_datas] == ["near", "headless"]
    assert [data.broker_name for data in seen.queue_datas] == ["near", "headless"]
    assert seen.filter_server_table == {"n:1": ["y:1"]}
    assert (
        in_zone(
            attrs.evolve(route, broker_datas=[attrs.evolve(near, zone_name=None)]), "z1"
        ).broker_datas
        == []
    )


def test_a_broker_with_many_topics_leaves_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No route shows it from the beginning; its topics go step by step."""
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 10)
    routes = RouteTable()
    register(routes, broker(table=many(35, "a")))
    routes.unregister(CLUSTER, "a", "a0:1")
    assert routes.leaving
    assert routes.route("a") is None
    assert [len(routes.topic_names()) for _ in routes.leaving.steps()] == [26, 16, 6, 0]
    assert not routes.leaving


def test_a_broker_that_comes_back_while_it_leaves_keeps_its_new_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routed_queues, "STEP_TOPICS", 10)
    routes = RouteTable()
    register(routes, broker(table=many(35, "a")))
    routes.unregister(CLUSTER, "a", "a0:1")
    steps = routes.leaving.steps()
    next(steps)
    register(routes, broker(table=topics("a", "b", version=2)))
    assert list(steps) == []
    assert sorted(routes.topic_names()) == ["a", "b"]
    assert routes.route("a") is not None
