"""What the official clients of RocketMQ 5 do in tests/compat/grpc/*/: one scenario is one topic and
one group, of the same name.

``COUNT`` messages each, numbered from 0; a body ends in its number. A send scenario prints ``sent``
(id, body, due in ms) of each message; a receive scenario prints ``got`` (id, body, attempt, topic,
tag, keys, group, properties) of each delivery, of messages that ``prepare`` puts there first. A
simple consumer prints ``asked`` before each receive, and ``again`` with the error when it fails.

=======================  ==========================================================================
send-normal              tags TagA and TagB, two keys, two properties
send-fifo                message groups group-0 and group-1
send-delay               due 3 s later
recall                   due 8 s later; odd ones are taken back: ``recalled``
send-refused             a message with a time of delivery to a NORMAL topic: ``refused`` with the
                         error; then a plain one
send-transaction         by turns committed, rolled back, left open; of the last, the client is
                         asked: ``checked`` (body, resolution), COMMIT for even ones. On a busy
                         machine it may be asked about others, and answers as it did before
simple-receive-ack       30 s invisible; number 0 is acknowledged at its second delivery
simple-change-invisible  300 s invisible, then changed to 2 s; acknowledged at the second delivery
filter-tag               TagA || TagB
filter-sql               number >= 3 AND color = 'red'
push-consume             odd ones fail at their first delivery
simple-fifo              an orderly group; one message at a time: the first is acknowledged
                         after three more receives, others at once; ``acked`` (body) just before
push-fifo                an orderly group; number 2 fails at its first delivery
push-dead                two attempts at most; number 2 always fails
push-fifo-dead           the same with an orderly group
=======================  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from triomq import Producer
from triomq.client.admin.admin import Admin
from triomq.remoting.protocol.bodies.groups import ExponentialRetryPolicy, GroupRetryPolicy

COUNT = 9
MESSAGE_TYPES = {
    "send-normal": "NORMAL",
    "send-fifo": "FIFO",
    "send-delay": "DELAY",
    "recall": "DELAY",
    "send-refused": "NORMAL",
    "send-transaction": "TRANSACTION",
    "simple-receive-ack": "NORMAL",
    "simple-change-invisible": "NORMAL",
    "filter-tag": "NORMAL",
    "filter-sql": "NORMAL",
    "push-consume": "NORMAL",
    "simple-fifo": "FIFO",
    "push-fifo": "FIFO",
    "push-dead": "NORMAL",
    "push-fifo-dead": "FIFO",
}
"""Scenario -> type of its topic (attribute ``message.type``)."""
SENDS = frozenset(
    {"send-normal", "send-fifo", "send-delay", "recall", "send-refused", "send-transaction"}
)
QUEUES = 2
"""Of a topic, at each broker."""
EXPONENTIAL = GroupRetryPolicy(
    "EXPONENTIAL", exponential=ExponentialRetryPolicy(initial=1000, max=10_000, multiplier=2)
)
"""Of Node's orderly groups: this client does not know the default policy (a list of delays), and
calls a message of an orderly group dead at its first failure then. Python, on the other hand,
takes no limit of attempts from an exponential policy.
"""


async def prepare(namesrv: str, names: Iterable[str], scenarios: Iterable[str]) -> None:
    """Create topics and groups ``<name>-<scenario>``, with the messages of receive scenarios."""
    async with (
        Admin(namesrv) as admin,
        Producer(namesrv, group="py-grpc-scenarios") as producer,
        trio.open_nursery() as nursery,
    ):
        for name in names:
            for scenario in scenarios:
                nursery.start_soon(_prepare, admin, producer, f"{name}-{scenario}", scenario)


async def _prepare(admin: Admin, producer: Producer, topic: str, scenario: str) -> None:
    attributes = f"+message.type={MESSAGE_TYPES[scenario]}"
    queues = QUEUES
    if scenario == "simple-fifo":
        # Each message group has a queue, at brokers of its own if there are two: a receive asks one
        # broker only, and waits five seconds if that has nothing.
        queues = 2 // len(await admin.brokers())
    await admin.create_topic(topic, queues=queues, attributes=attributes)
    if scenario in SENDS:
        return
    orderly, dies = MESSAGE_TYPES[scenario] == "FIFO", scenario.endswith("-dead")
    policy = EXPONENTIAL if orderly and "node" in topic else GroupRetryPolicy()
    limit = {"retry_max_times": 1} if dies else {}
    await admin.update_group(
        topic,
        lambda config: attrs.evolve(
            config, consume_message_orderly=orderly, retry_policy=policy, **limit
        ),
    )
    for number in range(COUNT):
        group = f"group-{number % 2}" if orderly else None
        await producer.send(
            topic,
            f"{group or scenario}-{number}".encode(),
            tag=f"Tag{'ABC'[number % 3]}",
            keys=[f"key-{number}", f"other-{number}"],
            properties={"number": str(number), "color": ("red", "blue")[number % 2]},
            sharding_key=group,
        )
