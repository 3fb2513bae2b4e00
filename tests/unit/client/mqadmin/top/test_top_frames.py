"""The model of ``mqadmin top``: what is unknown stays unknown; order, filter, whose turn it is."""

from __future__ import annotations

import attrs
import pytest

from triomq.client.admin.cluster_view import (
    BrokerRow,
    BrokerTables,
    ClusterView,
    NameServerRow,
    group_rows,
    topic_rows,
)
from triomq.client.mqadmin.top.details import (
    DETAIL_SECONDS_MAX,
    GroupDetail,
    TopicDetail,
    names_to_read,
)
from triomq.client.mqadmin.top.frame import TopFrame
from triomq.client.mqadmin.top.tabs import (
    CLUSTER,
    GROUPS,
    TOPICS,
    Tab,
    age_text,
    detail_lines,
    headline,
)
from triomq.remoting.protocol.bodies.controller import GroupReplicas, ReplicaState
from triomq.remoting.protocol.bodies.offsets import BrokerConsumeStats, ConsumeOffset, ConsumeStats
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicConfig

NOW = 1000.0
MASTER = BrokerRow(
    cluster="c",
    name="a",
    id=0,
    address="a:1",
    seen_at=999.0,
    status={
        "putTps": "5.0 1 1",
        "getTransferredTps": "7.5 1 1",
        "commitLogDiskRatio": "0.5",
        "commitLogMaxOffset": "1000",
        "putLatency99": "3.00",
        "pageCacheLockTimeMills": "0",
        "brokerVersionDesc": "V5_3_3",
    },
)
SLAVE = attrs.evolve(MASTER, id=1, address="a:2", status={"commitLogMaxOffset": "400"})
SILENT = attrs.evolve(MASTER, name="b", address="b:1", failure="no answer within 2 s")


def offsets(topic: str, broker: str, end: int, at: int, rate: float) -> ConsumeStats:
    offset = ConsumeOffset(broker_offset=end, consumer_offset=at, pull_offset=at)
    return ConsumeStats({MessageQueue(topic, broker, 0): offset}, rate)


def table_of_broker(
    topics: tuple[str, ...], backlog: list[dict[str, list[ConsumeStats]]] | None = None
) -> BrokerTables:
    """Return the table of a broker; ``backlog`` None: it does not tell that of its groups."""
    groups = tuple(name for entry in backlog or () for name in entry)
    stats = None if backlog is None else BrokerConsumeStats(consume_stats_list=backlog)
    configs = {topic: TopicConfig(topic_name=topic) for topic in topics}
    return BrokerTables(topics=configs, groups=groups, backlog=stats, taken_at=990.0)


def view_of(tables: dict[str, BrokerTables], **more: object) -> ClusterView:
    view = ClusterView(
        brokers=(MASTER, SLAVE, SILENT),
        name_servers=(NameServerRow("ns:1", None),),
        taken_at=999.0,
        topics=topic_rows(tables),
        groups=group_rows(tables),
        tables_at=990.0,
    )
    return attrs.evolve(view, **more)  # type: ignore[arg-type]


def cells(tab: Tab, frame: TopFrame, name: str) -> dict[str, str]:
    """Return column key → cell of the row of that name."""
    sort = tab.sort_keys[0]
    rows = tab.chosen(frame, NOW, sort=sort, everything=True)
    (row,) = [row for row in rows if row[tab.identity] == name]
    return {column.key: column.cell(row) for column in tab.columns}


def test_values_of_a_silent_broker_are_unknown_and_its_row_says_why() -> None:
    frame = TopFrame(view=view_of({}))
    silent = cells(CLUSTER, frame, "b:1")
    assert silent["error"] == "no answer within 2 s"
    known = ("inTps", "outTps", "commitLogDiskRatio", "pageCacheLockMs", "putLatency99Ms")
    assert {silent[key] for key in known} == {"?"}
    master = cells(CLUSTER, frame, "a:1")
    assert [master[key] for key in known] == ["5.0", "7.5", "50 %", "0.0", "3.0"]
    assert (master["error"], master["slaveLagBytes"], master["putLatency999Ms"]) == ("ok", "-", "?")
    assert cells(CLUSTER, frame, "ns:1")["inTps"] == "-", "a name server has no rate"
    assert frame.failures() == {"b:1": "no answer within 2 s"}


def test_a_slave_s_lag_is_known_only_if_both_ends_are() -> None:
    frame = TopFrame(view=view_of({}))
    assert cells(CLUSTER, frame, "a:2")["slaveLagBytes"] == "600 B"
    lost = attrs.evolve(MASTER, failure="cut off")
    frame = TopFrame(view=attrs.evolve(frame.view, brokers=(lost, SLAVE)))
    assert cells(CLUSTER, frame, "a:2")["slaveLagBytes"] == "?"


def test_a_group_in_controller_mode_has_its_set_and_epoch() -> None:
    assert cells(CLUSTER, TopFrame(view=view_of({})), "a:1")["inSet"] == "-"
    member = ReplicaState(broker_name=MASTER.name, broker_id=1, broker_address="a:1", alive=True)
    group = GroupReplicas(master_epoch=3, in_sync_replicas=[member])
    frame = TopFrame(view=view_of({}, sets={MASTER.name: group}))
    shown = [cells(CLUSTER, frame, name)["inSet"] for name in ("a:1", "a:2", "b:1", "ns:1")]
    assert shown == ["in, epoch 3", "out, epoch 3", "-", "-"]


def test_a_broker_that_is_not_registered_any_more_says_so() -> None:
    gone = attrs.evolve(MASTER, failure="", gone_since=5.0)
    frame = TopFrame(view=ClusterView(brokers=(gone,), taken_at=999.0))
    assert cells(CLUSTER, frame, "a:1")["error"] == "it is not registered any more"


def test_a_topic_s_rate_is_unknown_until_it_was_read_and_when_it_is_old() -> None:
    view = view_of({"a": table_of_broker(("t",), [{"g": [offsets("t", "a", 9, 4, 2.5)]}])})
    row = cells(TOPICS, TopFrame(view=view), "t")
    assert (row["inTps"], row["in24h"], row["outTps"]) == ("?", "?", "2.5")
    detail = TopicDetail(put_rate=0.0, day_count=12000, whole=True, taken_at=999.0)
    row = cells(TOPICS, TopFrame(view=view, topics={"t": detail}), "t")
    assert (row["inTps"], row["in24h"]) == ("0.0", "12,000")
    part = attrs.evolve(detail, whole=False)
    assert cells(TOPICS, TopFrame(view=view, topics={"t": part}), "t")["in24h"] == "12,000+"
    old = attrs.evolve(detail, taken_at=NOW - DETAIL_SECONDS_MAX - 1)
    assert cells(TOPICS, TopFrame(view=view, topics={"t": old}), "t")["inTps"] == "?"


def test_a_topic_s_out_rate_is_the_sum_of_its_groups_and_unknown_if_a_broker_does_not_tell() -> (
    None
):
    one = table_of_broker(
        ("t", "u"),
        [
            {"g": [offsets("t", "a", 9, 4, 2.0), offsets("u", "a", 1, 1, 8.0)]},
            {"h": [offsets("t", "a", 9, 9, 1.0)]},
        ],
    )
    two = table_of_broker(("t",), [{"g": [offsets("t", "b", 9, 4, 4.0)]}])
    rows = topic_rows({"a": one, "b": two})
    assert (rows["t"].get_rate, rows["u"].get_rate) == (7.0, 8.0)
    rows = topic_rows({"a": one, "b": table_of_broker(("t",))})
    assert (rows["t"].get_rate, rows["u"].get_rate) == (None, 8.0)
    assert topic_rows({"a": table_of_broker(("idle",), [])})["idle"].get_rate == 0.0


def test_a_group_s_waiting_messages_are_kept_by_place() -> None:
    one = table_of_broker(
        ("t", "u"), [{"g": [offsets("t", "a", 9, 4, 0.0), offsets("u", "a", 2, 2, 0.0)]}]
    )
    two = table_of_broker(("t",), [{"g": [offsets("t", "b", 8, 7, 0.0)]}])
    group = group_rows({"a": one, "b": two})["g"]
    assert group.waiting == {("a", "t"): 5, ("b", "t"): 1}
    assert group.lag == 6


def test_sums_to_which_a_silent_broker_is_missing_are_marked() -> None:
    tables = {"a": table_of_broker(("t",), [{"g": [offsets("t", "a", 9, 4, 2.5)]}])}
    whole = cells(GROUPS, TopFrame(view=view_of(tables)), "g")
    assert (whole["lag"], whole["consumeTps"], whole["members"]) == ("5", "2.5", "?")
    never = TopFrame(view=view_of(tables, tables_missing={"b": "no answer"}))
    assert cells(GROUPS, never, "g")["lag"] == "5+", "b may have the group"
    assert cells(TOPICS, never, "t")["outTps"] == "2.5+"
    tables["b"] = table_of_broker(("other",), [])
    elsewhere = TopFrame(view=view_of(tables, tables_missing={"b": "no answer"}))
    assert cells(GROUPS, elsewhere, "g")["lag"] == "5", "b told that it does not have it"


@pytest.mark.parametrize(
    ("lag_at", "oldest", "cell"), [(9, None, "-"), (4, None, "?"), (4, 75.0, "1m15s")]
)
def test_the_oldest_message_is_unknown_or_does_not_exist(
    lag_at: int, oldest: float | None, cell: str
) -> None:
    view = view_of({"a": table_of_broker(("t",), [{"g": [offsets("t", "a", 9, lag_at, 0.0)]}])})
    detail = GroupDetail(members=2, oldest_seconds=oldest, taken_at=999.0)
    row = cells(GROUPS, TopFrame(view=view, groups={"g": detail}), "g")
    assert (row["oldestSeconds"], row["members"]) == (cell, "2")


def test_rows_are_sorted_with_unknown_values_last_and_filtered_by_name() -> None:
    view = view_of({"a": table_of_broker(("alpha", "beta", "gamma", "%RETRY%g"), [])})
    details = {
        name: TopicDetail(put_rate=rate, day_count=1, whole=True, taken_at=999.0)
        for name, rate in (("alpha", 1.0), ("gamma", 5.0))
    }
    frame = TopFrame(view=view, topics=details)

    def names(**chosen: object) -> list[str]:
        sort = str(chosen.pop("sort", "inTps"))
        return [row["topic"] for row in TOPICS.chosen(frame, NOW, sort=sort, **chosen)]  # type: ignore[arg-type]

    assert names() == ["gamma", "alpha", "beta"]
    assert names(sort="topic") == ["alpha", "beta", "gamma"]
    assert names(text="MM") == ["gamma"]
    assert names(everything=True)[-2:] == ["%RETRY%g", "beta"]


def test_rows_on_the_screen_are_read_first_and_the_others_in_turn() -> None:
    known = [f"t{number}" for number in range(10)]
    taken = {f"t{number}": 100.0 - number for number in range(8)}
    chosen, rest = names_to_read(["t3", "t0"], known, taken, lambda name: 2, 11)
    assert chosen == ["t3", "t0", "t8", "t9", "t7"], "never read before, then the oldest"
    assert rest == 1
    assert names_to_read([], known, {}, lambda name: 1, 100) == (known, 90)
    assert names_to_read([], ["wide", "t"], {}, lambda name: 50, 7) == (["wide"], 0)
    assert names_to_read(["t1"], known, {}, lambda name: 1, 0) == ([], 0)


def test_every_name_has_its_turn() -> None:
    known = [f"t{number}" for number in range(95)]
    taken: dict[str, float] = {}
    for turn in range(1, 11):
        for name in names_to_read(["t0"], known, taken, lambda name: 1, 11)[0]:
            taken[name] = float(turn)
    assert set(taken) == set(known)


def test_the_headline_has_totals_marks_and_ages() -> None:
    assert headline(TopFrame(), NOW) == "waiting for the first answers"
    tables = {"a": table_of_broker(("t",), [{"g": [offsets("t", "a", 9, 4, 2.5)]}])}
    frame = TopFrame(view=view_of(tables, tables_missing={"b": "x"}, failure="no name server"))
    assert headline(frame, NOW) == (
        "3 brokers (1 silent), in 5.0+/s, out 7.5+/s, lag 5+, data 1.0s old, topics and groups 10s"
        " old, the list of brokers is old: no name server"
    )


def test_details_show_what_the_frame_knows() -> None:
    tables = {"a": table_of_broker(("t",), [{"g": [offsets("t", "a", 9, 4, 2.5)]}])}
    frame = TopFrame(view=view_of(tables))
    (topic,) = TOPICS.chosen(frame, NOW, sort="topic")
    assert {"inTps: ?", "groups: 1", "g: 5 messages behind"} <= set(
        detail_lines(frame, TOPICS, topic)
    )
    (group,) = GROUPS.chosen(frame, NOW, sort="lag")
    assert {"lag: 5", "t at a: 5 messages"} <= set(detail_lines(frame, GROUPS, group))
    servers = {row["address"]: row for row in CLUSTER.chosen(frame, NOW, sort="role")}
    assert "putLatency99: 3.00" in detail_lines(frame, CLUSTER, servers["a:1"])
    assert "no runtime counters" in detail_lines(frame, CLUSTER, servers["ns:1"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4s"), (59.9, "59s"), (200, "3m20s"), (7500, "2h05m"), (200_000, "2d07h")],
)
def test_ages_have_two_units(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
