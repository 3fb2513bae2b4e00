"""A stored message as pages show it: the body as text, JSON or hexadecimal. Pure."""

from __future__ import annotations

import json
import struct

import attrs

from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.record import StoredMessage

FORMS = ("text", "json", "hex")
SHOWN_BYTES_MAX = 64 * 1024
"""longer bodies are cut on the page"""
PREVIEW_CHARACTERS = 80
HEX_COLUMNS = 16


def body_of(message: StoredMessage) -> bytes:
    """Return the body without compression; as it is stored if that is not known."""
    try:
        return bytes(plain_body(message.body, message.sys_flag))
    except (RemotingError, struct.error):
        return bytes(message.body)


@attrs.frozen
class ShownBody:
    """A body in one form."""

    form: str
    text: str
    size: int
    cut: bool
    binary: bool
    """it is not UTF-8"""
    is_json: bool


def show_body(body: bytes, form: str) -> ShownBody:
    """Return a body in the wanted form; without one, as JSON, text or hexadecimal as it fits."""
    document, is_json = None, False
    try:
        decoded: str | None = body.decode()
    except UnicodeDecodeError:
        decoded = None
    if decoded is not None and decoded.lstrip()[:1] in ("{", "["):
        try:
            document, is_json = json.loads(decoded), True
        except (ValueError, RecursionError):
            is_json = False
    if form not in FORMS:
        form = "json" if is_json else "text" if decoded is not None else "hex"
    part = body[:SHOWN_BYTES_MAX]
    if form == "json" and is_json:
        text = json.dumps(document, indent=2, ensure_ascii=False)[:SHOWN_BYTES_MAX]
    elif form == "hex":
        text = hex_dump(part)
    else:
        text = part.decode("utf-8", "replace")
    return ShownBody(
        form, _visible(text), len(body), len(body) > SHOWN_BYTES_MAX, decoded is None, is_json
    )


def _visible(text: str) -> str:
    """Return a text whose control characters, but for ends of lines and tabs, can be seen."""
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else ""
        if letter == "\r"
        else f"\\x{ord(letter):02x}"
        for letter in text
    )


def hex_dump(data: bytes) -> str:
    """Return offset, bytes and letters of each 16 bytes."""
    lines = []
    for offset in range(0, len(data), HEX_COLUMNS):
        part = data[offset : offset + HEX_COLUMNS]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{offset:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def preview(message: StoredMessage) -> str:
    """Return the beginning of a body in one line."""
    text = body_of(message)[: PREVIEW_CHARACTERS * 4].decode("utf-8", "replace")
    line = _visible(" ".join(text.split()))
    return (
        line
        if len(line) <= PREVIEW_CHARACTERS
        else line[:PREVIEW_CHARACTERS] + "\N{HORIZONTAL ELLIPSIS}"
    )
