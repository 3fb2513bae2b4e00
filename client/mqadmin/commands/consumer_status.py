"""The commands consumerStatus, and startMonitoring, which looks at all groups again and again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.documents import running_document
from triomq.client.admin.times import milliseconds_text, now_ms, seconds_text
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.result import Result, Table, table_of
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, version_name
from triomq.remoting.protocol.headers.client import ConsumerRunningHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


async def consumer_status(admin: Admin, options: Values) -> Result:
    group, wanted = options.text("consumerGroup"), options.maybe_text("clientId")
    connected = await admin.consumer_connections(group, options.maybe_text("brokerAddr"))
    connections = connected.some()
    brokers, versions = {}, {}
    for address, connection in connections.items():
        for member in connection.connections:
            brokers[member.client_id] = address
            versions[member.client_id] = version_name(member.version)
    if wanted is not None and wanted not in brokers:
        raise UsageError(
            f"-i/--clientId {wanted!r} is not connected; members are {', '.join(sorted(brokers))}"
        )
    jstack = options.flag("jstack")

    async def state_of(client_id: str) -> ConsumerRunning:
        header = ConsumerRunningHeader(group, client_id, jstack)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return read_body(ConsumerRunning, await admin.ask(brokers[client_id], code, header))

    answers = await admin.for_each([wanted] if wanted is not None else sorted(brokers), state_of)
    running = answers.some()
    clients = {client_id: running_document(state) for client_id, state in running.items()}
    owners: dict[str, list[str]] = {}
    for client_id, state in running.items():
        for queue in state.queues:
            name = f"{queue.topic} {queue.broker_name} {queue.queue_id}"
            owners.setdefault(name, []).append(client_id)
    shared = {queue: names for queue, names in sorted(owners.items()) if len(names) > 1}
    subscriptions = {
        client_id: sorted((one.topic, one.sub_string) for one in state.subscriptions)
        for client_id, state in running.items()
    }
    same = len({tuple(value) for value in subscriptions.values()}) < 2
    rows = [
        [index, client_id, versions[client_id], len(running[client_id].queues)]
        for index, client_id in enumerate(running, 1)
    ]
    columns = (">Index", "ClientId", "Version", ">Queues")
    blocks: list[Table | str] = [Table(columns, rows)]
    if wanted is not None:
        blocks += [report(state) for state in running.values()]
    else:
        blocks.append(
            "All members have the same subscription."
            if same
            else "MEMBERS SUBSCRIBE DIFFERENT THINGS: "
            + json.dumps(subscriptions, ensure_ascii=False)
        )
        if any(
            state.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY"
            for state in running.values()
        ):
            blocks.append(
                "Rebalance is complete: no queue has two owners."
                if not shared
                else f"QUEUES WITH TWO OWNERS: {json.dumps(shared)}"
            )
    facts = {"sameSubscriptions": same, "sharedQueues": shared}
    return Result(
        document={"group": group, "clients": clients, **facts},
        blocks=blocks,
        failures=connected.reasons() | answers.reasons(),
        asked=connected.asked + answers.asked,
    )


def report(state: ConsumerRunning) -> str:
    """Return one client's state as text, in the sections of RocketMQ's report."""
    document = running_document(state)
    lines = [
        "#Consumer Properties#",
        *(f"{key:<40}: {value}" for key, value in document["properties"].items()),
    ]
    lines += [
        "",
        "#Consumer Subscription#",
        *(
            f"Topic: {topic:<40} SubExpression: {expression}"
            for topic, expression in document["subscriptions"].items()
        ),
    ]
    lines += ["", "#Consumer Queues#"]
    lines += [
        f"{row['topic']:<40} {row['brokerName']:<20} {row['queueId']:>4}  offset"
        f" {row['commitOffset']}  cached {row['cachedMessages']}  last consumed"
        f" {seconds_text(row['lastConsume'])}"
        for row in document["queues"]
    ]
    lines += ["", "#Consumer RT&TPS#"]
    lines += [f"{topic:<40} {json.dumps(rate)}" for topic, rate in document["rates"].items()]
    return "\n".join([*lines, *(["", "#Consumer jstack#", state.jstack] if state.jstack else [])])


STUCK_MS = 60_000
"""messages in a client's memory of which none was consumed for so long: it hangs"""


async def member_findings(admin: Admin, group: str) -> list[str]:
    """Return what is wrong with the members of a group that is online."""
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
    rows: list[dict[str, object]] = [
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
    AdminCommand("consumerStatus", consumer_status).with_options(
        Option("-g, --consumerGroup GROUP", "the group", required=True),
        Option("-i, --clientId ID", "only this member, with its full state"),
        Option("-b, --brokerAddr ADDRESS", "ask through this broker, host:port"),
        Option("-s, --jstack", "with the stacks of its threads or tasks"),
    ),
    AdminCommand("startMonitoring", monitor, effect=Effect.ACTS).with_options(
        Option(
            "-i, --interval SECONDS",
            "pause between two rounds in seconds; it goes on forever",
            whole(1),
            default=60,
        )
    ),
)
