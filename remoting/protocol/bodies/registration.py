"""The body of REGISTER_BROKER (103): plain JSON, or a deflated form of length-prefixed pieces.

Brokers up to 5.3 set ``compressed`` in the header to false for both forms, so the bytes decide.
Source: remoting/…/protocol/body/RegisterBrokerBody.java.
"""

import json
import zlib
from collections.abc import Callable
from struct import Struct

import attrs

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.large_registration import TOPICS_MAX, read_large_registration
from triomq.remoting.protocol.bodies.schema import JsonBody, named
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.fastjson import REQUEST_LIMITS, loads

INFLATED_BYTES_MAX = 64 * 1024 * 1024
WHOLE_BYTES_MAX = 128 * 1024
"""The largest plain body that is parsed in one call."""
_WRAPPER_ONLY_BELOW = 37  # V3_0_11: older brokers send the table alone
_MAPPINGS_FROM = 413  # V5_0_0
_FIX = "send the body as RegisterBrokerBody of RocketMQ 4.x or 5.x does"
_LENGTH = Struct(">i")
_SIZE: Callable[..., tuple[int]] = _LENGTH.unpack_from


@attrs.frozen(eq=False, repr=False)
class RegisterBrokerBody(JsonBody):
    table: TopicTable = named("topicConfigSerializeWrapper", factory=TopicTable)
    filter_server_list: list[str] = attrs.field(factory=list)


def encode_deflated(body: RegisterBrokerBody) -> bytes:
    """Return the deflated form, a tenth of the size of the JSON.

    As in Java, the system flags and order marks of topics are left out.

    Source: RegisterBrokerBody.java#encode, TopicConfig.java#encode.
    """
    table = body.table
    pieces = [_piece(table.data_version.encode()), _LENGTH.pack(len(table.topic_config_table))]
    for topic in table.topic_config_table.values():
        words = [
            topic.topic_name,
            topic.read_queue_count,
            topic.write_queue_count,
            topic.perm,
            topic.topic_filter_type,
        ]
        if topic.attributes:  # a name server of 4.9 reads five words only
            words.append(json.dumps(topic.attributes, ensure_ascii=False, separators=(",", ":")))
        pieces.append(_piece(" ".join(map(str, words)).encode()))
    pieces += [_piece(json.dumps(body.filter_server_list).encode()), _LENGTH.pack(0)]
    return zlib.compress(b"".join(pieces))


def _piece(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def decode_registration(data: bytes, version: int) -> RegisterBrokerBody:
    """Return the body of a broker of this version.

    Raises: RemoteProtocolError if the body cannot be read.
    """
    if version < _WRAPPER_ONLY_BELOW:
        return RegisterBrokerBody(TopicTable.decode(data))
    if data[:1] == b"\x78":
        return _Inflated(_inflate(data)).read(version)
    if len(data) > WHOLE_BYTES_MAX:
        return RegisterBrokerBody(*read_large_registration(data))
    return RegisterBrokerBody.decode(data, REQUEST_LIMITS)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(
            f"the compressed registration cannot be inflated: {error}", _FIX
        ) from None
    if inflater.unconsumed_tail:
        raise RemoteProtocolError(
            f"the registration inflates to more than {INFLATED_BYTES_MAX} bytes", _FIX
        )
    return plain


class _Inflated:
    """A cursor over ``i32 length | bytes`` pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read(self, version: int) -> RegisterBrokerBody:
        data_version = DataVersion.decode(self._piece())
        count = self._count()
        if count > TOPICS_MAX:
            raise RemoteProtocolError(
                f"the registration has {count} topics, at most {TOPICS_MAX} are read",
                "delete topics that nothing uses",
            )
        topics = [_parse_topic(self._piece()) for _ in range(count)]
        servers = loads(self._piece(), REQUEST_LIMITS)
        mappings: dict[str, object] | None = None
        if version >= _MAPPINGS_FROM and self._position < len(self._data):
            mappings = {}
            for _ in range(self._count()):
                mapping = loads(self._piece(), REQUEST_LIMITS)
                if isinstance(mapping, dict) and isinstance(mapping.get("topic"), str):
                    mappings[mapping["topic"]] = mapping
        table = TopicTable({topic.topic_name: topic for topic in topics}, data_version)
        if mappings is not None:
            table = attrs.evolve(table, topic_queue_mapping_info_map=mappings)
        names = [str(server) for server in servers] if isinstance(servers, list) else []
        return RegisterBrokerBody(table, names)

    def _number(self) -> int:
        end = self._position + 4
        if end > len(self._data):
            raise RemoteProtocolError("the compressed registration ends too early", _FIX)
        (number,) = _SIZE(self._data, self._position)
        self._position = end
        return number

    def _count(self) -> int:
        count = self._number()
        if count < 0:
            raise RemoteProtocolError(f"the compressed registration announces {count} pieces", _FIX)
        return count

    def _piece(self) -> bytes:
        size = self._number()
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise RemoteProtocolError(
                f"a piece of {size} bytes overruns the compressed registration", _FIX
            )
        piece = self._data[self._position : end]
        self._position = end
        return piece


def _parse_topic(piece: bytes) -> TopicConfig:
    """Return the topic of ``name readNums writeNums perm filterType {attributes}``."""
    try:
        name, read, write, perm, filter_type, *rest = piece.decode().split(" ", 5)
        attributes = loads(rest[0], REQUEST_LIMITS) if rest and rest[0].strip() else {}
        return TopicConfig(
            topic_name=name,
            read_queue_count=int(read),
            write_queue_count=int(write),
            perm=int(perm),
            topic_filter_type=filter_type,
            attributes={str(key): str(value) for key, value in attributes.items()},
        )
    except (ValueError, AttributeError):
        raise RemoteProtocolError(
            f"cannot read the topic {piece[:80]!r} of a compressed registration", _FIX
        ) from None
