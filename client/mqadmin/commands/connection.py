"""The commands consumerConnection, producerConnection, updateSubGroup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.arguments import Option, Values, attribute_changes, truth, whole
from triomq.client.admin.documents import GROUP_FIELDS, group_document, members_of, settings_line
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.places import MASTERS
from triomq.client.mqadmin.core.result import Document, Result, Table, answered, table_of
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.groups import ConnectionData, GroupRetryPolicy
from triomq.remoting.protocol.codes import version_name

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


def _clients(
    connections: Iterable[tuple[str, Iterable[ConnectionData]]],
) -> list[dict[str, object]]:
    """Return every client once, with the brokers that it is connected to."""
    clients: dict[str, Document] = {}
    for broker, members in connections:
        for member in members:
            row = clients.setdefault(
                member.client_id,
                {
                    **members_of(member, "clientId", "clientAddr", "language"),
                    "version": version_name(member.version),
                    "brokers": [],
                },
            )
            row["brokers"].append(broker)
    return [clients[name] for name in sorted(clients)]


def _client_table(clients: list[dict[str, object]]) -> Table:
    return table_of(
        clients,
        {
            "ClientId": "clientId",
            "ClientAddr": "clientAddr",
            "Language": "language",
            "Version": "version",
        },
    )


async def consumer_connection(admin: Admin, options: Values) -> Result:
    group = options.text("consumerGroup")
    answers = await admin.consumer_connections(group, options.maybe_text("brokerAddr"))
    connections = answers.some()
    clients = _clients(
        (broker, connection.connections) for broker, connection in connections.items()
    )
    subscriptions = {
        topic: data.sub_string
        for connection in connections.values()
        for topic, data in connection.subscriptions.items()
    }
    first = next(iter(connections.values()))
    facts = members_of(first, "consumeType", "messageModel", "consumeFromWhere")
    rows = [[topic, subscriptions[topic]] for topic in sorted(subscriptions)]
    return answered(
        answers,
        {"group": group, "clients": clients, "subscriptions": subscriptions, **facts},
        [
            _client_table(clients),
            Table(("Topic", "SubExpression"), rows),
            "",
            *(f"{key[0].upper()}{key[1:]}: {value}" for key, value in facts.items()),
        ],
    )


async def producer_connection(admin: Admin, options: Values) -> Result:
    group = options.text("producerGroup")
    answers = await admin.producer_connections(group, options.text("topic"))
    clients = _clients(
        (broker, connection.connections) for broker, connection in answers.some().items()
    )
    return answered(answers, {"group": group, "clients": clients}, [_client_table(clients)])


# --- updateSubGroup


def retry_policy(text: str) -> GroupRetryPolicy:
    """Read a retry policy in RocketMQ's JSON.

    ``{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}``
    or ``{"type":"CUSTOMIZED",…}``.
    """
    try:
        policy = GroupRetryPolicy.decode(text.encode())
    except RemotingError:
        raise ValueError("it is not a retry policy in JSON") from None
    if policy.type not in ("EXPONENTIAL", "CUSTOMIZED"):
        raise ValueError("its type is neither EXPONENTIAL nor CUSTOMIZED")
    return policy


async def update_group(admin: Admin, options: Values) -> Result:
    changes = {
        attribute: options.value(name)
        for name, attribute in GROUP_FIELDS.items()
        if name in options
    }
    if "attributes" in options:
        # Brokers expect the signs in the keys.
        parts = (change.partition("=") for change in options.text("attributes").split(","))
        changes["attributes"] = {key: value for key, _, value in parts}
    answers = await admin.update_group(
        options.text("groupName"),
        lambda config: attrs.evolve(config, **changes),
        cluster=options.maybe_text("clusterName"),
        address=options.maybe_text("brokerAddr"),
    )
    documents = {target: group_document(config) for target, config in answers.some().items()}
    lines = [f"create subscription group to {target} success." for target in documents]
    lines.append(settings_line(next(iter(documents.values()))))
    return answered(answers, {"brokers": documents}, lines)


COMMANDS = (
    AdminCommand("consumerConnection", consumer_connection).with_options(
        Option("-g, --consumerGroup GROUP", "the group", required=True),
        Option("-b, --brokerAddr ADDRESS", "ask only this broker, host:port"),
    ),
    AdminCommand("updateSubGroup", update_group, effect=Effect.CHANGES).with_options(
        *MASTERS,
        Option("-g, --groupName GROUP", "the group", required=True),
        Option("-s, --consumeEnable BOOL", "whether the group may consume", truth),
        Option(
            "-m, --consumeFromMinEnable BOOL",
            "whether the group may begin at the first message",
            truth,
        ),
        Option("-d, --consumeBroadcastEnable BOOL", "whether broadcasting is allowed", truth),
        Option("-o, --consumeMessageOrderly BOOL", "strictly ordered consumption", truth),
        Option("-q, --retryQueueNums N", "queues of the retry topic", whole(0)),
        Option(
            "-r, --retryMaxTimes N", "deliveries before a message becomes a dead letter", whole(-1)
        ),
        Option(
            "-p, --groupRetryPolicy JSON",
            "delays between deliveries, in RocketMQ's JSON",
            retry_policy,
        ),
        Option("-i, --brokerId ID", "broker id to read from", whole(0)),
        Option(
            "-w, --whichBrokerWhenConsumeSlowly ID",
            "broker id to read from when far behind",
            whole(0),
        ),
        Option(
            "-a, --notifyConsumerIdsChanged BOOL",
            "notify members at once when the group changes",
            truth,
        ),
        Option(
            "--attributes CHANGES",
            "+key=value sets, -key removes; separated by commas",
            attribute_changes,
        ),
    ),
    AdminCommand("producerConnection", producer_connection).with_options(
        Option("-g, --producerGroup GROUP", "the group", required=True), TOPIC
    ),
)
