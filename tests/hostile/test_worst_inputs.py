"""Every decoder with its worst input: what it takes in one step must not stop the loop for long.

Sizes are those that a server reads in the loop.  The first test runs in CI: each class of bodies and headers has an input here.  The timings are `make hostile`'s, on a quiet machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from java_bodies import filled

from triomq.broker.filters.sql92 import compile_filter
from triomq.broker.filters.tokens import LENGTH_MAX, FilterInvalid
from triomq.broker.processors.bodies import INLINE_BYTES_MAX
from triomq.remoting.errors import ProtocolError
from triomq.remoting.protocol import header_binary, header_json
from triomq.remoting.protocol.batch import ELEMENTS_MAX, split_batch
from triomq.remoting.protocol.bodies.catalogue import BODIES, ArrayOf
from triomq.remoting.protocol.bodies.registration import (
    TOPICS_MAX,
    RegisterBrokerBody,
    decode_registration,
    encode_deflated,
)
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.framing import HEADER_BYTES_MAX
from triomq.remoting.protocol.loose_json import LOOSE_BYTES_MAX, loads
from triomq.remoting.protocol.message import PROPERTIES_BYTES_MAX, decode_properties
from triomq.remoting.protocol.proxy_header import NoProxyHeader, read_proxy_header
from triomq.remoting.protocol.request_decoder import decode_ext

STEP_SECONDS_MAX = 0.050
CLASSES = sorted(
    {
        cls
        for pair in BODIES.values()
        for cls in (body.member if isinstance(body, ArrayOf) else body for body in pair)
        if isinstance(cls, type) and issubclass(cls, JsonBody)
    },
    key=lambda cls: cls.__name__,
)


def stretched(plain: Any, count: int) -> Any:
    """The same document with every list and table `count` times as long."""
    if isinstance(plain, list):
        return [stretched(value, 1) for value in plain] * count
    if isinstance(plain, dict):
        rows = {key: stretched(value, count) for key, value in plain.items()}
        if len(rows) == 1:  # a table with one row, or an object with one member: more members cost as much
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
    """As many elements as `size` bytes hold; not more than that."""
    plain = loads(filled(cls).encode(), 1 << 24)
    best, count = json.dumps(plain).encode(), 1
    while count < 1 << 17:
        count *= 2
        data = json.dumps(stretched(plain, count)).encode()
        if len(data) > size:
            break
        best = data
    return best + b" " * (size - len(best))


INPUTS: dict[str, Callable[[], object]] = {}


def worst(name: str, data: Any, decode: Callable[[Any], object]) -> None:
    INPUTS[name] = lambda: decode(data)


for one in CLASSES:
    worst(f"body {one.__name__}", worst_body(one, INLINE_BYTES_MAX), lambda data, cls=one: cls.decode(data, LOOSE_BYTES_MAX))
HEAD = b'{"code":34,"language":"JAVA","version":479,"opaque":1,"flag":0,"extFields":{%s}}'
worst("JSON header", HEAD % b",".join(b'"k%d":"v"' % number for number in range(HEADER_BYTES_MAX // 13))[:], header_json.decode_header)
worst("JSON header of escapes", HEAD % (b'"k":"' + b"\\u00e4" * (HEADER_BYTES_MAX // 6 - 30) + b'"'), header_json.decode_header)
worst("JSON header of brackets", b'{"code":34,"a":' + b"[" * (HEADER_BYTES_MAX // 2 - 20) + b"]" * (HEADER_BYTES_MAX // 2 - 20) + b"}", header_json.decode_header)
worst("loose JSON", b"{" + b",".join(b"%d:1" % number for number in range(LOOSE_BYTES_MAX // 9)) + b"}", lambda data: loads(data, LOOSE_BYTES_MAX))
FIELDS = b"".join(b"\x00\x02k" + b"%d" % (number % 10) + b"\x00\x00\x00\x01v" for number in range(HEADER_BYTES_MAX // 9 - 10))
BINARY = b"\x00\x22\x09\x01\xdf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00" + len(FIELDS).to_bytes(4, "big") + FIELDS
worst("binary header", BINARY, header_binary.decode_header)
worst("fields of a header", HEAD % b",".join(b'"k%d":"v"' % number for number in range(HEADER_BYTES_MAX // 13)), lambda data: decode_ext(0, data))  # type: ignore[arg-type]
worst("properties", b"".join(b"%d\x01v\x02" % number for number in range(PROPERTIES_BYTES_MAX // 8)), decode_properties)
worst("batch", (b"\x00\x00\x00\x16" + bytes(18)) * ELEMENTS_MAX, split_batch)
worst("registration", RegisterBrokerBody(TopicTable({f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(800)})).encode(), lambda data: decode_registration(data, 479))
worst("SQL filter of words", ("a = 1 OR " * 400 + "b")[:LENGTH_MAX], compile_filter)
worst("SQL filter of brackets", "(" * 100 + "a" + ")" * 100, compile_filter)
worst("SQL filter of texts", "a IN (" + ",".join(["'x'"] * 1900) + ")", compile_filter)
worst("PROXY header", b"PROXY TCP4 " + b"1" * 200, read_proxy_header)


def test_every_class_of_bodies_has_its_worst_input() -> None:
    for cls in CLASSES:
        data = worst_body(cls, INLINE_BYTES_MAX)
        assert len(data) == INLINE_BYTES_MAX
        assert isinstance(cls.decode(data, LOOSE_BYTES_MAX), cls)


@pytest.mark.hostile
@pytest.mark.parametrize("name", list(INPUTS))
def test_no_step_takes_long(name: str) -> None:
    best = min(_seconds(INPUTS[name]) for _ in range(3))
    print(f"{name}: {best * 1000:.1f} ms")
    assert best < STEP_SECONDS_MAX, f"{best * 1000:.0f} ms"


@pytest.mark.hostile
def test_what_a_thread_reads_ends_after_a_while() -> None:
    """Deflated registrations and bombs: in a thread, and bounded."""
    many = encode_deflated(RegisterBrokerBody(TopicTable({f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(TOPICS_MAX)})))
    assert _seconds(lambda: decode_registration(many, 479)) < 5
    assert _seconds(lambda: decode_registration(zlib.compress(bytes(256 * 1024 * 1024)), 479)) < 5


def _seconds(decode: Callable[[], object]) -> float:
    begun = time.perf_counter()
    with contextlib.suppress(ProtocolError, FilterInvalid, NoProxyHeader, ValueError):
        decode()
    return time.perf_counter() - begun
