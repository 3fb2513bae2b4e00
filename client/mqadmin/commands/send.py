"""Commands that send messages: sendMessage; to measure checkMsgSendRT, sendMsgStatus, clusterRT."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, UsageError, Values, truth, whole
from triomq.client.admin.errors import NotWritable
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.result import Document, Result, Table, answered, table_of
from triomq.client.mqadmin.core.sending import SEND_OK, send_result, tools_producer
from triomq.remoting.protocol.bodies.route import PERM_WRITE, MessageQueue

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.sdk.producer import Producer


SEND_GROUP = "TOOLS_PRODUCER"
SENT_COLUMNS = {"Broker Name": "brokerName", ">QID": "queueId", "Send Result": "sendResult"}


async def send_message(admin: Admin, options: Values) -> Result:
    broker, queue_id = options.maybe_text("broker"), options.maybe_number("qid")
    if queue_id is not None and broker is None:
        raise UsageError("-i/--qid needs -b/--broker: a queue id alone does not name a queue")
    topic = options.text("topic")
    queue = None
    if broker is not None:
        await admin.queues(topic, broker)  # fails if the broker does not have the topic
        queue = MessageQueue(topic, broker, queue_id or 0)
    keys = (options.maybe_text("key") or "").split()
    trace = options.flag("msgTraceEnable")
    async with tools_producer(admin, options, SEND_GROUP, trace=trace) as producer:
        receipt = await producer.send(
            topic,
            options.text("body").encode(),
            tag=options.maybe_text("tags"),
            keys=keys,
            queue=queue,
        )
    document = {
        "topic": topic,
        "brokerName": receipt.queue.broker_name,
        "queueId": receipt.queue.queue_id,
        "queueOffset": receipt.queue_offset,
        "sendResult": send_result(receipt),
        "msgId": receipt.message_id,
        "offsetMsgId": receipt.offset_message_id,
    }
    columns = {**SENT_COLUMNS, "MsgId": "msgId"}
    return Result(document=document, blocks=[table_of([document], columns)])


PROBE_GROUP = "TOOLS_PROBE"
FAILURES_MAX = 3
"""sends in a row that fail before no more are tried"""
SIZE_MAX, AMOUNT_MAX = 4 << 20, 100_000


async def probe(producer: Producer, queue: MessageQueue, body: bytes) -> dict[str, object]:
    """Send one message; return its result, and the time that it took in ms."""
    begin = time.perf_counter()
    error: str | None = None
    try:
        receipt = await producer.send(queue.topic, body, queue=queue)
        result = send_result(receipt)
    except TrioMQError as failure:
        result, error = "FAILED", str(failure)
    return {
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "sendResult": result,
        "rt": round((time.perf_counter() - begin) * 1000, 3),
        "error": error,
    }


async def probe_in_turn(
    producer: Producer, queues: Sequence[MessageQueue], amount: int, body: bytes, seconds: float
) -> list[Document]:
    """Send messages to queues in turn, one after the other.

    It ends early at the time limit of the command, and after some failures in a row: a broker that
    does not answer would take the whole time.
    """
    import trio  # not for the help: start-up time

    end = trio.current_time() + seconds
    sends: list[dict[str, object]] = []
    in_row = 0
    while len(sends) < amount and in_row < FAILURES_MAX and trio.current_time() < end:
        sends.append(await probe(producer, queues[len(sends) % len(queues)], body))
        in_row = in_row + 1 if sends[-1]["error"] is not None else 0
    return sends


def early_end(sends: Sequence[dict[str, object]], amount: int) -> list[str]:
    """Return a warning if not all messages were sent."""
    if len(sends) == amount:
        return []
    return [
        (
            f"only {len(sends)} of {amount} messages were sent: the time limit was over"
            f" (--timeout), or {FAILURES_MAX} failed in a row"
        )
    ]


def mean_rt(sends: Sequence[Document]) -> float | None:
    """Return the mean time of the sends that worked, without the first, which has to connect.

    None if nothing is left.
    """
    times = [send["rt"] for send in sends[1:] if send["error"] is None]
    return round(sum(times) / len(times), 3) if times else None


async def writable_queues(admin: Admin, topic: str) -> list[MessageQueue]:
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in (await admin.route(topic)).queue_datas
        if data.perm & PERM_WRITE
        for queue_id in range(data.write_queue_count)
    )


async def check_send_rt(admin: Admin, options: Values) -> Result:
    topic = options.text("topic")
    queues = await writable_queues(admin, topic)
    if not queues:
        raise NotWritable(topic)
    body, amount = b"a" * options.number("size"), options.number("amount")
    async with tools_producer(admin, options, PROBE_GROUP, repeat=False) as producer:
        sends = await probe_in_turn(producer, queues, amount, body, options.number("timeout"))
    average = mean_rt(sends)
    table = table_of(sends, {**SENT_COLUMNS, ">RT": "rt"})
    line = "Avg RT: " + ("N/A" if average is None else f"{average:.2f}")
    failures = {send["brokerName"]: send["error"] for send in sends if send["error"] is not None}
    asked = len({queue.broker_name for queue in queues})
    return Result(
        document={"topic": topic, "sends": sends, "averageRt": average},
        blocks=[table, line],
        failures=failures,
        asked=asked,
        notes=early_end(sends, amount),
    )


async def send_status(admin: Admin, options: Values) -> Result:
    name = options.text("brokerName")
    queues = await writable_queues(admin, name)
    if not queues:
        raise NotWritable(name)
    body, amount = b"a" * options.number("messageSize"), options.number("count")
    async with tools_producer(admin, options, PROBE_GROUP, repeat=False) as producer:
        sends = await probe_in_turn(producer, queues[:1], amount, body, options.number("timeout"))
    lines = [f"rt={send['rt']:.0f}ms, SendResult={send['error'] or SEND_OK}" for send in sends]
    failed = [send["error"] for send in sends if send["error"] is not None]
    return Result(
        document={"topic": name, "sends": sends, "averageRt": mean_rt(sends)},
        blocks=lines,
        failures={name: failed[-1]} if failed else {},
        asked=2 if 0 < len(failed) < len(sends) else 1,
        notes=early_end(sends, amount),
    )


async def cluster_rt(admin: Admin, options: Values) -> Result:
    body, amount = b"a" * options.number("size"), options.number("amount")
    brokers = [
        (broker.cluster, broker.name)
        for broker in await admin.brokers(options.maybe_text("cluster"), masters_only=True)
    ]

    async with tools_producer(admin, options, PROBE_GROUP, repeat=False) as producer:

        async def probe_broker(name: str) -> dict[str, object]:
            queues = await writable_queues(admin, name)
            if not queues:
                raise NotWritable(name)
            seconds = options.number("timeout")
            sends = await probe_in_turn(producer, queues[:1], amount, body, seconds)
            good = [send for send in sends if send["error"] is None]
            if not good:
                raise TrioMQError(sends[-1]["error"])
            return {"rt": mean_rt(sends), "success": len(good), "fail": len(sends) - len(good)}

        answers = await admin.for_each([name for _, name in brokers], probe_broker)
    rows = [
        {
            "clusterName": cluster,
            "brokerName": name,
            **(answers.values.get(name) or {"rt": None, "success": 0, "fail": amount}),
        }
        for cluster, name in brokers
    ]
    return answered(
        answers,
        {"brokers": rows},
        [room_lines(rows, options) if options.flag("print") else rt_table(rows)],
    )


def rt_table(rows: Sequence[dict[str, object]]) -> Table:
    return table_of(
        rows,
        {
            "Cluster Name": "clusterName",
            "Broker Name": "brokerName",
            ">RT": lambda row: "" if row["rt"] is None else f"{row['rt']:.2f}",
            ">successCount": "success",
            ">failCount": "fail",
        },
    )


def room_lines(rows: Sequence[dict[str, object]], options: Values) -> str:
    """Return a line for each broker: time, room, cluster, broker, round trip in ms."""
    now, room = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}", options.text("machine")
    return "\n".join(
        f"{now}|{room}|{row['clusterName']}|{row['brokerName']}|"
        + ("-" if row["rt"] is None else f"{row['rt']:.0f}")
        for row in rows
    )


def amount_option(spelling: str, default: int) -> Option:
    return Option(spelling, "number of messages", whole(1, AMOUNT_MAX), default=default)


def size_option(spelling: str) -> Option:
    return Option(spelling, "bytes of each body", whole(0, SIZE_MAX), default=128)


SENDS = '[{"brokerName", "queueId", "sendResult", "rt", "error"}]'
FIRST = "The mean leaves out the first message, which has to connect; times are in milliseconds."

COMMANDS = (
    AdminCommand("sendMessage", send_message, effect=Effect.ACTS).with_options(
        TOPIC,
        Option("-p, --body TEXT", "the body, a UTF-8 text", str, required=True),
        Option("-k, --key KEYS", "keys, separated by blanks"),
        Option("-c, --tags TAG", "the tag"),
        Option("-b, --broker NAME", "name of the broker to send to"),
        Option("-i, --qid ID", "id of the queue to send to (with -b)", whole(0)),
        Option("-m, --msgTraceEnable BOOL", "note the send in the message trace", truth),
    ),
    AdminCommand("checkMsgSendRT", check_send_rt, effect=Effect.ACTS).with_options(
        TOPIC, amount_option("-a, --amount N", 100), size_option("-s, --size BYTES")
    ),
    AdminCommand("sendMsgStatus", send_status, effect=Effect.ACTS).with_options(
        Option("-b, --brokerName NAME", "name of the broker, and of its topic", required=True),
        size_option("-s, --messageSize BYTES"),
        amount_option("-c, --count N", 50),
    ),
    AdminCommand("clusterRT", cluster_rt, effect=Effect.ACTS).with_options(
        amount_option("-a, --amount N", 100),
        size_option("-s, --size BYTES"),
        Option("-c, --cluster NAME", "only this cluster"),
        Option("-p, --print log BOOL", "true: lines for a log, divided by |", truth),
        Option("-m, --machine room NAME", "name of this place, for -p", default="noname"),
        Option(
            "-i, --interval SECONDS",
            "pause between two rounds in seconds; it goes on forever",
            whole(1),
            default=10,
        ),
    ),
)
