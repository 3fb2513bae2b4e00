"""The inputs that fuzzing starts from: captured frames, and a filled instance of each class."""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator

from golden_data import GOLDEN, exchanges
from http2_pair import GOAWAY, PING, SETTINGS, call_frames, frame
from java_bodies import filled
from raft_messages import RAFT_MESSAGES
from targets import JSON_BODIES, REQUESTS

from triomq.namesrv.controller.raft_wire import encode_message
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.fields import codec_of
from triomq.remoting.protocol.framing import split_frame
from triomq.remoting.protocol.header_json import encode_header
from triomq.remoting.protocol.record_reader import decode_records

INPUT_BYTES_MAX = 4096


def seeds() -> dict[str, list[bytes]]:
    """Return the inputs for each target."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for target, data in _all():
        if len(data) <= INPUT_BYTES_MAX and data not in found[target]:
            found[target].append(data)
    return found


def words() -> str:
    """Return a dictionary for the fuzzer: names of the protocol, and the marks of JSON."""
    names = {
        name
        for _, cls, short in REQUESTS
        if cls is not None
        for name in codec_of(cls).names(short=short)
    }
    marks = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "'",
        '\\"',
        "null",
        "true",
        "1e9",
        "-1",
        "\\x5cu0000",
        '{\\"$ref\\":\\"$.a\\"}',
        "extFields",
        "code",
    ]
    return "".join(f'"{word}"\n' for word in [*marks, *sorted(names)])


def _all() -> Iterator[tuple[str, bytes]]:
    for data in (
        call_frames(1, b"one") + call_frames(3, bytes(100)),
        frame(SETTINGS, 0, 0, (4).to_bytes(2) + bytes(4)) + call_frames(1, b"waits"),
        call_frames(1, b"x") + frame(PING, 0, 0, bytes(8)) + frame(GOAWAY, 0, 0, bytes(8)),
    ):
        for step in (b"\x03", b"\xff"):
            yield "grpc", step + frame(SETTINGS, 0, 0) + data
    for exchange in exchanges():
        for whole in filter(None, (exchange.request, exchange.response)):
            yield "stream", b"\x40" + whole
            yield "signed_frames", whole[4:]
            kind, header, body = split_frame(whole[4:])
            yield ("binary_header" if kind == SerializeType.ROCKETMQ else "json_header"), header
            yield "signature", bytes([kind]) + header
            if body[:1] == b"{":
                yield "json", body
            if exchange.code == 103 and body:
                yield "registration", b"\x02" + body
            if exchange.code == 320:
                yield "batch", body
            if exchange.code in (11, 12, 33, 361, 200050) and body[:1] == b"\0":
                for target in ("records", "arrow"):
                    yield target, body
                for message in decode_records(body):
                    yield "properties", message.properties_bytes
    for number, (code, cls, _) in enumerate(REQUESTS):
        if cls is not None:
            values = {
                field.attribute: {str: "x", bool: True, int: 7}[field.kind]
                for field in codec_of(cls).fields
            }
            yield (
                "headers",
                bytes([number])
                + encode_header((code, 1, 0, 479, 3, None, request(code, cls(**values)).ext)),
            )
    for number, body_class in enumerate(JSON_BODIES):
        data = filled(body_class).encode(bare_keys=True)
        yield "bodies", bytes([number]) + data
        yield "arrays", bytes([number]) + b"[" + data + b"]"
        yield "json", data
    pieces = (
        b'{"counter":1,"stateVersion":2,"timestamp":3}',
        b'T 8 8 6 SINGLE_TAG {"a":"b"}',
        b"[]",
    )
    version, topic, servers = (len(text).to_bytes(4) + text for text in pieces)
    plain = version + (1).to_bytes(4) + topic + servers + bytes(4)
    yield "registration", b"\x02" + zlib.compress(plain)
    for line in (GOLDEN / "trace" / "java-5.5.0.jsonl").read_text().splitlines():
        yield "traces", json.loads(line)["body"].encode()
    yield (
        "settings",
        b"# a comment\nflushDiskType=SYNC_FLUSH\npath : /a\\u0020b\\\n  c\n\n! another\nempty",
    )
    yield "small", b"\x00PROXY TCP4 192.0.2.1 192.0.2.2 1234 10911\r\n"
    yield "small", b"\x00\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)
    point = TimerCheckPoint(
        last_read_ms=1, last_flushed_position=2, last_queue_offset=3, master_queue_offset=4
    )
    yield "small", b"\x01" + point.encode()
    yield (
        "small",
        b"\x02"
        + filled(next(cls for cls in JSON_BODIES if cls.__name__ == "BatchAckBody")).encode(),
    )
    yield "small", b"\x03\x03" + zlib.compress(b"x" * 50)
    yield (
        "probe",
        b"\x06GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:9898\r\nAccept: text/plain\r\n\r\n",
    )
    for message in RAFT_MESSAGES:
        yield "raft", encode_message(message)
    reports = struct.pack(">4q", -1, 4096, -77, 4096)
    yield "replication", b"\x06\x01" + reports
    hello = struct.pack(">qi", 4096, -1) + struct.pack(">qqqI", 4096, 9000, 4096, 7)
    yield (
        "replication",
        b"\x06\x00"
        + hello
        + struct.pack(">qi", 4096, 3)
        + b"abc"
        + struct.pack(">qi", 4099, 0)
        + struct.pack(">qi", 4099, -2),
    )
