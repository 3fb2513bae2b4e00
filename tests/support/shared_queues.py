"""Which queues a consumer of ours should have beside a foreign member of its group."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from mqadmin_calls import mqadmin

from triomq import (
    MessageQueue,
    PushConsumer,
    allocate_average,
    allocate_circle,
    allocate_consistent_hash,
)

RULES = {
    "AVG": allocate_average,
    "AVG_BY_CIRCLE": allocate_circle,
    "CONSISTENT_HASH": allocate_consistent_hash,
}
"""Java's name of a rule -> ours. As the mode of a foreign push consumer it sets the rule."""


async def share_of_two(
    namesrv: str, consumer: PushConsumer, topic: str, rule: str, queues: Sequence[MessageQueue]
) -> set[int]:
    """Wait until the group has a second member and our consumer the queues that the rule gives it;
    their ids. Topic and group have one name, and the cluster has one broker.
    """
    with trio.fail_after(60):
        while True:
            owned = {queue for queue in consumer.assignment if queue.topic == topic}
            done = await mqadmin("consumerConnection", "-g", topic, "-n", namesrv, "--json")
            if done.code == 0:
                members = sorted(one["clientId"] for one in done.document["clients"])
                share = set(RULES[rule](consumer.client_id, sorted(queues), members))
                if len(members) == 2 and owned == share:
                    return {queue.queue_id for queue in owned}
            await trio.sleep(0.05)
