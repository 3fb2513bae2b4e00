"""Read the blocks of headers of one connection's requests. Pure.

hpack's static table and Huffman code, in one loop of ours: hpack's own takes four times as long,
which was an eighth of a send. The table keeps headers as entries that are decoded and checked.

Source: RFC 7541.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

import attrs
from hpack import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.header_entry import HeaderEntry, header_entry

TABLE_BYTES_MAX = 4096
"""of the dynamic table: what a client may use without being told"""
_STATIC = tuple(
    header_entry(name, value) for name, value in ((b"", b""), *HeaderTable.STATIC_TABLE)
)
_STATIC_COUNT = len(_STATIC)
_INTEGER_BYTES_MAX = 5
_LITERALS_KEPT = 256
"""of all connections: of at most 256 bytes each"""


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
    _dynamic: deque[HeaderEntry] = attrs.field(factory=deque, init=False)
    """the newest entry is the first"""
    _bytes: int = attrs.field(default=0, init=False)
    _bytes_max: int = attrs.field(default=TABLE_BYTES_MAX, init=False)

    def decode(self, block: bytes) -> tuple[list[HeaderEntry], int]:
        """Return the headers of a block, and their size as RFC 9113 counts it, in section 6.5.2.

        Raises: HeaderBlockError; the connection cannot go on then.
        """
        try:
            return self._decode(block)
        except IndexError:
            raise HeaderBlockError("a block of headers is cut off, or names no entry") from None
        except HPACKDecodingError as error:
            raise HeaderBlockError(f"a header cannot be read: {error}") from None

    def _decode(self, block: bytes) -> tuple[list[HeaderEntry], int]:
        headers: list[HeaderEntry] = []
        at, size, left = 0, len(block), self.list_bytes_max
        while at < size:
            first = block[at]
            if first & 0x80:
                number = first & 0x7F
                if number == 0x7F:
                    number, at = _integer(block, at, 0x7F)
                else:
                    at += 1
                header = self._entry(number)
            elif first & 0xE0 == 0x20:
                if headers:
                    raise HeaderBlockError("the table changes its size behind a header")
                number, at = _integer(block, at, 0x1F)
                self._resize(number)
                continue
            elif not first & 0x4F and (end := _short_literal_end(block, at)):
                header = _short_literal(block[at + 1 : end])
                at = end
            else:
                kept = first & 0x40
                number, at = _integer(block, at, 0x3F if kept else 0x0F)
                known = None
                if number:
                    known = self._entry(number)
                    name = known.name
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                header = header_entry(name, value, known)
                if kept:
                    self._keep(header)
            left -= header.size
            if left < 0:
                raise HeadersTooLong(f"headers have more than {self.list_bytes_max} bytes")
            headers.append(header)
        return headers, self.list_bytes_max - left

    def _entry(self, number: int) -> HeaderEntry:
        if number < _STATIC_COUNT:
            if not number:
                raise HeaderBlockError("a header has the number 0")
            return _STATIC[number]
        return self._dynamic[number - _STATIC_COUNT]

    def _keep(self, header: HeaderEntry) -> None:
        self._dynamic.appendleft(header)
        self._bytes += header.size
        self._evict()

    def _resize(self, size: int) -> None:
        if size > TABLE_BYTES_MAX:
            raise HeaderBlockError(f"a table of {size} bytes, and {TABLE_BYTES_MAX} are allowed")
        self._bytes_max = size
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._bytes_max:
            self._bytes -= self._dynamic.pop().size


def _short_literal_end(block: bytes, at: int) -> int:
    """Return where a header ends that the table does not keep; 0 unless name and value are plain
    and short, as gRPC's C core sends all metadata of each call.
    """
    name_size = block[at + 1]
    value_at = at + 2 + name_size
    if name_size >= 0x7F or (value_size := block[value_at]) >= 0x7F:
        return 0
    end = value_at + 1 + value_size
    if end > len(block):
        raise IndexError
    return end


@lru_cache(maxsize=_LITERALS_KEPT)
def _short_literal(literal: bytes) -> HeaderEntry:
    """Return the entry of a header whose name and value are plain, each behind its size."""
    value_at = 1 + literal[0]
    return header_entry(literal[1:value_at], literal[value_at + 1 :])


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
    size = block[at] & 0x7F
    if size == 0x7F:
        size, at = _integer(block, at, 0x7F)
    else:
        at += 1
    end = at + size
    if end > len(block):
        raise IndexError
    text = block[at:end]
    return (decode_huffman(text) if packed else text), end
