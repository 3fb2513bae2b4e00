"""Streaming queries: the methods that Spark calls in the driver and in tasks.

Spark makes two instances: one answers the driver between micro-batches (in one long-lived process)
and keeps state, the other is pickled to the tasks and only reads. Any exception of a driver-side
method ends the query, so failed requests are retried here as far as the options allow.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from triomq.client.spark.columns import arrow_schema
from triomq.client.spark.driver_client import DriverClient
from triomq.client.spark.errors import SourceError, Unreachable, lost
from triomq.client.spark.lag_offsets import LagOffsets
from triomq.client.spark.offsets import (
    Bounds,
    Offsets,
    Position,
    Queue,
    advance,
    read_position,
    recreated_before,
)
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.partitions import TaskReader, partitions_of
from triomq.client.spark.planning import (
    backlog_of,
    largest,
    limit_heads,
    messages_in,
    ranges_between,
)
from triomq.client.spark.positions import (
    AvailableNowTarget,
    changes_since,
    recreated_queues,
    report_losses,
)
from triomq.client.spark.query_begin import begins_of_new_queues, first_unread, initial_offsets
from triomq.client.spark.records import LastMessage
from triomq.client.spark.silent_brokers import SilenceLimit

logger = logging.getLogger(__name__)


SAMPLED_QUEUES_MAX = 64
"""the number of queues whose messages are sampled for maxBytesPerTrigger: a pull for each"""


def now_ms() -> int:
    """Return the time of the wall clock (epoch, ms)."""
    return time.time_ns() // 1_000_000


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. All positions are JSON objects of ``offsets.Position``."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        make_cluster: Callable[[SourceOptions], DriverClient] = DriverClient,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._make_cluster = make_cluster
        self._clock = clock
        self._wall_ms = wall_ms
        self._cluster_or_none: DriverClient | None = None
        self._initial: dict[str, object] | None = None
        self._bounds: dict[Queue, Bounds] = {}
        self._asked_at = float("-inf")
        self._available_now = False
        self._target: AvailableNowTarget | None = None
        self._progress = LagOffsets(self._clock)
        self._warned: set[str] = set()
        self._dropped: set[Queue] = set()
        self._silence = SilenceLimit(
            0.0
            if self._options.unavailable_broker_policy == "fail"
            else self._options.unavailable_broker_timeout_ms / 1000
        )
        self._planned: dict[str, object] | None = None
        self._planned_at = self._clock()

    @property
    def _cluster(self) -> DriverClient:
        if self._cluster_or_none is None:
            self._cluster_or_none = self._make_cluster(self._options)
        return self._cluster_or_none

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Return the begin of a new query.

        Spark asks twice and uses the second answer, so both are the same.
        """
        if self._initial is None:
            began_ms = self._wall_ms()
            begins = initial_offsets(self._options, self._cluster, may_wait=True)
            self._initial = Position(
                next=begins,
                first=begins,
                filter_hash=self._options.filter_hash,
                began_ms=began_ms,
                stored=known_times(self._store_times_before(begins)),
            ).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the size limit of a micro-batch."""
        options = self._options
        limit = options.max_offsets_per_trigger
        if limit is None and (options.min_offsets_per_trigger or options.max_bytes_per_trigger):
            limit = (1 << 63) - 1  # ReadAllAvailable would override these
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the trigger; ``latestOffset`` fixes the target when the start is known."""
        self._available_now = True
        self._target = None

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        """Return the end of the next micro-batch; ``start`` if there are no new messages.

        Raises: DataLoss, Unreachable, SourceError.
        """
        position = self._read_on(read_position(start))
        self._note_progress(position)
        bounds = self._current_bounds(position)
        if self._available_now and self._target is None:
            bounds = self._completed(position, bounds)
        bounds, recreated = self._compared(position, without_late_slaves(position, bounds))
        if self._available_now and self._target is None and self._options.fail_on_data_loss:
            require_all(position, bounds)
        begins_of_new = begins_of_new_queues(self._options, self._cluster, position, bounds)
        unread = first_unread(self._cluster, position, bounds)
        changes = changes_since(position, bounds, begins_of_new, recreated, unread)
        report_losses(
            [loss for loss in changes.losses if self._is_new(loss)],
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        born = changes.born
        heads = {queue: found.end for queue, found in bounds.items()}
        if self._available_now:
            if self._target is None:
                self._target = AvailableNowTarget.at(position, born, heads)
            heads = self._target.heads(bounds)
            born = {queue: begin for queue, begin in born.items() if queue in heads}
        begins = {**position.next, **born}
        if self._waits_for_more(begins, heads, limit):
            return start
        limited = limit_heads(begins, heads, self._messages_max(begins, heads, limit))
        end = advance(position, limited, born)
        if end.next == position.next:
            if self._target is not None and self._is_back(position, self._target):
                return self.latestOffset(start, limit)
            self._progress.store(self._cluster, at_once=True)
            return start
        self._warned.clear()
        self._planned_at = self._clock()
        moved = {
            queue: offset
            for queue, offset in end.next.items()
            if queue in born or offset != position.next.get(queue)
        }
        unmoved = {queue: time for queue, time in position.stored.items() if queue not in moved}
        self._planned = attrs.evolve(
            end,
            stored={**unmoved, **known_times(self._store_times_before(moved))},
            filter_hash=self._options.filter_hash,
        ).to_json()
        return self._planned

    def _is_back(self, position: Position, target: AvailableNowTarget) -> bool:
        """Return whether a broker answers again whose messages belong to an AvailableNow run.

        With failOnDataLoss=false a broker that stays away is left out with a warning: the next run
        reads its messages.

        Raises: Unreachable, SourceError.
        """
        left = target.unreached(position)
        if not self._available_now or not left:
            return False
        answered = set(self._bounds)
        wanted = position.only(lambda queue: queue in left)
        found = without_late_slaves(wanted, self._completed(wanted, self._bounds))
        if any(queue in found and queue not in answered for queue in left):
            return True
        if self._options.fail_on_data_loss:
            require_all(wanted, {})
        return False

    def _waits_for_more(
        self, begins: Mapping[Queue, int], heads: Mapping[Queue, int], limit: ReadLimit
    ) -> bool:
        """Return whether there are fewer messages than ``minOffsetsPerTrigger`` demands."""
        wanted = self._options.min_offsets_per_trigger
        if wanted is None or self._available_now or not isinstance(limit, ReadMaxRows):
            return False
        count = sum(max(0, head - begins.get(queue, head)) for queue, head in heads.items())
        waited = self._clock() - self._planned_at
        return count < wanted and waited < self._options.max_trigger_delay_ms / 1000

    def _messages_max(
        self, begins: Mapping[Queue, int], heads: Mapping[Queue, int], limit: ReadLimit
    ) -> int | None:
        """Return the limit of the batch in messages; None means all."""
        if not isinstance(limit, ReadMaxRows):
            return None
        bytes_max = self._options.max_bytes_per_trigger
        backlog = backlog_of(begins, heads)
        if bytes_max is None or not backlog:
            return limit.max_rows
        sampled = {queue: begins[queue] for queue in largest(backlog, SAMPLED_QUEUES_MAX)}
        return min(
            limit.max_rows, messages_in(bytes_max, backlog, self._cluster.mean_bytes(sampled))
        )

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """Return the ends of all queues, which Spark shows in the query's progress."""
        return (
            Position(next={queue: found.end for queue, found in self._bounds.items()}).to_json()
            if self._bounds
            else None
        )

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """Return the tasks of the batch (start, end); the same arguments give the same tasks.

        Raises: DataLoss, OffsetError, Unreachable.
        """
        begin, finish = self._read_on(read_position(start)), self._read_on(read_position(end))
        if finish.filter_hash != self._options.filter_hash:
            logger.warning(
                "this batch was planned with another 'tags' or 'filterSql' option; its replay may"
                " have other rows than the first attempt"
            )
        ranges = ranges_between(begin, finish)
        self._cluster.refresh()
        losses = []
        if end != self._planned:  # of an earlier run, which may lie days back
            recreated = recreated_queues(finish, self._store_times_before(finish.next))
            losses += [
                recreated_before(each.queue, each.first, each.end)
                for each in ranges
                if each.queue in recreated
            ]
            ranges = [each for each in ranges if each.queue not in recreated]
        if self._options.fail_on_data_loss and ranges:
            found = self._bounds_of({each.queue for each in ranges})
            losses += [
                lost(*each.queue, each.first, min(least, each.end), f"earliest is {least}")
                for each in ranges
                if each.queue in found
                and not found[each.queue].of_slave
                and (least := found[each.queue].least) > each.first
            ]
        report_losses(losses, fail_on_data_loss=self._options.fail_on_data_loss)
        options = self._options
        may_skip = options.unavailable_broker_policy == "wait" and not options.fail_on_data_loss
        if self._available_now and end == self._planned:
            may_skip = False  # a run that ends would skip messages of a broker that is only away
        return partitions_of(
            ranges,
            options,
            self._cluster.addresses,
            self._cluster.slaves,
            {
                queue: LastMessage(finish.next[queue] - 1, stored_ms)
                for queue, stored_ms in finish.stored.items()
                if queue in finish.next
            },
            options.unavailable_broker_timeout_ms if may_skip else None,
        )

    def commit(self, end: dict[str, object]) -> None:
        """Note that a batch is done.

        Spark calls this one batch late, and never for the last batch, so ``latestOffset`` does the
        same.
        """
        self._note_progress(self._read_on(read_position(end)))

    def stop(self) -> None:
        """Close connections. Spark does not always call this, and need not."""
        if self._cluster_or_none is not None:
            self._cluster_or_none.close()
            self._cluster_or_none = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's messages, in an executor."""
        return TaskReader(self._options, self._schema).read(partition)

    def __reduce__(self) -> tuple[type[TaskReader], tuple[SourceOptions, pa.Schema]]:
        return TaskReader, (self._options, self._schema)

    def _current_bounds(self, position: Position) -> dict[Queue, Bounds]:
        """Return the bounds of all queues, at most ``pollIntervalMs`` old.

        Raises: Unreachable.
        """
        now = self._clock()
        if now - self._asked_at < self._options.poll_interval_ms / 1000 and self._bounds:
            return self._bounds
        cluster = self._cluster
        cluster.refresh()
        routed = cluster.queues()
        self._bounds = cluster.bounds(routed)
        self._asked_at = self._clock()
        self._limit_silence(position, routed)
        return self._bounds

    def _bounds_of(self, queues: set[Queue]) -> Mapping[Queue, Bounds]:
        """Return the bounds of some queues, at most ``pollIntervalMs`` old."""
        if (
            self._clock() - self._asked_at >= self._options.poll_interval_ms / 1000
            or not queues <= self._bounds.keys()
        ):
            routed = set(self._cluster.queues())
            self._bounds = {**self._bounds, **self._cluster.bounds(sorted(queues & routed))}
        return self._bounds

    def _read_on(self, position: Position) -> Position:
        """Return the position without the queues that the options do not name any more."""
        gone = {queue for queue in position.next if not self._options.reads(queue)}
        if not gone:
            return position
        if fresh := sorted(gone - self._dropped):
            self._dropped |= gone
            logger.warning(
                "the options do not name %d queues of %s any more, which this query has read before"
                " (%s up to %d); their offsets are dropped",
                len(fresh),
                ", ".join(sorted({queue.topic for queue in fresh})),
                fresh[0],
                position.next[fresh[0]],
            )
        return position.only(self._options.reads)

    def _compared(
        self, position: Position, bounds: Mapping[Queue, Bounds]
    ) -> tuple[dict[Queue, Bounds], set[Queue]]:
        """Find the queues of topics that were created again.

        Returns: the bounds without those of queues with new messages that cannot be compared now;
            the queues that were created again.
        """
        grown = {
            queue: position.next[queue]
            for queue in position.stored
            if queue in bounds and bounds[queue].end > position.next[queue]
        }
        times = self._store_times_before(grown)
        unknown = {
            queue
            for queue, offset in grown.items()
            if offset > bounds[queue].least and queue not in times
        }
        return (
            {queue: found for queue, found in bounds.items() if queue not in unknown},
            recreated_queues(position, times),
        )

    def _store_times_before(self, offsets: Mapping[Queue, int]) -> dict[Queue, int | None]:
        """Return the store times of the messages before these offsets."""
        before = {queue: offset - 1 for queue, offset in offsets.items() if offset > 0}
        return self._cluster.store_times(before) if before else {}

    def _limit_silence(self, position: Position, routed: Sequence[Queue]) -> None:
        """Limit the time for which a broker may not answer.

        Raises: Unreachable after unavailableBrokerTimeout, with failOnDataLoss.
        """
        answered = {queue.broker for queue in self._bounds}
        silent = {queue.broker for queue in (*position.next, *routed)} - answered
        over = self._silence.note(silent, self._clock())
        if not over:
            return
        may_skip = self._options.unavailable_broker_policy == "wait"
        if may_skip and not self._options.fail_on_data_loss:
            self._silence.report(over)
        elif not self._bounds_answer_again(over):
            raise Unreachable(
                f"no queue of {', '.join(over)} could be asked for"
                f" {self._silence.limit_seconds:g} s (unavailableBrokerTimeout); check that the"
                " brokers run, that they can be reached from the driver, and that they still have"
                " the topic; if a broker is gone for good, set failOnDataLoss=false to skip its"
                " queues"
            )

    def _bounds_answer_again(self, brokers: Sequence[str]) -> bool:
        """Ask the brokers again, with the configured retries; return whether they answer."""
        queues = [queue for queue in self._cluster.queues() if queue.broker in brokers]
        try:
            self._bounds = {**self._bounds, **self._cluster.all_bounds(queues)}
        except Unreachable as error:
            logger.warning("%s", error)
            return False
        return bool(queues)

    def _completed(self, position: Position, bounds: Mapping[Queue, Bounds]) -> dict[Queue, Bounds]:
        """Return ``bounds`` and the missing ones.

        An AvailableNow run that leaves a broker out would look complete. With failOnDataLoss=false
        a broker that does not answer is left out with a warning.

        Raises: Unreachable, SourceError.
        """
        routed = set(self._cluster.queues())
        missing = {queue for queue in {*position.next, *routed} if queue not in bounds}
        gone = sorted(str(queue) for queue in missing - routed)
        if gone and self._options.fail_on_data_loss:
            raise SourceError(
                f"{', '.join(gone)} cannot be reached or exist no more; start their brokers, or set"
                " failOnDataLoss=false to leave them out"
            )
        if gone:
            logger.warning("%s cannot be reached and are left out", ", ".join(gone))
        if missing & routed:
            try:
                found = self._cluster.all_bounds(sorted(missing & routed))
            except Unreachable as error:
                if self._options.fail_on_data_loss:
                    raise
                logger.warning("%s; this run leaves their queues out", error)
                found = self._cluster.bounds(sorted(missing & routed))
            self._bounds = {**bounds, **found}
        return self._bounds

    def _is_new(self, loss: str) -> bool:
        """Return whether a loss was not reported yet.

        With failOnDataLoss=false it is found again at every poll until the next batch.
        """
        if loss in self._warned:
            return False
        self._warned.add(loss)
        return True

    def _note_progress(self, position: Position) -> None:
        if self._options.commit_group_offsets and not position.is_initial:
            self._progress.note(position.next)
            self._progress.store(self._cluster, at_once=False)


def known_times(times: Mapping[Queue, int | None]) -> Offsets:
    """Return the store times of messages that exist."""
    return {queue: time for queue, time in times.items() if time is not None}


def require_all(position: Position, bounds: Mapping[Queue, Bounds]) -> None:
    """Check that a run to the present end leaves no queue out. Raises: Unreachable."""
    left_out = sorted(str(queue) for queue in position.next if queue not in bounds)
    if left_out:
        raise Unreachable(
            f"{', '.join(left_out)} cannot be read to the end now: their master is down and its"
            " slave is behind, or it does not answer pulls; run the query again when it is back, or"
            " set failOnDataLoss=false to leave them out"
        )


def without_late_slaves(position: Position, bounds: Mapping[Queue, Bounds]) -> dict[Queue, Bounds]:
    """Return ``bounds`` without the queues of slaves that do not reach the position.

    A slave may lack the newest messages, or have deleted others: that is no loss, the master has
    them. So new queues wait for the master, too.
    """
    return {
        queue: found
        for queue, found in bounds.items()
        if not found.of_slave
        or (queue in position.next and found.least <= position.next[queue] <= found.end)
    }
