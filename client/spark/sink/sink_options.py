"""The options of the sink: names, defaults, checks. All checks happen while a query is planned."""

from collections.abc import Mapping

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.option_table import (
    ACCESS_OPTIONS,
    NAME_SERVER,
    Option,
    access_of,
    parse_table,
)
from triomq.client.spark.option_values import integer, milliseconds, size, text, topics
from triomq.remoting.client.access import Access

SINK_OPTIONS: tuple[Option, ...] = (
    NAME_SERVER,
    Option(
        name="topic",
        parse=topics,
        default=None,
        meaning="the topic of all rows; without it, the column `topic` names each row's topic",
    ),
    Option(
        name="producerGroup",
        parse=text,
        default="spark-rocketmq-sink",
        meaning="the producer group that brokers see",
    ),
    Option(
        name="sendBatchBytes",
        parse=size(1 << 10, 4 << 20),
        default="1m",
        meaning="bytes of messages that are sent in one request; brokers take 4 MiB by default",
    ),
    Option(
        name="sendDepth",
        parse=integer(1, 64),
        default="4",
        meaning="requests in flight per task; ordered messages of one queue have one",
    ),
    Option(
        name="sendTimeoutMs",
        parse=milliseconds,
        default="3000",
        meaning="how long a request may take before it is sent again",
    ),
    Option(
        name="deliveryTimeoutMs",
        parse=milliseconds,
        default="120000",
        meaning="a task fails if a message is not acknowledged after this time, repeats included",
    ),
    Option(
        name="compressOverBytes",
        parse=size(1, 1 << 30),
        default="4k",
        meaning="bodies of this size and more are compressed (zlib)",
    ),
    *ACCESS_OPTIONS,
)
NOT_OFFERED = {
    "retries": "use `deliveryTimeoutMs`",
    "subscribe": "give the sink's topic as `topic`",
}
"""options that users may expect → what to do instead"""


@attrs.frozen(kw_only=True)
class SinkOptions:
    """The checked options of one sink. Durations are seconds."""

    name_server: tuple[str, ...]
    topic: str | None
    producer_group: str
    batch_bytes: int
    depth: int
    send_seconds: float
    delivery_seconds: float
    compress_over_bytes: int
    access: Access = attrs.field(factory=Access)
    """TLS and credentials; sent to the executors"""


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check the options of a sink.

    Raises: OptionError that names the option, the cause and the rule.
    """
    values, _ = parse_table(SINK_OPTIONS, options, NOT_OFFERED, streaming=streaming)
    named = values["topic"] or ()
    if len(named) > 1:
        raise OptionError(
            "option 'topic' names several topics; name one, or give each row's in a column 'topic'"
        )
    return SinkOptions(
        name_server=values["nameServer"],
        topic=named[0] if named else None,
        producer_group=values["producerGroup"],
        batch_bytes=values["sendBatchBytes"],
        depth=values["sendDepth"],
        send_seconds=values["sendTimeoutMs"] / 1000,
        delivery_seconds=values["deliveryTimeoutMs"] / 1000,
        compress_over_bytes=values["compressOverBytes"],
        access=access_of(values),
    )
