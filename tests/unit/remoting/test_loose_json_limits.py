"""Text that is not standard JSON is read in Python, token by token: only short text may take that way where others wait."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from brokers import peer_of, running_broker

from triomq.remoting.errors import FrameError, RemoteProtocolError
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, decode_frame, encode_command
from triomq.remoting.protocol.framing import HEADER_BYTES_MAX, FrameBuffer
from triomq.remoting.protocol.loose_json import LOOSE_BYTES_MAX, loads

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
    """A loose one is refused unread; a standard one is read by C.  The bound is generous: 26 s were seen for 16 MiB where nothing was limited."""
    end = b"x" if loose else b"0"
    junk = fill * ((HEADER_BYTES_MAX - 100) // len(fill))
    header = b'{"code":10,"opaque":1,"flag":0,"version":1,"junk":[' + junk + end + b"]}"
    begun = time.process_time()
    if loose:
        with pytest.raises(RemoteProtocolError, match="not standard JSON"):
            decode_frame(frame_of(header))
    else:
        decode_frame(frame_of(header))
    assert time.process_time() - begun < 1


def test_a_longer_header_is_no_frame() -> None:
    header = b"{}" + b" " * (HEADER_BYTES_MAX - 2)
    whole = frame_of(header)
    assert len(FrameBuffer().feed(len(whole).to_bytes(4, "big") + whole)) == 1
    longer = frame_of(header + b" ")
    with pytest.raises(FrameError, match="a header of 524289 bytes is longer than the limit of 524288; send shorter properties"):
        FrameBuffer().feed((len(longer).to_bytes(4, "big") + longer)[:8] + b"\0")


def test_a_short_loose_header_is_read_and_a_long_one_refused() -> None:
    ext = {"properties": "x" * 1000}
    whole = encode_command(Command(10, opaque=7, ext=ext))[4:]
    size = int.from_bytes(whole[1:4], "big")
    loose = whole[4 : 4 + size].replace(b'"code"', b"'code'")
    assert decode_frame(frame_of(loose)).ext == ext
    long = loose.replace(b"x" * 1000, b"x" * LOOSE_BYTES_MAX)
    with pytest.raises(RemoteProtocolError, match="not standard JSON, where 65,536 is the most; send standard JSON"):
        decode_frame(frame_of(long))
    standard = long.replace(b"'code'", b'"code"')
    assert len(decode_frame(frame_of(standard)).ext or {}) == 1


def test_limits_of_loads() -> None:
    assert loads(b"{0:1}", 5) == {"0": 1}
    with pytest.raises(RemoteProtocolError):
        loads(b"{0:1 }", 5)
    assert loads(b'{"0":1}', 5) == {"0": 1}
    with pytest.raises(RemoteProtocolError, match="JSON with references has too many values"):
        loads(b'[1,2,3,4,{"$ref":"$[0]"}]', 5)
    assert loads(b'[1,2,3,4,{"$ref":"$[0]"}]', 7) == [1, 2, 3, 4, 1]


async def test_a_broker_reads_no_long_loose_body(tmp_path: Path) -> None:
    """Of a heartbeat: as long as a frame in standard JSON, 64 KiB otherwise."""
    async with running_broker(tmp_path, groupsPerConnectionMax=10_000) as ready, peer_of(ready) as peer:
        producers = ",".join(f'{{"groupName":"G{number}"}}' for number in range(4_900))
        body = f'{{"clientID":"c","producerDataSet":[{producers}],"consumerDataSet":[]}}'.encode()
        assert len(body) > LOOSE_BYTES_MAX
        assert (await peer.call(RequestCode.HEART_BEAT, None, body)).code == 0
        refused = await peer.call(RequestCode.HEART_BEAT, None, body.replace(b'"clientID"', b"'clientID'"))
        assert (refused.code, "that are not standard JSON, where 65,536 is the most" in (refused.remark or "")) == (1, True)
        short = b"{'clientID':'c','producerDataSet':[{'groupName':'G'}],'consumerDataSet':[]}"
        assert (await peer.call(RequestCode.HEART_BEAT, None, short)).code == 0
