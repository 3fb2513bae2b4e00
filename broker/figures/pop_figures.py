"""POP, under Java's names. Source: broker/metrics/PopMetricsManager.java."""

from __future__ import annotations

from collections.abc import Iterator

from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.pop.reviver import Reviver
from triomq.remoting.monitor.metrics import Family, Sample, by_label, family


def pop_figures(pops: Pops, reviver: Reviver | None) -> Iterator[Family]:
    """Yield the figures of POP; ``reviver``: of a master."""
    yield family("rocketmq_pop_offset_buffer_size", pops.uncovered)
    yield family("rocketmq_pop_checkpoint_buffer_size", len(pops.in_flight))
    outcomes = {"popped": pops.popped, "acknowledged": pops.acknowledged}
    if reviver is not None:
        outcomes |= {"came again": reviver.revived, "dead": reviver.dead}
        yield from _revived(reviver)
    yield family("triomq_pops_total", by_label("outcome", outcomes))


def _revived(reviver: Reviver) -> Iterator[Family]:
    yield family(
        "rocketmq_pop_revive_in_message_total",
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
    yield family(
        "rocketmq_pop_revive_out_message_total", by_label("revive_message_type", reviver.read)
    )
    yield family(
        "rocketmq_pop_revive_retry_messages_total",
        [Sample(reviver.revived, {"put_status": "PUT_OK"})],
    )
    behind = list(reviver.behind())
    # A number of records, although Java's name ends with a unit.
    yield family(
        "rocketmq_pop_revive_lag_milliseconds",
        [Sample(count, {"queue_id": str(queue_id)}) for queue_id, count, _ in behind],
    )
    yield family(
        "rocketmq_pop_revive_latency_milliseconds",
        [Sample(late_ms, {"queue_id": str(queue_id)}) for queue_id, _, late_ms in behind],
    )
