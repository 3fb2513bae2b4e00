"""Batch requests (SEND_BATCH_MESSAGE) of a broker's load, made beforehand: only numbers in them change, so that the load costs little.

A batch's body is one message after the other: size i4, magic i4 = 0, crc i4 = 0, flag i4, body length i4, body, properties length i2, properties. Source: common/message/MessageDecoder.java#encodeMessage.
"""

from __future__ import annotations

import os
import struct
import time

from bench_broker import KEY_DIGITS, OPAQUE_FIRST, QUEUES, ShapeResult, frame, run_shape

SEND_BATCH = 320
BATCH_BYTES = 64 * 1024


class BatchTemplates:
    """As many batch requests as a connection may have in flight, of about ``batch_bytes`` each; every message has a unique key of its own."""

    def __init__(self, topic: str, in_flight: int, body_size: int = 1024, batch_bytes: int = BATCH_BYTES) -> None:
        body = os.urandom(body_size // 2).hex().encode()[:body_size].ljust(body_size, b"x")
        run_key = f"{os.getpid():08X}{int(time.time() * 1000) & 0xFFFFFFFF:08X}"
        message = encoded_message(body, f"UNIQ_KEY\x01{run_key}{'0' * KEY_DIGITS}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode())
        self.messages_each = max(1, batch_bytes // len(message))
        fields = {
            "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(int(time.time() * 1000)), "h": "0", "i": "WAIT\x01true\x02",
            "j": "0", "k": "false", "m": "true", "n": "broker-a",
        }  # fmt: skip
        one = frame(SEND_BATCH, fields, message * self.messages_each)
        self.size = len(one)
        self.opaque_at = one.index(b'"opaque":') + 9
        self.queue_at = one.index(b'"e":"') + 5
        self.key_at = one.index(run_key.encode()) + len(run_key)
        self.message_size = len(message)
        self.buffer = bytearray(one * in_flight)
        self.view = memoryview(self.buffer)

    def take(self, first: int, count: int) -> memoryview:
        buffer, start = self.buffer, 0
        for number in range(first, first + count):
            buffer[start + self.opaque_at : start + self.opaque_at + 7] = b"%d" % (OPAQUE_FIRST + number % 8_000_000)
            buffer[start + self.queue_at] = 48 + number % QUEUES
            key_at = start + self.key_at
            for key in range(number * self.messages_each, (number + 1) * self.messages_each):
                buffer[key_at : key_at + KEY_DIGITS] = b"%016X" % key
                key_at += self.message_size
            start += self.size
        return self.view[: count * self.size]


def encoded_message(body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties


def run_batches(address: str, topic: str, connections: int, in_flight: int, seconds: float, *, messages_max: int | None = None) -> ShapeResult:
    """Load of batch requests; the result counts messages."""
    templates = BatchTemplates(topic, in_flight)
    requests_max = None if messages_max is None else -(-messages_max // templates.messages_each)
    return run_shape(address, topic, connections, in_flight, seconds, templates=templates, requests_max=requests_max)
