"""Headers of sends: 10, 310, 320, 324, 325 (one class, long or one-letter names), 36, 326, 370.

Source: remoting/…/header/SendMessageRequestHeader.java, …V2.java, SendMessageResponseHeader.java,
ConsumerSendMsgBackRequestHeader.java, ReplyMessageRequestHeader.java,
RecallMessageRequestHeader.java.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class SendMessageHeader:
    """A message without its body.

    ``properties`` is the encoded text; with a ``queue_id`` below 0 the broker chooses a queue.
    """

    producer_group: str = wire("producerGroup", short="a")
    topic: str = wire("topic", short="b")
    default_topic: str = wire("defaultTopic", short="c")
    default_topic_queue_count: int = wire("defaultTopicQueueNums", short="d")
    queue_id: int = wire("queueId", short="e", varies=True)
    sys_flag: int = wire("sysFlag", short="f")
    born_timestamp: int = wire("bornTimestamp", short="g", bits=64, varies=True)
    flag: int = wire("flag", short="h")
    properties: str | None = wire("properties", short="i", default=None, varies=True)
    reconsume_times: int | None = wire("reconsumeTimes", short="j", default=None)
    unit_mode: bool | None = wire("unitMode", short="k", default=None)
    max_reconsume_times: int | None = wire("maxReconsumeTimes", short="l", default=None)
    batch: bool | None = wire("batch", short="m", default=None)
    broker_name: str | None = wire("bname", short="n", default=None)


@header
class SendMessageResponseHeader:
    """The place of a message; of a batch, the first offset and all ids, joined by commas."""

    message_id: str = wire("msgId")
    queue_id: int = wire("queueId")
    queue_offset: int = wire("queueOffset", bits=64)
    transaction_id: str | None = wire("transactionId", default=None)
    region_id: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)
    batch_unique_id: str | None = wire("batchUniqId", default=None)
    recall_handle: str | None = wire("recallHandle", default=None)


@header
class SendBackHeader:
    """A consumer returns a message (36).

    ``offset`` is the log offset of the message; ``delay_level`` below 0 makes it a dead letter.
    ``failure`` says why; Java knows no such field, and its brokers ignore it.
    """

    offset: int = wire("offset", bits=64)
    group: str = wire("group")
    delay_level: int = wire("delayLevel")
    origin_message_id: str | None = wire("originMsgId", default=None)
    origin_topic: str | None = wire("originTopic", default=None)
    unit_mode: bool = wire("unitMode", default=False)
    max_reconsume_times: int | None = wire("maxReconsumeTimes", default=None)
    broker_name: str | None = wire("bname", default=None)
    failure: str | None = wire("failure", default=None)


@header
class ReplyMessageHeader:
    """A broker delivers the reply to a request message (326). Hosts are ``ip:port``."""

    producer_group: str = wire("producerGroup")
    topic: str = wire("topic")
    default_topic: str = wire("defaultTopic")
    default_topic_queue_count: int = wire("defaultTopicQueueNums")
    queue_id: int = wire("queueId")
    sys_flag: int = wire("sysFlag")
    born_timestamp: int = wire("bornTimestamp", bits=64)
    flag: int = wire("flag")
    born_host: str = wire("bornHost")
    store_host: str = wire("storeHost")
    store_timestamp: int = wire("storeTimestamp", bits=64)
    properties: str | None = wire("properties", default=None)
    reconsume_times: int | None = wire("reconsumeTimes", default=None)
    unit_mode: bool = wire("unitMode", default=False)


@header
class RecallMessageHeader:
    """Cancel a timed message (370) by the handle of its send response."""

    topic: str = wire("topic")
    recall_handle: str = wire("recallHandle")
    producer_group: str | None = wire("producerGroup", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class RecallMessageResponseHeader:
    message_id: str = wire("msgId")
