"""The command sendMessage."""

from __future__ import annotations

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, UsageError, Values, filled, truth, whole
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.commands.topic import TOPIC
from triomq.client.producer.producer import Producer
from triomq.client.producer.receipt import SendStatus
from triomq.remoting.protocol.bodies.route import MessageQueue

SEND_GROUP = "TOOLS_PRODUCER"
SEND_OK = "SEND_OK"
"""what Java prints for a message that is stored as safely as the broker promises"""


async def send_message(admin: Admin, options: Values) -> Result:
    """Send one message with a producer."""
    broker, queue_id = options.maybe_text("broker"), options.maybe_number("qid")
    if queue_id is not None and broker is None:
        raise UsageError("-i/--qid needs -b/--broker: a queue id alone does not name a queue")
    topic = options.text("topic")
    queue = None
    if broker is not None:
        queues = await admin.queues(topic, broker)
        queue = MessageQueue(topic, broker, queue_id if queue_id is not None else queues[0].queue_id)
    keys = (options.maybe_text("key") or "").split()
    async with Producer(list(admin.namesrv_addresses), group=SEND_GROUP) as producer:
        receipt = await producer.send(
            topic, options.text("body").encode(), tag=options.maybe_text("tags"), keys=keys, queue=queue
        )
    result = SEND_OK if receipt.status is SendStatus.STORED else receipt.status.name
    document = {
        "topic": topic,
        "brokerName": receipt.queue.broker_name,
        "queueId": receipt.queue.queue_id,
        "queueOffset": receipt.queue_offset,
        "sendResult": result,
        "msgId": receipt.message_id,
        "offsetMsgId": receipt.offset_message_id,
    }
    columns = (Column("Broker Name"), Column("QID", right=True), Column("Send Result"), Column("MsgId"))
    row = [receipt.queue.broker_name, str(receipt.queue.queue_id), result, receipt.message_id]
    notes = (
        ["message trace is not offered yet; -m/--msgTraceEnable has no effect"]
        if options.flag("msgTraceEnable")
        else []
    )
    return Result(document=document, blocks=[Table(columns, [row])], notes=notes)


COMMANDS = (
    Command(
        name="sendMessage",
        group="message",
        summary="send one message",
        run=send_message,
        options=(
            TOPIC,
            Option("p", "body", "the body, a UTF-8 text", required=True, placeholder="TEXT"),
            Option("k", "key", "keys, separated by blanks", filled, placeholder="KEYS"),
            Option("c", "tags", "the tag", filled, placeholder="TAG"),
            Option("b", "broker", "name of the broker to send to", filled, placeholder="NAME"),
            Option("i", "qid", "id of the queue to send to (with -b)", whole(0), placeholder="ID"),
            Option("m", "msgTraceEnable", "accepted for old scripts; has no effect yet", truth, placeholder="BOOL"),
        ),
        examples=("sendMessage -t orders -p 'Hello, world' -k order-1 -c paid",),
        document='{"topic", "brokerName", "queueId", "queueOffset", "sendResult", "msgId", "offsetMsgId"}',
    ),
)
