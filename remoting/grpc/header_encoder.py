"""Write header blocks without a table, in the place of hpack's encoder. Pure.

Nearly all blocks of a server are one of two: the headers of an answer, and the trailers of OK. As
literals they are constant bytes, while the encoder with its table takes 15 µs for each. Texts of
errors, which differ, cannot displace anything or grow a table that the client made large.

Source: RFC 7541, sections 4.2 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

_INITIAL_TABLE_BYTES = 4096
_TABLE_OF_ZERO_BYTES = b"\x20"
_STATIC = {b"content-type": 31}
_STATIC_PAIRS = {(b":status", b"200"): 8}


@attrs.define(eq=False)
class HeaderEncoder:
    """Encodes the headers of one connection's answers."""

    _table_bytes: int = attrs.field(default=_INITIAL_TABLE_BYTES, init=False)
    _update: bytes = attrs.field(default=b"", init=False)
    """for the next block: the table, which is never used, gets smaller"""
    _known: dict[tuple[tuple[bytes, bytes], ...], bytes] = attrs.field(factory=dict, init=False)

    def remember(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Encode a list only once."""
        self._known[headers] = _block(headers)

    def encode(self, headers: Iterable[tuple[bytes, bytes]], huffman: bool = False) -> bytes:
        """Return the block of a list of headers."""
        listed = tuple(headers)
        block = self._known.get(listed)
        if block is None:
            block = _block(listed)
        if self._update:
            block, self._update = self._update + block, b""
        return block

    @property
    def header_table_size(self) -> int:
        """The size of the table in bytes, as the client knows it."""
        return self._table_bytes

    @header_table_size.setter
    def header_table_size(self, size: int) -> None:
        if size < self._table_bytes:
            self._table_bytes = 0
            self._update = _TABLE_OF_ZERO_BYTES


def _block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    block = bytearray()
    for name, value in headers:
        pair = _STATIC_PAIRS.get((name, value))
        if pair is not None:
            block.append(0x80 | pair)
            continue
        number = _STATIC.get(name)
        if number is not None:
            block += _integer(number, 4)
        else:
            block += b"\0" + _integer(len(name), 7) + name
        block += _integer(len(value), 7) + value
    return bytes(block)


def _integer(number: int, bits: int) -> bytes:
    """Return an integer with a prefix of *bits* whose other bits are 0."""
    most = (1 << bits) - 1
    if number < most:
        return number.to_bytes()
    number -= most
    encoded = bytearray((most,))
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
