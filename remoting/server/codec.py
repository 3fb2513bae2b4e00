"""The codec: turn bytes into requests, and submit them to the pools.

One step takes a ReadBatch, cuts it into frames, decodes each header with the typed decoder of its
request code, and hands every pool one list. A step never waits: a full pool refuses, it does not
block. Bytes that cannot be decoded end their connection and affect no other; one log entry names
the peer, the cause and the fix.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs
import trio

from triomq.remoting.core.errors import (
    FrameError,
    HeaderFieldError,
    RemoteProtocolError,
    RemotingError,
)
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.codes import ResponseCode, SerializeType
from triomq.remoting.protocol.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    encode_response_head,
    serialize_type,
)
from triomq.remoting.protocol.framing import split_frame
from triomq.remoting.protocol.request_decoder import RequestDecoder
from triomq.remoting.server.answers import send_error
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.execution import BATCH_REQUESTS_MAX
from triomq.remoting.server.mailbox import Mailbox
from triomq.remoting.server.pool import BATCH_BYTES_MAX, TURN_REQUESTS_MAX
from triomq.remoting.server.request_hooks import RequestHook, run_hooks
from triomq.remoting.server.requests import Destination, Request, RequestPool

_log = logging.getLogger(__name__)

ReadBatch: TypeAlias = tuple[float, list[tuple[Connection, bytes]]]
"""When the bytes were read, and the bytes of each connection in order of arrival; empty bytes: the
peer has closed its sending side.
"""

_MAILBOX_BATCHES = 4
_LAST_VERSION_WITHOUT_GO_AWAY = 475  # V5_3_1
_SERIALIZE = (SerializeType.JSON, SerializeType.ROCKETMQ)


@attrs.define(eq=False)
class Codec:
    """One codec task and its mailbox. ``destinations``: where each request code goes."""

    decoder: RequestDecoder
    destinations: Mapping[int, Destination]
    limit: LogLimit = attrs.field(factory=LogLimit)
    hooks: Sequence[RequestHook] = ()
    mailbox: Mailbox[ReadBatch] = attrs.field(factory=lambda: Mailbox(_MAILBOX_BATCHES), init=False)
    # The destinations from before the server began to stop; None until then.
    _left: Mapping[int, Destination] | None = attrs.field(default=None, init=False)
    sent_away_count: int = attrs.field(default=0, init=False)
    request_count: int = attrs.field(default=0, init=False)
    unknown_count: int = attrs.field(default=0, init=False)
    broken_count: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Process the mailbox until cancelled."""
        while True:
            self.step(await self.mailbox.take())
            await trio.lowlevel.checkpoint()

    def step(self, batch: ReadBatch) -> None:
        """Decode one batch and submit its requests. Checkpoint: never."""
        arrived, reads = batch
        decode = self.decoder.decode
        destinations = self.destinations
        by_pool: dict[RequestPool, list[Request]] = {}
        last_destination: Destination | None = None
        append: Callable[[Request], None]  # set with the destination
        ending: list[tuple[Connection, RemotingError | None]] = []
        count = size = 0
        budget = TURN_REQUESTS_MAX
        for connection, data in reads:
            if not data:
                ending.append((connection, None))
                continue
            try:
                frames = (
                    connection.frames.feed(data)
                    if connection.filter is None
                    else _filtered(connection, data)
                )
            except FrameError as error:
                ending.append((connection, error))
                frames = error.frames  # the frames before the damage
            except RemotingError as error:
                ending.append((connection, error))
                continue
            for frame in frames:
                size += len(frame)
                try:
                    (
                        code,
                        opaque,
                        flag,
                        version,
                        language,
                        _remark,
                        header,
                        serialize,
                        raw_header,
                        body,
                    ) = decode(frame)
                    if flag & RESPONSE_FLAG:
                        connection.take_response(frame)
                        continue
                except HeaderFieldError as error:
                    self._answer_bad_fields(connection, frame, error)
                    continue
                except RemotingError as error:
                    ending.append((connection, error))
                    break
                destination = destinations.get(code)
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
                    destination,  # type: ignore[arg-type]  # None only until the next line
                )
                if destination is None:
                    self._refuse_unknown(request)
                    continue
                if destination is not last_destination:
                    last_destination = destination
                    append = by_pool.setdefault(destination.pool, []).append
                append(request)
                count += 1
                if count == BATCH_REQUESTS_MAX:
                    # In pieces: the first answers are on their way while the rest is decoded.
                    self._submit(by_pool, in_place=budget > 0 and size <= BATCH_BYTES_MAX)
                    budget -= count
                    by_pool, last_destination, count, size = {}, None, 0, 0
        self._submit(by_pool, in_place=budget > 0 and size <= BATCH_BYTES_MAX)
        # Last, so that answers of requests that ran in place still reach the peer.
        for connection, ending_error in ending:
            self._end(connection, ending_error)

    def submit(self, requests: Sequence[Request]) -> None:
        """Submit requests that were never bytes, in their order; each has ``answered``.

        An idle pool runs them in place, so the caller may not be deep in the stack of a handler.
        Checkpoint: never.
        """
        by_pool: dict[RequestPool, list[Request]] = {}
        for request in requests:
            destination = self.destinations.get(request.code)
            if destination is None:
                self._refuse_unknown(request)
                continue
            request.destination = destination
            by_pool.setdefault(destination.pool, []).append(request)
        self._submit(by_pool, in_place=self.mailbox.idle)

    def _submit(self, by_pool: dict[RequestPool, list[Request]], *, in_place: bool) -> None:
        for pool, requests in by_pool.items():
            self.request_count += len(requests)
            pool.submit(
                run_hooks(self.hooks, requests, self.limit) if self.hooks else requests,
                in_place=in_place,
            )

    def _end(self, connection: Connection, error: RemotingError | None) -> None:
        if connection.closed:
            return
        if error is not None:
            self.broken_count += 1
            header = isinstance(error, RemoteProtocolError) and not isinstance(error, FrameError)
            what = f"a header cannot be read: {error}" if header else str(error)
            self.limit.warning(
                _log, "closing the connection from %s: %s", connection.peer_text, what
            )
            connection.close(str(error))
        else:
            connection.close()

    def leave(self) -> None:
        """Submit what was read so far, and send away all later requests: the server stops."""
        while (batch := self.mailbox.take_nowait()) is not None:
            self.step(batch)
        self._left, self.destinations = self.destinations, {}

    def _send_away(self, request: Request, destinations: Mapping[int, Destination]) -> None:
        """Answer GO_AWAY, after which a client retries once over a new connection.

        The connections of clients without GO_AWAY are reset. One-way requests are still let in,
        since no client repeats them.

        Source: NettyRemotingAbstract.java#processRequestCommand.
        """
        self.sent_away_count += 1
        if request.oneway:
            destination = destinations.get(request.code)
            if destination is not None:
                request.destination = destination
                self._submit({destination.pool: [request]}, in_place=False)
        elif request.version > _LAST_VERSION_WITHOUT_GO_AWAY:
            send_error((request,), ResponseCode.GO_AWAY, "please go away")
        else:
            request.connection.refuse_in_silence()

    def _refuse_unknown(self, request: Request) -> None:
        if self._left is not None:
            self._send_away(request, self._left)
            return
        self.unknown_count += 1
        send_error(
            (request,),
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.code} not supported",
        )

    def _answer_bad_fields(
        self, connection: Connection, frame: bytes, error: HeaderFieldError
    ) -> None:
        """Refuse a request whose frame is valid and whose fields are not; the connection stays."""
        message = "request %d from %s refused: %s"
        self.limit.info(_log, message, error.code, connection.peer_text, error)
        if not error.flag & ONEWAY_FLAG:
            kind = serialize_type(split_frame(frame)[0])
            code = ResponseCode.SYSTEM_ERROR
            head = encode_response_head(None, code, error.opaque, str(error), 0, kind)
            connection.write((head,))


def _filtered(connection: Connection, data: bytes) -> list[bytes]:
    """Return the frames of bytes that pass a filter; send the filter's own bytes at once."""
    assert connection.filter is not None
    try:
        plain = connection.filter.received(data)
    finally:
        # After an error too: an alert of TLS. `received` may have replaced or removed the filter.
        own = connection.filter.to_send(b"") if connection.filter is not None else b""
        if own:
            connection.write((own,), filtered=True)
    return connection.frames.feed(plain) if plain else []
