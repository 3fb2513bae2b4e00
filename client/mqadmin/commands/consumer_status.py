"""The command consumerStatus: the state of the members of a group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, UsageError, Values
from triomq.client.admin.documents import running_document
from triomq.client.admin.times import seconds_text
from triomq.client.mqadmin.core.command import AdminCommand, Result, Table
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


COMMANDS = (
    AdminCommand(
        name="consumerStatus",
        run=consumer_status,
        options=(
            Option("-g, --consumerGroup GROUP", "the group", required=True),
            Option("-i, --clientId ID", "only this member, with its full state"),
            Option("-b, --brokerAddr ADDRESS", "ask through this broker, host:port"),
            Option("-s, --jstack", "with the stacks of its threads or tasks"),
        ),
        examples=("consumerStatus -g billing", "consumerStatus -g billing -i 10.0.0.7@4242 -s"),
        document=(
            '{"group", "clients": {clientId: {"properties": {key: text}, "subscriptions": {topic:'
            ' expression}, "queues": [{"topic", "brokerName", "queueId", "commitOffset",'
            ' "cachedMessages", "locked", "lastPull", "lastConsume"}], "rates": {topic: {"pullRT",'
            ' "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS"}}, "jstack"}},'
            ' "sameSubscriptions", "sharedQueues": {queue: [clientId]}, "failures": {broker or'
            " clientId: reason}}"
        ),
        remarks="No files are written: --json has everything.",
    ),
)
