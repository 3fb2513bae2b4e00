"""The command allocateMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values, filled
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Result, Table
from triomq.remoting.protocol.consuming.allocation import allocate_average

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


def members(text: str) -> list[str]:
    """Read ``a,b,c``."""
    names = [filled(part) for part in filled(text).split(",")]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} occurs twice")
    return names


async def allocate(admin: Admin, options: Values) -> Result:
    topic, names = options.text("topic"), options.value("ipList")
    queues = await admin.queues(topic)
    shares = {name: allocate_average(name, queues, names) for name in names}
    document = {
        name: [
            {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
            for queue in share
        ]
        for name, share in shares.items()
    }
    rows = [
        [name, queue.broker_name, queue.queue_id]
        for name, share in shares.items()
        for queue in share
    ]
    idle = [name for name, share in shares.items() if not share]
    notes = (
        [f"{', '.join(idle)} would get no queue: topic {topic} has {len(queues)}"] if idle else []
    )
    return Result(
        document={"topic": topic, "result": document},
        blocks=[Table(("Member", "Broker Name", ">QID"), rows)],
        notes=notes,
    )


COMMANDS = (
    AdminCommand(
        name="allocateMQ",
        run=allocate,
        options=(
            TOPIC,
            Option(
                "-i, --ipList NAMES",
                "the members, joined by commas: addresses, or other names",
                members,
                required=True,
            ),
        ),
        examples=("allocateMQ -t orders -i 10.0.0.1,10.0.0.2",),
        document='{"topic", "result": {member: [{"topic", "brokerName", "queueId"}]}}',
        remarks=(
            "The rule is the default one of consumers, by averages; nothing is changed. Queues are"
            " in the order that consumers use, which RocketMQ's mqadmin does not keep to."
        ),
    ),
)
