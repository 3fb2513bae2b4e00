"""The codec: from bytes to requests, and on to the pools.

One step takes a ReadBatch, cuts it into frames, decodes each header by the typed decoder of its request code, and hands every
pool one list. It never waits: a full pool refuses, it does not block. What cannot be understood costs its sender the
connection and nobody else anything: one line in the log says who, what, and what to do.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs
import trio

from triomq.remoting.errors import FrameError, HeaderFieldError, RemoteProtocolError, RemotingError
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode, SerializeType
from triomq.remoting.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG
from triomq.remoting.protocol.request_decoder import RequestDecoder
from triomq.remoting.server.answers import send_error
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Request
from triomq.remoting.server.hooks import RequestHook, passed
from triomq.remoting.server.mailbox import Mailbox
from triomq.remoting.server.pool import BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, TURN_REQUESTS_MAX, Pool, Route

_log = logging.getLogger(__name__)

ReadBatch: TypeAlias = tuple[float, list[tuple[Connection, bytes]]]
"""When it was read, and what from whom, in order of arrival. No bytes: the peer has finished."""

_MAILBOX_BATCHES = 4
_LAST_VERSION_WITHOUT_GO_AWAY = 475  # V5_3_1
_SERIALIZE = (SerializeType.JSON, SerializeType.ROCKETMQ)


@attrs.define(eq=False)
class Codec:
    """One codec task and its mailbox. `routes` says which pool takes a request code."""

    decoder: RequestDecoder
    routes: Mapping[int, Route]
    pools: Sequence[Pool]
    limit: LogLimit = attrs.field(factory=LogLimit)
    hooks: Sequence[RequestHook] = ()
    mailbox: Mailbox[ReadBatch] = attrs.field(factory=lambda: Mailbox(_MAILBOX_BATCHES), init=False)
    _left: Mapping[int, Route] | None = attrs.field(default=None, init=False)  # since the server stops: what was served before
    sent_away_count: int = attrs.field(default=0, init=False)
    request_count: int = attrs.field(default=0, init=False)
    unknown_count: int = attrs.field(default=0, init=False)
    broken_count: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Work on the mailbox until cancelled."""
        while True:
            self.step(await self.mailbox.take())
            await trio.lowlevel.checkpoint()

    def step(self, batch: ReadBatch) -> None:
        """Decode one batch and submit its requests. No checkpoint."""
        arrived, reads = batch
        decode = self.decoder.decode
        routes = self.routes
        by_pool: dict[Pool, list[Request]] = {}
        last_route: Route | None = None
        append: Callable[[Request], None] = _nowhere
        ending: list[tuple[Connection, RemotingError | None]] = []
        count = size = 0
        budget = TURN_REQUESTS_MAX
        for connection, data in reads:
            if not data:
                ending.append((connection, None))
                continue
            try:
                frames = connection.frames.feed(data) if connection.filter is None else _filtered(connection, data)
            except FrameError as error:
                ending.append((connection, error))
                frames = error.frames  # those before the damage
            except RemotingError as error:
                ending.append((connection, error))
                continue
            for frame in frames:
                size += len(frame)
                try:
                    code, opaque, flag, version, language, _remark, header, serialize, raw_header, body = decode(frame)
                    if flag & RESPONSE_FLAG:
                        connection.take_response(frame)
                        continue
                except HeaderFieldError as error:
                    self._answer_bad_fields(connection, frame, error, arrived)
                    continue
                except RemotingError as error:
                    ending.append((connection, error))
                    break
                route = routes.get(code)
                request = Request(
                    connection,
                    code,
                    opaque,
                    flag & ONEWAY_FLAG != 0,
                    version,
                    language,
                    _SERIALIZE[serialize],
                    header,
                    body,
                    arrived,
                    raw_header,
                    route,  # type: ignore[arg-type]  # None only until the next line
                )
                if route is None:
                    self._refuse_unknown(request)
                    continue
                if route is not last_route:
                    last_route = route
                    append = by_pool.setdefault(route.pool, []).append
                append(request)
                count += 1
                if count == BATCH_REQUESTS_MAX:
                    # Not all at once: the first answers are on their way while the rest is decoded.
                    self._submit(by_pool, in_place=budget > 0 and size <= BATCH_BYTES_MAX)
                    budget -= count
                    by_pool, last_route, count, size = {}, None, 0, 0
        self._submit(by_pool, in_place=budget > 0 and size <= BATCH_BYTES_MAX)
        for connection, complaint in ending:  # last, so that answers given in place still reach the peer
            self._end(connection, complaint)

    def _submit(self, by_pool: dict[Pool, list[Request]], *, in_place: bool) -> None:
        for pool, requests in by_pool.items():
            self.request_count += len(requests)
            pool.submit(passed(self.hooks, requests, self.limit) if self.hooks else requests, in_place=in_place)

    def _end(self, connection: Connection, error: RemotingError | None) -> None:
        if connection.closed:
            return
        if error is not None:
            self.broken_count += 1
            header = isinstance(error, RemoteProtocolError) and not isinstance(error, FrameError)
            what = f"a header cannot be read: {error}" if header else str(error)
            self.limit.log(_log, logging.WARNING, "closing the connection from %s: %s", connection.peer_text, what)
            connection.close(str(error))
        else:
            connection.close()

    def leave(self) -> None:
        """The server stops: let in what was read so far, and send away what comes from now on. No checkpoint."""
        while (batch := self.mailbox.take_nowait()) is not None:
            self.step(batch)
        self._left, self.routes = self.routes, {}

    def _send_away(self, request: Request, routes: Mapping[int, Route]) -> None:
        """GO_AWAY to clients that know it: they come back over a new connection, once. Older ones see the connection reset.

        One-way requests are still let in, since nobody would send them again. Source: NettyRemotingAbstract.java#processRequestCommand.
        """
        self.sent_away_count += 1
        if request.oneway:
            route = routes.get(request.code)
            if route is not None:
                request.route = route
                self._submit({route.pool: [request]}, in_place=False)  # past the hooks, like any other
        elif request.version > _LAST_VERSION_WITHOUT_GO_AWAY:
            send_error((request,), ResponseCode.GO_AWAY, "please go away")
        else:
            request.connection.refuse_in_silence()

    def _refuse_unknown(self, request: Request) -> None:
        if self._left is not None:
            self._send_away(request, self._left)
            return
        self.unknown_count += 1
        send_error((request,), ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")

    def _answer_bad_fields(self, connection: Connection, frame: bytes, error: HeaderFieldError, arrived: float) -> None:
        """The frame is sound and the request is not: its sender gets an answer, and keeps the connection."""
        oneway = error.flag & ONEWAY_FLAG != 0
        request = Request(connection, error.code, error.opaque, oneway, 0, 0, _SERIALIZE[frame[0]], None, b"", arrived, b"")
        self.limit.log(_log, logging.INFO, "request %d from %s refused: %s", error.code, connection.peer_text, error)
        send_error((request,), ResponseCode.SYSTEM_ERROR, str(error))


def _nowhere(request: Request) -> None:
    raise AssertionError("a request has been routed before it is appended")


def _filtered(connection: Connection, data: bytes) -> list[bytes]:
    """The frames of bytes that go through a filter; what the filter itself has to say is sent at once."""
    assert connection.filter is not None
    try:
        plain = connection.filter.received(data)
    finally:  # an error has last words, too; the first bytes may have put another filter in this one's place, or none
        said = connection.filter.to_send(b"") if connection.filter is not None else b""
        if said:
            connection.write((said,), filtered=True)
    return connection.frames.feed(plain) if plain else []
