"""The driver side of a streaming query, called in Spark's order, with a fake cluster that the test
changes.
"""

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
from triomq.client.spark.partitions import TaskReader
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.query_begin import initial_offsets
from triomq.client.spark.stream_reader import RocketMQStreamReader

A0, A1, B0, C0 = (
    Queue("orders", broker, number)
    for broker, number in (("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-c", 0))
)


class FakeCluster:
    """A fake driver client: queues with bounds; brokers in ``silent`` do not answer; requests are
    counted.
    """

    def __init__(self, bounds: Mapping[Queue, tuple[int, int]]) -> None:
        self.held = {queue: Bounds(*both) for queue, both in bounds.items()}
        self.silent: set[str] = set()
        self.topics = {"orders"}
        self.asked = 0
        self.stored: list[Offsets] = []
        self.by_time: dict[Queue, int] = {}
        self.created_ms = dict.fromkeys(self.held, 1_000)
        self.unknown_times: set[Queue] = set()
        self.committed: dict[Queue, int] = {}
        self.slaves: frozenset[str] = frozenset()
        self.sizes: dict[Queue, float] = {}
        self.sampled: list[Offsets] = []

    def set(self, queue: Queue, least: int, end: int, created_ms: int | None = None) -> None:
        """Change a queue; a new one has been created after the query began.

        Message n of a queue is stored n ms after the queue's creation.
        """
        self.held[queue] = Bounds(least, end, queue.broker in self.slaves)
        self.created_ms[queue] = created_ms or self.created_ms.get(queue, 6_000)

    addresses = property(
        lambda self: {queue.broker: f"{queue.broker}:10911" for queue in self.held}
    )
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

    def answered_offsets_at(self, queues: Sequence[Queue], timestamp_ms: int) -> Offsets:
        return {
            queue: self.by_time.get(
                queue,
                min(
                    self.held[queue].end,
                    max(self.held[queue].least, timestamp_ms - self.created_ms[queue]),
                ),
            )
            for queue in queues
            if queue.broker not in self.silent
        }

    def store_times(self, offsets: Mapping[Queue, int]) -> dict[Queue, int | None]:
        return {
            queue: self.created_ms[queue] + offset
            if queue in self.held and self.held[queue].least <= offset < self.held[queue].end
            else None
            for queue, offset in offsets.items()
            if queue.broker not in self.silent and queue not in self.unknown_times
        }

    def mean_bytes(self, offsets: Offsets) -> dict[Queue, float]:
        self.sampled.append(dict(offsets))
        return {queue: self.sizes[queue] for queue in offsets if queue in self.sizes}

    def group_offsets(self, queues: Sequence[Queue]) -> Offsets:
        return {queue: self.committed[queue] for queue in queues if queue in self.committed}

    def store_group_offsets(self, offsets: Offsets) -> None:
        self.stored.append(dict(offsets))

    def close(self) -> None:
        pass


class Clock:
    """A clock that advances by a second at every call, so no answer is reused unless a test stops
    the clock.
    """

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
        wall_ms=lambda: 5_000,
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


def test_the_second_initial_offset_is_the_same() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster)
    first = source.initialOffset()
    cluster.set(A0, 0, 30)
    assert source.initialOffset() == first
    assert batch(source, first)[1] == [QueueRange(A0, 10, 30)]


def test_batch_0_is_replayed_with_the_start_of_the_first_run() -> None:
    """Spark does not log the start of batch 0; after a crash it asks a new reader, whose ``latest``
    is larger.
    """
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


def test_without_new_messages_the_offset_is_the_same() -> None:
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
    with pytest.raises(
        DataLoss, match=r"\[0, 3\) of orders/broker-c/0.*new to this query.*failOnDataLoss=false"
    ):
        source.latestOffset(start, ReadAllAvailable())
    assert batch(reader(cluster, failOnDataLoss="false"), start)[1] == [QueueRange(C0, 3, 9)]


@pytest.mark.parametrize("begin", [{}, {"startingTimestamp": "900"}])
def test_a_broker_that_was_away_when_the_query_began_obeys_the_start(begin: dict[str, str]) -> None:
    """With ``latest`` its older messages are not read: a message's time decides."""
    cluster = FakeCluster({A0: (0, 10)})
    cluster.by_time = {A0: 4}
    source = reader(cluster, **begin)
    end, _ = batch(source, source.initialOffset())
    assert end["began"] == 5_000
    cluster.set(B0, 0, 4_500, created_ms=1_000)
    cluster.by_time = {B0: 0} if begin else {}
    assert batch(source, end)[1] == [QueueRange(B0, 0 if begin else 4_000, 4_500)]


def test_a_checkpoint_of_version_1_reads_new_queues_from_their_first_message() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 5_000)})
    end = {"v": 1, "q": {"orders": {"broker-a": {"0": 8}}}}
    end, plan = batch(reader(cluster), end)
    assert plan == [QueueRange(A0, 8, 10), QueueRange(B0, 0, 5_000)]
    assert (end["v"], end["stored"]) == (
        2,
        {"orders": {"broker-a": {"0": 1_009}, "broker-b": {"0": 5_999}}},
    )


def test_a_queue_that_appears_after_the_start_was_fixed_is_read_from_its_beginning() -> None:
    """A new query at ``latest``: a queue that did not exist at its start has only newer messages. A
    replay of batch 0 has the same result.
    """
    cluster = FakeCluster({A0: (0, 10)})
    crashed = reader(cluster)
    start = crashed.initialOffset()
    cluster.set(C0, 0, 4)
    end, plan = batch(crashed, start)
    assert plan == [QueueRange(C0, 0, 4)]
    assert end["from"] == {"orders": {"broker-a": {"0": 10}, "broker-c": {"0": 0}}}
    cluster.set(A0, 0, 12)
    cluster.set(C0, 0, 7)
    restarted = reader(cluster)
    invented = through_the_log(restarted.initialOffset())
    assert ranges(restarted.partitions(invented, through_the_log(end))) == [QueueRange(C0, 0, 4)]
    assert batch(restarted, end)[1] == [QueueRange(A0, 10, 12), QueueRange(C0, 4, 7)]


def test_a_topic_that_the_query_has_not_read_yet_may_begin_late() -> None:
    """Messages that retention deleted before were never part of the query: no loss, in the first
    batch and later.
    """
    cluster = FakeCluster({A0: (0, 10)})
    cluster.topics = {"orders", "payments", "refunds"}
    source = reader(cluster, subscribe="orders,payments,refunds")
    start = source.initialOffset()
    payments, refunds = Queue("payments", "broker-a", 0), Queue("refunds", "broker-a", 0)
    cluster.set(payments, 3, 9)
    end, plan = batch(source, start)
    assert plan == [QueueRange(payments, 3, 9)]
    cluster.set(refunds, 5, 6)
    assert batch(source, end)[1] == [QueueRange(refunds, 5, 6)]


def test_limits_are_shared_and_all_available_overrides_them() -> None:
    cluster = FakeCluster({A0: (0, 900), B0: (0, 100)})
    source = reader(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert source.getDefaultReadLimit() == ReadMaxRows(100)
    start = source.initialOffset()
    assert batch(source, start, ReadMaxRows(100))[1] == [
        QueueRange(A0, 0, 90),
        QueueRange(B0, 0, 10),
    ]
    assert batch(source, start, ReadAllAvailable())[1] == [
        QueueRange(A0, 0, 900),
        QueueRange(B0, 0, 100),
    ]
    assert reader(cluster).getDefaultReadLimit() == ReadAllAvailable()


def test_a_limit_in_bytes_samples_where_the_batch_begins() -> None:
    cluster = FakeCluster({A0: (0, 900), A1: (5, 5), B0: (50, 150)})
    cluster.sizes = {A0: 100.0, B0: 1100.0}
    source = reader(cluster, startingOffsets="earliest", maxBytesPerTrigger="20000")
    limit = source.getDefaultReadLimit()
    start = source.initialOffset()
    end, plan = batch(source, start, limit)
    assert plan == [QueueRange(A0, 0, 90), QueueRange(B0, 50, 60)], "100 messages of 200 bytes"
    assert cluster.sampled == [{A0: 0, B0: 50}]
    assert batch(source, start, ReadAllAvailable())[1][0] == QueueRange(A0, 0, 900), "Trigger.Once"
    source.prepareForTriggerAvailableNow()
    cluster.sizes = {}
    assert batch(source, end, limit)[1] == [QueueRange(A0, 90, 107), QueueRange(B0, 60, 62)]
    both = reader(
        cluster, startingOffsets="earliest", maxBytesPerTrigger="20000", maxOffsetsPerTrigger="10"
    )
    assert both.getDefaultReadLimit() == ReadMaxRows(10)
    assert batch(both, start, ReadMaxRows(10))[1] == [QueueRange(A0, 0, 9), QueueRange(B0, 50, 51)]


def test_a_batch_waits_for_enough_messages_but_not_for_ever() -> None:
    cluster, clock = FakeCluster({A0: (0, 10), B0: (0, 0)}), Clock()
    source = reader(
        cluster, clock, startingOffsets="earliest", minOffsetsPerTrigger="50", maxTriggerDelay="1m"
    )
    limit = source.getDefaultReadLimit()
    start = source.initialOffset()
    assert source.latestOffset(start, limit) is start
    assert batch(source, start, ReadAllAvailable())[1] == [QueueRange(A0, 0, 10)], "Trigger.Once"
    cluster.set(B0, 0, 45)
    end, plan = batch(source, start, limit)
    assert plan == [QueueRange(A0, 0, 10), QueueRange(B0, 0, 45)]
    cluster.set(A0, 0, 11)
    assert source.latestOffset(end, limit) is end
    clock.now += 60
    end, plan = batch(source, end, limit)
    assert plan == [QueueRange(A0, 10, 11)]
    cluster.set(A0, 0, 12)
    assert source.latestOffset(end, limit) is end, "the wait begins anew"
    source.prepareForTriggerAvailableNow()
    assert batch(source, end, limit)[1] == [QueueRange(A0, 11, 12)]


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
        cluster.set(C0, 0, 50)  # a new queue is left to the next run
    else:
        pytest.fail("AvailableNow does not end")
    assert sum(each.message_count for each in seen) == 40
    assert {each.queue for each in seen} == {A0, B0}


def test_a_second_available_now_run_has_a_target_of_its_own() -> None:
    cluster = FakeCluster({A0: (0, 30)})
    source = reader(cluster, startingOffsets="earliest")
    source.prepareForTriggerAvailableNow()
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 0, 45)
    assert source.latestOffset(end, ReadAllAvailable()) is end
    source.prepareForTriggerAvailableNow()
    assert batch(source, end)[1] == [QueueRange(A0, 30, 45)]


def test_available_now_ends_when_a_queue_shrinks() -> None:
    cluster = FakeCluster({A0: (0, 30)})
    source = reader(
        cluster, startingOffsets="earliest", maxOffsetsPerTrigger="10", failOnDataLoss="false"
    )
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
    """The first answer lacks a broker; the retry finds it, and its messages belong to the run."""
    cluster = FakeCluster({A0: (0, 30), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    cluster.silent.add("broker-b")
    answer = cluster.all_bounds
    cluster.all_bounds = lambda queues: (cluster.silent.clear(), answer(queues))[1]  # type: ignore[method-assign]
    assert batch(source, start)[1] == [QueueRange(A0, 0, 30), QueueRange(B0, 0, 10)]


@pytest.mark.parametrize("outcome", ["back", "fails", "left out", "slave"])
def test_available_now_skips_nothing_of_a_broker_that_goes_away(outcome: str) -> None:
    """It goes after the first batch; its messages are planned only when it answers."""
    cluster = FakeCluster({A0: (0, 30), B0: (0, 10)})
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    given |= {"failOnDataLoss": "false" if outcome == "left out" else "true"}
    source = reader(cluster, **given)
    source.prepareForTriggerAvailableNow()
    end, plan = batch(source, source.initialOffset(), ReadMaxRows(20))
    assert plan == [QueueRange(A0, 0, 15), QueueRange(B0, 0, 5)]
    if outcome == "slave":
        cluster.slaves = frozenset({"broker-b"})
        cluster.set(B0, 0, 6)
        end, plan = batch(source, end, ReadMaxRows(20))
        assert QueueRange(B0, 5, 6) in plan
    else:
        cluster.silent.add("broker-b")
        end, plan = batch(source, end, ReadMaxRows(20))
        assert plan == [QueueRange(A0, 15, 30)]
    if outcome == "back":
        answer = cluster.all_bounds
        cluster.all_bounds = lambda queues: (cluster.silent.clear(), answer(queues))[1]  # type: ignore[method-assign]
        assert batch(source, end, ReadMaxRows(20))[1] == [QueueRange(B0, 5, 10)]
    elif outcome == "left out":
        tasks = source.partitions(through_the_log(source.initialOffset()), through_the_log(end))
        assert {task.value.skip_after_ms for task in tasks} == {None}
        assert source.latestOffset(end, ReadMaxRows(20)) is end
        cluster.silent.clear()
        source.prepareForTriggerAvailableNow()
        assert batch(source, end, ReadMaxRows(20))[1] == [QueueRange(B0, 5, 10)], "the next run"
    else:
        with pytest.raises(Unreachable, match="broker-b"):
            source.latestOffset(end, ReadMaxRows(20))


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
            with pytest.raises(
                SourceError, match="orders/broker-b/0 cannot be reached or exist no more"
            ):
                source.latestOffset(end, ReadAllAvailable())
        else:
            assert batch(source, end)[1] == outcome


def test_a_silent_broker_does_not_delay_the_others() -> None:
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


@pytest.mark.parametrize(
    "given", [{"unavailableBrokerPolicy": "fail"}, {"unavailableBrokerTimeout": "60s"}]
)
def test_a_silent_broker_fails_the_query_after_the_time_limit(given: dict[str, str]) -> None:
    cluster, clock = FakeCluster({A0: (0, 10), B0: (0, 10)}), Clock()
    source = reader(cluster, clock, startingOffsets="earliest", **given)
    end, _ = batch(source, source.initialOffset())
    cluster.silent.add("broker-b")
    if "unavailableBrokerTimeout" in given:
        assert source.latestOffset(end, ReadAllAvailable()) is end
        clock.now += 61
    with pytest.raises(
        Unreachable, match=r"no queue of broker-b could be asked.*check that the brokers run"
    ):
        source.latestOffset(end, ReadAllAvailable())


def test_the_time_limit_restarts_when_a_broker_has_answered() -> None:
    cluster, clock = FakeCluster({A0: (0, 10), B0: (0, 10)}), Clock()
    source = reader(cluster, clock, startingOffsets="earliest", unavailableBrokerTimeout="60s")
    end, _ = batch(source, source.initialOffset())
    for _ in range(3):
        cluster.silent.add("broker-b")
        assert source.latestOffset(end, ReadAllAvailable()) is end
        clock.now += 40
        cluster.silent.clear()
        assert source.latestOffset(end, ReadAllAvailable()) is end


def test_retention_that_overtakes_the_query() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 14, 20)
    with pytest.raises(
        DataLoss,
        match=(
            r"offsets \[10, 14\) of orders/broker-a/0 are gone \(earliest is 14\); set"
            r" failOnDataLoss=false"
        ),
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
    assert ranges(lenient.partitions(start, end)) == [
        QueueRange(A0, 0, 10)
    ]  # as planned; the task skips lost messages


def test_an_allowed_loss_is_skipped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest", failOnDataLoss="false")
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 14, 20)
    cluster.set(B0, 0, 3, created_ms=9_000)  # deleted and created again
    with caplog.at_level(logging.WARNING):
        end, plan = batch(source, end)
        assert source.latestOffset(end, ReadAllAvailable()) is end
    assert plan == [QueueRange(A0, 14, 20), QueueRange(B0, 0, 3)]
    assert caplog.text.count("[10, 14) of orders/broker-a/0") == 1
    assert caplog.text.count("deleted and created again") == 1
    cluster.set(B0, 0, 10)
    end, _ = batch(source, end)
    cluster.set(B0, 0, 3, created_ms=19_000)  # and again, at the same offset
    batch(source, end)
    assert caplog.text.count("deleted and created again") == 2


@pytest.mark.parametrize("knows_times", [True, False])
def test_after_a_failover_that_lost_a_tail_only_new_messages_are_read(knows_times: bool) -> None:
    """Offsets 8 and 9 were read and are gone; the new master has stored offset 8 again."""
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest", failOnDataLoss="false")
    end, _ = batch(source, source.initialOffset())
    if not knows_times:
        del end["stored"]
    cluster.set(A0, 0, 9)
    cluster.by_time = {A0: 8}
    strict = reader(cluster)
    with pytest.raises(DataLoss, match=r"ends at 9, but the query has read up to 10: .*failed"):
        strict.latestOffset(end, ReadAllAvailable())
    end, plan = batch(source, end)
    assert plan == ([QueueRange(A0, 8, 9)] if knows_times else [])
    cluster.set(A0, 0, 12)
    assert batch(source, end)[1] == [QueueRange(A0, 9, 12)]


@pytest.mark.parametrize("end_now", [4, 10, 80])
def test_a_topic_that_was_created_again_is_seen_at_any_size(
    end_now: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Smaller than before, as large, and larger; only the store times tell the last two."""
    cluster = FakeCluster({A0: (0, 10), A1: (0, 3)})
    source = reader(cluster, startingOffsets="earliest", failOnDataLoss="false")
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 0, end_now, created_ms=9_000)
    if end_now == 10:  # nothing new as it seems, until there is
        assert source.latestOffset(end, ReadAllAvailable()) is end
        cluster.set(A0, 0, 11)
    lenient, plan = batch(source, end)
    assert plan == [QueueRange(A0, 0, cluster.held[A0].end)]
    assert "created again" in caplog.text
    cluster.set(A0, 0, 90)
    assert batch(source, lenient)[1] == [QueueRange(A0, plan[0].end, 90)]
    with pytest.raises(DataLoss, match=r"orders.* created again.*failOnDataLoss=false"):
        reader(cluster).latestOffset(end, ReadAllAvailable())


def test_a_batch_of_an_earlier_run_does_not_read_a_topic_that_was_created_again() -> None:
    """The batch was planned, the driver died, the topic was created again and has grown."""
    cluster = FakeCluster({A0: (0, 10), A1: (0, 3)})
    crashed = reader(cluster, startingOffsets="earliest")
    start = crashed.initialOffset()
    end = through_the_log(crashed.latestOffset(start, ReadAllAvailable()))
    cluster.set(A0, 0, 80, created_ms=9_000)
    with pytest.raises(
        DataLoss, match=r"created again before offsets \[0, 10\) of orders/broker-a/0"
    ):
        reader(cluster).partitions(start, end)
    lenient = reader(cluster, failOnDataLoss="false")
    assert ranges(lenient.partitions(start, end)) == [QueueRange(A1, 0, 3)]
    assert batch(lenient, end)[1] == [QueueRange(A0, 0, 80)]


def test_a_message_that_retention_deleted_tells_nothing() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 10, 20)
    end, plan = batch(source, end)
    assert plan == [QueueRange(A0, 10, 20)]
    cluster.set(A0, 20, 20)
    assert source.latestOffset(end, ReadAllAvailable()) is end


def test_a_queue_that_cannot_be_compared_waits() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    cluster.set(A0, 0, 12)
    cluster.set(B0, 0, 12)
    cluster.unknown_times = {B0}
    end, plan = batch(source, end)
    assert plan == [QueueRange(A0, 10, 12)]
    cluster.unknown_times = set()
    assert batch(source, end)[1] == [QueueRange(B0, 10, 12)]


def test_what_the_options_do_not_name_any_more_is_dropped_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    payments = Queue("payments", "broker-a", 0)
    cluster = FakeCluster({A0: (0, 10), payments: (0, 5)})
    cluster.topics = {"orders", "payments"}
    first = reader(cluster, startingOffsets="earliest", subscribe="orders,payments")
    end, _ = batch(first, first.initialOffset())
    del cluster.held[payments]
    cluster.set(A0, 0, 12)
    second = reader(cluster, startingOffsets="earliest")
    second.prepareForTriggerAvailableNow()
    end, plan = batch(second, end)
    assert plan == [QueueRange(A0, 10, 12)]
    assert end["q"] == {"orders": {"broker-a": {"0": 12}}}
    assert second.latestOffset(end, ReadAllAvailable()) is end
    assert caplog.text.count("do not name 1 queues of payments any more") == 1


def test_queues_that_assign_does_not_name_any_more_are_dropped() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    first = reader(cluster, startingOffsets="earliest")
    end, _ = batch(first, first.initialOffset())
    del cluster.held[B0]
    cluster.set(A0, 0, 11)
    second = reader(cluster, subscribe="", assign='{"orders":{"broker-a":[0]}}')
    second.prepareForTriggerAvailableNow()
    end, plan = batch(second, end)
    assert (plan, list(end["q"]["orders"])) == ([QueueRange(A0, 10, 11)], ["broker-a"])


def test_a_batch_that_is_repeated_drops_them_too() -> None:
    """The operator gives up a broker that took messages of an unfinished batch with it."""
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    first = reader(cluster, startingOffsets="earliest")
    start = first.initialOffset()
    end, _ = batch(first, start)
    cluster.silent.add("broker-b")
    second = reader(cluster, subscribe="", assign='{"orders":{"broker-a":[0]}}')
    plan = ranges(second.partitions(through_the_log(start), through_the_log(end)))
    assert plan == [QueueRange(A0, 0, 10)]


def test_a_broker_that_is_gone_for_good_is_skipped_if_losses_are_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, clock = FakeCluster({A0: (0, 10), B0: (0, 10)}), Clock()
    source = reader(
        cluster,
        clock,
        startingOffsets="earliest",
        failOnDataLoss="false",
        unavailableBrokerTimeout="60s",
    )
    end, _ = batch(source, source.initialOffset())
    cluster.silent.add("broker-b")
    for number in range(1, 5):
        clock.now += 61
        cluster.set(A0, 0, 10 + number)
        end, plan = batch(source, end)
        assert plan == [QueueRange(A0, 9 + number, 10 + number)]
    assert caplog.text.count("broker-b has not answered for 60 s") == 1
    cluster.silent.clear()
    cluster.set(B0, 0, 15)
    assert batch(source, end)[1] == [QueueRange(B0, 10, 15)]


def test_available_now_leaves_a_dead_broker_out_if_losses_are_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster({A0: (0, 30), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest", failOnDataLoss="false")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    cluster.silent.add("broker-b")
    assert batch(source, start)[1] == [QueueRange(A0, 0, 30)]
    assert "this run leaves their queues out" in caplog.text


def test_a_slave_is_read_as_far_as_it_reaches_and_never_means_a_loss() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    cluster.slaves = frozenset({"broker-b"})
    for least, last, wanted in [(0, 7, []), (12, 20, []), (3, 14, [QueueRange(B0, 10, 14)])]:
        cluster.set(B0, least, last)
        cluster.set(C0, 0, 0)
        assert batch(source, end)[1] == wanted
    cluster.slaves = frozenset({"broker-b", "broker-c"})
    cluster.set(C0, 0, 5)  # a new queue waits for its master
    end, plan = batch(source, end)
    assert plan == [QueueRange(B0, 10, 14)]
    assert source.partitions(end, end) == []


@pytest.mark.parametrize("cause", ["slave", "silent"])
def test_available_now_does_not_leave_a_queue_out_that_it_cannot_read(cause: str) -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    first = reader(cluster, startingOffsets="earliest")
    end, _ = batch(first, first.initialOffset())
    if cause == "slave":
        cluster.slaves = frozenset({"broker-b"})
        cluster.set(B0, 0, 7)
    else:
        cluster.set(B0, 0, 15)
        cluster.unknown_times = {B0}
    strict = reader(cluster)
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(Unreachable, match=r"orders/broker-b/0 cannot be read to the end now"):
        strict.latestOffset(end, ReadAllAvailable())
    lenient = reader(cluster, failOnDataLoss="false")
    lenient.prepareForTriggerAvailableNow()
    assert lenient.latestOffset(end, ReadAllAvailable()) is end


def test_idle_queries_ask_at_most_every_poll_interval() -> None:
    cluster, clock = FakeCluster({A0: (0, 10)}), Clock()
    source = reader(cluster, clock, startingOffsets="earliest")
    end, _ = batch(source, source.initialOffset())
    clock.step = 0.002
    asked = cluster.asked
    for _ in range(90):
        assert source.latestOffset(end, ReadAllAvailable()) is end
    assert cluster.asked - asked <= 11


def test_offsets_of_the_group_reach_the_brokers_without_another_batch() -> None:
    cluster = FakeCluster({A0: (0, 10), B0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest", groupId="spark")
    end, _ = batch(source, source.initialOffset())
    assert cluster.stored == []  # no batch is done before Spark asks for the next
    source.latestOffset(end, ReadAllAvailable())
    assert cluster.stored == [{A0: 10, B0: 10}]
    source.latestOffset(end, ReadAllAvailable())
    source.commit(end)
    assert len(cluster.stored) == 1
    quiet = reader(
        FakeCluster({A0: (0, 10)}),
        startingOffsets="earliest",
        groupId="spark",
        commitGroupOffsets="false",
    )
    end, _ = batch(quiet, quiet.initialOffset())
    quiet.latestOffset(end, ReadAllAvailable())
    assert quiet._cluster.stored == []  # type: ignore[attr-defined]


def test_progress_of_a_busy_query_is_stored_once_a_second() -> None:
    cluster, clock = FakeCluster({A0: (0, 10)}), Clock()
    source = reader(cluster, clock, startingOffsets="earliest", groupId="spark")
    end = source.initialOffset()
    clock.step = 0.01
    for number in range(1, 6):
        cluster.set(A0, 0, 10 * number)
        clock.now += 0.15
        end, _ = batch(source, end)
    assert cluster.stored == [{A0: 10}]
    clock.now += 1
    cluster.set(A0, 0, 60)
    batch(source, end)
    assert cluster.stored == [{A0: 10}, {A0: 50}]


def test_a_stopped_reader_connects_again() -> None:
    made: list[FakeCluster] = []

    def make(_: SourceOptions) -> FakeCluster:
        made.append(FakeCluster({A0: (0, 10)}))
        return made[-1]

    source = RocketMQStreamReader(
        options(startingOffsets="earliest"),
        default_schema(include_headers=False),
        make_cluster=make,  # type: ignore[arg-type]
        clock=Clock(),
    )
    start = source.initialOffset()
    source.stop()
    assert batch(source, start)[1] == [QueueRange(A0, 0, 10)]
    assert len(made) == 2


def test_heads_are_reported_for_progress_events() -> None:
    cluster = FakeCluster({A0: (0, 10)})
    source = reader(cluster, startingOffsets="earliest")
    assert source.reportLatestOffset() is None
    batch(source, source.initialOffset())
    assert source.reportLatestOffset() == {"v": 2, "q": {"orders": {"broker-a": {"0": 10}}}}


def test_starting_offsets_of_every_kind() -> None:
    bounds = {A0: (5, 50), A1: (0, 7), B0: (0, 0)}
    given = '{"orders":{"broker-a":{"0":23,"1":-1},"*":-2}}'
    assert reader(FakeCluster(bounds), startingOffsets=given).initialOffset()["q"] == {
        "orders": {"broker-a": {"0": 23, "1": 7}, "broker-b": {"0": 0}}
    }
    for text, message in [
        ('{"orders":{"broker-a":{"0":23}}}', "has no entry for orders/broker-a/1"),
        (
            '{"orders":{"broker-z":{"0":23}},"*":-2}',
            "queues that do not exist or are not read: orders/broker-z/0",
        ),
        (
            '{"orders":{"broker-a":{"0":51}},"*":-2}',
            "offset 51 of orders/broker-a/0, which ends at 50",
        ),
    ]:
        with pytest.raises(OptionError, match=message):
            reader(FakeCluster(bounds), startingOffsets=text).initialOffset()
    at_the_end = reader(
        FakeCluster(bounds), startingOffsets='{"orders":{"broker-a":{"0":50}},"*":-2}'
    )
    assert at_the_end.initialOffset()["q"]["orders"]["broker-a"]["0"] == 50
    early = '{"orders":{"broker-a":{"0":2}},"*":-2}'
    with pytest.raises(DataLoss, match=r"\[2, 5\) of orders/broker-a/0"):
        reader(FakeCluster(bounds), startingOffsets=early).initialOffset()
    assert (
        reader(FakeCluster(bounds), startingOffsets=early, failOnDataLoss="false").initialOffset()[
            "q"
        ]["orders"]["broker-a"]["0"]
        == 5
    )


def test_starting_timestamp() -> None:
    cluster = FakeCluster({A0: (0, 50), B0: (0, 7)})
    cluster.by_time = {A0: 40}
    with pytest.raises(
        OptionError, match=r"stored then or later: orders/broker-b/0 at 1700;.*Strategy=latest"
    ):
        reader(cluster, startingTimestamp="1700").initialOffset()
    latest = reader(cluster, startingTimestamp="1700", startingOffsetsByTimestampStrategy="latest")
    assert latest.initialOffset()["q"] == {"orders": {"broker-a": {"0": 40}, "broker-b": {"0": 7}}}
    cluster.set(B0, 7, 7)  # empty: nothing to be too old
    empty = reader(cluster, startingTimestamp="1700").initialOffset()
    assert empty["q"]["orders"]["broker-b"] == {"0": 7}
    cluster.set(B0, 0, 7)
    cluster.by_time = {A0: 40, B0: 12}  # a message arrived between the two requests
    again = reader(cluster, startingTimestamp="1700", startingOffsetsByTimestampStrategy="latest")
    assert again.initialOffset()["q"]["orders"]["broker-b"] == {"0": 7}


def test_times_of_single_queues() -> None:
    cluster = FakeCluster({A0: (0, 50), A1: (0, 9), B0: (0, 7)})
    cluster.by_time = {A0: 40, A1: 3, B0: 5}
    given = '{"orders":{"broker-a":{"0":1700},"broker-b":{"*":1800}}}'
    with pytest.raises(OptionError, match=r"no entry for orders/broker-a/1; add the queues"):
        reader(cluster, startingOffsetsByTimestamp=given).initialOffset()
    whole = '{"orders":{"broker-a":{"0":1700,"1":1},"*":1800}}'
    source = reader(cluster, startingOffsetsByTimestamp=whole)
    end = source.initialOffset()
    assert end["q"]["orders"] == {"broker-a": {"0": 40, "1": 3}, "broker-b": {"0": 5}}
    cluster.set(C0, 0, 30)
    cluster.by_time = {C0: 20}
    assert QueueRange(C0, 20, 30) in batch(source, end)[1], "a later queue has its time, too"


@pytest.mark.parametrize(("reset", "begin"), [("earliest", 0), ("latest", 7)])
def test_a_query_that_begins_where_the_group_stopped(reset: str, begin: int) -> None:
    cluster = FakeCluster({A0: (0, 50), A1: (4, 9), B0: (0, 7)})
    cluster.committed = {A0: 20, A1: 2}
    options = {"startingOffsets": "group", "groupId": "g", "groupOffsetsReset": reset}
    with pytest.raises(DataLoss, match=r"\[2, 4\) of orders/broker-a/1"):
        reader(cluster, **options).initialOffset()
    source = reader(cluster, **options, failOnDataLoss="false")
    end = source.initialOffset()
    assert end["q"]["orders"] == {"broker-a": {"0": 20, "1": 4}, "broker-b": {"0": begin}}
    cluster.set(C0, 0, 3)
    assert QueueRange(C0, 0, 3) in batch(source, end)[1]


def test_topics_of_a_pattern_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    other = Queue("ordinary", "broker-a", 0)
    cluster = FakeCluster({A0: (0, 10), other: (0, 2)})
    cluster.topics = set()
    pattern = {"subscribe": "", "subscribePattern": "ord.*"}
    held, cluster.held = cluster.held, {}
    source = reader(cluster, startingOffsets="earliest", **pattern)
    start = source.initialOffset()
    assert source.latestOffset(start, ReadAllAvailable()) is start, "waits"
    assert "no topic matches subscribePattern = 'ord.*'" in caplog.text
    with pytest.raises(SourceError, match=r"no topic matches subscribePattern = 'ord\.\*'"):
        initial_offsets(options(**pattern), cluster)  # type: ignore[arg-type]
    cluster.topics, cluster.held = {"orders", "ordinary"}, held
    end, plan = batch(source, start)
    assert plan == [QueueRange(A0, 0, 10), QueueRange(other, 0, 2)] or len(plan) == 2
    narrower = reader(cluster, **{**pattern, "subscribePattern": "orders"})
    del cluster.held[other]
    cluster.set(A0, 0, 11)
    assert batch(narrower, end)[1] == [QueueRange(A0, 10, 11)]
    assert "queues of ordinary any more" in caplog.text


def test_unknown_topics_and_queues_are_named() -> None:
    cluster = FakeCluster({A0: (0, 5)})
    with pytest.raises(
        OptionError,
        match="'assign' names queues that do not exist or cannot be read: orders/broker-a/9",
    ):
        reader(cluster, subscribe="", assign='{"orders":{"broker-a":[0,9]}}').initialOffset()
    cluster.topics = set()
    with pytest.raises(
        SourceError, match="not know topic orders; check the spelling, or create it"
    ):
        reader(cluster).initialOffset()


def test_another_filter_is_noted_when_a_batch_is_replayed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({A0: (0, 5)})
    source = reader(cluster, startingOffsets="earliest", tags="A")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    assert "fh" in end
    with caplog.at_level(logging.WARNING):
        reader(cluster, tags="B").partitions(start, end)
    assert "another 'tags' or 'filterSql' option" in caplog.text


def test_a_reader_is_pickled_without_its_connections() -> None:
    source = RocketMQStreamReader(options(), default_schema(include_headers=False))
    assert source._cluster is not None
    copy = pickle.loads(pickle.dumps(source))
    assert isinstance(copy, TaskReader)
    assert (copy._options, copy._schema) == (source._options, source._schema)
