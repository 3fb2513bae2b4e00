"""One header of a request, read once: a client repeats most of its headers in every call. Pure.

The table of a connection keeps entries, so a header that a client has sent once is neither decoded
nor checked again.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

ENTRY_BYTES = 32
"""that a header counts beside its name and its value"""
_NOT_IN_NAMES = re.compile(rb"[^!-@\[-~]")
_NOT_IN_VALUES = re.compile(rb"[\0\r\n]")


class HeaderKind(enum.Enum):
    """What the head of a call makes of a header."""

    METADATA = enum.auto()
    PATH = enum.auto()
    METHOD = enum.auto()
    CONTENT_TYPE = enum.auto()
    TIMEOUT = enum.auto()
    ENCODING = enum.auto()
    IGNORED = enum.auto()
    FORBIDDEN = enum.auto()
    """It has a character that RFC 9113 forbids, in section 8.2.1: handlers log metadata."""


_KINDS = {
    b":path": HeaderKind.PATH,
    b":method": HeaderKind.METHOD,
    b"content-type": HeaderKind.CONTENT_TYPE,
    b"grpc-timeout": HeaderKind.TIMEOUT,
    b"grpc-encoding": HeaderKind.ENCODING,
    b"te": HeaderKind.IGNORED,
    b"grpc-accept-encoding": HeaderKind.IGNORED,
}


class HeaderEntry(NamedTuple):
    """A header. ``key``, ``text``: name and value as text; ``size``: as RFC 9113 counts it."""

    name: bytes
    value: bytes
    key: str
    text: str
    size: int
    kind: HeaderKind


def header_entry(name: bytes, value: bytes, known: HeaderEntry | None = None) -> HeaderEntry:
    """Return the entry of a header. ``known``: an entry of the same name, which is checked."""
    if known is None or known.kind is HeaderKind.FORBIDDEN:
        key = name.decode("latin-1")
        kind = _KINDS.get(name)
        if kind is None:
            kind = HeaderKind.IGNORED if name[:1] == b":" else HeaderKind.METADATA
            if _NOT_IN_NAMES.search(name):
                kind = HeaderKind.FORBIDDEN
    else:
        key, kind = known.key, known.kind
    if _NOT_IN_VALUES.search(value):
        kind = HeaderKind.FORBIDDEN
    return HeaderEntry(
        name, value, key, value.decode("latin-1"), len(name) + len(value) + ENTRY_BYTES, kind
    )
