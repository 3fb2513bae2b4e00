"""A stored message as pages show it: the body as text, JSON or hexadecimal. Pure."""

from __future__ import annotations

import json

import attrs

from triomq.client.admin.message_preview import visible

FORMS = ("text", "json", "hex")
SHOWN_BYTES_MAX = 64 * 1024
"""longer bodies are cut on the page"""
JSON_BYTES_MAX = 256 * 1024
"""longer bodies are not read as JSON: one bracket costs about 70 bytes"""
HEX_COLUMNS = 16


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
    if decoded is not None and len(body) <= JSON_BYTES_MAX and decoded.lstrip()[:1] in ("{", "["):
        try:
            document, is_json = json.loads(decoded), True
        except (ValueError, RecursionError):
            is_json = False
    if form not in FORMS:
        form = "json" if is_json else "text" if decoded is not None else "hex"
    part = body[:SHOWN_BYTES_MAX]
    if form == "json" and is_json:
        text = indented(document)
    elif form == "hex":
        text = hex_dump(part)
    else:
        text = part.decode("utf-8", "replace")
    return ShownBody(
        form, visible(text), len(body), len(body) > SHOWN_BYTES_MAX, decoded is None, is_json
    )


def indented(document: object) -> str:
    """Return the beginning of a document as indented JSON.

    Only what is shown is made: indented, 64 KiB of nested brackets would have gigabytes.
    """
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(document):
        parts.append(part)
        size += len(part)
        if size >= SHOWN_BYTES_MAX:
            break
    return "".join(parts)[:SHOWN_BYTES_MAX]


def hex_dump(data: bytes) -> str:
    """Return offset, bytes and letters of each 16 bytes."""
    lines = []
    for offset in range(0, len(data), HEX_COLUMNS):
        part = data[offset : offset + HEX_COLUMNS]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{offset:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)
