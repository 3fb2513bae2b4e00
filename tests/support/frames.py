"""A client of one server for tests: whole frames over a Trio socket, answers matched by their
opaque number.
"""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any, Self

import trio

from triomq.remoting.protocol.command import Command, decode_frame, encode_command, request
from triomq.remoting.protocol.framing import FrameBuffer

_opaque = itertools.count(1_000_000)


class FrameClient:
    """``async with FrameClient(port) as client: answer = await client.call(code, header,
    body)``.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.buffer = FrameBuffer()
        self.received: list[Command] = []

    async def __aenter__(self) -> Self:
        self.stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await trio.aclose_forcefully(self.stream)

    async def send(
        self,
        code: int,
        header: object | None = None,
        body: bytes = b"",
        *,
        version: int | None = None,
        oneway: bool = False,
    ) -> int:
        """Send one request; return its opaque number."""
        command = request(code, header, body, oneway=oneway)
        command.opaque = next(_opaque)
        if version is not None:
            command.version = version
        await self.stream.send_all(encode_command(command))
        return command.opaque

    async def call(
        self,
        code: int,
        header: object | None = None,
        body: bytes = b"",
        *,
        version: int | None = None,
    ) -> Command:
        """Send one request and wait for its answer."""
        return await self.answer(await self.send(code, header, body, version=version))

    async def command(self, code: int, ext: dict[str, str]) -> Command:
        """Send a request with these header fields as they are."""
        command = Command(code=code, opaque=next(_opaque), ext=ext)
        await self.stream.send_all(encode_command(command))
        return await self.answer(command.opaque)

    async def exchange(self, frame: bytes) -> Command:
        """Send captured bytes with a length in front; wait for the answer with the same opaque
        number.
        """
        await self.stream.send_all(frame)
        return await self.answer(decode_frame(frame[4:]).opaque)

    async def answer(self, opaque: int, seconds: float = 10) -> Command:
        """Wait for one answer."""
        with trio.fail_after(seconds):
            while True:
                for number, command in enumerate(self.received):
                    if command.opaque == opaque and command.is_response:
                        return self.received.pop(number)
                data: Any = await self.stream.receive_some(65536)
                if not data:
                    raise AssertionError("the server closed the connection")
                self.received += [decode_frame(bytes(frame)) for frame in self.buffer.feed(data)]

    async def ended(self, seconds: float = 10) -> None:
        """Wait until the server closes the connection."""
        with trio.fail_after(seconds):
            while await self.stream.receive_some(65536):
                pass
