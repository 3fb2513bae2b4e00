"""The command sendMessage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, UsageError, Values, truth, whole
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect, Result, Table
from triomq.client.mqadmin.core.sending import send_result, tools_producer
from triomq.remoting.protocol.bodies.route import MessageQueue

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

SEND_GROUP = "TOOLS_PRODUCER"


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
    result = send_result(receipt)
    document = {
        "topic": topic,
        "brokerName": receipt.queue.broker_name,
        "queueId": receipt.queue.queue_id,
        "queueOffset": receipt.queue_offset,
        "sendResult": result,
        "msgId": receipt.message_id,
        "offsetMsgId": receipt.offset_message_id,
    }
    columns = ("Broker Name", ">QID", "Send Result", "MsgId")
    row = [receipt.queue.broker_name, receipt.queue.queue_id, result, receipt.message_id]
    return Result(document=document, blocks=[Table(columns, [row])])


COMMANDS = (
    AdminCommand(
        name="sendMessage",
        run=send_message,
        effect=Effect.ACTS,
        options=(
            TOPIC,
            Option("-p, --body TEXT", "the body, a UTF-8 text", str, required=True),
            Option("-k, --key KEYS", "keys, separated by blanks"),
            Option("-c, --tags TAG", "the tag"),
            Option("-b, --broker NAME", "name of the broker to send to"),
            Option("-i, --qid ID", "id of the queue to send to (with -b)", whole(0)),
            Option("-m, --msgTraceEnable BOOL", "note the send in the message trace", truth),
        ),
        examples=("sendMessage -t orders -p 'Hello, world' -k order-1 -c paid",),
        document=(
            '{"topic", "brokerName", "queueId", "queueOffset", "sendResult", "msgId",'
            ' "offsetMsgId"}'
        ),
    ),
)
