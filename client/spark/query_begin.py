"""Where a query begins and ends, and where queues begin that appear while it runs."""

import logging
from collections.abc import Mapping

from triomq.client.spark.driver_client import DriverClient
from triomq.client.spark.errors import OptionError, SourceError
from triomq.client.spark.offset_options import ANY, EARLIEST, GROUP, LATEST, OffsetOption
from triomq.client.spark.offsets import Bounds, Offsets, Position, Queue
from triomq.client.spark.options import SourceOptions
from triomq.client.spark.positions import at_timestamps, resolve

logger = logging.getLogger(__name__)


def initial_offsets(
    options: SourceOptions, cluster: DriverClient, *, may_wait: bool = False
) -> Offsets:
    """Return the begin of a new query, by times or by ``startingOffsets``.

    ``may_wait``: the topics of a pattern may be created later.

    Raises: OptionError, SourceError, DataLoss, Unreachable.
    """
    bounds = readable_bounds(options, cluster, may_wait=may_wait)
    if options.starting_times is not None:
        times = times_of_queues("startingOffsetsByTimestamp", options.starting_times, bounds)
        found = offsets_at(cluster, times)
        return at_timestamps(found, bounds, times, options.timestamp_strategy)
    committed: Offsets = {}
    if options.starting_offsets.tree == {ANY: GROUP}:
        reset = EARLIEST if options.group_reset == "earliest" else LATEST
        stored = cluster.group_offsets(sorted(bounds))
        committed = {queue: stored.get(queue, reset) for queue in bounds}
    return resolve(
        "startingOffsets",
        options.starting_offsets,
        bounds,
        fail_on_data_loss=options.fail_on_data_loss,
        committed=committed,
    )


def ending_offsets(options: SourceOptions, cluster: DriverClient) -> Offsets:
    """Return the end of a batch query, exclusive, by times or by ``endingOffsets``.

    Raises: OptionError, SourceError, DataLoss, Unreachable.
    """
    bounds = readable_bounds(options, cluster)
    if options.ending_times is not None:
        times = times_of_queues("endingOffsetsByTimestamp", options.ending_times, bounds)
        return at_timestamps(offsets_at(cluster, times), bounds, times, "latest")
    return resolve(
        "endingOffsets", options.ending_offsets, bounds, fail_on_data_loss=options.fail_on_data_loss
    )


def begins_of_new_queues(
    options: SourceOptions,
    cluster: DriverClient,
    position: Position,
    bounds: Mapping[Queue, Bounds],
) -> Offsets:
    """Return where the queues begin that the query has not read yet.

    With ``latest`` and with times these are the messages stored since then, so a broker that was
    away when the query began is not read from its first message. Queues whose broker does not
    answer are left out.
    """
    begins: Offsets = {}
    times: dict[Queue, int] = {}
    for queue in sorted(bounds.keys() - position.next.keys()):
        wanted = options.starting_offsets.of(queue)
        if wanted == GROUP:
            wanted = EARLIEST if options.group_reset == "earliest" else LATEST
        if options.starting_times is not None:
            wanted = None
            moment = options.starting_times.of(queue)
        else:
            moment = position.began_ms if wanted == LATEST else None
        if moment is not None:
            times[queue] = moment
        else:
            first = max(bounds[queue].least, wanted or 0)
            begins[queue] = min(first, bounds[queue].end)
    for timestamp_ms, queues in by_time(times).items():
        for queue, offset in cluster.answered_offsets_at(queues, timestamp_ms).items():
            begins[queue] = min(max(offset, bounds[queue].least), bounds[queue].end)
    return begins


def times_of_queues(
    option: str, times: OffsetOption, bounds: Mapping[Queue, Bounds]
) -> dict[Queue, int]:
    """Return the wanted time of each queue. Raises: OptionError for a queue without one."""
    wanted = {queue: times.of(queue) for queue in sorted(bounds)}
    absent = [str(queue) for queue, moment in wanted.items() if moment is None]
    if absent:
        raise OptionError(
            f'option {option!r} has no entry for {", ".join(absent)}; add the queues, or "*": 0 for'
            " the first message of all others"
        )
    return {queue: moment for queue, moment in wanted.items() if moment is not None}


def first_unread(
    cluster: DriverClient, position: Position, bounds: Mapping[Queue, Bounds]
) -> Offsets:
    """Return where messages begin that were not read, in queues that end before the position.

    These are stored after the last message that was read: all of a topic that was created again,
    and after a failover that lost messages those that came since. Queues of which that time is not
    known, or whose broker does not answer, are left out.
    """
    times = {
        queue: position.stored[queue] + 1
        for queue, found in bounds.items()
        if position.next.get(queue, 0) > found.end and queue in position.stored
    }
    found: Offsets = {}
    for timestamp_ms, queues in by_time(times).items():
        found.update(cluster.answered_offsets_at(queues, timestamp_ms))
    return found


def offsets_at(cluster: DriverClient, times: Mapping[Queue, int]) -> Offsets:
    """Return the offset for the time of each queue. Raises: Unreachable."""
    found: Offsets = {}
    for timestamp_ms, queues in by_time(times).items():
        found.update(cluster.offsets_at(queues, timestamp_ms))
    return found


def by_time(times: Mapping[Queue, int]) -> dict[int, list[Queue]]:
    """Return the queues of each time."""
    queues: dict[int, list[Queue]] = {}
    for queue, timestamp_ms in times.items():
        queues.setdefault(timestamp_ms, []).append(queue)
    return queues


def readable_bounds(
    options: SourceOptions, cluster: DriverClient, *, may_wait: bool = False
) -> dict[Queue, Bounds]:
    """Return the bounds of every queue of the query.

    Raises: SourceError if a topic does not exist, OptionError if an assigned queue does not exist,
        Unreachable if a broker does not answer.
    """
    cluster.refresh(at_once=True)
    if options.pattern is not None and not cluster.known_topics:
        nothing = (
            f"no topic matches subscribePattern = {options.pattern.pattern!r}; a name must match as"
            " a whole, and system topics never match"
        )
        if not may_wait:
            raise SourceError(nothing)
        logger.warning("%s: the query waits for one", nothing)
    absent = sorted(set(options.topics) - cluster.known_topics)
    if absent:
        raise SourceError(
            f"the name servers do not know topic {', '.join(absent)}; check the spelling, or create"
            f" it with `mqadmin topic create -c <cluster> -t {absent[0]}`"
        )
    queues = cluster.queues()
    unknown = sorted(str(queue) for queue in set(options.assign) - set(queues))
    if unknown:
        raise OptionError(
            "option 'assign' names queues that do not exist or cannot be read:"
            f" {', '.join(unknown)}"
        )
    return cluster.all_bounds(queues)
