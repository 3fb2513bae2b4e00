"""Commands about groups and who is connected: consumerConnection, producerConnection, updateSubGroup."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, Values, filled, truth, whole
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.commands.topic import TOPIC, attribute_changes
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.groups import ConnectionData, GroupRetryPolicy, SubscriptionGroupConfig
from triomq.remoting.protocol.codes import version_name

CLIENT_COLUMNS = (Column("ClientId"), Column("ClientAddr"), Column("Language"), Column("Version"))


def _clients(connections: Iterable[tuple[str, Iterable[ConnectionData]]]) -> list[dict[str, Any]]:
    """Return every client once, with the brokers that it is connected to."""
    clients: dict[str, dict[str, Any]] = {}
    for broker, members in connections:
        for member in members:
            row = clients.setdefault(
                member.client_id,
                {
                    "clientId": member.client_id,
                    "clientAddr": member.client_addr,
                    "language": member.language,
                    "version": version_name(member.version),
                    "brokers": [],
                },
            )
            row["brokers"].append(broker)
    return [clients[name] for name in sorted(clients)]


def _client_cells(clients: list[dict[str, Any]]) -> list[list[str]]:
    return [[row["clientId"], row["clientAddr"], row["language"], row["version"]] for row in clients]


async def consumer_connection(admin: Admin, options: Values) -> Result:
    """Print who consumes with a group, and what."""
    group = options.text("consumerGroup")
    answers = await admin.consumer_connections(group, options.maybe_text("brokerAddr"))
    connections = answers.some()
    clients = _clients((broker, connection.connections) for broker, connection in connections.items())
    subscriptions = {
        topic: data.sub_string
        for connection in connections.values()
        for topic, data in connection.subscriptions.items()
    }
    first = next(iter(connections.values()))
    facts = {
        "consumeType": first.consume_type,
        "messageModel": first.message_model,
        "consumeFromWhere": first.consume_from_where,
    }
    rows = [[topic, subscriptions[topic]] for topic in sorted(subscriptions)]
    return Result(
        document={
            "group": group,
            "clients": clients,
            "subscriptions": subscriptions,
            **facts,
            "failures": answers.reasons(),
        },
        blocks=[
            Table(CLIENT_COLUMNS, _client_cells(clients)),
            Table((Column("Topic"), Column("SubExpression")), rows),
            "",
            *(f"{key[0].upper()}{key[1:]}: {value}" for key, value in facts.items()),
        ],
        failures=answers.reasons(),
        asked=answers.asked,
    )


async def producer_connection(admin: Admin, options: Values) -> Result:
    """Print who sends with a producer group to a topic's brokers."""
    group = options.text("producerGroup")
    answers = await admin.producer_connections(group, options.text("topic"))
    clients = _clients((broker, connection.connections) for broker, connection in answers.some().items())
    return Result(
        document={"group": group, "clients": clients, "failures": answers.reasons()},
        blocks=[Table(CLIENT_COLUMNS, _client_cells(clients))],
        failures=answers.reasons(),
        asked=answers.asked,
    )


# --- updateSubGroup --------------------------------------------------------------------------------------------------------------------

_FIELDS = {
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "retryQueueNums": "retry_queue_count",
    "retryMaxTimes": "retry_max_times",
    "groupRetryPolicy": "retry_policy",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_consume_slowly",
    "notifyConsumerIdsChanged": "notify_consumer_ids_changed_enable",
}
"""option → attribute of the group's settings"""


def group_document(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Return a group's settings, as far as options reach them, with RocketMQ's names."""
    document = {
        "groupName": config.group_name,
        **{name: getattr(config, attribute) for name, attribute in _FIELDS.items()},
    }
    return {**document, "groupRetryPolicy": json.loads(config.retry_policy.encode())}


def retry_policy(text: str) -> GroupRetryPolicy:
    """Read a policy, `{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}` or `{"type":"CUSTOMIZED",…}`."""
    try:
        policy = GroupRetryPolicy.decode(text.encode())
    except RemotingError:
        raise ValueError("it is not JSON of a retry policy") from None
    if policy.type not in ("EXPONENTIAL", "CUSTOMIZED"):
        raise ValueError("its type is neither EXPONENTIAL nor CUSTOMIZED")
    return policy


def _signed(change: str) -> tuple[str, str]:
    key, _, value = change.partition("=")
    return key, value


async def update_group(admin: Admin, options: Values) -> Result:
    """Create or change a consumer group."""
    changes = {attribute: options.value(name) for name, attribute in _FIELDS.items() if name in options}
    if "attributes" in options:
        # The broker applies signs itself and wants them in the keys.
        changes["attributes"] = dict(_signed(change) for change in options.text("attributes").split(","))
    answers = await admin.update_group(
        options.text("groupName"),
        lambda config: attrs.evolve(config, **changes),
        cluster=options.maybe_text("clusterName"),
        address=options.maybe_text("brokerAddr"),
    )
    configs = answers.some()
    lines = [f"create subscription group to {target} success." for target in configs]
    config = group_document(next(iter(configs.values())))
    lines.append(
        "  ".join(f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in config.items())
    )
    return Result(
        document={
            "brokers": {target: group_document(config) for target, config in configs.items()},
            "failures": answers.reasons(),
        },
        blocks=lines,
        failures=answers.reasons(),
        asked=answers.asked,
    )


COMMANDS = (
    Command(
        name="consumerConnection",
        group="consumer",
        summary="print the members of a consumer group and their subscriptions",
        run=consumer_connection,
        options=(
            Option("g", "consumerGroup", "the group", filled, required=True, placeholder="GROUP"),
            Option("b", "brokerAddr", "ask only this broker, host:port", filled, placeholder="ADDRESS"),
        ),
        examples=("consumerConnection -g billing",),
        document='{"group", "clients": [{"clientId", "clientAddr", "language", "version", "brokers": [address]}], "subscriptions": {topic: expression}, '
        '"consumeType", "messageModel", "consumeFromWhere", "failures": {broker: reason}}',
        remarks=("All brokers are asked, not a random one, so the answer is whole also while brokers restart.",),
    ),
    Command(
        name="updateSubGroup",
        group="consumer",
        summary="create a consumer group, or change it",
        run=update_group,
        options=(
            Option("b", "brokerAddr", "at one broker, host:port", filled, placeholder="ADDRESS"),
            Option("c", "clusterName", "at all masters of a cluster", filled, placeholder="NAME"),
            Option("g", "groupName", "the group", filled, required=True, placeholder="GROUP"),
            Option("s", "consumeEnable", "whether it may consume", truth, placeholder="BOOL"),
            Option("m", "consumeFromMinEnable", "whether it may begin at the first message", truth, placeholder="BOOL"),
            Option("d", "consumeBroadcastEnable", "whether broadcasting is allowed", truth, placeholder="BOOL"),
            Option("o", "consumeMessageOrderly", "strictly ordered consumption", truth, placeholder="BOOL"),
            Option("q", "retryQueueNums", "queues of the retry topic", whole(0), placeholder="N"),
            Option(
                "r", "retryMaxTimes", "deliveries before a message becomes a dead letter", whole(-1), placeholder="N"
            ),
            Option(
                "p",
                "groupRetryPolicy",
                "delays between deliveries, in RocketMQ's JSON",
                retry_policy,
                placeholder="JSON",
            ),
            Option("i", "brokerId", "which broker id to read from", whole(0), placeholder="ID"),
            Option(
                "w",
                "whichBrokerWhenConsumeSlowly",
                "which broker id to read from when far behind",
                whole(0),
                placeholder="ID",
            ),
            Option(
                "a",
                "notifyConsumerIdsChanged",
                "tell members at once when the group changes",
                truth,
                placeholder="BOOL",
            ),
            Option(
                "",
                "attributes",
                "+key=value sets, -key removes, several separated by commas",
                attribute_changes,
                placeholder="CHANGES",
            ),
        ),
        one_of=(("brokerAddr", "clusterName"),),
        examples=("updateSubGroup -c DefaultCluster -g billing -r 3",),
        document='{"brokers": {address: {"groupName", "consumeEnable", …}}, "failures": {address: reason}}',
        remarks=("A change is a patch: options that are not given keep their values.",),
    ),
    Command(
        name="producerConnection",
        group="producer",
        summary="print the members of a producer group",
        run=producer_connection,
        options=(Option("g", "producerGroup", "the group", filled, required=True, placeholder="GROUP"), TOPIC),
        examples=("producerConnection -g shop -t orders",),
        document='{"group", "clients": [{"clientId", "clientAddr", "language", "version", "brokers": [address]}], "failures": {broker: reason}}',
        remarks=("All brokers of the topic are asked, not a random one.",),
    ),
)
