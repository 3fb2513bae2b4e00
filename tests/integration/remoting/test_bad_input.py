"""Invalid input of any kind: one clear log entry, the connection closed, all other peers served."""

from __future__ import annotations

import struct

import pytest
from serving import ECHO, FAIL, STAGES, RawPeer, serving, until


def framed(header: bytes, kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header), kind << 24 | len(header)) + header


GARBAGE = {
    "http": (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "the peer speaks HTTP"),
    "tls": (bytes.fromhex("160301020001000001fc0303"), "the peer speaks TLS"),
    "too long": (
        struct.pack(">iI", 70_000, 10),
        "frame of 70004 bytes is longer than the limit of 65536",
    ),
    "negative length": (struct.pack(">iI", -5, 0), "less than its own header length"),
    "no room for a header": (struct.pack(">iI", 3, 0), "less than its own header length"),
    "header beyond the frame": (
        struct.pack(">iI", 20, 500) + bytes(16),
        "header of 500 bytes in a frame of 20",
    ),
    "unknown header type": (framed(b'{"code":9001,"opaque":1}', 9), "unknown header type 9"),
    "header that is no JSON": (framed(b"????"), "a header cannot be read: bad JSON"),
    "opaque out of range": (
        framed(b'{"code":9001,"opaque":99999999999999}'),
        "a header cannot be read: opaque",
    ),
    "binary header cut off": (framed(bytes(4), 1), "ends too early"),
}


@pytest.mark.parametrize("stages", STAGES, ids=["1-1", "3-8"])
@pytest.mark.parametrize("kind", list(GARBAGE))
async def test_garbage_closes_its_own_connection_only(
    kind: str, stages: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    data, cause = GARBAGE[kind]
    async with (
        serving(stages=stages, frame_max_bytes=65_536) as server,
        await RawPeer.open(server) as good,
        await RawPeer.open(server) as bad,
    ):
        assert (await good.call(ECHO, b"before")).body == b"before"
        opaque, frame = bad.frame(ECHO, b"answered")
        await bad.send(
            frame
            + data
            + bad.frame(ECHO, b"behind it: nobody knows where that begins, or who meant it")[1]
        )
        await bad.ended()
        assert [(command.opaque, command.body) for command in bad.received] == [
            (opaque, b"answered")
        ]
        assert (await good.call(ECHO, b"after")).body == b"after"
        assert server.statistics().broken == 1
        name = bad.stream.socket.getsockname()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert lines[0].startswith(f"closing the connection from {name[0]}:{name[1]}: ")
    assert cause in lines[0]
    assert ";" in lines[0]  # cause; fix
    assert "\n" not in lines[0]


async def test_a_peer_that_closes_in_the_middle_of_a_frame(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server, await RawPeer.open(server) as good:
        for cut in (1, 4, 7, 8, 30):
            async with await RawPeer.open(server) as bad:
                _, frame = bad.frame(ECHO, b"never whole")
                await bad.send(frame[:cut])
        assert (await good.call(ECHO, b"fine")).body == b"fine"
        await until(lambda: server.statistics().connections <= 1)
        assert server.statistics().broken == 0
    assert [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []


async def test_a_peer_that_half_closes_still_gets_the_answers_made_in_place() -> None:
    async with serving() as server, await RawPeer.open(server) as peer:
        opaque, frame = peer.frame(ECHO, b"last words")
        await peer.send(frame)
        await peer.stream.send_eof()
        await peer.ended()
        assert [(command.opaque, command.body) for command in peer.received] == [
            (opaque, b"last words")
        ]


async def test_answers_without_a_request() -> None:
    async with serving() as server, await RawPeer.open(server) as peer:
        _, frame = peer.frame(ECHO, b"an answer", flag=1)
        await peer.send(frame)
        assert (await peer.call(ECHO, b"fine")).body == b"fine"
        _, oneway_answer = peer.frame(FAIL, flag=3)
        await peer.send(oneway_answer)
        assert (await peer.call(ECHO, b"fine")).body == b"fine"
        assert peer.received == []
        statistics = server.statistics()
        assert (statistics.requests, statistics.broken) == (2, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
async def test_any_split_of_the_bytes_gives_the_same_requests(size: int) -> None:
    async with serving() as server, await RawPeer.open(server) as peer:
        frames = [peer.frame(ECHO, b"%d" % number) for number in range(6)]
        data = b"".join(frame for _, frame in frames)
        for start in range(0, len(data), size):
            await peer.send(data[start : start + size])
        for number, (opaque, _) in enumerate(frames):
            assert (await peer.answer(opaque)).body == b"%d" % number


async def test_an_odd_header_is_still_a_request() -> None:
    """Members in another order, a code inside a text before the real one, numbers as text."""
    header = (
        b'{"extFields":{"x":"\\"code\\":7"},"opaque":"5","flag":0,"code":"9001",'
        b'"language":"ELVISH"}'
    )
    async with serving() as server, await RawPeer.open(server) as peer:
        await peer.send(framed(header))
        assert (await peer.answer(5)).ext == {"x": '"code":7'}


async def test_an_answer_can_be_any_size_a_request_can_be() -> None:
    async with serving(frame_max_bytes=65_536) as server, await RawPeer.open(server) as peer:
        command_size = len(peer.frame(ECHO)[1])
        body = b"x" * (65_536 - command_size)
        opaque, frame = peer.frame(ECHO, body)
        assert len(frame) == 65_536
        await peer.send(frame)
        assert (await peer.answer(opaque)).body == body
        await peer.send(peer.frame(ECHO, body + b"x")[1])
        await peer.ended()
