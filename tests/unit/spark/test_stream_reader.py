"""The driver side of a streaming query, in the order in which Spark calls it, against a cluster that the test moves by hand."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from triomq.client.spark.columns import default_schema
from triomq.client.spark.errors import DataLoss, OptionError, SourceError, Unreachable
from triomq.client.spark.offsets import Bounds, Offsets, Queue
from triomq.client.spark.options import SourceOptions, parse_options
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.stream_reader import RocketMQStreamReader

A0, A1, B0, C0 = (
    Queue("orders", broker, number)
    for broker, number in (("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-c", 0))
)


class FakeCluster:
    """Queues with bounds; brokers in `silent` do not answer; counts what it is asked."""

    def __init__(self, bounds: Mapping[Queue, tuple[int, int]]) -> None:
        self.held = {queue: Bounds(*both) for queue, both in bounds.items()}
        self.silent: set[str] = set()
        self.topics = {"orders"}
        self.asked = 0
        self.stored: list[Offsets] = []
        self.by_time: dict[Queue, int] = {}

    def set(self, queue: Queue, least: int, end: int) -> None:
        self.held[queue] = Bounds(least, end)

    addresses = property(lambda self: {queue.broker: f"{queue.broker}:10911" for queue in self.held})
    known_topics = property(lambda self: self.topics)

    def refresh(self, *, at_once: bool = False) -> None:
        pass

    def queues(self) -> list[Queue]:
        return sorted(self.held)

    def bounds(self, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        self.asked += 1
        return {queue: self.held[queue] for queue in queues if queue.broker not in self.silent}

    def all_bounds(self, queues: Sequence[Queue]) -> dict[Queue, Bounds]:
        found = self.bounds(queues)
        if len(found) < len(queues):
            raise Unreachable(f"no answer from {', '.join(sorted(self.silent))}")
        return found

    def offsets_at(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        return {queue: self.by_time.get(queue, self.held[queue].end) for queue in queues}

    def store_group_offsets(self, offsets: Offsets) -> None:
        self.stored.append(dict(offsets))

    def close(self) -> None:
        pass


class Clock:
    """Goes on by a second at every look, so nothing is answered from memory unless a test stops it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 1.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def options(**given: str) -> SourceOptions:
    everything = {"nameServer": "localhost:9876", "subscribe": "orders", **given}
    return parse_options({key: value for key, value in everything.items() if value}, streaming=True)


def reader(cluster: FakeCluster, clock: Clock | None = None, **given: str) -> RocketMQStreamReader:
    return RocketMQStreamReader(
        options(**given),
        default_schema(include_headers=False),
        make_cluster=lambda _: cluster,  # type: ignore[arg-type,return-value]
        clock=clock or Clock(),
    )


def through_the_log(offset: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def ranges(plan: Sequence[Any]) -> list[QueueRange]:
    return sorted(each for partition in plan for each in partition.value.ranges)


def batch(
    source: RocketMQStreamReader, start: dict[str, Any], limit: Any = None
) -> tuple[dict[str, Any], list[QueueRange]]:
    end = source.latestOffset(through_the_log(start), limit or ReadAllAvailable())
    return end, ranges(source.partitions(through_the_log(start), through_the_log(end)))


def test_a_query_from_the_earliest_reads_everything_once() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (5, 20)})
    source = reader(cluster, startingOffsets="earliest")
    start = source.initialOffset()
    end, plan = batch(source, start)
    assert plan == [QueueRange(A0, 0, 10), QueueRange(B0, 5, 20)]
    cluster.set(A0, 0, 12)
    assert batch(source, end)[1] == [QueueRange(A0, 10, 12)]


def test_the_initial_offset_does_not_move_when_asked_twice() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster)
    first = source.initialOffset()
    cluster.set(A0, 0, 30)
    assert source.initialOffset() == first
    assert batch(source, first)[1] == [QueueRange(A0, 10, 30)]


def test_batch_0_is_replayed_with_the_start_of_the_first_run() -> None:
    """Spark does not log where batch 0 starts; after a crash it asks a new reader, whose `latest` lies further on."""
    cluster = FakeCluster({A0: (0, 10)})
    crashed = reader(cluster)
    start = crashed.initialOffset()
    cluster.set(A0, 0, 25)
    logged = through_the_log(crashed.latestOffset(start, ReadAllAvailable()))
    cluster.set(A0, 0, 40)
    restarted = reader(cluster)
    invented = through_the_log(restarted.initialOffset())
    assert ranges(restarted.partitions(invented, logged)) == [QueueRange(A0, 10, 25)]
    assert batch(restarted, logged)[1] == [QueueRange(A0, 25, 40)]


def test_nothing_new_gives_the_very_same_offset() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 0)})
    source = reader(cluster, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    logged = through_the_log(end)
    assert source.latestOffset(logged, ReadAllAvailable()) is logged
    assert json.dumps(source.latestOffset(logged, ReadAllAvailable())) == json.dumps(logged)


def test_a_new_queue_begins_at_its_earliest_and_its_start_is_logged() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster)
    start = source.initialOffset()
    cluster.set(A0, 0, 11)
    end, _ = batch(source, start)
    cluster.set(C0, 0, 4)
    end, plan = batch(source, end)
    assert plan == [QueueRange(C0, 0, 4)]
    assert end["from"] == {"orders": {"broker-c": {"0": 0}}}
    cluster.set(C0, 0, 6)
    end, plan = batch(source, end)
    assert plan == [QueueRange(C0, 4, 6)]
    assert "from" not in end


def test_a_new_queue_that_begins_late_is_a_loss() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster)
    start = source.initialOffset()
    cluster.set(C0, 3, 9)
    with pytest.raises(DataLoss, match=r"\[0, 3\) of orders/broker-c/0.*new to this query.*failOnDataLoss=false"):
        source.latestOffset(start, ReadAllAvailable())
    assert batch(reader(cluster, failOnDataLoss="false"), start)[1] == [QueueRange(C0, 3, 9)]


def test_limits_are_shared_and_all_available_beats_them() -> None:
    cluster = FakeCluster({A0: (0, 900), B0: (0, 100)})
    source = reader(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert source.getDefaultReadLimit() == ReadMaxRows(100)
    start = source.initialOffset()
    assert batch(source, start, ReadMaxRows(100))[1] == [QueueRange(A0, 0, 90), QueueRange(B0, 0, 10)]
    assert batch(source, start, ReadAllAvailable())[1] == [QueueRange(A0, 0, 900), QueueRange(B0, 0, 100)]
    assert reader(cluster).getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_while_a_producer_keeps_writing() -> None:
    cluster = FakeCluster({A0: (0, 30), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="16")
    source.prepareForTriggerAvailableNow()
    end = source.initialOffset()
    seen: list[QueueRange] = []
    for _ in range(20):
        start = through_the_log(end)
        end = source.latestOffset(start, ReadMaxRows(16))
        if end is start:
            break
        seen += ranges(source.partitions(start, end))
        cluster.set(A0, 0, cluster.held[A0].end + 100)
        cluster.set(C0, 0, 50)  # a new queue is left for the next run
    else:
        pytest.fail("AvailableNow does not end")
    assert sum(each.message_count for each in seen) == 40
    assert {each.queue for each in seen} == {A0, B0}


def test_available_now_ends_when_a_queue_shrinks() -> None:
    cluster = FakeCluster({A0: (0, 30)})
    source = reader(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="10", failOnDataLoss="false")
    source.prepareForTriggerAvailableNow()
    end = source.latestOffset(source.initialOffset(), ReadMaxRows(10))
    cluster.set(A0, 0, 15)
    for _ in range(5):
        start, end = end, source.latestOffset(end, ReadMaxRows(10))
    assert end is start
    assert end["q"] == {"orders": {"broker-a": {"0": 15}}}


def test_available_now_does_not_leave_a_silent_broker_out() -> None:
    cluster = FakeCluster({A0: (0, 30), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    cluster.silent.add("broker-b")
    with pytest.raises(Unreachable, match="broker-b"):
        source.latestOffset(start, ReadAllAvailable())


def test_available_now_waits_for_a_broker_that_comes_back() -> None:
    """The first answer lacks a broker; the repeated question finds it, and its messages belong to the run."""
    cluster = FakeCluster({A0: (0, 30), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    cluster.silent.add("broker-b")
    answer = cluster.all_bounds
    cluster.all_bounds = lambda queues: (cluster.silent.clear(), answer(queues))[1]  # type: ignore[method-assign]
    assert batch(source, start)[1] == [QueueRange(A0, 0, 30), QueueRange(B0, 0, 10)]


def test_available_now_misses_queues_that_are_gone() -> None:
    cluster = FakeCluster({A0: (0, 30), B0: (0, 10)})
    first = reader(cluster, startingOffsets="earliest")
    end, _ = batch(first, first.initialOffset())
    del cluster.held[B0]
    cluster.set(A0, 0, 35)
    for given, outcome in (("true", None), ("false", [QueueRange(A0, 30, 35)])):
        source = reader(cluster, startingOffsets="earliest", failOnDataLoss=given)
        source.prepareForTriggerAvailableNow()
        if outcome is None:
            with pytest.raises(SourceError, match="orders/broker-b/0 cannot be reached or exist no more"):
                source.latestOffset(end, ReadAllAvailable())
        else:
            assert batch(source, end)[1] == outcome


def test_a_silent_broker_does_not_hold_up_the_others() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    cluster.silent.add("broker-b")
    cluster.set(A0, 0, 15)
    cluster.set(B0, 0, 18)
    end, plan = batch(source, end)
    assert plan == [QueueRange(A0, 10, 15)]
    cluster.silent.clear()
    assert batch(source, end)[1] == [QueueRange(B0, 10, 18)]


@pytest.mark.parametrize("given", [{"unavailableBrokerPolicy": "fail"}, {"unavailableBrokerTimeout": "60s"}])
def test_patience_with_a_silent_broker_ends(given: dict[str, str]) -> None:
    cluster, clock = FakeCluster({A0: (0, 10), B0: (0, 10)}), Clock()
    source = reader(cluster, clock, startingOffsets="earliest", **given)
    end, _ = batch(source, source.initialOffset())
    cluster.silent.add("broker-b")
    if "unavailableBrokerTimeout" in given:
        assert source.latestOffset(end, ReadAllAvailable()) is end
        clock.now += 61
    with pytest.raises(Unreachable, match=r"no queue of broker-b could be asked.*check that the brokers run"):
        source.latestOffset(end, ReadAllAvailable())


def test_retention_that_overtakes_the_query() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 14, 20)
    with pytest.raises(
        DataLoss, match=r"offsets \[10, 14\) of orders/broker-a/0 are gone \(earliest is 14\); set failOnDataLoss=false"
    ):
        source.latestOffset(end, ReadAllAvailable())


def test_retention_between_planning_and_the_tasks() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    cluster.set(A0, 4, 10)
    with pytest.raises(DataLoss, match=r"\[0, 4\) of orders/broker-a/0"):
        source.partitions(start, end)
    lenient = reader(cluster, failOnDataLoss="false")
    assert ranges(lenient.partitions(start, end)) == [QueueRange(A0, 0, 10)]  # as planned; the task skips what is gone


def test_loss_is_skipped_and_said_once_when_allowed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest", failOnDataLoss="false")
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 14, 20)
    cluster.set(B0, 0, 3)  # deleted and created again
    with caplog.at_level(logging.WARNING):
        end, plan = batch(source, end)
        assert source.latestOffset(end, ReadAllAvailable()) is end
    assert plan == [QueueRange(A0, 14, 20), QueueRange(B0, 0, 3)]
    assert caplog.text.count("[10, 14) of orders/broker-a/0") == 1
    assert caplog.text.count("deleted and created again") == 1


def test_idle_queries_ask_at_most_every_poll_interval() -> None:
    cluster, clock = FakeCluster({A0: (0, 10)}), Clock()
    source = reader(cluster, clock, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    clock.step = 0.002
    asked = cluster.asked
    for _ in range(90):
        assert source.latestOffset(end, ReadAllAvailable()) is end
    assert cluster.asked - asked <= 11


def test_progress_of_the_group_reaches_the_brokers_without_another_batch() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest", groupId="spark")
    end, _ = batch(source, source.initialOffset())
    assert cluster.stored == []  # nothing is done before Spark asks for more
    source.latestOffset(end, ReadAllAvailable())
    assert cluster.stored == [{A0: 10, B0: 10}]
    source.latestOffset(end, ReadAllAvailable())
    source.commit(end)
    assert len(cluster.stored) == 1
    quiet = reader(FakeCluster({A0: (0, 10)}), startingOffsets="earliest", groupId="spark", commitGroupOffsets="false")
    end, _ = batch(quiet, quiet.initialOffset())
    quiet.latestOffset(end, ReadAllAvailable())
    assert quiet._cluster.stored == []  # type: ignore[attr-defined]


def test_heads_are_reported_for_progress_events() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    assert source.reportLatestOffset() is None
    batch(source, source.initialOffset())
    assert source.reportLatestOffset() == {"v": 1, "q": {"orders": {"broker-a": {"0": 10}}}}


def test_starting_offsets_of_every_kind() -> None:
    bounds = {A0: (5, 50), A1: (0, 7), B0: (0, 0)}
    given = '{"orders":{"broker-a":{"0":23,"1":-1},"*":-2}}'
    assert reader(FakeCluster(bounds), startingOffsets=given).initialOffset()["q"] == {
        "orders": {"broker-a": {"0": 23, "1": 7}, "broker-b": {"0": 0}}
    }
    for text, message in [
        ('{"orders":{"broker-a":{"0":23}}}', "says nothing about orders/broker-a/1"),
        ('{"orders":{"broker-z":{"0":23}},"*":-2}', "queues that do not exist or are not read: orders/broker-z/0"),
        ('{"orders":{"broker-a":{"0":51}},"*":-2}', "offset 51 of orders/broker-a/0, which ends at 50"),
    ]:
        with pytest.raises(OptionError, match=message):
            reader(FakeCluster(bounds), startingOffsets=text).initialOffset()
    early = '{"orders":{"broker-a":{"0":2}},"*":-2}'
    with pytest.raises(DataLoss, match=r"\[2, 5\) of orders/broker-a/0"):
        reader(FakeCluster(bounds), startingOffsets=early).initialOffset()
    assert (
        reader(FakeCluster(bounds), startingOffsets=early, failOnDataLoss="false").initialOffset()["q"]["orders"][
            "broker-a"
        ]["0"]
        == 5
    )


def test_starting_timestamp() -> None:
    cluster = FakeCluster({A0: (0, 50), B0: (0, 7)})
    cluster.by_time = {A0: 40}
    with pytest.raises(OptionError, match=r"no message of orders/broker-b/0 was stored at 1700.*Strategy=latest"):
        reader(cluster, startingTimestamp="1700").initialOffset()
    latest = reader(cluster, startingTimestamp="1700", startingOffsetsByTimestampStrategy="latest")
    assert latest.initialOffset()["q"] == {"orders": {"broker-a": {"0": 40}, "broker-b": {"0": 7}}}


def test_unknown_topics_and_queues_are_named() -> None:
    cluster = FakeCluster({A0: (0, 5)})
    with pytest.raises(
        OptionError, match="'assign' names queues that do not exist or cannot be read: orders/broker-a/9"
    ):
        reader(cluster, subscribe="", assign='{"orders":{"broker-a":[0,9]}}').initialOffset()
    cluster.topics = set()
    with pytest.raises(SourceError, match="know no topic orders; check the spelling, or create it"):
        reader(cluster).initialOffset()


def test_another_filter_is_noted_when_a_batch_is_replayed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({A0: (0, 5)})
    source = reader(cluster, startingOffsets="earliest", tags="A")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    assert "fh" in end
    with caplog.at_level(logging.WARNING):
        reader(cluster, tags="B").partitions(start, end)
    assert "another 'tags' option" in caplog.text


def test_a_reader_travels_to_the_tasks_without_its_connections() -> None:
    source = RocketMQStreamReader(options(), default_schema(include_headers=False))
    assert source._cluster is not None
    copy = pickle.loads(pickle.dumps(source))
    assert copy._options == source._options
    assert copy._cluster_or_none is None
