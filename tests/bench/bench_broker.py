"""Load on any broker that speaks RocketMQ's remoting protocol: pre-encoded frames over sockets,
with or without TLS, one process, one epoll.

    python tests/bench/bench_broker.py 127.0.0.1:10911 --seconds 5 --shapes 1x1,1x64,64x8
        [--request echo] [--tls]

``send`` is SEND_MESSAGE_V2 with a body of 1 KiB; ``echo`` is GET_MAX_OFFSET, the least that a
broker can be asked, so that the stages show and not the store; ``pull`` is PULL_MESSAGE for 32
messages at a time of a queue that ``send`` has filled, and counts messages.

A shape is connections × requests in flight per connection. Every request is a frame of its own with
its own opaque number, queue and UNIQ_KEY (patched into the frame, so that the client costs little);
a response frees its place for the next request. The program knows nothing of TrioMQ, so that the
same load can be put on the Java broker.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import selectors
import socket
import ssl
import struct
import sys
import time
from base64 import b64encode
from dataclasses import dataclass
from typing import Protocol

SHAPES = "1x1,1x64,1x256,8x1,64x1,64x8"
QUEUES = 8
OPAQUE_FIRST = 1_000_000  # always seven digits, so that frames keep their length
KEY_DIGITS = 16


@dataclass
class ShapeResult:
    connections: int
    in_flight: int
    messages: int
    failed: int
    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def frame(
    code: int, fields: dict[str, str] | None, body: bytes = b"", opaque: int = OPAQUE_FIRST
) -> bytes:
    header = {
        "code": code,
        "extFields": fields or {},
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def call(sock: socket.socket, request: bytes) -> tuple[dict[str, object], bytes]:
    """One request, one response, blocking."""
    sock.sendall(request)
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">I", data)[0]:
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    length = struct.unpack_from(">I", data, 4)[0] & 0xFFFFFF
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def create_topic(address: str, topic: str, attributes: str = "", sign: str = "") -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES), "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": attributes, "force": "false",
    }  # fmt: skip
    with connect(address) as sock:
        header, _ = call(sock, frame(17, signed(fields, b"", sign)))
        if header["code"] != 0:
            raise SystemExit(f"cannot create topic {topic}: {header}")


class RequestTemplates(Protocol):
    """Frames in one buffer that are made new in place."""

    size: int
    messages_each: int

    def take(self, first: int, count: int) -> memoryview: ...


class Templates:
    """As many frames in one buffer as a connection may have in flight; opaque, queue and key are
    patched in place.
    """

    messages_each = 1

    def __init__(
        self,
        topic: str,
        body: bytes,
        count: int,
        run_key: str,
        topics: list[str] | None = None,
        per_topic: int = QUEUES,
        wait: bool = True,
    ) -> None:
        born = str(int(time.time() * 1000))
        key = run_key + "0" * KEY_DIGITS
        properties = (
            f"UNIQ_KEY\x01{key}\x02WAIT\x01{'true' if wait else 'false'}\x02TAGS\x01TagA\x02"
        )
        fields = {
            "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": born,
            "h": "0", "i": properties,
            "j": "0", "k": "false", "m": "false", "n": "broker-a",
        }  # fmt: skip
        one = frame(310, fields, body)
        self.size = len(one)
        self.opaque_at = one.index(b'"opaque":') + 9
        self.queue_at = one.index(b'"e":"') + 5
        self.key_at = one.index(run_key.encode()) + len(run_key)
        self.topic_at = one.index(b'"b":"') + 5
        self.topics = [name.encode() for name in topics] if topics is not None else None
        self.per_topic = per_topic
        self.buffer = bytearray(one * count)
        self.view = memoryview(self.buffer)
        self.count = count

    def take(self, first: int, count: int) -> memoryview:
        """Patch the first ``count`` frames for the messages ``first``, ``first + 1``, …"""
        buffer, size = self.buffer, self.size
        opaque_at, queue_at, key_at, per_topic = (
            self.opaque_at,
            self.queue_at,
            self.key_at,
            self.per_topic,
        )
        for number in range(first, first + count):
            buffer[opaque_at : opaque_at + 7] = b"%d" % (OPAQUE_FIRST + number % 8_000_000)
            buffer[queue_at] = 48 + number % per_topic
            buffer[key_at : key_at + KEY_DIGITS] = b"%016X" % number
            opaque_at += size
            queue_at += size
            key_at += size
        if self.topics is not None:
            topic_at, topics, length = self.topic_at, self.topics, len(self.topics[0])
            for number in range(first, first + count):
                buffer[topic_at : topic_at + length] = topics[number // per_topic % len(topics)]
                topic_at += size
        return self.view[: count * size]


class FixedTemplates:
    """Frames that stay as they are, but for the opaque number."""

    messages_each = 1

    def __init__(self, frames: list[bytes]) -> None:
        self.size = len(frames[0])
        self.opaque_at = frames[0].index(b'"opaque":') + 9
        self.buffer = bytearray(b"".join(frames))
        self.view = memoryview(self.buffer)

    def take(self, first: int, count: int) -> memoryview:
        position = self.opaque_at
        for number in range(first, first + count):
            self.buffer[position : position + 7] = b"%d" % (OPAQUE_FIRST + number % 8_000_000)
            position += self.size
        return self.view[: count * self.size]


def signed(fields: dict[str, str], body: bytes, sign: str) -> dict[str, str]:
    """Return the fields of a request as USER:SECRET signs them; as they are for an empty text."""
    if not sign:
        return fields
    user, _, secret = sign.partition(":")
    fields = {**fields, "AccessKey": user}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    digest = hmac.digest(secret.encode(), content, "sha1")
    return {**fields, "Signature": b64encode(digest).decode()}


def signed_templates(topic: str, body: bytes, count: int, sign: str) -> FixedTemplates:
    """Return sends that a user has signed: a signature covers queue and key, so each connection
    sends the same messages again and again. *sign* may be empty, for a comparison.
    """
    plain = Templates(topic, body, count, "S" * 16)
    frames = bytes(plain.take(0, count))
    made = []
    for start in range(0, len(frames), plain.size):
        length = struct.unpack_from(">I", frames, start + 4)[0]
        fields = json.loads(frames[start + 8 : start + 8 + length])["extFields"]
        made.append(frame(310, signed(fields, body, sign), body))
    return FixedTemplates(made)


def echo_templates(topic: str, count: int) -> FixedTemplates:
    """Return questions for the end of a queue."""
    return FixedTemplates([frame(30, {"topic": topic, "queueId": "0"})] * count)


PULL_COUNT = 32
PULL_OFFSETS = range(10_000, 100_000)  # always five digits


class PullTemplates:
    """The same for PULL_MESSAGE: opaque number and offset change; the queue is read again and
    again.

    ``step`` messages at a time: where each record has many messages, it is to be that number.
    """

    def __init__(self, topic: str, count: int, end_offset: int, step: int = PULL_COUNT) -> None:
        self.first = -(-PULL_OFFSETS.start // step) * step
        fields = {
            "consumerGroup": "bench", "topic": topic, "queueId": "0",
            "queueOffset": str(self.first), "maxMsgNums": str(step), "sysFlag": "4",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        one = frame(11, fields)
        self.messages_each = step
        self.size = len(one)
        self.opaque_at = one.index(b'"opaque":') + 9
        self.offset_at = one.index(b'"queueOffset":"') + 15
        self.steps = (min(end_offset, PULL_OFFSETS.stop) - step - self.first) // step
        if self.steps < 1:
            raise SystemExit(
                f"queue 0 of {topic} has {end_offset} messages: send at least"
                f" {8 * (self.first + 2 * step)} first"
            )
        self.buffer = bytearray(one * count)
        self.view = memoryview(self.buffer)

    def take(self, first: int, count: int) -> memoryview:
        position = 0
        for number in range(first, first + count):
            offset = self.first + number % self.steps * self.messages_each
            self.buffer[position + self.opaque_at : position + self.opaque_at + 7] = b"%d" % (
                OPAQUE_FIRST + number % 8_000_000
            )
            self.buffer[position + self.offset_at : position + self.offset_at + 5] = b"%d" % offset
            position += self.size
        return self.view[: count * self.size]


def end_offset(address: str, topic: str) -> int:
    """How many messages queue 0 has."""
    with connect(address) as sock:
        header, _ = call(sock, frame(30, {"topic": topic, "queueId": "0"}))
    fields = header["extFields"]
    assert isinstance(fields, dict)
    return int(fields["offset"])


WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def trusting_context() -> ssl.SSLContext:
    """The load does not check certificates."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Loader:
    """One connection: what is still to be written, and the unparsed rest of what was read."""

    __slots__ = ("pending", "rest", "sent_at", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pending = b""
        self.rest = b""
        self.sent_at = 0.0


def count_responses(data: bytes) -> tuple[int, int, int]:
    """(whole frames, of these not successful, bytes they take)."""
    position, end, frames, failed = 0, len(data), 0, 0
    unpack = struct.unpack_from
    while end - position >= 4:
        stop = position + 4 + unpack(">I", data, position)[0]
        if stop > end:
            break
        frames += 1
        if data.find(b'"code":0,', position, stop) < 0:
            failed += 1
        position = stop
    return frames, failed, position


def run_shape(
    address: str,
    topic: str,
    connections: int,
    in_flight: int,
    seconds: float,
    body_size: int = 1024,
    *,
    prefix: str | None = None,
    request: str = "send",
    tls: bool = False,
    requests_max: int | None = None,
    topics: list[str] | None = None,
    per_topic: int = QUEUES,
    templates: RequestTemplates | None = None,
) -> ShapeResult:
    """Put the load on for ``seconds``, or until ``requests_max`` are sent, then let what is in
    flight come back.

    ``topics``, with names of one length: messages go to ``per_topic`` queues of each in turn,
    instead of to ``topic``. ``templates``: other requests than those that ``request`` names, enough
    for ``in_flight``.
    """
    run_key = (
        prefix
        if prefix is not None
        else f"{os.getpid():08X}{int(time.time() * 1000) & 0xFFFFFFFF:08X}"
    )
    if templates is not None:
        pass
    elif request == "echo":
        templates = echo_templates(topic, in_flight)
    elif request == "pull":
        templates = PullTemplates(topic, in_flight, end_offset(address, topic))
    else:
        templates = Templates(
            topic if topics is None else topics[0],
            os.urandom(body_size // 2).hex().encode()[:body_size],
            in_flight,
            run_key,
            topics,
            per_topic,
        )
    context = trusting_context() if tls else None
    # One for all reads: malloc may map and unmap fresh memory for each one of that size, which more
    # than halves what this process can do.
    buffer = bytearray(262144)
    view = memoryview(buffer)
    selector = selectors.DefaultSelector()
    loaders = []
    for _ in range(connections):
        sock = connect(address)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="localhost")
        sock.setblocking(False)
        loader = Loader(sock)
        loaders.append(loader)
        selector.register(sock, selectors.EVENT_READ, loader)
    sent = received = failed = 0
    round_trips: list[float] = []

    def send(loader: Loader, count: int) -> None:
        nonlocal sent
        if not count:
            return
        data = templates.take(sent, count)
        sent += count
        loader.sent_at = time.perf_counter()
        if loader.pending:
            loader.pending += bytes(data)
            return
        try:
            written = loader.sock.send(data)
        except WAIT:
            written = 0
        if written < len(data):
            loader.pending = bytes(data[written:])
            selector.modify(loader.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, loader)

    def flush(loader: Loader) -> None:
        try:
            written = loader.sock.send(loader.pending)
        except WAIT:
            return
        loader.pending = loader.pending[written:]
        if not loader.pending:
            selector.modify(loader.sock, selectors.EVENT_READ, loader)

    begin = time.perf_counter()
    stop = begin + seconds
    give_up = stop + 30
    for loader in loaders:
        send(loader, in_flight)
    now = begin
    while received < sent:
        if now > give_up:
            raise SystemExit(f"{sent - received} of {sent} requests were never answered")
        for key, events in selector.select(timeout=1):
            loader = key.data
            if events & selectors.EVENT_WRITE:
                flush(loader)
            if not events & selectors.EVENT_READ:
                continue
            try:
                piece = bytes(view[: loader.sock.recv_into(buffer)])
                while context is not None and loader.sock.pending():  # type: ignore[attr-defined]  # decrypted already: epoll would not tell
                    piece += view[: loader.sock.recv_into(buffer)]
            except WAIT:
                continue
            if not piece:
                raise SystemExit("the broker closed a connection")
            data = loader.rest + piece if loader.rest else piece
            frames, bad, used = count_responses(data)
            loader.rest = data[used:]
            received += frames
            failed += bad
            now = time.perf_counter()
            round_trips.append(now - loader.sent_at)
            if frames and now < stop:
                send(
                    loader,
                    frames if requests_max is None else max(0, min(frames, requests_max - sent)),
                )
        now = time.perf_counter()
    elapsed = time.perf_counter() - begin
    for loader in loaders:
        loader.sock.close()
    selector.close()
    round_trips.sort()
    p50 = round_trips[len(round_trips) // 2] * 1000
    p99 = round_trips[len(round_trips) * 99 // 100] * 1000
    p999 = round_trips[len(round_trips) * 999 // 1000] * 1000
    messages = (received - failed) * templates.messages_each
    return ShapeResult(connections, in_flight, messages, failed, elapsed, p50, p99, p999)


def parse_shapes(text: str) -> list[tuple[int, int]]:
    shapes = []
    for part in text.split(","):
        connections, _, in_flight = part.replace("×", "x").partition("x")
        shapes.append((int(connections), int(in_flight)))
    return shapes


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Send load to a RocketMQ broker and print messages per second."
    )
    parser.add_argument("address", help="host:port of the broker")
    parser.add_argument("--topic", default="BenchTopic")
    parser.add_argument("--seconds", type=float, default=5.0, help="per shape")
    parser.add_argument(
        "--warm-up",
        type=float,
        default=0.0,
        help="seconds of 1x64 before the first shape (a Java broker needs 40)",
    )
    parser.add_argument(
        "--shapes", default=SHAPES, help=f"connections x in flight, default {SHAPES}"
    )
    parser.add_argument("--body", type=int, default=1024, help="bytes")
    parser.add_argument("--request", choices=("send", "echo", "pull"), default="send")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument(
        "--sign", help="USER:SECRET of a user with Pub on --topic, which exists: signed sends"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not options.sign:
        create_topic(options.address, options.topic)
    if options.warm_up > 0:
        run_shape(options.address, options.topic, 1, 64, options.warm_up, options.body)
    rows = []
    for connections, in_flight in parse_shapes(options.shapes):
        result = run_shape(
            options.address,
            options.topic,
            connections,
            in_flight,
            options.seconds,
            options.body,
            request=options.request,
            tls=options.tls,
            templates=signed_templates(
                options.topic, os.urandom(options.body // 2).hex().encode(), in_flight, options.sign
            )
            if options.sign
            else None,
        )
        rows.append(result)
        if not options.json:
            print(
                f"{connections:>3} x {in_flight:<4} {result.rate:>10,.0f} msgs/s   p50"
                f" {result.p50_ms:.2f} ms   p99 {result.p99_ms:.2f} ms   p99.9 {result.p999_ms:.2f}"
                f" ms   failed {result.failed}",
                flush=True,
            )
    if options.json:
        print(json.dumps([{**row.__dict__, "rate": row.rate} for row in rows]))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
