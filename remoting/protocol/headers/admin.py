"""Headers of requests that inspect and repair a broker.

Requests: 26, 208, 315, 317, 321, 354, 355, 902, 903, 906, 908, 2004, 5001.

Source: remoting/…/header/GetConsumeStatsRequestHeader.java and the classes beside it,
broker/…/AdminBrokerProcessor.java.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class BrokerConfigResponseHeader:
    """Header of 26; ``version`` is the JSON text of a DataVersion."""

    version: str | None = wire("version", default=None)


@header
class ConsumeStatsHeader:
    """The lag of a group (208); ``topic_list``, joined by ``;``, has precedence over ``topic``."""

    consumer_group: str = wire("consumerGroup")
    topic: str | None = wire("topic", default=None)
    topic_list: str | None = wire("topicList", default=None)


@header
class BrokerConsumeStatsHeader:
    """The lag of all groups (317); with ``order`` of ordered topics only."""

    order: bool = wire("isOrder", default=False)


@header
class BrokerStatsHeader:
    """One counter (315); with the key ``*`` brokers of TrioMQ tell its largest keys."""

    stats_name: str = wire("statsName")
    stats_key: str = wire("statsKey")


@header
class QueryConsumeQueueHeader:
    """Raw index entries of a queue (321)."""

    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    index: int = wire("index", bits=64)
    count: int = wire("count")
    consumer_group: str | None = wire("consumerGroup", default=None)


@header
class ExchangeHaAddressHeader:
    """Header of 906 and of its response; the request has no values."""

    master_ha_address: str | None = wire("masterHaAddress", default=None)
    master_flush_offset: int | None = wire("masterFlushOffset", default=None, bits=64)
    master_address: str | None = wire("masterAddress", default=None)


@header
class ResetMasterFlushOffsetHeader:
    """Header of 908."""

    master_flush_offset: int | None = wire("masterFlushOffset", default=None, bits=64)


@header
class ReadModeHeader:
    """Header of 2004: 0 normal, 1 random."""

    read_ahead_mode: str | None = wire("READ_AHEAD_MODE", default=None)
