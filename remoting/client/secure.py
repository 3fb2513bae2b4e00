"""TLS on a connected socket: the handshake, for both kinds of clients. Imported only where TLS is on."""

from __future__ import annotations

import socket
import ssl

import trio

from triomq.remoting.errors import TlsFailed
from triomq.remoting.tls.stream import TlsStream

_READ_BYTES = 16 * 1024


def no_tls_there() -> TlsFailed:
    """What it means that a server ends the connection in the middle of a handshake."""
    return TlsFailed(
        "the server closed the connection during the TLS handshake",
        "it may not speak TLS, or refuse this client: check its log, tls.server.mode and its certificate, or switch TLS off here",
    )


async def secure(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsStream:
    """Shake hands over a non-blocking socket. TlsFailed or OSError closes it; cancelling does, too."""
    stream = TlsStream(context, server_side=False, host_name=host.partition("%")[0])
    try:
        await _send_all(sock, stream.start())
        while not stream.ready:
            await trio.lowlevel.wait_readable(sock)
            try:
                data = sock.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                data = b""
            if not data:
                raise no_tls_there()
            try:
                stream.shake(data)
            finally:
                await _send_all(sock, stream.to_send(b""))
    except BaseException:
        sock.close()
        raise
    return stream


def secure_blocking(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsStream:
    """Shake hands over a socket with a time-out. TlsFailed, OSError."""
    stream = TlsStream(context, server_side=False, host_name=host.partition("%")[0])
    sock.sendall(stream.start())
    while not stream.ready:
        try:
            data = sock.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            raise no_tls_there()
        try:
            stream.shake(data)
        finally:
            last = stream.to_send(b"")
            if last:
                sock.sendall(last)
    return stream


def last_words(sock: socket.socket, stream: TlsStream, reason: str) -> str:
    """Sending failed because of *reason*: the peer may have said a better one before it left, such as a refused certificate."""
    try:
        sock.setblocking(False)
        stream.received(sock.recv(_READ_BYTES))
    except TlsFailed as error:
        return str(error)
    except OSError:
        return reason
    return reason


async def _send_all(sock: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
