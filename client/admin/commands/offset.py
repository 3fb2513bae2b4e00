"""Commands that move a group's offsets: resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset."""

from __future__ import annotations

from collections.abc import Mapping

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, UsageError, Values, filled, truth, whole
from triomq.client.admin.calls import Answers, read_body
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.commands.topic import TOPIC
from triomq.client.admin.times import instant_ms
from triomq.client.errors import GroupOffline
from triomq.remoting.protocol.bodies.offsets import QueueOffsets
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import (
    CloneGroupOffsetHeader,
    ResetOffsetHeader,
    UpdateConsumerOffsetHeader,
)

GROUP = Option("g", "group", "the consumer group", filled, required=True, placeholder="GROUP")
END_OF_QUEUE = -1
"""the time that brokers take for the end of each queue"""
Offsets = Mapping[MessageQueue, int]


async def reset(admin: Admin, header: ResetOffsetHeader, brokers: Mapping[str, str]) -> Answers[Offsets]:
    """Have each broker move the group; brokers of 4.x only tell connected members, so without any the offsets are written one by one."""

    async def one(address: str) -> Offsets:
        try:
            return read_body(QueueOffsets, await admin.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).offset_table
        except GroupOffline:
            return await write(admin, header, next(name for name, known in brokers.items() if known == address), address)

    return await admin.for_each(brokers.values(), one)


async def write(admin: Admin, header: ResetOffsetHeader, broker_name: str, address: str) -> Offsets:
    """Look the offsets up and commit them in the group's name."""
    written: dict[MessageQueue, int] = {}
    for queue in await admin.queues(header.topic, broker_name):
        if header.queue_id not in (-1, queue.queue_id):
            continue
        if header.offset is not None:
            offset = header.offset
        elif header.timestamp == END_OF_QUEUE:
            offset = await admin.max_offset(queue)
        else:
            offset = await admin.offset_by_time(queue, header.timestamp)
        commit = UpdateConsumerOffsetHeader(header.group, header.topic, queue.queue_id, offset)
        await admin.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        written[queue] = offset
    return written


def shown(group: str, topic: str, answers: Answers[Offsets]) -> Result:
    """The table that all resets print."""
    rows = sorted((queue.broker_name, queue.queue_id, offset) for offsets in answers.some().values() for queue, offset in offsets.items())
    columns = (Column("brokerName"), Column("queueId", right=True), Column("offset", right=True))
    queues = [{"brokerName": broker, "queueId": queue_id, "offset": offset} for broker, queue_id, offset in rows]
    return Result(
        document={"group": group, "topic": topic, "queues": queues, "failures": answers.reasons()},
        blocks=[Table(columns, [[broker, str(queue_id), str(offset)] for broker, queue_id, offset in rows])],
        failures=answers.reasons(),
        asked=answers.asked,
    )


async def reset_by_time(admin: Admin, options: Values) -> Result:
    """Move a group to where it was at a time, or one queue to an offset."""
    group, topic, address = options.text("group"), options.text("topic"), options.maybe_text("broker")
    queue_id, offset = options.maybe_number("queue"), options.maybe_number("offset")
    if offset is not None and queue_id is None:
        raise UsageError("-o/--offset needs -q/--queue: an offset belongs to one queue")
    if queue_id is not None and address is None:
        raise UsageError("-q/--queue needs -b/--broker: every broker has queues of that number")
    force = options.maybe_flag("force")
    brokers = await admin.topic_brokers(topic)
    if address is not None:
        brokers = {name: known for name, known in brokers.items() if known == address} or {address: address}
    header = ResetOffsetHeader(
        group, topic, options.value("timestamp"), True if force is None else force, -1 if queue_id is None else queue_id, offset
    )
    return shown(group, topic, await reset(admin, header, brokers))


async def skip_accumulated(admin: Admin, options: Values) -> Result:
    """Move a group to the end of all queues of a topic."""
    group, topic, force = options.text("group"), options.text("topic"), options.maybe_flag("force")
    header = ResetOffsetHeader(group, topic, END_OF_QUEUE, True if force is None else force)
    return shown(group, topic, await reset(admin, header, await admin.topic_brokers(topic)))


async def clone(admin: Admin, options: Values) -> Result:
    """Let one group begin where another one is, in one topic."""
    source, target, topic = options.text("srcGroup"), options.text("destGroup"), options.text("topic")
    offline = options.maybe_flag("offline")
    header = CloneGroupOffsetHeader(source, target, topic, True if offline is None else offline)
    answers = await admin.for_each((await admin.topic_brokers(topic)).values(), lambda address: admin.ask(address, RequestCode.CLONE_GROUP_OFFSET, header))
    answers.some()
    return Result(
        document={"srcGroup": source, "destGroup": target, "topic": topic, "brokers": sorted(answers.values), "failures": answers.reasons()},
        blocks=[f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"],
        failures=answers.reasons(),
        asked=answers.asked,
    )


FORCE = Option("f", "force", "false: only backwards (brokers that ask their clients; others always do what they are told)", truth, placeholder="BOOL")
CLUSTER = Option("c", "cluster", "taken and not used: the topic's route names its brokers", filled, placeholder="NAME")
RESET_DOCUMENT = '{"group", "topic", "queues": [{"brokerName", "queueId", "offset"}], "failures": {address: reason}}'

COMMANDS = (
    Command(
        name="resetOffsetByTime",
        group="consumer",
        summary="let a group consume again from a time on, or one queue from an offset on",
        run=reset_by_time,
        options=(
            GROUP,
            TOPIC,
            Option("s", "timestamp", "the time: milliseconds, now, or yyyy-MM-dd#HH:mm:ss:SSS; -1 = the end", instant_ms, required=True, placeholder="TIME"),
            FORCE,
            CLUSTER,
            Option("b", "broker", "only at this broker, host:port", filled, placeholder="ADDRESS"),
            Option("q", "queue", "only this queue of that broker", whole(0), placeholder="ID"),
            Option("o", "offset", "to this offset instead of a time; 0 is one too", whole(0), placeholder="OFFSET"),
        ),
        examples=("resetOffsetByTime -g billing -t orders -s 2026-01-31#08:00:00:000", "resetOffsetByTime -g billing -t orders -s now -b 127.0.0.1:10911 -q 0 -o 0"),
        document=RESET_DOCUMENT,
        remarks=("One queue can be set to offset 0, too. Members need not be connected.",),
    ),
    Command(
        name="skipAccumulatedMessage",
        group="consumer",
        summary="let a group skip everything that it has not consumed yet",
        run=skip_accumulated,
        options=(GROUP, TOPIC, FORCE, CLUSTER),
        examples=("skipAccumulatedMessage -g billing -t orders",),
        document=RESET_DOCUMENT,
    ),
    Command(
        name="cloneGroupOffset",
        group="consumer",
        summary="let one group go on where another one is",
        run=clone,
        options=(
            Option("s", "srcGroup", "the group whose offsets are copied", filled, required=True, placeholder="GROUP"),
            Option("d", "destGroup", "the group that gets them", filled, required=True, placeholder="GROUP"),
            TOPIC,
            Option("o", "offline", "false: not if members of the source are connected that do not subscribe the topic", truth, placeholder="BOOL"),
        ),
        examples=("cloneGroupOffset -s billing -d billing-test -t orders",),
        document='{"srcGroup", "destGroup", "topic", "brokers": [address], "failures": {address: reason}}',
        remarks=("Only the offsets of the topic are copied, by the brokers themselves; RocketMQ's tool copies those of all topics.",),
    ),
)
