"""The header that schema registries put before a body: ``framing = "confluent"``.

A zero byte, the id of the writer's schema in four bytes, and for Protobuf a list of indexes that
says which message of the file it is; an empty list is the first one.
"""

from __future__ import annotations

import attrs

from triomq.client.pipeline.decoders.arrow_bodies import BadBody

MAGIC = 0
HEADER_BYTES = 5
NO_HEADER = "the body has no header of a schema registry"
INDEXES_MAX = 100


@attrs.frozen
class Framed:
    """A body and its header. ``indexes``: of the message and its inner messages."""

    schema_id: int
    indexes: tuple[int, ...]
    content: bytes


def unframe(body: bytes, *, indexes: bool) -> Framed:
    """Return the parts of a body with a header. Raises: BadBody."""
    if len(body) < HEADER_BYTES or body[0] != MAGIC:
        raise BadBody(NO_HEADER)
    schema_id = int.from_bytes(body[1:HEADER_BYTES], "big")
    if not indexes:
        return Framed(schema_id, (), body[HEADER_BYTES:])
    count, start = zigzag(body, HEADER_BYTES)
    if not 0 <= count <= INDEXES_MAX:
        raise BadBody("the header of the schema registry is damaged")
    found = []
    for _ in range(count):
        index, start = zigzag(body, start)
        found.append(index)
    return Framed(schema_id, tuple(found) or (0,), body[start:])


def zigzag(body: bytes, start: int) -> tuple[int, int]:
    """Return a number of variable length, and the position behind it. Raises: BadBody."""
    value = shift = 0
    for position in range(start, min(start + 10, len(body))):
        value |= (body[position] & 0x7F) << shift
        if body[position] < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise BadBody("the header of the schema registry is damaged")
