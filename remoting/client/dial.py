"""Open a TCP connection, directly or through a SOCKS5 proxy; only host names need a thread."""

import errno
import math
import os
import socket

import trio

from triomq.remoting.client.proxies import SocksProxy, proxy_left
from triomq.remoting.core.address import parse_address
from triomq.remoting.core.socket_options import set_stream_options
from triomq.remoting.protocol.socks import SocksDialogue

ADDRESS_SECONDS = 1.0
"""How long one address of a host may stay silent before the next one is tried."""


async def dial(host: str, port: int) -> socket.socket:
    """Return a connected, non-blocking socket with TCP_NODELAY. Tries every address of the host.

    Raises: OSError of the last address.
    Checkpoint: always.
    """
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(errno.EADDRNOTAVAIL, "the host has no address")
    for number, (family, kind, protocol, _, where) in enumerate(found, 1):
        seconds = ADDRESS_SECONDS if number < len(found) else math.inf
        try:
            with trio.fail_after(seconds):
                return await _dial_one(socket.socket(family, kind, protocol), where)
        except trio.TooSlowError:
            failure = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        except OSError as error:
            failure = error
    raise failure


async def dial_through(proxy: SocksProxy, host: str, port: int) -> socket.socket:
    """Do the same through a proxy, which looks the host up.

    Raises: OSError, RemoteProtocolError if the proxy refuses.
    Checkpoint: always.
    """
    dialogue = SocksDialogue(host, port, proxy.username, proxy.password)
    sock = await dial(*parse_address(proxy.address))
    try:
        await send_all(sock, dialogue.start())
        while not dialogue.done:
            await trio.lowlevel.wait_readable(sock)
            try:
                got = sock.recv(dialogue.wanted())
            except BlockingIOError:
                continue
            if not got:
                raise proxy_left(proxy)
            await send_all(sock, dialogue.received(got))
    except BaseException:
        sock.close()
        raise
    return sock


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Send all bytes on a non-blocking socket. Raises: OSError. Checkpoint: maybe."""
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)


async def _dial_one(sock: socket.socket, where: tuple[object, ...]) -> socket.socket:
    try:
        sock.setblocking(False)
        try:
            sock.connect(where)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number)) from None
        else:
            await trio.lowlevel.checkpoint()
        if sock.getsockname() == sock.getpeername():
            # An ephemeral port can connect to itself (TCP simultaneous open) while no server
            # listens there.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        set_stream_options(sock)
    except BaseException:
        sock.close()
        raise
    return sock
