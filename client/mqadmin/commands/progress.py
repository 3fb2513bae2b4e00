"""The command consumerProgress: the lag of consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values, truth, whole
from triomq.client.admin.documents import members_of
from triomq.client.admin.known_groups import connections_of, unknown_group
from triomq.client.admin.times import seconds_text
from triomq.client.core.errors import RequestNotSupported, TrioMQError
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.result import Document, Result, answered, sum_text, table_of
from triomq.remoting.protocol.codes import version_name
from triomq.remoting.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.answers import Answers
    from triomq.remoting.protocol.bodies.groups import ConsumerConnection
    from triomq.remoting.protocol.bodies.offsets import ConsumeStats
    from triomq.remoting.protocol.bodies.route import MessageQueue

TYPES = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH", "CONSUME_POP": "POP"}


def queue_rows(
    stats: Mapping[str, ConsumeStats], owners: Mapping[MessageQueue, str]
) -> list[Document]:
    """Return one row per queue, sorted; all brokers together."""
    rows: list[dict[str, object]] = [
        {
            **members_of(queue, "topic", "brokerName", "queueId"),
            **members_of(offsets, "brokerOffset", "consumerOffset"),
            "clientIp": owners.get(queue),
            "diff": offsets.broker_offset - offsets.consumer_offset,
            # Brokers of 4.x do not report the pull offset.
            "inflight": max(0, offsets.pull_offset - offsets.consumer_offset),
            "lastTimestamp": offsets.last_timestamp,
        }
        for table in stats.values()
        for queue, offsets in table.offset_table.items()
    ]
    return sorted(rows, key=lambda row: (row["topic"], row["brokerName"], row["queueId"]))


async def _owners(
    admin: Admin, group: str, connections: Mapping[str, ConsumerConnection]
) -> tuple[dict[MessageQueue, str], list[str]]:
    """Ask every client of the group for its queues.

    Returns: the client's host by queue, and warnings.
    """
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
                return owners, [
                    f"{address} cannot ask consumers for their queues; Client IP stays empty"
                ]
            except TrioMQError as error:
                notes.append(f"client {client.client_id} was not asked: {error}")
                continue
            owners.update(dict.fromkeys(queues, client.client_id.partition("@")[0]))
    return owners, notes


async def consumer_progress(admin: Admin, options: Values) -> Result:
    group = options.maybe_text("groupName")
    limits = options.maybe_number("alert"), options.maybe_number("alert-seconds")
    if limits != (None, None):
        # Only for these: start-up time.
        from triomq.client.mqadmin.core.lag_alert import lag_alert

        names, _, configured = await _known_groups(admin)
        if group is not None:
            # A misspelt name must not look as if all were well.
            if group not in names and not configured.failures:
                raise unknown_group(group)
            names = [group]
        return await lag_alert(admin, names, options.maybe_text("topicName"), *limits)
    return await _all_groups(admin) if group is None else await _one_group(admin, group, options)


async def _one_group(admin: Admin, group: str, options: Values) -> Result:
    answers = await admin.consume_stats(group, options.maybe_text("topicName"))
    stats = answers.some()
    connections = (await connections_of(admin, group)).values
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
            raise unknown_group(group)
        if "BROADCASTING" in models:
            notes.append(
                f"group {group} is broadcasting: each client keeps its own offsets, brokers have"
                " none"
            )
        else:
            notes.append(
                f"group {group} has no offsets yet: it is"
                f" {'online but has not committed anything' if connections else 'offline'}"
            )
    tps = sum(table.consume_tps for table in stats.values())
    total, inflight = sum(row["diff"] for row in rows), sum(row["inflight"] for row in rows)
    clients = {"Client IP": lambda row: row["clientIp"] or "N/A"} if show_clients else {}
    table = table_of(
        rows,
        {
            "Topic": "topic",
            "Broker Name": "brokerName",
            ">QID": "queueId",
            ">Broker Offset": "brokerOffset",
            ">Consumer Offset": "consumerOffset",
            **clients,
            ">Diff": "diff",
            ">Inflight": "inflight",
            "LastTime": lambda row: seconds_text(row["lastTimestamp"]),
        },
        ("Inflight", "Broker Offset", "Consumer Offset", "LastTime"),
    )
    return answered(
        answers,
        {
            "group": group,
            "online": bool(connections),
            "queues": rows,
            "consumeTps": tps,
            "diffTotal": total,
            "inflightTotal": inflight,
        },
        [
            table,
            "",
            f"Consume TPS: {tps:.2f}",
            f"Consume Diff Total: {sum_text(total, whole=not answers.failures)}",
            f"Consume Inflight Total: {sum_text(inflight, whole=not answers.failures)}",
        ],
        notes=notes,
    )


async def _summary(admin: Admin, group: str, silent: dict[str, str]) -> dict[str, object]:
    """Return the row of a group; add the brokers that did not answer."""
    answers = await admin.consume_stats(group)
    silent.update(answers.reasons())
    stats = answers.some()
    connections = (await connections_of(admin, group)).values
    rows = queue_rows(stats, {})
    clients = {
        client.client_id: client.version
        for connection in connections.values()
        for client in connection.connections
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


async def _known_groups(admin: Admin) -> tuple[list[str], set[str], Answers[list[str]]]:
    """Return all groups, those of them that have retry topics, and the brokers' own lists."""
    of_retry_topics = {
        topic.removeprefix(RETRY_PREFIX)
        for topic in await admin.topics()
        if topic.startswith(RETRY_PREFIX)
    }
    configured = await admin.groups()
    return sorted(of_retry_topics.union(*configured.values.values())), of_retry_topics, configured


async def _all_groups(admin: Admin) -> Result:
    groups, of_retry_topics, configured = await _known_groups(admin)
    silent: dict[str, str] = {}
    answers = await admin.for_each(groups, lambda group: _summary(admin, group, silent))
    # Brokers have predefined groups without members or offsets; these are left out.
    rows = [
        row
        for group, row in answers.values.items()
        if group in of_retry_topics or row["count"] or row["queues"]
    ]
    for row in rows:
        row.pop("queues")
    table = table_of(
        rows,
        {
            "Group": "group",
            ">Count": "count",
            "Version": lambda row: row["version"] or "OFFLINE",
            "Type": "type",
            "Model": "model",
            ">TPS": lambda row: f"{row['consumeTps']:.2f}",
            ">Diff Total": lambda row: sum_text(row["diffTotal"], whole=not row["incomplete"]),
        },
        ("Version", "Type", "Model"),
    )
    failures = configured.reasons() | silent
    # A group that no broker tells of has no row; its brokers are named already.
    failures |= {group: reason for group, reason in answers.reasons().items() if not silent}
    asked = len(configured.values.keys() | failures.keys())
    return Result(document={"groups": rows}, blocks=[table], failures=failures, asked=asked)


COMMANDS = (
    AdminCommand("consumerProgress", consumer_progress).with_options(
        Option(
            "-g, --groupName GROUP",
            "one group, per queue (default: all groups, one line per group)",
        ),
        Option("-t, --topicName TOPIC", "only this topic (with -g)"),
        Option("-s, --showClientIP BOOL", "true: with the client of each queue (with -g)", truth),
        Option("-c, --cluster NAME", "accepted for old scripts; all brokers are asked"),
        Option(
            "--alert MESSAGES",
            "print only groups with a larger lag, one line each; exit code 1 if there are any",
            whole(0),
        ),
        Option(
            "--alert-seconds SECONDS",
            "likewise, groups for which a message waits longer than this",
            whole(0),
        ),
    ),
)
