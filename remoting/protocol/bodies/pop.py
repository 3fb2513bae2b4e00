"""Acknowledgements of many messages at once: 200151.

Source: remoting/…/protocol/body/BatchAckMessageRequestBody.java, BatchAck.java,
BitSetSerializerDeserializer.java.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Self

import attrs

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody, json_name, named
from triomq.remoting.protocol.fastjson import JsonLimits, loads

_LONG_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}
_BITS_MAX = 1 << 20
_NOT_ZERO = re.compile(rb"[^\0]")
_FIX = "send the body as BatchAckMessageRequestBody of RocketMQ 5.x does"


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BatchAck(JsonBody):
    """Messages of one pop and one queue.

    ``topic`` is the original topic; ``retry`` ``1`` or ``2`` means its retry topic. ``bits`` is
    base64 of a little-endian bit set: bit i stands for the offset ``start_offset + i``.
    """

    consumer_group: str = attrs.field(metadata=json_name("c"))
    topic: str = attrs.field(metadata=json_name("t"))
    retry: str = named("r", default="0")
    start_offset: int = attrs.field(metadata=json_name("so"))
    queue_id: int = attrs.field(metadata=json_name("q"))
    revive_queue_id: int = attrs.field(metadata=json_name("rq"))
    pop_time: int = attrs.field(metadata=json_name("pt"))
    invisible_ms: int = attrs.field(metadata=json_name("it"))
    bits: str = named("b", default="")

    def offsets(self, count_max: int = _BITS_MAX) -> list[int]:
        """Return the acknowledged offsets in order.

        Raises: RemoteProtocolError if the bit set is unreadable, or names more than ``count_max``.
        """
        try:
            data = b64decode(self.bits, validate=True)
        except ValueError as error:
            raise RemoteProtocolError(
                f"the bit set of a batch acknowledgement is not base64: {error}", _FIX
            ) from None
        if len(data) * 8 > _BITS_MAX:
            raise RemoteProtocolError(
                f"a batch acknowledgement names more than {_BITS_MAX} offsets", _FIX
            )
        number = int.from_bytes(data, "little")
        if number.bit_count() > count_max:
            raise RemoteProtocolError(
                f"a part of the batch names more than {count_max} messages, which no pop gives",
                _FIX,
            )
        return [
            self.start_offset + 8 * place + bit
            for place in (found.start() for found in _NOT_ZERO.finditer(data))
            for bit in range(8)
            if data[place] >> bit & 1
        ]


def offset_bits(start_offset: int, offsets: Iterable[int]) -> str:
    """Return the text for ``BatchAck.bits``; no offset may be less than ``start_offset``."""
    number = 0
    for offset in offsets:
        number |= 1 << (offset - start_offset)
    return b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


@attrs.frozen(eq=False, repr=False)
class BatchAckBody(JsonBody):
    """Body of 200151. Long names of members are read, too."""

    broker_name: str | None = None
    acks: list[BatchAck] = attrs.field(factory=list)

    @classmethod
    def decode(cls, data: bytes | memoryview, limits: JsonLimits | None = None) -> Self:
        plain = loads(data, limits)
        if isinstance(plain, dict) and isinstance(plain.get("acks"), list):
            plain = {**plain, "acks": [_short_names(ack) for ack in plain["acks"]]}
        return cls.from_plain(plain)


def _short_names(ack: Any) -> Any:
    return (
        {_LONG_NAMES.get(name, name): value for name, value in ack.items()}
        if isinstance(ack, dict)
        else ack
    )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OrderedPopBody(JsonBody):
    """The last pop of one queue by one group."""

    pop_time: int = 0
    invisible_ms: int = attrs.field(default=0, metadata=json_name("i"))
    offsets: list[int] = named("o", factory=list)
    """The first one, then what each lies behind the first."""
    visible_at: dict[int, int] = named("ot", factory=dict)
    """Offset -> when it is visible again (ms), if not with the others."""
    counts: dict[int, int] = named("oc", factory=dict)
    """Offset -> how often it was popped before."""
    last_ms: int = attrs.field(default=0, metadata=json_name("l"))
    bits: int = attrs.field(default=0, metadata=json_name("cm"))
    """Bit i: the i-th message is acknowledged."""
    attempt_id: str | None = named("a", default=None)
    done: list[int] | None = named("done", default=None)
    """Ours, Java ignores it: acknowledged offsets that the last pop did not read."""
    since: int | None = named("since", default=None)
    """Ours: when a start found the clock behind ``pop_time`` (ms)."""


@attrs.frozen(eq=False, repr=False)
class OrderedPopTable(JsonBody):
    """``topic@group`` -> queue id -> its last pop."""

    table: dict[str, dict[int, OrderedPopBody]] = attrs.field(factory=dict)
