"""The JSON document of a running consumer."""

from __future__ import annotations

from typing import Any

from triomq.remoting.protocol.bodies.running import ConsumerRunning


def running_document(state: ConsumerRunning) -> dict[str, Any]:
    return {
        "properties": dict(sorted(state.properties.items())),
        "subscriptions": {one.topic: one.sub_string for one in state.subscriptions},
        "queues": [
            {
                "topic": queue.topic,
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "commitOffset": held.commit_offset,
                "cachedMessages": held.cached_count,
                "locked": held.locked,
                "lastPull": held.last_pull_timestamp,
                "lastConsume": held.last_consume_timestamp,
            }
            for queue, held in sorted(state.queues.items())
        ],
        "rates": {
            topic: {
                "pullRT": rate.pull_rt,
                "pullTPS": rate.pull_tps,
                "consumeRT": rate.consume_rt,
                "consumeOKTPS": rate.consume_ok_tps,
                "consumeFailedTPS": rate.consume_failed_tps,
            }
            for topic, rate in sorted(state.rates.items())
        },
        "jstack": state.jstack,
    }
