"""The commands resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Option, UsageError, Values, truth, whole
from triomq.client.admin.group_resets import END_OF_QUEUE, Offsets, reset, reset_everywhere
from triomq.client.admin.known_groups import check_group, is_new
from triomq.client.admin.times import instant_ms
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.places import ask_each
from triomq.client.mqadmin.core.result import Result, Table, answered
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import CloneGroupOffsetHeader, ResetOffsetHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

GROUP = Option("-g, --group GROUP", "the consumer group", required=True)
NEW_GROUP = "`mqadmin group create` makes a group whose place is set before its first start"


def reset_result(group: str, topic: str, answers: Answers[Offsets]) -> Result:
    """Return the result of a reset."""
    rows = sorted(
        (queue.broker_name, queue.queue_id, offset)
        for offsets in answers.some().values()
        for queue, offset in offsets.items()
    )
    queues = [dict(zip(("brokerName", "queueId", "offset"), row)) for row in rows]
    table = Table(("brokerName", ">queueId", ">offset"), rows)
    return answered(answers, {"group": group, "topic": topic, "queues": queues}, [table])


async def reset_by_time(admin: Admin, options: Values) -> Result:
    group, topic = options.text("group"), options.text("topic")
    address = options.maybe_text("broker")
    queue_id, offset = options.maybe_number("queue"), options.maybe_number("offset")
    if offset is not None and queue_id is None:
        raise UsageError("-o/--offset needs -q/--queue: an offset belongs to one queue")
    if queue_id is not None and address is None:
        raise UsageError("-q/--queue needs -b/--broker: every broker has a queue of that number")
    await check_group(admin, group, NEW_GROUP)
    header = ResetOffsetHeader(
        group,
        topic,
        options.value("timestamp"),
        options.maybe_flag("force") is not False,
        -1 if queue_id is None else queue_id,
        offset,
    )
    if address is None:
        return reset_result(group, topic, await reset_everywhere(admin, header))
    brokers = await admin.topic_brokers(topic)
    name = next((name for name, known in brokers.items() if known == address), address)
    return reset_result(group, topic, await reset(admin, header, {name: address}))


async def skip_accumulated(admin: Admin, options: Values) -> Result:
    group, topic = options.text("group"), options.text("topic")
    force = options.maybe_flag("force") is not False
    header = ResetOffsetHeader(group, topic, END_OF_QUEUE, force)
    await check_group(admin, group, NEW_GROUP)
    return reset_result(group, topic, await reset_everywhere(admin, header))


async def clone(admin: Admin, options: Values) -> Result:
    source, target = options.text("srcGroup"), options.text("destGroup")
    topic = options.text("topic")
    offline = options.maybe_flag("offline") is not False
    header = CloneGroupOffsetHeader(source, target, topic, offline)
    brokers = await admin.topic_brokers(topic)
    known = await check_group(admin, source, NEW_GROUP)
    notes = [f"group {target!r} is new: check the spelling"] if is_new(target, known) else []
    answers = await ask_each(admin, brokers.values(), RequestCode.CLONE_GROUP_OFFSET, header)
    document = {"srcGroup": source, "destGroup": target, "topic": topic}
    result = answered(
        answers,
        {**document, "brokers": sorted(answers.values)},
        [f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"],
    )
    return attrs.evolve(result, notes=notes)


FORCE = Option(
    "-f, --force BOOL", "false: only backwards (only for brokers that ask their clients)", truth
)
CLUSTER = Option(
    "-c, --cluster NAME", "accepted for old scripts; the topic's route names its brokers"
)

COMMANDS = (
    AdminCommand("resetOffsetByTime", reset_by_time, effect=Effect.MOVES).with_options(
        GROUP,
        TOPIC,
        Option(
            "-s, --timestamp TIME",
            "the time, for instance -1h or now; -1 = the end; see times",
            instant_ms,
            required=True,
        ),
        FORCE,
        CLUSTER,
        Option("-b, --broker ADDRESS", "only at this broker, host:port"),
        Option("-q, --queue ID", "only this queue of that broker", whole(0)),
        Option("-o, --offset OFFSET", "move to this offset instead of a time", whole(0)),
    ),
    AdminCommand("skipAccumulatedMessage", skip_accumulated, effect=Effect.MOVES).with_options(
        GROUP, TOPIC, FORCE, CLUSTER
    ),
    AdminCommand("cloneGroupOffset", clone, effect=Effect.MOVES).with_options(
        Option("-s, --srcGroup GROUP", "the group whose offsets are copied", required=True),
        Option("-d, --destGroup GROUP", "the group that gets the offsets", required=True),
        TOPIC,
        Option(
            "-o, --offline BOOL",
            "false: refuse if connected members of the source do not subscribe to the topic",
            truth,
        ),
    ),
)
