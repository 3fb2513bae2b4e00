"""A filter of bytes between socket and frames, like TLS: here a toy cipher with a handshake."""

from __future__ import annotations

import attrs
import pytest
import trio
from serving import ECHO, RawPeer, serving

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.command import decode_frame
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.server.connection import BytesFilter, Connection
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Request, Response

HELLO, WELCOME = b"HELLO", b"WELCOME"


def toggled(data: bytes) -> bytes:
    return bytes(byte ^ 0x5A for byte in data)


@attrs.define(eq=False)
class ToyCipher:
    """Expects HELLO, sends WELCOME, then inverts bits in both directions."""

    greeting: bytes = b""
    said: bytes = b""

    def received(self, data: bytes) -> bytes:
        if len(self.greeting) < len(HELLO):
            missing = len(HELLO) - len(self.greeting)
            self.greeting += data[:missing]
            data = data[missing:]
            if not HELLO.startswith(self.greeting):
                raise RemotingError("the peer does not speak the toy cipher; say HELLO first")
            if self.greeting == HELLO:
                self.said = WELCOME
        return toggled(data)

    def to_send(self, data: bytes) -> bytes:
        said, self.said = self.said, b""
        return said + toggled(data)

    def closing(self) -> bytes:
        return b""


@pytest.mark.parametrize("piece", [1, 3, 100_000])
async def test_frames_pass_a_filter_in_both_directions(piece: int) -> None:
    filters: list[ToyCipher | None] = []

    def choose(connection: Connection) -> BytesFilter | None:
        made = ToyCipher() if connection.number == 0 else None
        filters.append(made)
        return made

    def two_pieces(request: Request) -> Response:
        return Response(0, body=[b"one ", b"two"])

    async with serving([Handler(9601, two_pieces)], filter_factory=choose) as server:
        async with await RawPeer.open(server) as secret, await RawPeer.open(server) as plain:
            first, first_frame = secret.frame(ECHO, b"hidden")
            second, second_frame = secret.frame(9601)
            data = HELLO + toggled(first_frame + second_frame)
            for start in range(0, len(data), piece):
                await secret.send(data[start : start + piece])
            got = b""
            with trio.fail_after(10):
                while len(secret.received) < 2:
                    got += await secret.stream.receive_some(65536)
                    plaintext = toggled(got.removeprefix(WELCOME))
                    secret.received = [
                        decode_frame(frame) for frame in FrameBuffer().feed(plaintext)
                    ]
            assert got.startswith(WELCOME)
            assert (await secret.answer(first)).body == b"hidden"
            assert (await secret.answer(second)).body == b"one two"
            assert (await plain.call(ECHO, b"open")).body == b"open"
        assert [made is None for made in filters] == [False, True]


async def test_a_filter_that_refuses_closes_that_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serving(filter_factory=lambda connection: ToyCipher()) as server,
        await RawPeer.open(server) as peer,
    ):
        await peer.send(peer.frame(ECHO)[1])
        await peer.ended()
        assert server.statistics().broken == 1
    assert [
        record.getMessage().partition(": ")[2]
        for record in caplog.records
        if record.levelname == "WARNING"
    ] == ["the peer does not speak the toy cipher; say HELLO first"]
