"""Headers of message queries: 12 and 33.

Source: remoting/…/header/QueryMessageRequestHeader.java, QueryMessageResponseHeader.java,
ViewMessageRequestHeader.java.
"""

from triomq.remoting.protocol.fields import header, wire

INDEX_OF_TAGS = "T"
"""Source: MessageConst.INDEX_TAG_TYPE"""


@header
class QueryMessageHeader:
    """Messages by key, stored between two times (ms, inclusive).

    - `index_type`: `T` if the key is a tag (since 5.5.0); everything else: a key or unique id.
    - `last_key`: where Java's index in RocksDB goes on; other indexes do not read it.
    - `unique_key`: whether the key is a unique id.
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
