"""Properties of messages: their names, and the text ``name 0x01 value 0x02 …`` that carries them.

Source: common/…/message/MessageConst.java, MessageDecoder.java#string2messageProperties.
"""

from collections.abc import Mapping
from typing import Final

from triomq.remoting.core.errors import LocalProtocolError

PROPERTIES_BYTES_MAX = 32767
"""The length of the properties is a signed 16-bit number in every record."""

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
UNIQ_KEY: Final = "UNIQ_KEY"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
TRAN_MSG: Final = "TRAN_MSG"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PRODUCER_GROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
REPLY_TTL: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
FAILURE: Final = "TRIOMQ_FAILURE"
"""Why a message was sent back: the last error of its handler. Java has no such property."""
FAILURE_CHARS_MAX = 200

# As a block, not a list: easier to compare with Java's MessageConst.
RESERVED_PROPERTIES = frozenset(
    """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION
    TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET
    1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
    ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS
    TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
    TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
    """.split()  # noqa: SIM905
)
"""Names that users may not set as their own properties."""


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the properties that an application gives a message.

    Raises: LocalProtocolError for a reserved or blank name, or a blank value.
    """
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise LocalProtocolError(
                f"property {name!r} must be a text with a text as its value, not"
                f" {type(name if isinstance(value, str) else value).__name__}: convert it, for"
                " example with str()"
            )
        if name in RESERVED_PROPERTIES:
            raise LocalProtocolError(f"property {name!r} is reserved; choose another name")
        if not name.strip() or not value.strip():
            raise LocalProtocolError(f"property {name!r} has a blank name or value; leave it out")
    return dict(properties)


def properties_text(properties: Mapping[str, str]) -> str:
    """Return ``name 0x01 value 0x02`` for each property.

    Raises: LocalProtocolError if a name or a value contains a separator.
    """
    text = joined_properties(properties)
    check_separators(text, len(properties))
    return text


def check_separators(text: str, count: int) -> None:
    """Check the text of ``count`` properties.

    Raises: LocalProtocolError if a name or a value contains a separator.
    """
    if text.count("\x01") != count or text.count("\x02") != count:
        raise LocalProtocolError(
            "property names and values must not contain the characters 0x01 and 0x02"
        )


def joined_properties(properties: Mapping[str, str]) -> str:
    """Return the text of properties that come from a record: their values may contain 0x01."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a text.

    Drops pieces without a separator, with an empty name or with an empty value, as Java does.
    """
    properties: dict[str, str] = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the properties' text as UTF-8.

    Raises: LocalProtocolError if a name or a value contains a separator, or cannot be encoded.
    """
    try:
        return properties_text(properties).encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"properties are not valid text: {error}") from error


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """Return the properties of a record; bytes that are not UTF-8 become U+FFFD, as in Java."""
    return parse_properties(str(data, "utf-8", "replace"))


def property_value(data: bytes, name: bytes) -> bytes | None:
    """Return the encoded value of one property, or None: ``decode_properties`` for one name."""
    start = data.rfind(b"\x02" + name + b"\x01")
    if start >= 0:
        start += len(name) + 2
    elif data.startswith(name + b"\x01"):
        start = len(name) + 1
    else:
        return None
    end = data.find(b"\x02", start)
    value = data[start:end] if end >= 0 else data[start:]
    if value:
        return value
    # An empty value is dropped, so that an earlier entry of the same name counts.
    earlier = decode_properties(data).get(name.decode())
    return None if earlier is None else earlier.encode()
