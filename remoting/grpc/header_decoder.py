"""Read the blocks of headers of one connection's requests. Pure.

hpack's static table and Huffman code, in one loop of ours: hpack's own takes four times as long,
which was an eighth of a send.

Source: RFC 7541.
"""

from __future__ import annotations

from collections import deque

import attrs
from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from triomq.remoting.core.errors import RemotingError

TABLE_BYTES_MAX = 4096
"""of the dynamic table: what a client may use without being told"""
ENTRY_BYTES = 32
"""that an entry counts beside its name and its value"""
_STATIC = ((b"", b""), *HeaderTable.STATIC_TABLE)
_INTEGER_BYTES_MAX = 5


class HeaderBlockError(RemotingError):
    """A block of headers cannot be read."""


class HeadersTooLong(HeaderBlockError):
    """A list of headers is beyond the limit."""


@attrs.define(eq=False)
class HeaderDecoder:
    """Decodes blocks in the order of the connection. ``list_bytes_max``: of one block's headers, as
    RFC 9113 counts them.
    """

    list_bytes_max: int
    _dynamic: deque[tuple[bytes, bytes]] = attrs.field(factory=deque, init=False)
    """the newest entry is the first"""
    _bytes: int = attrs.field(default=0, init=False)
    _bytes_max: int = attrs.field(default=TABLE_BYTES_MAX, init=False)

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Return names and values. Raises: HeaderBlockError; the connection cannot go on then."""
        try:
            return self._decode(block)
        except IndexError:
            raise HeaderBlockError("a block of headers is cut off, or names no entry") from None
        except HPACKDecodingError as error:
            raise HeaderBlockError(f"a header cannot be read: {error}") from None

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        headers: list[tuple[bytes, bytes]] = []
        at, size, left = 0, len(block), self.list_bytes_max
        while at < size:
            first = block[at]
            if first & 0x80:
                number, at = _integer(block, at, 0x7F)
                header = self._entry(number)
            elif first & 0xE0 == 0x20:
                if headers:
                    raise HeaderBlockError("the table changes its size behind a header")
                number, at = _integer(block, at, 0x1F)
                self._resize(number)
                continue
            else:
                kept = first & 0x40
                number, at = _integer(block, at, 0x3F if kept else 0x0F)
                if number:
                    name = self._entry(number)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                header = (name, value)
                if kept:
                    self._keep(header)
            left -= len(header[0]) + len(header[1]) + ENTRY_BYTES
            if left < 0:
                raise HeadersTooLong(f"headers have more than {self.list_bytes_max} bytes")
            headers.append(header)
        return headers

    def _entry(self, number: int) -> tuple[bytes, bytes]:
        if number < len(_STATIC):
            if not number:
                raise HeaderBlockError("a header has the number 0")
            return _STATIC[number]
        return self._dynamic[number - len(_STATIC)]

    def _keep(self, header: tuple[bytes, bytes]) -> None:
        self._dynamic.appendleft(header)
        self._bytes += len(header[0]) + len(header[1]) + ENTRY_BYTES
        self._evict()

    def _resize(self, size: int) -> None:
        if size > TABLE_BYTES_MAX:
            raise HeaderBlockError(f"a table of {size} bytes, and {TABLE_BYTES_MAX} are allowed")
        self._bytes_max = size
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._bytes_max:
            name, value = self._dynamic.pop()
            self._bytes -= len(name) + len(value) + ENTRY_BYTES


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return an integer whose first byte has the bits *prefix*, and where it ends."""
    number = block[at] & prefix
    at += 1
    if number < prefix:
        return number, at
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise HeaderBlockError("a number in a block of headers is too long")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    packed = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise IndexError
    text = block[at:end]
    return (decode_huffman(text) if packed else text), end
