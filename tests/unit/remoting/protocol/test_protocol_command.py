"""Commands and frames: worked examples byte for byte, and what each side must refuse."""

import json

import pytest

from triomq.remoting.core.errors import HeaderFieldError, LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.codes import LanguageCode, RequestCode, SerializeType
from triomq.remoting.protocol.command import (
    Command,
    decode_frame,
    encode_command,
    encode_response_head,
    request,
    response_to,
)
from triomq.remoting.protocol.headers.client import HeartbeatResponseHeader
from triomq.remoting.protocol.headers.offset import OffsetResponseHeader, UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.send import SendMessageHeader, SendMessageResponseHeader

JSON_REQUEST = bytes.fromhex(
    """
    00000084 00000080
    7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696341227d2c22666c
    6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a372c2273657269616c697a6554
    79706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d
    """
)
BINARY_ONEWAY = bytes.fromhex(
    """
    0000005c 01000058 000f 00 01df 00000008 00000002 00000000 00000043
    0007 71756575654964 00000001 33
    000c 636f6d6d69744f6666736574 00000002 3432
    0005 746f706963 00000001 54
    000d 636f6e73756d657247726f7570 00000002 4347
    """
)
JSON_RESPONSE_HEADER = (
    b'{"code":19,"flag":1,"language":"JAVA","opaque":9,"remark":"PULL_NOT_FOUND",'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)


def frame_of(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """A frame without its first four bytes."""
    return (kind << 24 | len(header)).to_bytes(4, "big") + header + body


def json_frame(**members: object) -> bytes:
    return frame_of(json.dumps(members).encode())


def test_json_request_example() -> None:
    command = decode_frame(JSON_REQUEST[4:])
    assert (command.code, command.opaque, command.flag) == (
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        7,
        0,
    )
    assert (command.version, command.language) == (479, LanguageCode.JAVA)
    assert not command.is_response
    assert not command.is_oneway
    assert command.header(GetRouteHeader) == GetRouteHeader("TopicA")
    assert encode_command(command) == JSON_REQUEST


def test_binary_oneway_example() -> None:
    command = decode_frame(BINARY_ONEWAY[4:])
    assert command.is_oneway
    assert command.serialize is SerializeType.ROCKETMQ
    assert command.header(UpdateConsumerOffsetHeader) == UpdateConsumerOffsetHeader(
        "CG", "T", 3, 42
    )
    assert encode_command(command) == BINARY_ONEWAY


def test_json_response_example() -> None:
    whole = bytes.fromhex("0000007e0000007a") + JSON_RESPONSE_HEADER
    command = decode_frame(whole[4:])
    assert command.is_response
    assert (command.code, command.remark, command.ext) == (19, "PULL_NOT_FOUND", None)
    assert encode_command(command) == whole


def test_the_minimal_request() -> None:
    text = (
        b'{"code":105,"flag":0,"language":"JAVA","opaque":0,"serializeTypeCurrentRPC":"JSON",'
        b'"version":0}'
    )
    command = decode_frame(frame_of(text, b"xyz"))
    assert (command.code, command.version, command.body) == (105, 0, b"xyz")


def test_send_codes_take_the_one_letter_names() -> None:
    header = SendMessageHeader("PG", "T", "TBW102", 4, 0, 0, 1, 0)
    assert set(request(RequestCode.SEND_MESSAGE_V2, header).ext or {}) == set("abcdefgh")
    assert "producerGroup" in (request(RequestCode.SEND_MESSAGE, header).ext or {})
    assert request(RequestCode.SEND_MESSAGE_V2, header).header(SendMessageHeader) == header


def test_response_copies_opaque_and_serialisation() -> None:
    asked = Command(code=30, opaque=-5, serialize=SerializeType.ROCKETMQ)
    answer = response_to(asked, 0, OffsetResponseHeader(9), b"", "fine")
    decoded = decode_frame(encode_command(answer)[4:])
    assert (decoded.opaque, decoded.serialize, decoded.is_response) == (
        -5,
        SerializeType.ROCKETMQ,
        True,
    )
    assert (decoded.remark, decoded.header(OffsetResponseHeader)) == (
        "fine",
        OffsetResponseHeader(9),
    )


def test_codes_beyond_16_bits_are_written_as_json_always() -> None:
    command = Command(
        code=RequestCode.POP_MESSAGE, serialize=SerializeType.ROCKETMQ, ext={"topic": "T"}
    )
    decoded = decode_frame(encode_command(command)[4:])
    assert (decoded.code, decoded.serialize) == (200050, SerializeType.JSON)


def test_quirks_of_other_writers_are_read() -> None:
    text = (
        b'{ "version" : "401", "opaque":"12","language":9,"unknown":[1],'
        b'"extFields":{"queueId":3,"batch":true,"x":{"a":1},"none":null},"code":11}'
    )
    command = decode_frame(frame_of(text))
    assert (command.code, command.opaque, command.version, command.flag) == (11, 12, 401, 0)
    assert command.language == LanguageCode.GO
    assert command.ext == {"queueId": "3", "batch": "true", "x": '{"a":1}'}


@pytest.mark.parametrize("language", ["KLINGON", "", 7])
def test_an_unknown_language_is_other(language: object) -> None:
    assert decode_frame(json_frame(code=1, language=language)).language == LanguageCode.OTHER


@pytest.mark.parametrize(
    ("language", "number"),
    [(None, LanguageCode.JAVA), ("go", LanguageCode.GO), ("node_js", LanguageCode.NODE_JS)],
)
def test_a_language_is_found_as_java_finds_it(language: object, number: int) -> None:
    assert decode_frame(json_frame(code=1, language=language)).language == number
    assert decode_frame(json_frame(code=1)).language == LanguageCode.JAVA


def test_single_quotes_and_bare_keys_are_read() -> None:
    assert decode_frame(frame_of(b"{code:34,opaque:5,extFields:{'a':'b'}}")).ext == {"a": "b"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"code":1',
        b"\xff\xfe",
        b'{"opaque":"x"}',
        b'{"opaque":true}',
        b'{"opaque":1.5}',
        b'{"opaque":2147483648}',
        b'{"code":99999999999999999999999}',
        b'{"extFields":"x"}',
        b'{"extFields":[1]}',
    ],
)
def test_json_headers_that_java_could_not_read_either(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_frame(frame_of(header))
    assert caught.value.reason
    assert caught.value.fix


def test_a_deep_header_breaks_nothing() -> None:
    """How deep a decoder reads unknown members depends on the Python; it must return or refuse."""
    header = b'{"code":34,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    frame = len(header).to_bytes(4, "big") + header
    try:
        code = decode_frame(frame).code
    except RemoteProtocolError:
        code = 34
    assert code == 34
    assert decode_frame((13).to_bytes(4, "big") + b'{"code":  34}').code == 34, (
        "the next frame is read"
    )


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x05abc",  # header longer than the frame
        b"\x02\0\0\x02{}",  # unknown serialisation
        b"\x01\0\0\x00",  # binary header of no bytes
        b"\x01\0\0\x10" + bytes(16),  # shorter than its fixed part
        frame_of(bytes(13) + (100).to_bytes(4, "big") + bytes(4), kind=1),  # remark overruns
        frame_of(
            bytes(17) + (-1).to_bytes(4, "big", signed=True), kind=1
        ),  # negative length of the entries
        frame_of(bytes(17) + (3).to_bytes(4, "big") + b"\0\x09a", kind=1),  # name overruns
        frame_of(
            bytes(17) + (9).to_bytes(4, "big") + b"\0\x01a\0\0\0\x7fxx", kind=1
        ),  # value overruns
    ],
)
def test_damaged_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frame(frame)


def test_bytes_that_are_not_utf_8_become_replacement_characters() -> None:
    entry = b"\0\x01\xff\0\0\0\x01\xfe"
    binary = frame_of(bytes(17) + len(entry).to_bytes(4, "big") + entry, kind=1)
    json_text = frame_of(b'{"code":0,"extFields":{"\xff":"\xfe"}}')
    assert decode_frame(binary).ext == decode_frame(json_text).ext == {"\ufffd": "\ufffd"}


def test_a_repeated_binary_entry_overwrites_the_first() -> None:
    entry = b"\0\x01a\0\0\0\x01"
    entries = entry + b"1" + entry + b"2"
    assert decode_frame(
        frame_of(bytes(17) + len(entries).to_bytes(4, "big") + entries, kind=1)
    ).ext == {"a": "2"}


def test_missing_and_unreadable_header_fields_name_the_frame() -> None:
    for ext in (
        {"topic": "T"},
        {"topic": "T", "consumerGroup": "G", "queueId": "x", "commitOffset": "1"},
        None,
    ):
        command = Command(code=15, opaque=77, flag=2, ext=ext)
        with pytest.raises(HeaderFieldError, match="UpdateConsumerOffsetHeader") as caught:
            command.header(UpdateConsumerOffsetHeader)
        assert (caught.value.code, caught.value.opaque, caught.value.flag) == (15, 77, 2)


def test_numbers_too_wide_for_their_java_field_are_refused() -> None:
    fine = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "2147483647",
        "commitOffset": str(2**63 - 1),
    }
    assert Command(15, ext=fine).header(UpdateConsumerOffsetHeader).commit_offset == 2**63 - 1
    for name, value in (("queueId", "2147483648"), ("commitOffset", str(2**63))):
        with pytest.raises(HeaderFieldError):
            Command(15, ext={**fine, name: value}).header(UpdateConsumerOffsetHeader)


def test_a_blank_optional_number_counts_as_absent() -> None:
    ext = {
        **dict.fromkeys("ab", "x"),
        "c": "TBW102",
        **dict.fromkeys("defgh", "0"),
        "j": "",
        "k": "",
        "i": "",
    }
    header = Command(310, ext=ext).header(SendMessageHeader)
    assert (header.reconsume_times, header.unit_mode, header.properties) == (None, None, "")


def test_response_heads_equal_the_slow_path() -> None:
    headers = [
        None,
        OffsetResponseHeader(-1),
        HeartbeatResponseHeader(),
        HeartbeatResponseHeader(subscription_changed=False),
        SendMessageResponseHeader(
            'quote " back \\ \n 中文', 1, 2, trace_on=True, recall_handle="a=="
        ),
    ]
    for header in headers:
        for serialize in SerializeType:
            asked = Command(code=30, opaque=-7, serialize=serialize)
            expected = decode_frame(
                encode_command(response_to(asked, 21, header, b"body", 'remark "x"'))[4:]
            )
            head = encode_response_head(header, 21, -7, 'remark "x"', 4, serialize)
            got = decode_frame((head + b"body")[4:])
            assert int.from_bytes(head[:4], "big") == len(head + b"body") - 4
            for name in (
                "code",
                "opaque",
                "flag",
                "language",
                "version",
                "remark",
                "ext",
                "body",
                "serialize",
            ):
                assert getattr(got, name) == getattr(expected, name), name


def test_extra_entries_join_those_of_the_header() -> None:
    head = encode_response_head(OffsetResponseHeader(1), 0, 5, None, 0, 0, {"more": "x"})
    assert decode_frame(head[4:]).ext == {"offset": "1", "more": "x"}
    assert decode_frame(encode_response_head(None, 0, 5, None, 0, 0, {})[4:]).ext == {}


def test_what_cannot_be_written_is_our_error() -> None:
    unprintable = "\ud800"
    with pytest.raises(LocalProtocolError):
        encode_command(Command(1, remark=unprintable))
    with pytest.raises(LocalProtocolError):
        encode_command(Command(1, ext={"a": unprintable}, serialize=SerializeType.ROCKETMQ))
    with pytest.raises(LocalProtocolError):
        encode_response_head(SendMessageResponseHeader(unprintable, 0, 0), 0, 0)
    with pytest.raises(LocalProtocolError):
        encode_response_head(OffsetResponseHeader(None), 0, 0)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        request(30, OffsetResponseHeader("x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a header class"):
        request(30, object())
