"""Blocks of headers: our decoder gives what hpack's gives, and refuses what it refuses; an entry of
the table is what the same header is when it is read alone.
"""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.remoting.grpc.header_decoder import (
    TABLE_BYTES_MAX,
    HeaderBlockError,
    HeaderDecoder,
    HeadersTooLong,
)
from triomq.remoting.grpc.header_entry import header_entry

LIST_BYTES_MAX = 2000
NAMES = st.sampled_from([b":path", b":method", b"te", b"x-mq-request-id", b"content-type"])
HEADERS = st.tuples(NAMES | st.binary(max_size=20), st.binary(max_size=60), st.booleans())
LISTS = st.lists(
    st.tuples(
        st.lists(HEADERS, max_size=12), st.booleans(), st.none() | st.integers(0, TABLE_BYTES_MAX)
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(LISTS)
def test_what_hpack_encodes(blocks: list) -> None:
    """With and without Huffman code, sensitive headers, and tables that shrink and grow."""
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    for headers, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(headers, huffman=huffman)
        assert read_by_us(decoder, block) == [(name, value) for name, value, _ in headers]


PIECES = st.sampled_from(
    [
        b"\x82",
        b"\xbe",
        b"\xc0",
        b"\x80",
        b"\xff\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x20",
        b"\x3f\xe1\x1f",
        b"\x3f\xe2\x1f",
        b"\x40\x01a\x01b",
        b"\x40\x01a\x7f\xc1\x03" + b"y" * 576,
        b"\x00\x01c\x00",
        b"\x00\x01c\x02xy",
        b"\x10\x01c\x02xy",
        b"\x00\x03c",
        b"\x00\x01c\x03",
        b"\x00\x81",
        b"\x10\x01c\x82\xff\xff",
        b"\x44\x83\x62\x53\x9f",
        b"\x0f\x10\x02xy",
        b"\x40",
    ]
)


def read_by_hpack(decoder: Decoder, block: bytes) -> list[tuple[bytes, bytes]] | str:
    try:
        return [tuple(header) for header in decoder.decode(block, raw=True)]
    except OversizedHeaderListError:
        return "too long"
    except (HPACKError, IndexError, OverflowError):
        return "refused"


def read_by_us(decoder: HeaderDecoder, block: bytes) -> list[tuple[bytes, bytes]] | str:
    try:
        headers, size = decoder.decode(block)
        for header in headers:
            assert header == header_entry(header.name, header.value)
        assert size == sum(header.size for header in headers)
        return [(header.name, header.value) for header in headers]
    except HeadersTooLong:
        return "too long"
    except HeaderBlockError:
        return "refused"


@settings(max_examples=500, deadline=None)
@given(st.lists(st.lists(PIECES | st.binary(max_size=6), max_size=8).map(b"".join), max_size=5))
def test_any_bytes_are_read_or_refused_as_by_hpack(blocks: list[bytes]) -> None:
    theirs, ours = Decoder(LIST_BYTES_MAX), HeaderDecoder(LIST_BYTES_MAX)
    for block in blocks:
        expected = read_by_hpack(theirs, block)
        assert read_by_us(ours, block) == expected
        if isinstance(expected, str):
            break


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = HeaderDecoder(1 << 20)
    assert read_by_us(decoder, b"\x40\x01a\x01b\xbe") == [(b"a", b"b")] * 2
    large = b"\x40\x01c\x7f\x81\x1f" + b"y" * 4096
    assert read_by_us(decoder, large) == [(b"c", b"y" * 4096)]
    with pytest.raises(HeaderBlockError, match="names no entry"):
        decoder.decode(b"\xbe")
