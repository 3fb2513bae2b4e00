"""Messages as users and headers see them: properties text, flag bits, ids, subscriptions.

Source: common/…/message/MessageDecoder.java, MessageConst.java, MessageClientIDSetter.java, sysflag/MessageSysFlag.java,
remoting/…/protocol/filter/FilterAPI.java.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from struct import Struct
from typing import Final, cast

import attrs

from triomq.remoting.errors import LocalProtocolError
from triomq.remoting.protocol.bodies.heartbeat import TAG, SubscriptionData
from triomq.remoting.protocol.java_hash import concat_hash as concat_hash
from triomq.remoting.protocol.java_hash import hash_batch as hash_batch
from triomq.remoting.protocol.java_hash import java_hash as java_hash
from triomq.remoting.protocol.java_hash import tags_code as tags_code
from triomq.remoting.protocol.reprs import short_bytes, short_names, short_text

PROPERTIES_BYTES_MAX = 32767
"""The properties' length is a signed 16-bit number in every record."""

# ------------------------------------------------------------------------------------------------------- flag bits

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
TRANSACTION_MASK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
COMPRESSION_MASK = 0x700
"""Meaningful with COMPRESSED; 0 is zlib, too, from old clients."""

# -------------------------------------------------------------------------------------------------- property names

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
PRODUCER_GROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
POP_CK: Final = "POP_CK"
SHARDING_KEY: Final = "__SHARDINGKEY"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
CRC_PROPERTY: Final = "__CRC32#"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."

RESERVED_PROPERTIES = frozenset(
    """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME
    TRAN_PREPARED_QUEUE_OFFSET DUP_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME
    CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP
    DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#
    """.split()  # noqa: SIM905 - a block of names is easier to compare with Java's than a list
)
"""Names that users may not set as their own properties."""


def user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """A copy of an application's own properties; LocalProtocolError for a reserved or blank name, or a blank value."""
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise LocalProtocolError(f"property {name!r} must be a text with a text as its value, not {type(name if isinstance(value, str) else value).__name__}: convert it, for example with str()")
        if name in RESERVED_PROPERTIES:
            raise LocalProtocolError(f"property {name!r} is reserved; choose another name")
        if not name.strip() or not value.strip():
            raise LocalProtocolError(f"property {name!r} has a blank name or value; leave it out")
    return dict(properties)


def _words(given: Iterable[str]) -> tuple[str, ...]:
    """Keep what is iterated from, once; a message with anything else is refused when it is sent."""
    if type(given) is tuple:
        return given
    return cast("tuple[str, ...]", given) if isinstance(given, str | bytes) or not isinstance(given, Iterable) else tuple(given)


@attrs.frozen(kw_only=True)
class Message:
    """What a user sends: everything that does not depend on the broker."""

    topic: str = attrs.field(repr=short_text)
    body: bytes = attrs.field(repr=short_bytes)
    tag: str | None = attrs.field(default=None, repr=short_text)
    keys: tuple[str, ...] = attrs.field(default=(), converter=_words, repr=lambda keys: short_text(" ".join(keys)))
    properties: Mapping[str, str] = attrs.field(factory=dict, repr=short_names)
    flag: int = 0
    wait_stored: bool = True

    def wire_properties(self) -> dict[str, str]:
        """All properties as they travel, without the id; LocalProtocolError for a reserved or blank user property."""
        made = user_properties(self.properties)
        if self.tag:
            made[TAGS] = self.tag
        if self.keys:
            made[KEYS] = " ".join(self.keys)
        made[WAIT] = "true" if self.wait_stored else "false"
        return made


# ------------------------------------------------------------------------------------------------- properties text


def properties_text(properties: Mapping[str, str]) -> str:
    """``name 0x01 value 0x02`` for each; LocalProtocolError if a name or value contains one of the separators."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise LocalProtocolError("property names and values must not contain the characters 0x01 and 0x02")
    return text


def parse_properties(text: str) -> dict[str, str]:
    """Read the text form: pieces without separator, with an empty name or an empty value are dropped, as in Java."""
    properties: dict[str, str] = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The text form as bytes; LocalProtocolError for separators inside, or text that is not Unicode."""
    try:
        return properties_text(properties).encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"properties are not valid text: {error}") from error


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """The properties of a record; bytes that are no UTF-8 become U+FFFD, as in Java."""
    return parse_properties(str(data, "utf-8", "replace"))


def property_value(data: bytes, name: bytes) -> bytes | None:
    """One property of the encoded text without decoding the others, else the same as ``decode_properties``."""
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
    # Empty values are dropped, so an earlier entry of the same name counts: rare enough to take the long way.
    earlier = decode_properties(data).get(name.decode())
    return None if earlier is None else earlier.encode()


# ------------------------------------------------------------------------------------------------------------- ids

_HOST_TAIL = Struct(">iq")
_HEX = [f"{byte:02X}" for byte in range(256)]


def offset_message_id(host: bytes, port: int, log_offset: int) -> str:
    """The id that says where a record lies: broker address (4 or 16 bytes), port, offset in its log."""
    return (host + _HOST_TAIL.pack(port, log_offset)).hex().upper()


def offset_message_ids(store_host: bytes, log_offsets: Iterable[int]) -> list[str]:
    """The same for several records of one broker, whose encoded host (address and port) is given as in records."""
    prefix = store_host.hex().upper()
    return [f"{prefix}{log_offset:016X}" for log_offset in log_offsets]


def decode_offset_message_id(message_id: str) -> tuple[bytes, int, int]:
    """Address bytes, port and log offset of an offset id; ValueError if it is none.

    A unique id has the same length and shape, so success does not prove that it is one.
    """
    if len(message_id) not in (32, 56):
        raise ValueError(f"{message_id!r} is no offset message id: 32 or 56 hexadecimal digits expected")
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        raise ValueError(f"{message_id!r} is no offset message id: not hexadecimal") from None
    if len(data) != len(message_id) // 2:
        raise ValueError(f"{message_id!r} is no offset message id: blanks inside")
    port, log_offset = _HOST_TAIL.unpack_from(data, len(data) - _HOST_TAIL.size)
    return data[: -_HOST_TAIL.size], port, log_offset


class UniqueIds:
    """Makes the ids that clients give their messages (UNIQ_KEY): sortable by time, unique per process.

    Layout: address (4 or 16 bytes), pid (low 16 bits), *seed* (32 bits; Java takes a hash, we take anything random),
    milliseconds since the local start of the month (32 bits), counter (16 bits). Fewer than 65,536 ids per millisecond
    keep them unique. After a fork make a new object.
    """

    __slots__ = ("_counter", "_last_ms", "_month_end_ms", "_month_start_ms", "_prefix", "_stamp", "_zone")

    def __init__(self, address: bytes, pid: int, seed: int, *, utc_offset_seconds: int = 0) -> None:
        if len(address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")
        fixed = address + (pid & 0xFFFF).to_bytes(2, "big") + (seed & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = fixed.hex().upper()
        self._counter = 0
        self._stamp = ""
        self._last_ms = -1
        self._zone = timezone(timedelta(seconds=utc_offset_seconds))
        self._month_start_ms = self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """One more id: 32 characters for IPv4, 56 for IPv6."""
        if now_ms != self._last_ms:  # at a high rate many share a millisecond
            if not self._month_start_ms <= now_ms < self._month_end_ms:
                self._find_month(now_ms)
            self._stamp = f"{self._prefix}{(now_ms - self._month_start_ms) & 0xFFFFFFFF:08X}"
            self._last_ms = now_ms
        counter = self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._stamp}{_HEX[counter >> 8]}{_HEX[counter & 0xFF]}"

    def _find_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, self._zone)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + timedelta(days=32)).replace(day=1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(end.timestamp() * 1000)


# --------------------------------------------------------------------------------------------------- subscriptions

ALL_TAGS = "*"


def subscription(topic: str, expression: str | None, version: int) -> SubscriptionData:
    """What a tag expression (``A || B``, ``*``, or nothing for all) subscribes; *version* is the time in ms.

    LocalProtocolError if it names no tag.
    """
    if not expression or expression.strip() == ALL_TAGS:
        return SubscriptionData(topic=topic, sub_string=ALL_TAGS, sub_version=version)
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    if not tags:
        raise LocalProtocolError(f"the expression {expression!r} names no tag; write for example 'A || B' or '*'")
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags=tags,
        codes=frozenset(tags_code(tag) for tag in tags),
        sub_version=version,
        expression_type=TAG,
    )
