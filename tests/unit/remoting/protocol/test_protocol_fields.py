"""Declaring header classes: what is allowed, and what the generated code does with odd values."""

import attrs
import pytest
from header_catalogue import HEADERS

from triomq.remoting.core.errors import HeaderFieldError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import encode_command, encode_response_head, request
from triomq.remoting.protocol.fields import codec_of, header, wire
from triomq.remoting.protocol.headers.offset import GetMaxOffsetHeader
from triomq.remoting.protocol.request_decoder import RequestDecoder


@header
class SampleHeader:
    name: str = wire("name", short="n")
    count: int = wire("count", short="c")
    ratio: float = wire("ratio", default=0.5)
    big: int | None = wire("big", default=None, bits=64)
    on: bool = wire("on", default=False)
    maybe: bool | None = wire("maybe", default=None)


def test_objects_compare_by_value_and_show_their_fields() -> None:
    one = SampleHeader("a", 1)
    assert one == SampleHeader("a", 1)
    assert one != SampleHeader("a", 2)
    assert one != "a"
    assert repr(one) == "SampleHeader(name='a', count=1, ratio=0.5, big=None, on=False, maybe=None)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    with pytest.raises(AttributeError):
        one.nme = "slots"  # type: ignore[attr-defined]


def test_text_forms() -> None:
    codec = codec_of(SampleHeader)
    assert codec.to_ext(SampleHeader("a", -1, 1.0, 2**63 - 1, True, False)) == {
        "name": "a",
        "count": "-1",
        "ratio": "1.0",
        "big": "9223372036854775807",
        "on": "true",
        "maybe": "false",
    }
    assert codec.to_ext(SampleHeader("", 0), short=True) == {
        "n": "",
        "c": "0",
        "ratio": "0.5",
        "on": "false",
    }
    assert codec.names(short=True) == {"n", "c", "ratio", "big", "on", "maybe"}


def test_reading_is_lax_about_case_and_unknown_entries() -> None:
    codec = codec_of(SampleHeader)
    assert codec.from_ext({"name": "a", "count": "3", "on": "TRUE", "other": "x"}) == SampleHeader(
        "a", 3, on=True
    )
    assert codec.from_ext({"name": "", "count": "0", "big": "", "maybe": ""}) == SampleHeader("", 0)
    assert codec.from_ext({"n": "a", "c": "1", "name": "b"}, short=True) == SampleHeader("a", 1)


@pytest.mark.parametrize(
    "ext",
    [
        None,
        {},
        {"name": "a"},
        {"name": "a", "count": ""},
        {"name": "a", "count": "x"},
        {"name": "a", "count": "1", "big": "x"},
        {"name": "a", "count": "2147483648"},
        {"name": "a", "count": "9" * 5000},
        {"name": "a", "count": "1", "on": "perhaps"},
    ],
)
def test_missing_and_unreadable_fields_are_refused(ext: dict[str, str] | None) -> None:
    with pytest.raises(HeaderFieldError, match="SampleHeader") as caught:
        codec_of(SampleHeader).from_ext(ext)
    assert caught.value.code == -1


def test_declarations_that_cannot_work_are_refused() -> None:
    with pytest.raises(TypeError, match="header fields are str"):

        @header
        class WithList:
            names: list[str] = wire("names")

    with pytest.raises(TypeError, match="must be declared with wire"):

        @header
        class WithoutWire:
            name: str

    with pytest.raises(TypeError, match="not a wire name"):

        @header
        class WithQuote:
            name: str = wire('na"me')

    with pytest.raises(TypeError, match="not a header class"):
        codec_of(int)


def test_wire_names_are_unique_in_every_class() -> None:
    for pair in HEADERS.values():
        for cls in (pair.request, pair.response):
            if cls is not None:
                codec = codec_of(cls)
                assert len(codec.names()) == len(codec.fields)
                assert len(codec.names(short=True)) == len(codec.fields)


def test_a_twin_of_the_fast_path_equals_a_header_object() -> None:
    frame = encode_command(request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 3)))[4:]
    decoder = RequestDecoder({RequestCode.GET_MAX_OFFSET: (GetMaxOffsetHeader, False)})
    for _ in range(2):  # the first one of a code makes the decoder
        read = decoder.decode(frame)[6]
        assert type(read) is not GetMaxOffsetHeader, "copying it would cost more than decoding it"
        assert isinstance(read, GetMaxOffsetHeader)
        assert read == GetMaxOffsetHeader("T", 3) == read
        assert read != GetMaxOffsetHeader("T", 4)
        assert attrs.evolve(read, queue_id=7) == GetMaxOffsetHeader("T", 7)
        assert codec_of(type(read)).to_ext(read) == {
            "topic": "T",
            "queueId": "3",
            "committed": "true",
        }
        assert encode_response_head(read, 0, 1) == encode_response_head(
            GetMaxOffsetHeader("T", 3), 0, 1
        )
        assert "GetMaxOffsetHeader(topic='T'" in repr(read)
