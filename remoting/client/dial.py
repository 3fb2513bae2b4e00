"""Open a TCP connection, without threads unless a host name must be looked up; directly, or through a SOCKS5 proxy."""

import errno
import os
import socket

import trio

from triomq.remoting.address import parse_address
from triomq.remoting.client.proxies import SocksProxy, proxy_left
from triomq.remoting.protocol.socks import SocksDialogue


async def dial(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket with TCP_NODELAY. Tries every address of the host; OSError of the last one if none works."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(errno.EADDRNOTAVAIL, "the host has no address")
    for family, kind, protocol, _, where in found:
        try:
            return await _dial_one(socket.socket(family, kind, protocol), where)
        except OSError as error:
            failure = error
    raise failure


async def dial_through(proxy: SocksProxy, host: str, port: int) -> socket.socket:
    """The same by way of a proxy, which looks the host up. OSError, or RemoteProtocolError if the proxy refuses."""
    dialogue = SocksDialogue(host, port, proxy.username, proxy.password)
    sock = await dial(*parse_address(proxy.address))
    try:
        data = dialogue.start()
        while True:
            while data:
                try:
                    data = data[sock.send(data) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)
            if dialogue.done:
                return sock
            await trio.lowlevel.wait_readable(sock)
            try:
                got = sock.recv(dialogue.wanted())
            except BlockingIOError:
                continue
            if not got:
                raise proxy_left(proxy)
            data = dialogue.received(got)
    except BaseException:
        sock.close()
        raise


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
            # A port of the ephemeral range can meet itself (TCP simultaneous open) while nobody listens there.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock
