"""POP, under Java's names. Source: broker/metrics/PopMetricsManager.java."""

from __future__ import annotations

from collections.abc import Iterator

from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.pop.reviver import Reviver
from triomq.remoting.monitor.metrics import Family, Sample, counter, gauge


def pop_figures(pops: Pops, reviver: Reviver | None) -> Iterator[Family]:
    """Yield the figures of POP; ``reviver``: of a master."""
    yield gauge(
        "rocketmq_pop_offset_buffer_size",
        "Moves of positions that wait for the disk, or for a slave.",
        pops.uncovered,
    )
    yield gauge(
        "rocketmq_pop_checkpoint_buffer_size", "Check points in memory.", len(pops.in_flight)
    )
    outcomes = {"popped": pops.popped, "acknowledged": pops.acknowledged}
    if reviver is not None:
        outcomes |= {"came again": reviver.revived, "dead": reviver.dead}
        yield from _revived(reviver)
    yield counter(
        "triomq_pops_total",
        "Messages of POP by what became of them.",
        [Sample(count, {"outcome": name}) for name, count in outcomes.items()],
    )


def _revived(reviver: Reviver) -> Iterator[Family]:
    yield counter(
        "rocketmq_pop_revive_in_message_total",
        "Check points and acknowledgements that were stored.",
        [
            Sample(
                count,
                {
                    "consumer_group": group,
                    "topic": topic,
                    "revive_message_type": kind,
                    "put_status": "PUT_OK",
                },
            )
            for (kind, topic, group), count in reviver.log.stored.items()
        ],
    )
    yield counter(
        "rocketmq_pop_revive_out_message_total",
        "Those that were read from the revive topic.",
        [Sample(count, {"revive_message_type": kind}) for kind, count in reviver.read.items()],
    )
    yield counter(
        "rocketmq_pop_revive_retry_messages_total",
        "Messages that came again.",
        [Sample(reviver.revived, {"put_status": "PUT_OK"})],
    )
    behind = list(reviver.behind())
    # A number of records, although Java's name ends with a unit.
    yield gauge(
        "rocketmq_pop_revive_lag_milliseconds",
        "Records of the revive topic that are not done.",
        [Sample(count, {"queue_id": str(queue_id)}) for queue_id, count, _ in behind],
    )
    yield gauge(
        "rocketmq_pop_revive_latency_milliseconds",
        "Milliseconds since the oldest of them was due.",
        [Sample(late_ms, {"queue_id": str(queue_id)}) for queue_id, _, late_ms in behind],
    )
