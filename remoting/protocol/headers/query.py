"""Headers of message queries: 12 and 33.

Source: remoting/…/header/QueryMessageRequestHeader.java, QueryMessageResponseHeader.java,
ViewMessageRequestHeader.java.
"""

from triomq.remoting.protocol.fields import header, wire


@header
class QueryMessageHeader:
    """Messages by key, stored between two times (ms, inclusive).

    `unique_key`: whether the key is a unique id.
    """

    topic: str = wire("topic")
    key: str = wire("key")
    count_max: int = wire("maxNum")
    begin_timestamp: int = wire("beginTimestamp", bits=64)
    end_timestamp: int = wire("endTimestamp", bits=64)
    index_type: str | None = wire("indexType", default=None)
    last_key: str | None = wire("lastKey", default=None)
    unique_key: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)
    broker_name: str | None = wire("bname", default=None)


@header
class QueryMessageResponseHeader:
    index_last_update_timestamp: int = wire("indexLastUpdateTimestamp", bits=64)
    index_last_update_log_offset: int = wire("indexLastUpdatePhyoffset", bits=64)


@header
class ViewMessageHeader:
    """One message by its log offset."""

    offset: int = wire("offset", bits=64)
    topic: str | None = wire("topic", default=None)
    broker_name: str | None = wire("bname", default=None)
