"""The fast and the slow path read the same request."""

import json
import tracemalloc

import attrs
import pytest

from triomq.remoting.core.errors import HeaderFieldError, RemoteProtocolError
from triomq.remoting.protocol.codes import LanguageCode, SerializeType
from triomq.remoting.protocol.command import Command, encode_command, request
from triomq.remoting.protocol.header_json import find_code
from triomq.remoting.protocol.header_rocketmq_fast import LEARN_EVERY
from triomq.remoting.protocol.headers.offset import GetMinOffsetHeader
from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.headers.topic import AllTopicsHeader
from triomq.remoting.protocol.request_decoder import RequestDecoder, decode_ext

SEND = SendMessageHeader(
    "PG", "T", "TBW102", 4, 0, 0, 1, 0, "WAIT\x01true\x02", batch=False, broker_name="b"
)
DECODER = RequestDecoder(
    {
        31: (GetMinOffsetHeader, False),
        310: (SendMessageHeader, True),
        10: (SendMessageHeader, False),
        21: (AllTopicsHeader, False),
        34: (None, False),
    }
)


def frame_of(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(4, "big") + header + body


def json_frame(**members: object) -> bytes:
    return frame_of(json.dumps(members).encode())


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize("serialize", list(SerializeType))
def test_a_send_request(code: int, serialize: SerializeType) -> None:
    command = request(code, SEND, b"body")
    command.opaque, command.serialize, command.remark = 7, serialize, "r"
    decoded = DECODER.decode(encode_command(command)[4:])
    assert decoded[:8] == (code, 7, 0, 479, LanguageCode.PYTHON, "r", SEND, serialize)
    assert decoded[9] == b"body"
    assert decode_ext(decoded[7], decoded[8]) == command.ext


def test_codes_without_header_and_unknown_codes_have_no_header_object() -> None:
    for code in (34, 12345, -1):
        decoded = DECODER.decode(json_frame(code=code, opaque=1, extFields={"x": "y"}))
        assert (decoded[0], decoded[6]) == (code, None)
        assert decode_ext(0, decoded[8]) == {"x": "y"}


@pytest.mark.parametrize("ext", ["JSON", ["x", "y"], 1, True])
def test_ext_fields_other_than_an_object_are_refused_for_every_code(ext: object) -> None:
    for code in (31, 21, 34, 12345):
        with pytest.raises(
            RemoteProtocolError, match="extFields of the JSON header is not an object"
        ):
            DECODER.decode(json_frame(code=code, opaque=1, extFields=ext))


def test_a_header_of_options_may_be_absent_altogether() -> None:
    assert DECODER.decode(json_frame(code=21))[6] == AllTopicsHeader()
    assert DECODER.decode(json_frame(code=21, extFields=None))[6] == AllTopicsHeader()
    assert DECODER.decode(json_frame(code=21, extFields={"topicSeq": 5}))[6] == AllTopicsHeader(5)


@pytest.mark.parametrize(
    "text",
    [
        '{"remark":"\\"code\\":310,","code":31,"opaque":5,"extFields":{"topic":"T","queueId":"1"}}',
        '{"extFields":{"code":"310","topic":"T","queueId":"1"},"opaque":5,"code":31}',
        '{"extFields":{"topic":"T","queueId":1},"opaque":"5","code":"31"}',
        '{"code":31,"opaque":5,"extFields":{"topic":"T","queueId":"1"},"code":31}',
        '{"code":310,"opaque":5,"extFields":{"topic":"T","queueId":"1"},"code":31}',
        '{"code" : 31 ,"opaque":5,"extFields":{"topic":"T","queueId":"1"}}',
        "{code:31,opaque:5,extFields:{topic:'T',queueId:'1'}}",
    ],
)
def test_a_wrong_guess_at_the_code_does_no_harm(text: str) -> None:
    for _ in range(2):  # the second time the choice may come from the table of prefixes
        decoded = DECODER.decode(frame_of(text.encode()))
        assert (decoded[0], decoded[1], decoded[6]) == (31, 5, GetMinOffsetHeader("T", 1))


def test_responses_are_not_taken_for_requests() -> None:
    for ext in ({}, {"topic": "T", "queueId": "1"}):
        decoded = DECODER.decode(json_frame(code=31, opaque=9, flag=1, extFields=ext))
        assert (decoded[0], decoded[1], decoded[2], decoded[6]) == (31, 9, 1, None)
    answer = Command(31, opaque=9, flag=1, serialize=SerializeType.ROCKETMQ)
    assert DECODER.decode(encode_command(answer)[4:])[6] is None


@pytest.mark.parametrize("serialize", list(SerializeType))
def test_a_bad_header_field_leaves_the_request_answerable(serialize: SerializeType) -> None:
    for ext in ({}, {"topic": "T"}, {"topic": "T", "queueId": "x"}):
        command = Command(31, opaque=-9, flag=2, ext=ext, serialize=serialize)
        with pytest.raises(HeaderFieldError, match="GetMinOffsetHeader") as caught:
            DECODER.decode(encode_command(command)[4:])
        assert (caught.value.code, caught.value.opaque, caught.value.flag) == (31, -9, 2)


def test_damaged_headers_are_remote_errors() -> None:
    for header in (b"", b"{", b"[]", b'{"code":31,"opaque":"x"}', b"\xff" * 20):
        with pytest.raises(RemoteProtocolError) as caught:
            DECODER.decode(frame_of(header))
        assert not isinstance(caught.value, HeaderFieldError)
    with pytest.raises(RemoteProtocolError, match="unknown header type 2"):
        DECODER.decode(b"\x02\0\0\0")


def test_finding_the_code() -> None:
    assert find_code(b'{"code":310,"x":1}') == 310
    assert find_code(memoryview(b'{"x":1,"code" : "-7"}')) == -7
    assert find_code(b"{}") == find_code(b"") == -1


def test_learned_headers_do_not_keep_the_properties_of_messages() -> None:
    """Clients choose the size of properties; only fixed parts are limited when they are learned."""
    frames = []
    for number in range(LEARN_EVERY * 20):
        send = attrs.evolve(SEND, topic=f"T{number}", properties="x" * 100_000)
        command = request(310, send, b"")
        command.serialize = SerializeType.ROCKETMQ
        frames.append(encode_command(command)[4:])
    decoder = RequestDecoder({310: (SendMessageHeader, True)})
    tracemalloc.start()
    try:
        for frame in frames:
            decoder.decode(frame)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
