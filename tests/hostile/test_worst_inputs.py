"""Every decoder with its worst inputs: none may stop the loop for long.

Sizes are the longest that a server reads, in the loop or in a thread. The first tests run in CI:
every decoder that is fuzzed has inputs here, and they are what their names say. The timings are
``make hostile``'s, on a quiet machine.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from body_classes import JSON_BODIES
from http2_pair import PING, PREFACE, SETTINGS, call_frames, frame, new_session
from java_bodies import filled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

from targets import TARGETS

from triomq.broker.filters.sql92 import compile_filter
from triomq.broker.filters.tokens import LENGTH_MAX, FilterInvalid
from triomq.broker.processors.bodies import BODY_BYTES_MAX, INLINE_BYTES_MAX
from triomq.broker.replication.errors import ReplicationError
from triomq.broker.replication.master_link import LinkRules, LogBounds, MasterLink
from triomq.namesrv.controller.raft.configuration import Configuration, encode_configuration
from triomq.namesrv.controller.raft.messages import ENTRIES_MAX, EntryKind
from triomq.namesrv.controller.raft_wire import decode_message as decode_raft
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.users import AccessUser, UserTable
from triomq.remoting.core.errors import ProtocolError, Rejected
from triomq.remoting.core.properties_file import decode_text, parse_properties
from triomq.remoting.grpc.grpc_connection import READ_BYTES as GRPC_READ_BYTES
from triomq.remoting.grpc.http2_session import CallStarted
from triomq.remoting.monitor.http import BadRequest, read_request
from triomq.remoting.protocol import header_json, header_rocketmq
from triomq.remoting.protocol.batch import ELEMENTS_MAX, decode_batch
from triomq.remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    decode_registration,
    encode_deflated,
)
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.command import decode_frame
from triomq.remoting.protocol.fastjson import LOOSE_BYTES_MAX, REQUEST_LIMITS, VALUES_MAX, loads
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameBuffer
from triomq.remoting.protocol.limits import SETTINGS_BYTES_MAX
from triomq.remoting.protocol.message_properties import PROPERTIES_BYTES_MAX, decode_properties
from triomq.remoting.protocol.proxy_header import NoProxyHeader, read_proxy_header
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.protocol.request_decoder import decode_ext
from triomq.remoting.protocol.signing import is_signed_by
from triomq.remoting.server.selector import READ_BYTES

STEP_SECONDS_MAX = 0.050


def stretched(plain: Any, count: int) -> Any:
    """The same document with every list and table ``count`` times as long."""
    if isinstance(plain, list):
        return [stretched(value, 1) for value in plain] * count
    if isinstance(plain, dict):
        rows = {key: stretched(value, count) for key, value in plain.items()}
        # A table with one row, or an object with one member: more members cost the same as rows.
        if len(rows) == 1:
            ((key, value),) = rows.items()
            rows |= {_other_key(key, number): value for number in range(1, count)}
        return rows
    return plain


def _other_key(key: str, number: int) -> str:
    """Another key of the same kind: a number, a text, or a queue written as JSON."""
    if key.isdecimal():
        return str(number)
    return re.sub(r"\d+(?=\D*$)", str(number), key) if key.startswith("{") else f"{key}{number}"


def worst_body(cls: type[JsonBody], size: int) -> bytes:
    """As many elements as ``size`` bytes hold; not more than that."""
    plain = loads(filled(cls).encode())
    best, count = json.dumps(plain).encode(), 1
    while count < 1 << 17:
        count *= 2
        data = json.dumps(stretched(plain, count)).encode()
        if len(data) > size:
            break
        best = data
    return best + b" " * (size - len(best))


class Input(NamedTuple):
    """What one decoder gets."""

    decode: Callable[[Any], object]
    data: Any
    refused: bool
    """by its decoder; a refusal may cost the same as reading"""
    in_thread: bool
    """then other threads must get the interpreter's lock in between"""


INPUTS: dict[str, Input] = {}
DECODERS: set[str] = set()
"""names of fuzzing targets"""


def worst(
    decoder: str,
    name: str,
    data: Any,
    decode: Callable[[Any], object],
    *,
    refused: bool = False,
    in_thread: bool = False,
) -> None:
    DECODERS.add(decoder)
    INPUTS[f"{decoder}: {name}"] = Input(decode, data, refused, in_thread)


def json_shapes(size: int, prefix: bytes = b'{"a":', suffix: bytes = b"}") -> dict[str, bytes]:
    """Texts of ``size`` bytes, or a little less, of what parsers like least: many values, floats
    that need big numbers, nesting, escapes.
    """
    room = size - len(prefix) - len(suffix)
    names = b",".join(b'"%d":1' % number for number in range(10_000, 10_000 + (room - 4) // 11))
    whole = {
        "numbers": b"[" + b"1," * ((room - 3) // 2) + b"1]",
        "floats": b"[" + b"1.5e300," * ((room - 3) // 8) + b"1]",
        "lists": b"[" + b"[]," * ((room - 3) // 3) + b"1]",
        "objects": b"[" + b"{}," * ((room - 3) // 3) + b"1]",
        "texts": b"[" + b'"",' * ((room - 3) // 3) + b"1]",
        "members": b"{" + names + b"}",
        "escapes": b'"' + b"\\u00e4" * ((room - 2) // 6) + b'"',
        "blanks": b" " * (room - 1) + b"1",
        "brackets": b"[" * (room // 2) + b"]" * (room // 2),
        "one number": b"1" * room,
    }
    return {name: prefix + value + suffix for name, value in whole.items()}


REFUSED = {"brackets", "one number"}
"""not what JSON parsers read: the slow parser would, if the text were short"""

for cls in JSON_BODIES:
    worst(
        "bodies",
        cls.__name__,
        worst_body(cls, INLINE_BYTES_MAX),
        lambda data, cls=cls: cls.decode(data, REQUEST_LIMITS),
    )
for shape, text in json_shapes(INLINE_BYTES_MAX).items():
    worst("json", shape, text, lambda data: loads(data, REQUEST_LIMITS), refused=shape in REFUSED)
for shape, text in json_shapes(BODY_BYTES_MAX).items():
    refused = shape not in ("blanks", "escapes")
    worst(
        "json",
        f"long {shape}",
        text,
        lambda data: loads(data, REQUEST_LIMITS),
        refused=refused,
        in_thread=True,
    )
most = b"[" + b"[]," * (VALUES_MAX - 3) + b"1]"
worst("json", "most values", most, lambda data: loads(data, REQUEST_LIMITS), in_thread=True)
worst(
    "json",
    "loose",
    b"{" + b",".join(b"%d:1" % number for number in range(LOOSE_BYTES_MAX // 9)) + b"}",
    lambda data: loads(data, REQUEST_LIMITS),
)

HEAD = b'{"code":34,"language":"JAVA","version":479,"opaque":1,"flag":0,'
for shape, text in json_shapes(HEADER_BYTES_MAX, HEAD + b'"a":').items():
    worst("json_header", shape, text, header_json.decode_header, refused=shape == "brackets")
UNUSUAL = (
    HEAD + b'"remark":{},"a":'
)  # the typed reader refuses it, and the general one reads every member
for shape, text in json_shapes(HEADER_BYTES_MAX, UNUSUAL).items():
    worst(
        "json_header",
        f"unusual, {shape}",
        text,
        header_json.decode_header,
        refused=shape not in ("blanks", "escapes", "members", "floats"),
    )
FIELDS = HEAD + b'"extFields":{%s}}' % b",".join(
    b'"k%d":"v"' % number for number in range(HEADER_BYTES_MAX // 14)
)
worst("json_header", "fields", FIELDS, header_json.decode_header)
LOOSE_FIELDS = HEAD.replace(b"1,", b"1.0,") + b'"extFields":{%s}}' % b",".join(
    b'"k%d":1.5e300' % number for number in range(HEADER_BYTES_MAX // 18)
)
worst("json_header", "fields that are numbers", LOOSE_FIELDS, header_json.decode_header)
worst("headers", "fields", FIELDS, lambda data: decode_ext(0, data))
worst("headers", "fields that are numbers", LOOSE_FIELDS, lambda data: decode_ext(0, data))
PAIRS = b"".join(
    b"\x00\x02k%d\x00\x00\x00\x01v" % (number % 10) for number in range(HEADER_BYTES_MAX // 9 - 10)
)
BINARY = (
    b"\x00\x22\x09\x01\xdf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"
    + len(PAIRS).to_bytes(4, "big")
    + PAIRS
)
worst("binary_header", "fields", BINARY, header_rocketmq.decode_header)
ONE_WAY = b'{"code":34,"flag":2}'
FRAMES = ((4 + len(ONE_WAY)).to_bytes(4, "big") + len(ONE_WAY).to_bytes(4, "big") + ONE_WAY) * (
    READ_BYTES // (8 + len(ONE_WAY))
)
worst(
    "stream",
    "small frames",
    FRAMES,
    lambda data: [decode_frame(frame) for frame in FrameBuffer(FRAME_BYTES_MAX).feed(data)],
)
WIDE = len(FIELDS).to_bytes(4, "big") + FIELDS
MANY_FIELDS = WIDE + bytes(FRAME_BYTES_MAX - len(WIDE) - 1024)


def asked_at_the_door(data: bytes) -> None:
    """Verify the signature of a frame, as a user that exists."""
    command = decode_frame(data)
    table = UserTable({"key": AccessUser("key", "secret")})
    ext = {**(command.ext or {}), "AccessKey": "key", "Signature": "x"}
    with pytest.raises(Rejected, match="check signature failed"):
        AccessControl(table, "C").identify(int(command.code), ext, command.body)


worst("signed_frames", "many fields and a long body", MANY_FIELDS, asked_at_the_door)
worst(
    "signature",
    "a whole frame",
    bytes(FRAME_BYTES_MAX - 1024),
    lambda data: is_signed_by({"AccessKey": "key", "Signature": "x"}, data, "secret"),
)

worst(
    "properties",
    "pairs",
    b"".join(b"%d\x01v\x02" % number for number in range(PROPERTIES_BYTES_MAX // 8)),
    decode_properties,
)
worst("batch", "empty messages", (b"\x00\x00\x00\x16" + bytes(18)) * ELEMENTS_MAX, decode_batch)
worst(
    "records",
    "no record",
    bytes(FRAME_BYTES_MAX - 1024),
    lambda data: decode_records(data, check_crc=True),
    refused=True,
)
worst(
    "settings",
    "pairs",
    b"a=b\n" * (SETTINGS_BYTES_MAX // 4),
    lambda data: parse_properties(decode_text(data)),
)
worst(
    "settings",
    "escapes",
    b"a=" + b"\\u0041" * (SETTINGS_BYTES_MAX // 6 - 1),
    lambda data: parse_properties(decode_text(data)),
)
worst(
    "settings",
    "continued lines",
    b"a=b\\\n" * (SETTINGS_BYTES_MAX // 5),
    lambda data: parse_properties(decode_text(data)),
)
worst("small", "PROXY header", b"PROXY TCP4 " + b"1" * 200, read_proxy_header, refused=True)
worst(
    "probe",
    "a request without end",
    b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 2000,
    read_request,
    refused=True,
)
worst(
    "replication",
    "reports",
    b"\x00" * 65_536,
    lambda data: MasterLink(LinkRules(segment_size=4096), "peer", 0.0).receive(
        data, LogBounds(4096, 10_000), 0.0
    ),
)


def read_calls(data: bytes) -> object:
    """Read what a gRPC connection reads at once; only the session itself says what it refuses."""
    session = new_session()
    session.receive(PREFACE + data, 0.0)
    events = session.take_events()
    session.abandon()
    return events, session.take_output()


def repeated(piece: bytes) -> bytes:
    return piece * (GRPC_READ_BYTES // len(piece))


MANY_CALLS = b"".join(
    call_frames(number, b"") for number in range(1, 2 * GRPC_READ_BYTES // 80, 2)
)[:GRPC_READ_BYTES]
worst("grpc", "calls", MANY_CALLS, read_calls)

NO_OPS = [[1 + index, 1, EntryKind.NO_OP, b""] for index in range(ENTRIES_MAX + 1)]
NAMES = tuple(f"{number:08}" for number in range(40))
for name, entries, refused in (
    ("entries", NO_OPS[:-1], False),
    ("too many entries", NO_OPS * 60, True),
    (
        "configurations",
        [
            [1 + index, 1, EntryKind.CONFIGURATION, encode_configuration(Configuration(NAMES))]
            for index in range(ENTRIES_MAX)
        ],
        False,
    ),
):
    said = msgspec.msgpack.encode(["AppendEntries", 1, 0, 0, entries, 0, 1])
    worst("raft", name, said, decode_raft, refused=refused)
worst("grpc", "SETTINGS", repeated(frame(SETTINGS, 0, 0)), read_calls, refused=True)
worst("grpc", "pings", repeated(frame(PING, 0, 0, bytes(8))), read_calls)
worst("grpc", "empty data", call_frames(1, b"") + repeated(frame(0, 0, 1)), read_calls)
worst("SQL", "words", ("a = 1 OR " * 400 + "b")[:LENGTH_MAX], compile_filter)
worst("SQL", "brackets", "(" * 100 + "a" + ")" * 100, compile_filter)
worst("SQL", "texts", "a IN (" + ",".join(["'x'"] * 1900) + ")", compile_filter, refused=True)

TOPICS = {f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(60_000)}
TOPIC = b'"%d":{"topicName":"T","x":%s}'


def in_table(rows: Iterable[bytes]) -> bytes:
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%s}}}' % b",".join(rows)


def read_registration(data: bytes) -> object:
    return decode_registration(data, 479)


worst(
    "registration",
    "topics",
    RegisterBrokerBody(TopicTable({name: TOPICS[name] for name in list(TOPICS)[:600]})).encode(),
    read_registration,
)
LONG = {
    "60,000 topics": (RegisterBrokerBody(TopicTable(TOPICS)).encode(), False),
    "60,000 topics, deflated": (encode_deflated(RegisterBrokerBody(TopicTable(TOPICS))), False),
    "topics of lists": (
        in_table(TOPIC % (number, b"[" + b"[]," * 20_000 + b"1]") for number in range(250)),
        False,
    ),
    "topics of floats": (
        in_table(TOPIC % (number, b"[" + b"1.5e300," * 7_500 + b"1]") for number in range(250)),
        False,
    ),
    "topics without end": (in_table(TOPIC % (number, b"1") for number in range(450_000)), True),
    "a bomb": (zlib.compress(bytes(256 * 1024 * 1024)), True),
}
for name, (data, refused) in LONG.items():
    worst("registration", name, data, read_registration, refused=refused, in_thread=True)
for shape, text in json_shapes(FRAME_BYTES_MAX - 1024).items():
    worst("registration", shape, text, read_registration, refused=True, in_thread=True)

READ_ELSEWHERE = {
    "arrays": "only mqadmin, which asked for them",
    "arrow": "Spark's workers, one process a task",
    "traces": "only mqadmin and Admin.message_trace, which asked for them",
    "socks": "the client's own proxy: 64 KiB at most, and it asks for each byte that it reads",
}


def test_every_decoder_has_its_worst_input() -> None:
    calls, _ = read_calls(MANY_CALLS)  # type: ignore[misc]
    assert len([event for event in calls if isinstance(event, CallStarted)]) > 100
    assert DECODERS - {"SQL"} | set(READ_ELSEWHERE) == set(TARGETS)
    for cls in JSON_BODIES:
        data = worst_body(cls, INLINE_BYTES_MAX)
        assert len(data) == INLINE_BYTES_MAX
        assert isinstance(cls.decode(data, REQUEST_LIMITS), cls)


@pytest.mark.parametrize("name", [name for name, one in INPUTS.items() if not one.in_thread])
def test_inputs_are_what_they_are_called(name: str) -> None:
    """An input that is refused at its first byte would show nothing."""
    assert _refused(INPUTS[name]) == INPUTS[name].refused


@pytest.mark.hostile
@pytest.mark.parametrize("name", list(INPUTS))
def test_nothing_stops_the_loop_for_long(name: str) -> None:
    one = INPUTS[name]
    worst_gap = min(_gap_beside(one) if one.in_thread else _seconds(one) for _ in range(3))
    print(f"{name}: {worst_gap * 1000:.1f} ms")
    assert worst_gap < STEP_SECONDS_MAX, f"{worst_gap * 1000:.0f} ms"


def _refused(one: Input) -> bool:
    try:
        one.decode(one.data)
    except (ProtocolError, FilterInvalid, NoProxyHeader, BadRequest, ReplicationError):
        return True
    return False


def _seconds(one: Input) -> float:
    begun = time.perf_counter()
    _refused(one)
    return time.perf_counter() - begun


def _gap_beside(one: Input) -> float:
    """Return the longest time that this thread stood still while another one read: what the loop
    would notice.
    """
    gc.collect()
    gc.freeze()  # else what the tests hold is walked over and over
    worst_gap, before = 0.0, time.perf_counter()
    reader = threading.Thread(target=_refused, args=(one,))
    reader.start()
    while reader.is_alive():
        time.sleep(0.0005)
        now = time.perf_counter()
        worst_gap, before = max(worst_gap, now - before), now
    gc.unfreeze()
    return worst_gap
