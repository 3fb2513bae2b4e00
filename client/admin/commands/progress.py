"""The command consumerProgress: how far consumer groups are behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, Values, filled, truth
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.times import seconds_text
from triomq.client.errors import GroupNotFound, GroupOffline, RequestNotSupported, TrioMQError
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.bodies.offsets import ConsumeStats
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import ResponseCode, version_name
from triomq.remoting.protocol.names import RETRY_PREFIX

TYPES = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}


def queue_rows(stats: Mapping[str, ConsumeStats], owners: Mapping[MessageQueue, str]) -> list[dict[str, Any]]:
    """Return one row per queue, sorted; all brokers together."""
    rows: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offsets.broker_offset,
            "consumerOffset": offsets.consumer_offset,
            "clientIp": owners.get(queue),
            "diff": offsets.broker_offset - offsets.consumer_offset,
            "inflight": max(0, offsets.pull_offset - offsets.consumer_offset),  # brokers of 4.x don't say what was pulled
            "lastTimestamp": offsets.last_timestamp,
        }
        for table in stats.values()
        for queue, offsets in table.offset_table.items()
    ]
    return sorted(rows, key=lambda row: (row["topic"], row["brokerName"], row["queueId"]))


async def _connections(admin: Admin, group: str) -> Mapping[str, ConsumerConnection]:
    try:
        return (await admin.consumer_connections(group)).values
    except GroupOffline:
        return {}


async def _owners(
    admin: Admin, group: str, connections: Mapping[str, ConsumerConnection]
) -> tuple[dict[MessageQueue, str], list[str]]:
    """Ask every client of the group which queues it has; return the client's host by queue, and warnings."""
    owners: dict[MessageQueue, str] = {}
    notes: list[str] = []
    asked: set[str] = set()
    for address, connection in connections.items():
        for client in connection.connections:
            if client.client_id in asked:
                continue
            asked.add(client.client_id)
            try:
                queues = await admin.client_queues(address, group, client.client_id)
            except RequestNotSupported:
                return owners, [f"{address} cannot ask consumers which queues they have; Client IP stays empty"]
            except TrioMQError as error:
                notes.append(f"client {client.client_id} was not asked: {error}")
                continue
            owners.update(dict.fromkeys(queues, client.client_id.partition("@")[0]))
    return owners, notes


async def consumer_progress(admin: Admin, options: Values) -> Result:
    """Print a group's lag per queue, or the lag of all groups."""
    group = options.maybe_text("groupName")
    return await _all_groups(admin) if group is None else await _one_group(admin, group, options)


async def _one_group(admin: Admin, group: str, options: Values) -> Result:
    answers = await admin.consume_stats(group, options.maybe_text("topicName"))
    stats = answers.some()
    connections = await _connections(admin, group)
    show_clients = options.flag("showClientIP")
    owners, notes = await _owners(admin, group, connections) if show_clients else ({}, [])
    rows = queue_rows(stats, owners)
    models = {connection.message_model for connection in connections.values()}
    if not rows:
        if (
            not connections
            and not answers.failures
            and all(group not in names for names in (await admin.groups()).values.values())
        ):
            raise GroupNotFound(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows group {group!r}", "", "")
        if "BROADCASTING" in models:
            notes.append(f"group {group} is broadcasting: each client keeps its own offsets, brokers have none")
        else:
            notes.append(
                f"group {group} has no offsets yet: it is {'online but has not committed anything' if connections else 'offline'}"
            )
    tps = sum(table.consume_tps for table in stats.values())
    total, inflight = sum(row["diff"] for row in rows), sum(row["inflight"] for row in rows)
    columns = [
        Column("Topic"),
        Column("Broker Name"),
        Column("QID", right=True),
        Column("Broker Offset", right=True),
        Column("Consumer Offset", right=True),
    ]
    if show_clients:
        columns.append(Column("Client IP"))
    columns += [Column("Diff", right=True), Column("Inflight", right=True), Column("LastTime")]
    cells = [
        [
            row["topic"],
            row["brokerName"],
            str(row["queueId"]),
            str(row["brokerOffset"]),
            str(row["consumerOffset"]),
            *([row["clientIp"] or "N/A"] if show_clients else []),
            str(row["diff"]),
            str(row["inflight"]),
            seconds_text(row["lastTimestamp"]),
        ]
        for row in rows
    ]
    return Result(
        document={
            "group": group,
            "online": bool(connections),
            "queues": rows,
            "consumeTps": tps,
            "diffTotal": total,
            "inflightTotal": inflight,
            "failures": answers.reasons(),
        },
        blocks=[
            Table(columns, cells),
            "",
            f"Consume TPS: {tps:.2f}",
            f"Consume Diff Total: {total}",
            f"Consume Inflight Total: {inflight}",
        ],
        failures=answers.reasons(),
        asked=answers.asked,
        notes=notes,
    )


async def _summary(admin: Admin, group: str) -> dict[str, Any]:
    answers = await admin.consume_stats(group)
    stats = answers.some()
    connections = await _connections(admin, group)
    rows = queue_rows(stats, {})
    clients = {
        client.client_id: client.version for connection in connections.values() for client in connection.connections
    }
    first = next(iter(connections.values()), None)
    return {
        "group": group,
        "count": len(clients),
        "version": version_name(min(clients.values())) if clients else None,
        "type": TYPES.get(first.consume_type or "", first.consume_type) if first else None,
        "model": first.message_model if first else None,
        "consumeTps": sum(table.consume_tps for table in stats.values()),
        "diffTotal": sum(row["diff"] for row in rows),
        "queues": len(rows),
        "incomplete": bool(answers.failures),
    }


async def _all_groups(admin: Admin) -> Result:
    of_retry_topics = {
        topic.removeprefix(RETRY_PREFIX) for topic in await admin.topics() if topic.startswith(RETRY_PREFIX)
    }
    configured = await admin.groups()
    groups = sorted(of_retry_topics | {group for names in configured.values.values() for group in names})
    answers = await admin.for_each(groups, lambda group: _summary(admin, group))
    # Brokers come with groups of their own that nobody uses; they would only hide the others.
    rows = [row for group, row in answers.values.items() if group in of_retry_topics or row["count"] or row["queues"]]
    for row in rows:
        row.pop("queues")
    columns = (
        Column("Group"),
        Column("Count", right=True),
        Column("Version"),
        Column("Type"),
        Column("Model"),
        Column("TPS", right=True),
        Column("Diff Total", right=True),
    )
    cells = [
        [
            row["group"],
            str(row["count"]),
            row["version"] or "OFFLINE",
            row["type"] or "",
            row["model"] or "",
            f"{row['consumeTps']:.2f}",
            str(row["diffTotal"]),
        ]
        for row in rows
    ]
    failures = {**configured.reasons(), **answers.reasons()}
    return Result(
        document={"groups": rows, "failures": failures},
        blocks=[Table(columns, cells)],
        failures=failures,
        asked=configured.asked + answers.asked,
    )


COMMANDS = (
    Command(
        name="consumerProgress",
        group="consumer",
        summary="print how far consumer groups are behind, per queue or per group",
        run=consumer_progress,
        options=(
            Option(
                "g",
                "groupName",
                "one group, per queue; without it all groups, one line each",
                filled,
                placeholder="GROUP",
            ),
            Option("t", "topicName", "only this topic (with -g)", filled, placeholder="TOPIC"),
            Option("s", "showClientIP", "true: also which client has each queue (with -g)", truth, placeholder="BOOL"),
            Option("c", "cluster", "accepted for old scripts; all brokers are asked", filled, placeholder="NAME"),
        ),
        examples=("consumerProgress", "consumerProgress -g billing -t orders"),
        document='with -g {"group", "online", "queues": [{"topic", "brokerName", "queueId", "brokerOffset", "consumerOffset", "clientIp", "diff", "inflight", '
        '"lastTimestamp"}], "consumeTps", "diffTotal", "inflightTotal", "failures": {broker: reason}}; without '
        '{"groups": [{"group", "count", "version", "type", "model", "consumeTps", "diffTotal", "incomplete"}], "failures": {group: reason}}',
        remarks=(
            "All brokers are asked at the same time, also those that have no retry topic of the group.",
            "Groups without a retry topic are listed too when they have members or offsets.",
        ),
    ),
)
