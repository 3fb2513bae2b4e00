"""The stand-in for msgspec in Spark's zip gives what msgspec gives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from header_catalogue import HEADERS
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_strategies import TEXT, headers

from triomq.remoting.core.errors import HeaderFieldError
from triomq.remoting.protocol import fields, plain_msgspec
from triomq.remoting.protocol.fields import HeaderCodec, codec_of
from triomq.remoting.protocol.header_json import encode_header, read_typed

CLASSES = sorted(
    {cls for pair in HEADERS.values() for cls in (pair.request, pair.response) if cls},
    key=lambda cls: (cls.__module__, cls.__name__),
)
TEXTS = (
    *("0", "1", "-1", "-0", "007", "+1", " 1", "1.0", "1.5", "1_0", "", "x", "5.", ".5"),
    *("2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808"),
    *("true", "TRUE", "False", "yes", "null", "NULL", "nan", "inf", "-1.5"),
)


@contextmanager
def without_msgspec() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "msgspec", plain_msgspec)
        yield


def outcome(codec: HeaderCodec[Any], ext: dict[str, str], short: bool) -> Any:
    try:
        return codec.from_ext(ext, short=short)
    except HeaderFieldError:
        return "refused"


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(CLASSES), st.booleans())
def test_headers_are_read_alike(data: st.DataObject, cls: type, short: bool) -> None:
    codec = codec_of(cls)
    ext = codec.to_ext(data.draw(headers(cls)), short=short)
    for name in data.draw(st.lists(st.sampled_from(sorted(codec.names(short=short)) or ["x"]))):
        if data.draw(st.booleans()):
            ext[name] = data.draw(st.sampled_from(TEXTS))
        else:
            ext.pop(name, None)
    expected = outcome(codec, ext, short)
    with without_msgspec():
        found = outcome(HeaderCodec(cls), ext, short)
    assert repr(found) == repr(expected)
    assert type(found) is type(expected) or isinstance(found, plain_msgspec.Struct)


KINDS = (int, float, bool, int | None, float | None, bool | None, fields.I32, str | None)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_converted_alike(text: str) -> None:
    for kind in KINDS:
        found = []
        for library in (msgspec, plain_msgspec):
            made = library.defstruct("Header", [("value", kind)])
            try:
                found.append(repr(library.convert({"value": text}, made, strict=False).value))
            except ValueError:
                found.append("refused")
        assert found[0] == found[1], (kind, found)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_json_is_written_and_read_alike(value: Any) -> None:
    written = msgspec.json.encode(value, order="sorted")
    assert plain_msgspec.json.encode(value, order="sorted") == written
    assert plain_msgspec.json.Decoder(float_hook=float).decode(memoryview(written)) == value


@pytest.mark.parametrize("text", ["{", "[1]x", "NaN", '"\\ud800"', "\ufeff{}", '"a\tb"', ""])
def test_what_is_not_json_is_refused(text: str) -> None:
    for decoder in (msgspec.json.Decoder(), plain_msgspec.json.Decoder()):
        with pytest.raises(ValueError):
            decoder.decode(text.encode())
    with pytest.raises(UnicodeEncodeError):
        plain_msgspec.json.encode("\ud800")


class PlainHeader(plain_msgspec.Struct, kw_only=True, gc=False):
    code: fields.I32 = 0
    language: str | fields.I32 | None = None
    remark: str | None = None
    ext_fields: dict[str, str] | None = plain_msgspec.field(name="extFields", default=None)


@pytest.mark.parametrize(
    "header",
    [
        encode_header((17, 1, 0, 400, 12, "no", {"topic": "Tä", "n": "1"})),
        b'{"code":"5","language":3,"extFields":{"a":"b"},"unknown":[1]}',
        b'{"code":1.0,"language":"JAVA","remark":null}',
        b'{"code":true}',
        b'{"code":2147483648}',
        b'{"remark":1}',
        b'{"extFields":{"a":1}}',
        b"[]",
    ],
)
def test_frames_are_read_alike(header: bytes) -> None:
    decode = plain_msgspec.json.Decoder(PlainHeader, strict=False).decode
    try:
        expected = read_typed(header)
    except ValueError:
        with pytest.raises(ValueError):
            decode(header)
        return
    found = decode(header)
    for name in ("code", "language", "remark", "ext_fields"):
        assert getattr(found, name) == getattr(expected, name)
