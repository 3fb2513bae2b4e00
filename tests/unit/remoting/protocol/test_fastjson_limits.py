"""A server parses only short texts that are not standard JSON: the parser in Python is slow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import peer_of, running_broker

from triomq.remoting.core.errors import FrameError, RemoteProtocolError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, decode_frame, encode_command
from triomq.remoting.protocol.fastjson import LOOSE_BYTES_MAX, JsonLimits, loads
from triomq.remoting.protocol.framing import HEADER_BYTES_MAX, FrameBuffer

FILLS = {
    "numbers": b"1,",
    "arrays": b"[],",
    "escapes": b'"\\n\\n\\n\\n",',
    "bare words": b"null,",
    "objects": b'{"a":1},',
    "references": b'{"$ref":"$"},',
}


def frame_of(header: bytes) -> bytes:
    return len(header).to_bytes(4, "big") + header


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
@pytest.mark.parametrize("loose", [True, False], ids=["loose", "standard"])
def test_no_header_of_the_frame_limit_takes_long(fill: bytes, loose: bool) -> None:
    """A loose header is refused before it is parsed; C code parses a standard one.

    The bound is generous: without limits, 16 MiB would take 26 s.
    """
    end = b"x" if loose else b"0"
    junk = fill * ((HEADER_BYTES_MAX - 100) // len(fill))
    header = b'{"code":10,"opaque":1,"flag":0,"version":1,"junk":[' + junk + end + b"]}"
    begun = time.process_time()
    if loose:
        with pytest.raises(RemoteProtocolError, match=r"not standard JSON|JSON of up to"):
            decode_frame(frame_of(header))
    else:
        decode_frame(frame_of(header))
    assert time.process_time() - begun < 1


def test_a_longer_header_is_refused_as_a_frame() -> None:
    header = b"{}" + b" " * (HEADER_BYTES_MAX - 2)
    whole = frame_of(header)
    assert len(FrameBuffer().feed(len(whole).to_bytes(4, "big") + whole)) == 1
    longer = frame_of(header + b" ")
    with pytest.raises(
        FrameError,
        match=(
            "a header of 524289 bytes is longer than the limit of 524288; send shorter properties"
        ),
    ):
        FrameBuffer().feed((len(longer).to_bytes(4, "big") + longer)[:8] + b"\0")


def test_a_short_loose_header_is_read_and_a_long_one_refused() -> None:
    ext = {"properties": "x" * 1000}
    whole = encode_command(Command(10, opaque=7, ext=ext))[4:]
    size = int.from_bytes(whole[1:4], "big")
    loose = whole[4 : 4 + size].replace(b'"code"', b"'code'")
    assert decode_frame(frame_of(loose)).ext == ext
    long = loose.replace(b"x" * 1000, b"x" * LOOSE_BYTES_MAX)
    with pytest.raises(
        RemoteProtocolError,
        match="not standard JSON, where 65,536 is the limit; send standard JSON",
    ):
        decode_frame(frame_of(long))
    standard = long.replace(b"'code'", b'"code"')
    assert len(decode_frame(frame_of(standard)).ext or {}) == 1


def test_limits_of_loads() -> None:
    short = JsonLimits(loose_bytes=5)
    assert loads(b"{0:1}", short) == {"0": 1}
    with pytest.raises(RemoteProtocolError):
        loads(b"{0:1 }", short)
    assert loads(b'{"0":1}', short) == {"0": 1}
    with pytest.raises(RemoteProtocolError, match="JSON with references has too many values"):
        loads(b'[1,2,3,4,{"$ref":"$[0]"}]', short)
    assert loads(b'[1,2,3,4,{"$ref":"$[0]"}]', JsonLimits(loose_bytes=7)) == [1, 2, 3, 4, 1]


@pytest.mark.parametrize(
    ("text", "values"), [("[1,2,3,4]", 5), ('{"a":1,"b":[2,3]}', 5), ('["a",{"b":null},[true]]', 6)]
)
@pytest.mark.parametrize("kind", [str, str.encode, lambda text: memoryview(text.encode())])
def test_a_text_has_a_limit_of_values(text: str, values: int, kind: Callable[[str], Any]) -> None:
    """Objects, arrays, texts, numbers and literals count."""
    assert loads(kind(text), JsonLimits(values=values)) == json.loads(text)
    with pytest.raises(
        RemoteProtocolError,
        match=(
            f"JSON of up to {values} values, where {values - 1} is the limit; send less in one"
            " request"
        ),
    ):
        loads(kind(text), JsonLimits(values=values - 1))


def test_floats_are_read_as_python_reads_them() -> None:
    for text in ("1.5e300", "1e400", "-0.0", "0.1234567890123456789", "1E5"):
        assert repr(loads(f"[{text}]")[0]) == repr(float(text))


async def test_a_broker_refuses_a_long_loose_body(tmp_path: Path) -> None:
    """A heartbeat may be as long as a frame in standard JSON, and 64 KiB otherwise."""
    async with (
        running_broker(tmp_path, groupsPerConnectionMax=10_000) as ready,
        peer_of(ready) as peer,
    ):
        producers = ",".join(f'{{"groupName":"G{number}"}}' for number in range(4_900))
        body = f'{{"clientID":"c","producerDataSet":[{producers}],"consumerDataSet":[]}}'.encode()
        assert len(body) > LOOSE_BYTES_MAX
        assert (await peer.call(RequestCode.HEART_BEAT, None, body)).code == 0
        refused = await peer.call(
            RequestCode.HEART_BEAT, None, body.replace(b'"clientID"', b"'clientID'")
        )
        assert (
            refused.code,
            "that are not standard JSON, where 65,536 is the limit" in (refused.remark or ""),
        ) == (1, True)
        short = b"{'clientID':'c','producerDataSet':[{'groupName':'G'}],'consumerDataSet':[]}"
        assert (await peer.call(RequestCode.HEART_BEAT, None, short)).code == 0
