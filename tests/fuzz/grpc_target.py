"""The target for gRPC: a session that gets any bytes in pieces of one size, and a handler that
echoes.
"""

from __future__ import annotations

from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.http2_session import (
    Buffers,
    CallEnded,
    CallReadable,
    CallStarted,
    Http2Session,
)
from triomq.remoting.grpc.status import CallFailed, decode_text, encode_text
from triomq.remoting.protocol.limits import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = GrpcSettings(
    message_bytes_max=4096,
    inflated_bytes_max=4096,
    calls_max=3,
    stream_window_bytes=65_535,
    connection_window_bytes=65_535,
    resets_per_second=5,
    pings_per_second=5,
    controls_per_second=5,
)


def grpc(data: bytes) -> None:
    """What follows the preface, in pieces; then the time of stalls, and the end."""
    if not data:
        return
    step, data = data[0] + 1, PREFACE + data[1:]
    session = Http2Session(Limits(SETTINGS, "grpc"), Buffers(1 << 20))
    open_calls: set[int] = set()
    try:
        for at in range(0, len(data), step):
            session.receive(data[at : at + step], at / 1e6)
            _serve(session, open_calls)
            session.take_output()
    finally:
        _serve(session, open_calls)
        for call in session.stalled(1e6, 60):
            session.reset(call)
        session.begin_drain()
        session.take_output()
        session.abandon()
        assert session.calls == session.buffers.kept_bytes == 0


def _serve(session: Http2Session, open_calls: set[int]) -> None:
    for event in session.take_events():
        match event:
            case CallStarted(call, head):
                assert call not in open_calls
                assert decode_text(encode_text(head.path)) == head.path
                open_calls.add(call)
                for name in head.metadata:
                    head.binary(name)
            case CallReadable(call) if call in open_calls:
                try:
                    while (message := session.take_message(call)) is not None:
                        session.send_message(call, message)
                    if session.requests_ended(call):
                        session.finish(call, None)
                except CallFailed as error:
                    session.finish(call, error)
            case CallEnded(call):
                open_calls.discard(call)
