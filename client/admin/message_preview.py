"""The body of a stored message as one short line. Pure."""

from __future__ import annotations

import struct

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.record import StoredMessage

PREVIEW_CHARACTERS = 80
READ_BYTES_MAX = 1024 * 1024


def body_of(message: StoredMessage, bytes_max: int = READ_BYTES_MAX) -> bytes:
    """Return the beginning of the body without compression; as it is stored if that is not known.

    64 KiB can become 64 MiB, and a page may have a hundred of them.
    """
    try:
        return bytes(plain_body(message.body, message.sys_flag, bytes_max=bytes_max, cut=True))
    except (RemotingError, struct.error):
        return bytes(message.body[:bytes_max])


def preview(message: StoredMessage) -> str:
    """Return the beginning of a body in one line."""
    text = body_of(message, PREVIEW_CHARACTERS * 4).decode("utf-8", "replace")
    line = visible(" ".join(text.split()))
    return (
        line
        if len(line) <= PREVIEW_CHARACTERS
        else line[:PREVIEW_CHARACTERS] + "\N{HORIZONTAL ELLIPSIS}"
    )


def visible(text: str) -> str:
    """Return a text whose control characters, but for ends of lines and tabs, can be seen."""
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else ""
        if letter == "\r"
        else f"\\x{ord(letter):02x}"
        for letter in text
    )
