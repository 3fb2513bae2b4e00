"""Batch requests (SEND_BATCH_MESSAGE) of a broker's load, made beforehand: only numbers in them
change, so that the load costs little.

Every batch and every message in it has a key, by which a ``Ledger`` finds out what became of each.
A batch's body is one message after the other: size i4, magic i4 = 0, crc i4 = 0, flag i4, body
length i4, body, properties length i2, properties. Source:
common/message/MessageDecoder.java#encodeMessage.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

from bench_broker import KEY_DIGITS, OPAQUE_FIRST, QUEUES, ShapeResult, connect, frame, run_shape

SEND_BATCH = 320
BATCH_BYTES = 64 * 1024
RUN_DIGITS = 16
OF_A_BATCH = "F"
"""How the keys of batches begin; those of messages begin with the number of a process."""
KEY = re.compile(rb"UNIQ_KEY\x01([0-9A-F]{%d})([0-9A-F]{%d})\x02" % (RUN_DIGITS, KEY_DIGITS))


class BatchTemplates:
    """As many batch requests as a connection may have in flight, of about ``batch_bytes`` each;
    every message has a unique key of its own.
    """

    def __init__(
        self, topic: str, in_flight: int, body_size: int = 1024, batch_bytes: int = BATCH_BYTES
    ) -> None:
        body = os.urandom(body_size // 2).hex().encode()[:body_size].ljust(body_size, b"x")
        run_key = f"{os.getpid():08X}{int(time.time() * 1000) & 0xFFFFFFFF:08X}"
        batch_key = OF_A_BATCH + run_key[1:]
        self.run_key = run_key.encode()
        message = encoded_message(
            body,
            f"UNIQ_KEY\x01{run_key}{'0' * KEY_DIGITS}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode(),
        )
        self.messages_each = max(1, batch_bytes // len(message))
        fields = {
            "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0",
            "i": f"UNIQ_KEY\x01{batch_key}{'0' * KEY_DIGITS}\x02WAIT\x01true\x02",
            "j": "0", "k": "false", "m": "true", "n": "broker-a",
        }  # fmt: skip
        one = frame(SEND_BATCH, fields, message * self.messages_each)
        self.size = len(one)
        self.opaque_at = one.index(b'"opaque":') + 9
        self.queue_at = one.index(b'"e":"') + 5
        self.batch_key_at = one.index(batch_key.encode()) + len(batch_key)
        self.key_at = one.index(run_key.encode()) + len(run_key)
        self.message_size = len(message)
        self.buffer = bytearray(one * in_flight)
        self.view = memoryview(self.buffer)

    def take(self, first: int, count: int) -> memoryview:
        buffer, start = self.buffer, 0
        for number in range(first, first + count):
            buffer[start + self.opaque_at : start + self.opaque_at + 7] = b"%d" % (
                OPAQUE_FIRST + number % 8_000_000
            )
            buffer[start + self.queue_at] = 48 + number % QUEUES
            key_at = start + self.batch_key_at
            buffer[key_at : key_at + KEY_DIGITS] = b"%016X" % number
            key_at = start + self.key_at
            for key in range(number * self.messages_each, (number + 1) * self.messages_each):
                buffer[key_at : key_at + KEY_DIGITS] = b"%016X" % key
                key_at += self.message_size
            start += self.size
        return self.view[: count * self.size]


def encoded_message(body: bytes, properties: bytes) -> bytes:
    size = 22 + len(body) + len(properties)
    return (
        struct.pack(">iiiii", size, 0, 0, 0, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
    )


class Ledger:
    """What was acknowledged of each load, and which of it has been read."""

    def __init__(self) -> None:
        self.loads: dict[bytes, bytearray] = {}
        """What the keys of a load begin with -> for each of its messages, how often it was found.
        """

    def note(self, run_key: bytes, messages: int) -> None:
        assert run_key not in self.loads
        self.loads[run_key] = bytearray(messages)

    def read(self, data: bytes) -> None:
        """Count the messages of an answer to a pull."""
        for run_key, number in KEY.findall(data):
            if run_key[:1] != OF_A_BATCH.encode():
                counts, place = self.loads[run_key], int(number, 16)
                counts[place] = min(255, counts[place] + 1)

    def check(self) -> int:
        """How many messages there are. SystemExit unless each was found exactly once."""
        total = sum(map(len, self.loads.values()))
        missing = sum(counts.count(0) for counts in self.loads.values())
        once = sum(counts.count(1) for counts in self.loads.values())
        if once < total:
            raise SystemExit(
                f"of {total} acknowledged messages {missing} cannot be read, and"
                f" {total - once - missing} are there more than once"
            )
        return total


def read_queues(address: str, topic: str, count: int = 32) -> Iterator[bytes]:
    """The bodies of pulls that read all queues of a topic to their ends, eight queues side
    by side.
    """
    with ExitStack() as stack:
        places = {queue: (stack.enter_context(connect(address)), 0) for queue in range(QUEUES)}
        while places:
            for queue, (sock, offset) in places.items():
                fields = {
                    "consumerGroup": "reader", "topic": topic, "queueId": str(queue),
                    "queueOffset": str(offset), "maxMsgNums": str(count), "sysFlag": "4",
                    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                    "subVersion": "0", "expressionType": "TAG",
                }  # fmt: skip
                sock.sendall(frame(11, fields))
            for queue, (sock, offset) in list(places.items()):
                data = _answer(sock)
                end = 8 + (int.from_bytes(data[4:8], "big") & 0xFFFFFF)
                next_offset = int(
                    data[8:end].partition(b'"nextBeginOffset":"')[2].partition(b'"')[0]
                )
                if b'"code":0,' in data[8:end]:
                    yield data[end:]
                elif next_offset == offset:
                    del places[queue]
                    continue
                places[queue] = sock, next_offset


def _answer(sock: socket.socket) -> bytes:
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        piece = sock.recv(262144)
        if not piece:
            raise SystemExit("the broker closed a connection")
        data += piece
    return bytes(data)


def run_batches(
    address: str,
    topic: str,
    connections: int,
    in_flight: int,
    seconds: float,
    *,
    messages_max: int | None = None,
    ledger: Ledger | None = None,
) -> ShapeResult:
    """Load of batch requests; the result counts messages."""
    templates = BatchTemplates(topic, in_flight)
    requests_max = None if messages_max is None else -(-messages_max // templates.messages_each)
    result = run_shape(
        address,
        topic,
        connections,
        in_flight,
        seconds,
        templates=templates,
        requests_max=requests_max,
    )
    if ledger is not None and not result.failed:
        ledger.note(templates.run_key, result.messages)
    return result
