"""What a SendMessage costs: bodies are free, tiny fields are not, and nothing can be hidden."""

from __future__ import annotations

import pytest

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq import service_pb2 as rpc
from triomq.remoting.messaging.send_cost import FIELD_BYTES, send_cost

MOST = 100_000
BODY = b"x" * 1_000_000


def sized(number: int, value: bytes) -> bytes:
    """Return a field with a length, which has four bytes."""
    left = len(value)
    size = bytes([left >> shift & 127 | 128 for shift in (0, 7, 14)]) + bytes([left >> 21])
    return bytes([number << 3 | 2]) + size + value


def test_bodies_are_free_and_nothing_else() -> None:
    message = pb.Message(topic=pb.Resource(name="T" * 100), body=BODY)
    message.user_properties["k"] = "v" * 300
    message.system_properties.keys.extend(["k"] * 100)
    request = rpc.SendMessageRequest(messages=[message] * 3).SerializeToString()
    parts = len(message.topic.SerializeToString()) + 308 + 300
    assert 3 * (parts + 2 * FIELD_BYTES) <= send_cost(request, MOST) < 3 * (parts + 200)
    assert send_cost(request[: MOST // 32], MOST) == MOST // 32  # too small to be looked at


HIDDEN = sized(1, b"\x12\x00" * (MOST // FIELD_BYTES))
"""a message with more fields than a request may have"""


@pytest.mark.parametrize(
    "request_",
    [
        b"\x0a\x00" * MOST,
        sized(1, b"\x12\x00" * MOST),
        sized(1, sized(4, BODY) + b"\x12\x00" * MOST),
        sized(4, BODY),
        sized(1, sized(3, BODY)),
        sized(1, sized(1, sized(4, BODY))),
        b"\x1b" + sized(1, b"\x07") + b"\x1c" + HIDDEN,
        sized(1, b"\xff" * 20) + HIDDEN,
        b"\x0a\xff\xff\xff\x7f" + BODY,
        b"\xff" * (MOST + 1),
        b"\x18" + b"\xff" * (MOST + 1),
        b"\x0d\x00\x00\x00\x00" * MOST,
        b"\x09" + bytes(8) + HIDDEN,
    ],
    ids=map(str, range(13)),
)
def test_what_is_too_much(request_: bytes) -> None:
    assert send_cost(request_, MOST) > MOST
