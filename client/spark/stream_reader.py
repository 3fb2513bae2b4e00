"""The streaming side: what Spark calls between micro-batches (in one long-lived process of the driver) and in tasks.

Spark makes two instances: one answers the driver's questions and keeps state, the other is pickled to the tasks and only reads.  Any
exception of a driver-side method ends the query, so trouble is repeated or waited out here as far as the options allow.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from triomq.client.spark.cluster import Cluster
from triomq.client.spark.columns import arrow_schema
from triomq.client.spark.errors import OptionError, SourceError, Unreachable, lost
from triomq.client.spark.offsets import Bounds, Offsets, Position, Queue, advance, read_position
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.planning import limit_heads, ranges_between
from triomq.client.spark.positions import AvailableNowTarget, at_timestamp, changes_since, report_losses, resolve
from triomq.client.spark.task import partitions_of, read_task

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
"""least time between two reports of the group's progress"""


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream.  All positions are JSON objects of `offsets.Position`."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        make_cluster: Callable[[SourceOptions], Cluster] = Cluster,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._make_cluster = make_cluster
        self._clock = clock
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._cluster_or_none: Cluster | None = None
        self._initial: dict[str, Any] | None = None
        self._bounds: dict[Queue, Bounds] = {}
        self._looked_at = float("-inf")
        self._available_now = False
        self._target: AvailableNowTarget | None = None
        self._progress: Offsets = {}
        self._stored_progress: Offsets = {}
        self._progress_at = float("-inf")
        self._warned: set[str] = set()
        self._silent_since: dict[str, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs; sockets and the driver's memory stay here."""
        return {
            "_options": self._options,
            "_schema": self._schema,
            "_make_cluster": self._make_cluster,
            "_clock": self._clock,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_afresh()

    @property
    def _cluster(self) -> Cluster:
        if self._cluster_or_none is None:
            self._cluster_or_none = self._make_cluster(self._options)
        return self._cluster_or_none

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins.  Spark asks twice and uses the second answer, so there is only one."""
        if self._initial is None:
            begins = initial_offsets(self._options, self._cluster)
            self._initial = Position(next=begins, first=begins, filter_hash=self._options.filter_hash).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much one micro-batch takes."""
        limit = self._options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Only a mark: the target is taken at the first look, when the start is known."""
        self._available_now = True
        self._target = None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; *start* itself when there is nothing new.

        Raises DataLoss, Unreachable or SourceError.
        """
        position = read_position(start)
        self._note_progress(position)
        bounds = self._look(position)
        if self._available_now and self._target is None:
            bounds = self._completed(position, bounds)
        changes = changes_since(position, bounds)
        report_losses(
            [loss for loss in changes.losses if self._is_news(loss)], fail_on_data_loss=self._options.fail_on_data_loss
        )
        born = changes.born
        heads = {queue: found.end for queue, found in bounds.items()}
        if self._available_now:
            if self._target is None:
                self._target = AvailableNowTarget.at(position, born, heads)
            heads = self._target.heads(bounds)
            born = {queue: begin for queue, begin in born.items() if queue in heads}
        begins = {**position.next, **born}
        limited = limit_heads(begins, heads, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        end = advance(position, limited, born, self._options.filter_hash)
        if end.next == position.next:
            self._store_progress(at_once=True)
            return start
        self._warned.clear()
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The heads of all queues, which Spark shows in the query's progress."""
        return (
            Position(next={queue: found.end for queue, found in self._bounds.items()}).to_json()
            if self._bounds
            else None
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch (start, end); the same arguments give the same tasks."""
        begin, finish = read_position(start), read_position(end)
        if finish.filter_hash != self._options.filter_hash:
            logger.warning(
                "this batch was planned with another 'tags' option; replayed now, it may hold other rows than at the first try"
            )
        ranges = ranges_between(begin, finish)
        self._cluster.refresh()
        if self._options.fail_on_data_loss and ranges:
            found = self._bounds_of({each.queue for each in ranges})
            report_losses(
                [
                    lost(*each.queue, each.first, min(least, each.end), f"earliest is {least}")
                    for each in ranges
                    if each.queue in found and (least := found[each.queue].least) > each.first
                ],
                fail_on_data_loss=True,
            )
        return partitions_of(ranges, self._options, self._cluster.addresses)

    def commit(self, end: dict[str, Any]) -> None:
        """Batch *end* is done; Spark says so one batch late, and never of the last one, so `latestOffset` counts as well."""
        self._note_progress(read_position(end))

    def stop(self) -> None:
        """Close connections.  Spark does not always call this; nothing depends on it."""
        if self._cluster_or_none is not None:
            self._cluster_or_none.close()
            self._cluster_or_none = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's messages, in an executor."""
        return read_task(partition, self._options, self._schema)

    def _look(self, position: Position) -> dict[Queue, Bounds]:
        """Ask the brokers for all queues, or answer from memory when that was less than `pollIntervalMs` ago."""
        now = self._clock()
        if now - self._looked_at < self._options.poll_interval_ms / 1000 and self._bounds:
            return self._bounds
        cluster = self._cluster
        cluster.refresh()
        routed = cluster.queues()
        self._bounds = cluster.bounds(routed)
        self._looked_at = self._clock()
        self._judge_silence(position, routed)
        return self._bounds

    def _bounds_of(self, queues: set[Queue]) -> Mapping[Queue, Bounds]:
        """Bounds from memory when they are fresh, else from the brokers that answer."""
        if (
            self._clock() - self._looked_at >= self._options.poll_interval_ms / 1000
            or not queues <= self._bounds.keys()
        ):
            routed = set(self._cluster.queues())
            self._bounds = {**self._bounds, **self._cluster.bounds(sorted(queues & routed))}
        return self._bounds

    def _judge_silence(self, position: Position, routed: Sequence[Queue]) -> None:
        """Queues of a broker that does not answer stand still, but not for ever.  Raises Unreachable."""
        now = self._clock()
        answered = {queue.broker for queue in self._bounds}
        silent = {queue.broker for queue in (*position.next, *routed)} - answered
        self._silent_since = {broker: self._silent_since.get(broker, now) for broker in silent}
        patience = (
            0.0
            if self._options.unavailable_broker_policy == "fail"
            else self._options.unavailable_broker_timeout_ms / 1000
        )
        over = sorted(broker for broker, since in self._silent_since.items() if now - since >= patience)
        if over and not self._bounds_answer_again(over):
            raise Unreachable(
                f"no queue of {', '.join(over)} could be asked for {patience:g} s (unavailableBrokerTimeout); check that the brokers run, "
                "that they can be reached from the driver, and that they still have the topic"
            )

    def _bounds_answer_again(self, brokers: Sequence[str]) -> bool:
        """One last try, with the retries that the options allow."""
        queues = [queue for queue in self._cluster.queues() if queue.broker in brokers]
        try:
            self._bounds = {**self._bounds, **self._cluster.all_bounds(queues)}
        except Unreachable as error:
            logger.warning("%s", error)
            return False
        return bool(queues)

    def _completed(self, position: Position, bounds: Mapping[Queue, Bounds]) -> dict[Queue, Bounds]:
        """*bounds* with those that are missing: an AvailableNow run that leaves a broker out would pass for complete.

        Raises Unreachable or SourceError.
        """
        routed = set(self._cluster.queues())
        missing = {queue for queue in {*position.next, *routed} if queue not in bounds}
        gone = sorted(str(queue) for queue in missing - routed)
        if gone and self._options.fail_on_data_loss:
            raise SourceError(
                f"{', '.join(gone)} cannot be reached or exist no more; start their brokers, or set failOnDataLoss=false to leave them out"
            )
        if missing & routed:
            self._bounds = {**bounds, **self._cluster.all_bounds(sorted(missing & routed))}
        return self._bounds

    def _is_news(self, loss: str) -> bool:
        """With failOnDataLoss=false the same loss is seen at every look until the next batch; say it once."""
        if loss in self._warned:
            return False
        self._warned.add(loss)
        return True

    def _note_progress(self, position: Position) -> None:
        if self._options.commit_group_offsets and not position.is_initial:
            self._progress = position.next
            self._store_progress(at_once=False)

    def _store_progress(self, *, at_once: bool) -> None:
        """Write the group's progress where it changed, at most once a second, and when the query has caught up."""
        changed = {
            queue: offset for queue, offset in self._progress.items() if self._stored_progress.get(queue) != offset
        }
        if not changed or (not at_once and self._clock() - self._progress_at < PROGRESS_SECONDS):
            return
        self._cluster.refresh()
        self._cluster.store_group_offsets(changed)
        self._stored_progress = dict(self._progress)
        self._progress_at = self._clock()


def initial_offsets(options: SourceOptions, cluster: Cluster) -> Offsets:
    """Where a new query begins, by `startingTimestamp` or `startingOffsets`.

    Raises OptionError, SourceError, DataLoss or Unreachable.
    """
    bounds = readable_bounds(options, cluster)
    if options.starting_timestamp is not None:
        found = cluster.offsets_at(sorted(bounds), options.starting_timestamp)
        return at_timestamp(found, bounds, options.starting_timestamp, options.timestamp_strategy)
    return resolve("startingOffsets", options.starting_offsets, bounds, fail_on_data_loss=options.fail_on_data_loss)


def readable_bounds(options: SourceOptions, cluster: Cluster) -> dict[Queue, Bounds]:
    """The bounds of every queue of the query; all topics and assigned queues must exist, and all brokers answer."""
    cluster.refresh(at_once=True)
    absent = sorted(set(options.topics) - cluster.known_topics)
    if absent:
        raise SourceError(
            f"the name servers know no topic {', '.join(absent)}; check the spelling, or create it with `mqadmin updateTopic -c <cluster> -t {absent[0]}`"
        )
    queues = cluster.queues()
    strangers = sorted(str(queue) for queue in set(options.assign) - set(queues))
    if strangers:
        raise OptionError(f"option 'assign' names queues that do not exist or cannot be read: {', '.join(strangers)}")
    return cluster.all_bounds(queues)
