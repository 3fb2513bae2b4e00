"""Write responses: encode each in its request's form, join them per connection, write once."""

import logging
from collections.abc import Iterable

from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import encode_response_head
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response

_log = logging.getLogger(__name__)

Chunks = list[bytes | memoryview]
_ONE_PIECE = (bytes, memoryview)
_REMARK_CHARACTERS_MAX = 2000
# Answers that report an ordinary absence of messages.
_NOT_ERRORS = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.POLLING_TIMEOUT,
    }
)


def send_answers(requests: Iterable[Request], answers: Iterable[Response | None]) -> None:
    """Write the answers of a batch; skip None and the answers to one-way requests."""
    current: Connection | None = None
    chunks: Chunks = []
    others: dict[Connection, Chunks] | None = None
    for request, answer in zip(requests, answers):
        if answer is None:
            continue
        if answer.code and request.destination is not None:
            counters = request.destination.counters
            counters.note_code(answer.code)
            if answer.code not in _NOT_ERRORS:
                counters.errors += 1
        if request.oneway:
            continue
        if request.answered is not None:
            request.answered(answer)
            continue
        if request.connection is not current:
            if current is not None:
                others = others or {}
                others[current] = chunks
                chunks = others.pop(request.connection, [])
            current = request.connection
        body = answer.body
        if body.__class__ is bytes:
            size = len(body)
        elif isinstance(body, _ONE_PIECE):
            body, size = (body,), len(body)
        else:
            size = sum(map(len, body))
        try:
            head = encode_response_head(
                answer.header,
                answer.code,
                request.opaque,
                answer.remark,
                size,
                request.serialize,
                answer.ext,
            )
        except (LocalProtocolError, TypeError) as error:
            _log.exception(
                "the answer to request %d of %s cannot be encoded", request.code, current.peer_text
            )
            chunks.append(error_head(request, ResponseCode.SYSTEM_ERROR, error_remark(error)))
            continue
        chunks.append(head)
        if body.__class__ is bytes:
            if size:
                chunks.append(body)
        else:
            chunks += body  # type: ignore[arg-type]
    if others is not None:
        for connection, joined in others.items():
            connection.write(joined)
    if current is not None:
        current.write(chunks)


def send_error(requests: Iterable[Request], code: int, remark: str) -> None:
    """Refuse all these requests with one code and remark; one-way requests get nothing."""
    by_connection: dict[Connection, Chunks] = {}
    for request in requests:
        if request.answered is not None:
            request.answered(Response(code, remark=remark))
        elif not request.oneway:
            by_connection.setdefault(request.connection, []).append(
                error_head(request, code, remark)
            )
    for connection, chunks in by_connection.items():
        connection.write(chunks)


def error_head(request: Request, code: int, remark: str) -> bytes:
    """Return the whole frame of a refusal, which has no body."""
    return encode_response_head(None, code, request.opaque, remark, 0, request.serialize)


def error_remark(error: BaseException) -> str:
    """Return the remark for an error in a handler: its class, message and place, as Java does."""
    text = f"{type(error).__name__}: {error}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        text += (
            f", {trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno} in"
            f" {trace.tb_frame.f_code.co_name}"
        )
    return text[:_REMARK_CHARACTERS_MAX].encode("utf-8", "replace").decode()
