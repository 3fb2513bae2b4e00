"""A pool without sockets: connections that remember what was written, and requests made by code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import trio

from triomq.remoting.protocol.codes import SerializeType
from triomq.remoting.protocol.command import Command, decode_frame
from triomq.remoting.server.config import PoolConfig
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.pool import Pool
from triomq.remoting.server.requests import Request, Response


@attrs.define(eq=False)
class Paper:
    """A connection that only remembers what was written."""

    peer_text: str = "10.0.0.1:5"
    written: list[bytes] = attrs.field(factory=list)

    def write(self, pieces: list[bytes]) -> None:
        self.written.append(b"".join(pieces))

    def answers(self) -> list[Command]:
        data, found = b"".join(self.written), []
        while data:
            size = int.from_bytes(data[:4], "big") + 4
            found.append(decode_frame(data[4:size]))
            data = data[size:]
        return found


@attrs.define(eq=False)
class Bench:
    pool: Pool
    paper: Paper = attrs.field(factory=Paper)
    destinations: dict[int, Any] = attrs.field(factory=dict)
    next_opaque: int = 0

    def add(self, code: int, call: Callable[..., Any], **more: Any) -> None:
        self.destinations[code] = self.pool.destination(
            Handler(code, call, **more), more.pop("key", code)
        )

    def requests(
        self, *codes: int, oneway: bool = False, size: int = 0, paper: Paper | None = None
    ) -> list[Request]:
        made = []
        for code in codes:
            self.next_opaque += 1
            connection: Any = paper or self.paper
            made.append(
                Request(
                    connection,
                    code,
                    self.next_opaque,
                    oneway,
                    479,
                    3,
                    SerializeType.JSON,
                    None,
                    b"x" * size,
                    trio.current_time(),
                    b"",
                    self.destinations[code],
                )
            )
        return made


def bench(nursery: trio.Nursery | None = None, **config: Any) -> Bench:
    pool = Pool("test", PoolConfig(**config), lambda: None)
    if nursery is not None:
        for _ in range(pool.config.workers):
            nursery.start_soon(pool.work)
    return Bench(pool)


def ok(request: Request) -> Response:
    return Response(0)
