"""The header that schema registries put before a body: ``framing = "confluent"``.

A zero byte, the id of the schema in four bytes, and for Protobuf a list of indexes that says which
message of the file it is. The id is not looked up: bodies must have the schema of the file.
"""

from __future__ import annotations

from triomq.client.pipeline.decoders.arrow_bodies import BadBody

MAGIC = 0
HEADER_BYTES = 5
INDEXES_MAX = 100


def unframed(body: bytes, framing: str, *, indexes: bool) -> bytes:
    """Return a body without its header. Raises: BadBody."""
    if framing == "plain":
        return body
    if len(body) < HEADER_BYTES or body[0] != MAGIC:
        raise BadBody("the body has no header of a schema registry")
    start = HEADER_BYTES
    if indexes:
        count, start = zigzag(body, start)
        if not 0 <= count <= INDEXES_MAX:
            raise BadBody("the header of the schema registry is damaged")
        for _ in range(count):
            _, start = zigzag(body, start)
    return body[start:]


def zigzag(body: bytes, start: int) -> tuple[int, int]:
    """Return a number of variable length, and the position behind it. Raises: BadBody."""
    value = shift = 0
    for position in range(start, min(start + 10, len(body))):
        value |= (body[position] & 0x7F) << shift
        if body[position] < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise BadBody("the header of the schema registry is damaged")
