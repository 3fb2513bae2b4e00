"""Every frame captured from real clusters: decoded, understood to the last field, and encoded
again.
"""

import pytest
from body_catalogue import BODIES
from header_catalogue import COMMON_EXT_FIELDS, HEADERS

from tests.support.golden_data import Exchange, exchanges
from triomq.remoting.core.errors import HeaderFieldError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import (
    Command,
    decode_frame,
    encode_command,
    encode_response_head,
)
from triomq.remoting.protocol.fastjson import loads
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.request_decoder import RequestDecoder, decode_ext

RECORD_BODIES = {11, 12, 33, 361, 200050}

# Members that 4.9.4 does not write and that have a default other than zero or nothing.
NEW_MEMBERS = {"groupRetryPolicy", "consumeTimeoutMinute"}
# Header fields that no header class declares, and why: all others must be known.
LEFT_OVER = {"ReqT": "the hook of Java's stream mode adds it to any request; nobody reads it"}
FIELDS = ("code", "opaque", "flag", "language", "version", "remark", "ext", "body", "serialize")

DECODER = RequestDecoder({code: (pair.request, pair.short) for code, pair in HEADERS.items()})


def test_all_captured_exchanges_are_here() -> None:
    assert len(exchanges()) == 496
    assert {exchange.serialize for exchange in exchanges()} == {"JSON", "ROCKETMQ"}


@pytest.mark.parametrize("exchange", exchanges(), ids=str)
def test_request(exchange: Exchange) -> None:
    (frame,) = FrameBuffer().feed(exchange.request)
    command = decode_frame(frame)
    assert (command.code, command.is_oneway) == (exchange.code, exchange.oneway)
    assert not command.is_response
    assert command.serialize.name == exchange.serialize
    same(decode_frame(encode_command(command)[4:]), command)
    if command.serialize is SerializeType.ROCKETMQ:
        assert encode_command(command) == exchange.request
    cls, _, short = HEADERS[exchange.code]
    names = codec_of(cls).names(short=short) if cls is not None else frozenset()
    assert set(command.ext or {}) - names <= LEFT_OVER.keys() <= COMMON_EXT_FIELDS
    decoded = DECODER.decode(frame)
    assert decoded[:6] == (
        command.code,
        command.opaque,
        command.flag,
        command.version,
        command.language,
        command.remark,
    )
    assert (decoded[7], decoded[9]) == (command.serialize, command.body)
    assert decode_ext(decoded[7], decoded[8]) == (command.ext or {})
    if cls is None:
        assert decoded[6] is None
        return
    header = command.header(cls)
    assert decoded[6] == header
    written = codec_of(cls).to_ext(header, short=short)
    wanted = {name: text for name, text in (command.ext or {}).items() if name in names}
    if exchange.code == 30:
        written = {
            name: text for name, text in written.items() if name in wanted
        }  # "committed" is newer than 4.9.4
    assert written == wanted


@pytest.mark.parametrize("exchange", [one for one in exchanges() if one.response], ids=str)
def test_response(exchange: Exchange) -> None:
    assert exchange.response is not None
    (frame,) = FrameBuffer().feed(exchange.response)
    command = decode_frame(frame)
    assert (command.code, command.is_response) == (exchange.response_code, True)
    assert command.opaque == decode_frame(exchange.request[4:]).opaque
    same(decode_frame(encode_command(command)[4:]), command)
    assert DECODER.decode(frame)[:2] == (command.code, command.opaque)
    assert DECODER.decode(frame)[6] is None
    cls = HEADERS[exchange.code].response
    if cls is None:
        assert not command.ext
        return
    assert set(command.ext or {}) <= codec_of(cls).names()
    if command.code in (22, 25) and not command.ext and exchange.code in (11, 14):
        with pytest.raises(HeaderFieldError):
            command.header(cls)
        return
    head = encode_response_head(
        command.header(cls), command.code, command.opaque, command.remark, len(command.body)
    )
    again = decode_frame((head + command.body)[4:])
    assert (again.code, again.opaque, again.remark, again.body) == (
        command.code,
        command.opaque,
        command.remark,
        command.body,
    )
    assert again.ext == (command.ext or {})


def test_no_exception_is_listed_in_vain() -> None:
    seen = {
        name for exchange in exchanges() for name in decode_frame(exchange.request[4:]).ext or {}
    }
    assert seen > LEFT_OVER.keys()


def same(one: Command, other: Command) -> None:
    for name in FIELDS:
        assert getattr(one, name) == getattr(other, name), name


def json_bodies() -> list[tuple[str, type[JsonBody], bytes]]:
    found = []
    for exchange in exchanges():
        asked, answered = BODIES.get(exchange.code, (None, None))
        for frame, cls in ((exchange.request, asked), (exchange.response, answered)):
            if frame is None or (body := decode_frame(frame[4:]).body)[:1] != b"{":
                continue
            assert isinstance(cls, type)
            assert issubclass(cls, JsonBody)
            found.append((str(exchange), cls, bytes(body)))
    return found


def test_every_json_body_is_read_completely_and_written_back() -> None:
    found = json_bodies()
    for where, cls, data in found:
        value = cls.decode(data)
        assert cls.decode(value.encode()) == value, where
        assert cls.decode(value.encode(bare_keys=True)) == value, where
        nothing_lost(loads(data), loads(value.encode()), where)
    assert len(found) > 140


def nothing_lost(before: object, after: object, where: str) -> None:
    if isinstance(before, dict):
        assert isinstance(after, dict)
        assert before.keys() <= after.keys(), where
        for name, value in after.items():
            if name in before:
                nothing_lost(before[name], value, f"{where} {name}")
            else:
                assert not value or value in ({"timestamp": 0}, {}) or name in NEW_MEMBERS, (
                    f"{where} {name}"
                )
    elif isinstance(before, list):
        assert isinstance(after, list)
        assert len(before) == len(after), where
        if before and isinstance(before[0], dict):
            for one, other in zip(before, after, strict=True):
                nothing_lost(one, other, where)
        else:
            assert sorted(before) == sorted(after), where
    else:
        assert before == after, where


def test_records_in_bodies_are_sound() -> None:
    count = 0
    for exchange in exchanges():
        if exchange.code == 39:
            count += len(decode_records(decode_frame(exchange.request[4:]).body, check_crc=True))
        if exchange.code in RECORD_BODIES and exchange.response is not None:
            command = decode_frame(exchange.response[4:])
            for message in decode_records(command.body, check_crc=True):
                count += 1
                assert message.message_id == message.properties["UNIQ_KEY"]
                assert message.store_host[0] == "127.0.0.1"
    assert count >= 70
