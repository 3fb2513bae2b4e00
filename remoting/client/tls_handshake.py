"""The TLS handshake over a connected socket, for both kinds of clients. Imported only with TLS."""

from __future__ import annotations

import socket
import ssl

import trio

from triomq.remoting.client.dial import send_all
from triomq.remoting.core.errors import TlsFailed
from triomq.remoting.tls.stream import TlsStream

_READ_BYTES = 16 * 1024


async def secure(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsStream:
    """Shake hands over a non-blocking socket; an error or cancellation closes it.

    Raises: TlsFailed, OSError.
    Checkpoint: always.
    """
    stream = TlsStream(context, server_side=False, host_name=host.partition("%")[0])
    try:
        await send_all(sock, stream.start())
        while not stream.ready:
            await trio.lowlevel.wait_readable(sock)
            try:
                data = _received(sock)
            except BlockingIOError:
                continue
            try:
                stream.shake(data)
            finally:
                await send_all(sock, stream.to_send(b""))
    except BaseException:
        sock.close()
        raise
    return stream


def secure_blocking(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsStream:
    """Shake hands over a blocking socket with a time-out. Raises: TlsFailed, OSError."""
    stream = TlsStream(context, server_side=False, host_name=host.partition("%")[0])
    sock.sendall(stream.start())
    while not stream.ready:
        data = _received(sock)
        try:
            stream.shake(data)
        finally:
            sock.sendall(stream.to_send(b""))
    return stream


def _received(sock: socket.socket) -> bytes:
    """Read once. Raises: TlsFailed if the server has closed the connection, OSError."""
    try:
        data = sock.recv(_READ_BYTES)
    except ConnectionError:
        data = b""
    if not data:
        raise TlsFailed(
            "the server closed the connection during the TLS handshake",
            "it may not speak TLS, or refuse this client: check its log, tls.server.mode and its"
            " certificate, or switch TLS off here",
        )
    return data


def reason_of_peer(sock: socket.socket, stream: TlsStream, reason: str) -> str:
    """Return the alert that the peer sent before it closed, or else *reason*."""
    try:
        sock.setblocking(False)
        stream.received(sock.recv(_READ_BYTES))
    except TlsFailed as error:
        return str(error)
    except OSError:
        pass
    return reason
