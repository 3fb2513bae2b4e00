"""The options of the sink: names, defaults, checks. All checks happen while a query is planned."""

from collections.abc import Mapping

import attrs

from triomq.client.spark.errors import OptionError
from triomq.client.spark.option_table import (
    NAME_SERVER,
    AccessOptions,
    option,
    options_of,
    parse_table,
    take_access,
)
from triomq.client.spark.option_values import integer, seconds, size, text, topic_names
from triomq.remoting.client.access import Access

NOT_OFFERED = {
    "retries": "use `deliveryTimeoutMs`",
    "subscribe": "give the sink's topic as `topic`",
}
"""options that users may expect → what to do instead"""


@attrs.frozen(kw_only=True)
class SinkOptions:
    """The checked options of one sink. Durations are seconds."""

    name_server: tuple[str, ...] = NAME_SERVER.field()
    topic: str | None = option("topic", topic_names)
    """the topic of all rows; without it, the column `topic` names each row's topic"""
    producer_group: str = option("producerGroup", text, "spark-rocketmq-sink")
    """the producer group that brokers see"""
    batch_bytes: int = option("sendBatchBytes", size(1 << 10, 4 << 20), "1m")
    """bytes of messages that are sent in one request; brokers take 4 MiB by default"""
    depth: int = option("sendDepth", integer(1, 64), "4")
    """requests in flight per task; ordered messages of one queue have one"""
    send_seconds: float = option("sendTimeoutMs", seconds, "3000")
    """how long a request may take before it is sent again"""
    delivery_seconds: float = option("deliveryTimeoutMs", seconds, "120000")
    """a task fails if a message is not acknowledged after this time, repeats included"""
    compress_over_bytes: int = option("compressOverBytes", size(1, 1 << 30), "4k")
    """bodies of this size and more are compressed (zlib)"""
    access: Access = attrs.field(factory=Access)
    """TLS and credentials; sent to the executors"""


SINK_OPTIONS = {**options_of(SinkOptions), **options_of(AccessOptions)}


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
    values["topic"] = named[0] if named else None
    access = take_access(values)
    return SinkOptions(**values, access=access)
