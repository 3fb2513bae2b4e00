"""What a client says about a call, and the texts and metadata of an answer."""

from __future__ import annotations

import math
from http import HTTPStatus

import pytest

from triomq.remoting.grpc.call_head import NotGrpc, read_head, read_timeout, require_trailer
from triomq.remoting.grpc.header_decoder import HeaderDecoder
from triomq.remoting.grpc.header_entry import header_entry
from triomq.remoting.grpc.status import (
    STATUS_TEXT_BYTES_MAX,
    CallFailed,
    GrpcStatus,
    decode_text,
    encode_text,
)

BASE = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/apache.rocketmq.v2.MessagingService/Telemetry",
    b":authority": b"localhost:8081",
    b"content-type": b"application/grpc",
    b"te": b"trailers",
}


def head_of(*more: tuple[bytes, bytes], **changed: bytes):
    headers = BASE | {name.replace("_", "-").encode(): value for name, value in changed.items()}
    return read_head([header_entry(*header) for header in (*headers.items(), *more)])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"3S", 3),
        (b"1500m", 1.5),
        (b"2M", 120),
        (b"8760H", 365 * 86_400),  # Python's client: a year of telemetry
        (b"525960H", 525_960 * 3600),  # Java's: 60 years
        (b"99999999H", 99_999_999 * 3600),
        (b"250u", 0.00025),
        (b"100n", 1e-7),
        (b"0S", 0),
    ],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert read_timeout(value) == pytest.approx(seconds)
    assert head_of((b"grpc-timeout", value)).timeout_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [b"3", b"S", b"", b"123456789S", b"-1S", b"1.5S", b"3s", b"\xb2S"]
)
def test_timeouts_that_cannot_be_read(value: bytes) -> None:
    with pytest.raises(CallFailed, match="eight digits"):
        read_timeout(value)


def test_a_call_without_more_headers() -> None:
    head = head_of()
    assert head.path == "/apache.rocketmq.v2.MessagingService/Telemetry"
    assert (head.timeout_seconds, head.gzip, head.metadata) == (math.inf, False, {})


def test_metadata() -> None:
    head = head_of(
        (b"x-mq-client-id", b"a@1@0@x"),
        (b"x-mq-namespace", b""),
        (b"x-list", b"1"),
        (b"x-list", b"2"),
        (b"x-data-bin", b"AP8K"),
        (b"x-padded-bin", b"AP8=,AA=="),
        (b"x-wrong-bin", b"?"),
        (b"grpc-accept-encoding", b"gzip"),
        (b"user-agent", b"grpc-java"),
    )
    assert head.metadata == {
        "x-mq-client-id": "a@1@0@x",
        "x-mq-namespace": "",
        "x-list": "2",
        "x-data-bin": "AP8K",
        "x-padded-bin": "AP8=,AA==",
        "x-wrong-bin": "?",
        "user-agent": "grpc-java",
    }
    assert head.binary("x-data-bin") == b"\0\xff\n"
    assert head.binary("x-padded-bin") == b"\0\xff"
    assert head.binary("x-wrong-bin") is head.binary("x-none-bin") is None


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({":method": b"GET"}, HTTPStatus.METHOD_NOT_ALLOWED),
        ({"content_type": b""}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        ({"content_type": b"application/json"}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        ({"content_type": b"application/grpc-web"}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        ({"content_type": b"application/grpc+json"}, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    ],
)
def test_what_is_no_call(changed: dict[str, bytes], status: HTTPStatus) -> None:
    with pytest.raises(NotGrpc) as caught:
        head_of(**changed)
    assert caught.value.status is status


@pytest.mark.parametrize(
    "content_type", [b"application/grpc+proto", b"application/grpc; charset=utf-8"]
)
def test_other_spellings_of_the_content_type(content_type: bytes) -> None:
    assert head_of(content_type=content_type).path


def test_encodings() -> None:
    assert head_of((b"grpc-encoding", b"gzip")).gzip
    assert not head_of((b"grpc-encoding", b"identity")).gzip
    with pytest.raises(CallFailed) as caught:
        head_of((b"grpc-encoding", b"snappy"))
    assert caught.value.status is GrpcStatus.UNIMPLEMENTED
    assert caught.value.trailers == (("grpc-accept-encoding", "identity,gzip"),)


def test_the_size_of_headers_is_that_of_the_rfc() -> None:
    assert header_entry(b"a", b"bc").size == 3 + 32
    block = b"\x00\x01a\x02bc" + b"\x40\x01d\x00" + b"\xbe"
    headers, size = HeaderDecoder(1000).decode(block)
    assert [header[:2] for header in headers] == [(b"a", b"bc"), (b"d", b""), (b"d", b"")]
    assert size == 3 + 32 + 2 * (1 + 32)


@pytest.mark.parametrize(
    "header",
    [
        *((name, b"") for name in (b"X", b"x y", b"x\n", b"x\0", b"\xfc", b"x\x7f")),
        *((b"x", value) for value in (b"a\nb", b"a\r", b"\0")),
    ],
)
def test_forbidden_characters_of_headers(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(NotGrpc) as caught:
        head_of(header)
    assert caught.value.status is HTTPStatus.BAD_REQUEST


def test_a_name_of_the_table_is_checked_again_with_each_value() -> None:
    """``x: (line feed)``, then ``x: good`` and ``x: (NUL)``, which name the first by its number."""
    decoder = HeaderDecoder(1000)
    for block, forbidden in (
        (b"\x40\x01x\x01\n", True),
        (b"\x7e\x04good", False),
        (b"\x7e\x01\0", True),
        (b"\xbf", False),
        (b"\xbe", True),
        (b"\x40\x01X\x01v", True),
        (b"\x7e\x01w", True),
    ):
        headers, _ = decoder.decode(block)
        entries = [header_entry(*header) for header in BASE.items()] + headers
        try:
            assert read_head(entries).metadata["x"] == "good"
        except NotGrpc:
            assert forbidden, block
        else:
            assert not forbidden, block


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", b""),
        ("plain text: ~!", b"plain text: ~!"),
        ("100%\r\n", b"100%25%0D%0A"),
        ("ü “x”", b"%C3%BC %E2%80%9Cx%E2%80%9D"),
    ],
)
def test_texts_of_a_status(text: str, value: bytes) -> None:
    assert encode_text(text) == value
    assert decode_text(value) == text


def test_a_long_text_is_cut_between_characters() -> None:
    value = encode_text("ü" * 10_000)
    assert STATUS_TEXT_BYTES_MAX - 6 < len(value) <= STATUS_TEXT_BYTES_MAX
    assert set(decode_text(value)) == {"ü"}


@pytest.mark.parametrize("value", [b"%", b"%4", b"%zz", b"100%", b"%%41"])
def test_an_invalid_percent_stays(value: bytes) -> None:
    assert decode_text(value).startswith(("%", "1"))


def test_trailers_are_checked_where_they_are_set() -> None:
    assert require_trailer("x-a", "b c") == ("x-a", "b c")
    for name in ("", "X-A", "x a", "grpc-status", "content-type", ":path", "x\n"):
        with pytest.raises(ValueError, match="no name of metadata"):
            require_trailer(name, "x")
    for value in ("ü", "a\nb", "\x7f"):
        with pytest.raises(ValueError, match="printable ASCII"):
            require_trailer("x-a", value)
