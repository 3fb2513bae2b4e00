"""The command startMonitoring: look at all consumer groups again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.admin.times import milliseconds_text, now_ms
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.command import AdminCommand, Effect, Result, table_of

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

STUCK_MS = 60_000
"""messages in a client's memory of which none was consumed for so long: it hangs"""


async def member_findings(admin: Admin, group: str) -> list[str]:
    """Return what is wrong with the members of a group that is online."""
    from triomq.client.mqadmin.commands.consumer_status import consumer_status  # not for the help

    wanted = {"consumerGroup": group, "clientId": None, "brokerAddr": None, "jstack": False}
    try:
        result = await consumer_status(admin, Values(wanted))
    except TrioMQError as error:
        return [f"members were not asked: {error}"]
    known, now = result.document, now_ms()
    findings = [f"{name} did not answer: {why}" for name, why in (result.failures or {}).items()]
    if not known["sameSubscriptions"]:
        findings.append("members have different subscriptions")
    if known["sharedQueues"]:
        findings.append(f"{len(known['sharedQueues'])} queues have two owners")
    for client_id, client in known["clients"].items():
        stuck = [
            queue
            for queue in client["queues"]
            if queue["cachedMessages"] and 0 < queue["lastConsume"] < now - STUCK_MS
        ]
        if stuck:
            findings.append(f"{client_id} has consumed nothing of {len(stuck)} queues for a minute")
    return findings


async def monitor(admin: Admin, options: Values) -> Result:
    """Return one round."""
    from triomq.client.mqadmin.commands.progress import consumer_progress  # not for the help

    progress = await consumer_progress(
        admin, Values({"groupName": None, "alert": None, "alert-seconds": None})
    )
    groups = {row["group"]: row for row in progress.document["groups"]}
    online = [group for group, row in groups.items() if row["count"]]
    found = await admin.for_each(online, lambda group: member_findings(admin, group))
    now = now_ms()
    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "count": row["count"],
            "consumeTps": row["consumeTps"],
            "diffTotal": row["diffTotal"],
            "findings": found.values.get(group, []),
        }
        for group, row in groups.items()
    ]
    table = table_of(
        rows,
        {
            "Group": "group",
            ">Count": "count",
            ">TPS": lambda row: f"{row['consumeTps']:.2f}",
            ">Diff Total": "diffTotal",
            "Findings": lambda row: "; ".join(row["findings"]),
        },
    )
    return Result(
        document={"timestamp": now, "groups": rows},
        blocks=[milliseconds_text(now), table],
        failures=progress.failures,
        asked=progress.asked,
    )


COMMANDS = (
    AdminCommand(
        name="startMonitoring",
        effect=Effect.ACTS,
        run=monitor,
        options=(
            Option(
                "-i, --interval SECONDS",
                "pause between two rounds in seconds; it goes on forever",
                whole(1),
                default=60,
            ),
        ),
        examples=("startMonitoring -n 127.0.0.1:9876", "startMonitoring -i 10 --json"),
        document=(
            '{"timestamp", "groups": [{"group", "count", "consumeTps", "diffTotal", "findings":'
            ' [text]}], "failures": {group: reason}}; one document each round'
        ),
        remarks=(
            "Looks at the lag of each group, and asks its members for different subscriptions,"
            " queues with two owners, and messages that are not consumed for a minute."
        ),
    ),
)
