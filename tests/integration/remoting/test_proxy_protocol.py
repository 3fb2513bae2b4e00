"""PROXY headers through real sockets: the client's address is known, with plain frames and TLS, at
every split of the header.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
import tls_files
import trio
from serving import ECHO, RawPeer, serving

from triomq.remoting.protocol.command import Command, decode_frame, encode_command
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.protocol.proxy_header import V2_SIGNATURE
from triomq.remoting.server.connection_sniffer import ConnectionSniffer, server_context_of
from triomq.remoting.server.handlers import Handler
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.tls.contexts import client_context
from triomq.remoting.tls.security_settings import ProxyMode, TlsMode
from triomq.remoting.tls.stream import TlsStream

WHO = 9701
VERSION_1 = b"PROXY TCP4 203.0.113.9 192.0.2.1 56324 9876\r\n"
VERSION_2 = (
    V2_SIGNATURE
    + b"\x21\x21"
    + struct.pack(">H", 41)
    + socket.inet_pton(socket.AF_INET6, "2001:db8::9")
    + bytes(16)
    + struct.pack(">HH", 40000, 9876)
    + b"\x20note"
)
HEADERS = {
    "version 1": (VERSION_1, "203.0.113.9:56324"),
    "version 2": (VERSION_2, "[2001:db8::9]:40000"),
}


def who(request: Request) -> Response:
    connection = request.connection
    return Response(
        0, body=f"{connection.peer_text} {connection.peer[1]} {len(connection.peer_bytes)}".encode()
    )


def sniffer(proxy: ProxyMode, folder: Path | None = None) -> ConnectionSniffer:
    certificates = (
        server_context_of(tls_files.write(folder).server()) if folder is not None else None
    )
    return ConnectionSniffer(TlsMode.PERMISSIVE, proxy, certificates)


@pytest.mark.feature(190)
@pytest.mark.parametrize("piece", [1, 7, 10_000])
@pytest.mark.parametrize("version", HEADERS)
async def test_the_client_s_own_address_is_seen(version: str, piece: int) -> None:
    header, address = HEADERS[version]
    async with serving(
        [Handler(WHO, who)], filter_factory=sniffer(ProxyMode.REQUIRED).filter
    ) as server:
        async with await RawPeer.open(server) as peer:
            opaque, frame = peer.frame(WHO)
            data = header + frame
            for start in range(0, len(data), piece):
                await peer.send(data[start : start + piece])
            answer = bytes((await peer.answer(opaque)).body).decode()
            assert answer == f"{address} {address.rpartition(':')[2]} {20 if '[' in address else 8}"
            assert (await peer.call(ECHO, b"and so on")).body == b"and so on"


@pytest.mark.feature("151a", 190)
@pytest.mark.parametrize("version", HEADERS)
async def test_in_front_of_tls(version: str, tmp_path: Path) -> None:
    header, address = HEADERS[version]
    files = tls_files.write(tmp_path)
    door = ConnectionSniffer(
        TlsMode.ENFORCING, ProxyMode.REQUIRED, server_context_of(files.server())
    )
    async with serving([Handler(WHO, who)], filter_factory=door.filter) as server:
        async with await RawPeer.open(server) as peer:
            stream = TlsStream(
                client_context(files.client()), server_side=False, host_name="localhost"
            )
            await peer.send(header + stream.start())
            while not stream.ready:
                stream.shake(await peer.stream.receive_some(65536))
                await peer.send(stream.to_send(b""))
            await peer.send(stream.to_send(encode_command(Command(WHO, 1))))
            frames: list[bytes] = []
            buffer = FrameBuffer()
            with trio.fail_after(10):
                while not frames:
                    frames = buffer.feed(stream.received(await peer.stream.receive_some(65536)))
            assert bytes(decode_frame(frames[0]).body).decode().startswith(address)


@pytest.mark.feature(190)
async def test_optional_takes_both_and_local_keeps_the_socket_s_address() -> None:
    async with serving(
        [Handler(WHO, who)], filter_factory=sniffer(ProxyMode.OPTIONAL).filter
    ) as server:
        async with (
            await RawPeer.open(server) as direct,
            await RawPeer.open(server) as health,
            await RawPeer.open(server) as behind,
        ):
            assert bytes((await direct.call(WHO)).body).startswith(b"127.0.0.1:")
            await health.send(V2_SIGNATURE + b"\x20\x00\x00\x00")
            assert bytes((await health.call(WHO)).body).startswith(b"127.0.0.1:")
            await behind.send(VERSION_1)
            assert bytes((await behind.call(WHO)).body).startswith(b"203.0.113.9:56324")


@pytest.mark.parametrize(
    ("mode", "data", "words"),
    [
        (
            ProxyMode.REQUIRED,
            encode_command(Command(ECHO)),
            "does not begin with a PROXY header; connect through the load balancer",
        ),
        (ProxyMode.REQUIRED, b"PROXY TCP4 nonsense\r\n", "malformed PROXY header of version 1"),
        (
            ProxyMode.OPTIONAL,
            V2_SIGNATURE + b"\xff\xff\xff\xff",
            "malformed PROXY header of version 2",
        ),
        (ProxyMode.OPTIONAL, VERSION_1 + b"GET / HTTP/1.1\r\n", "the peer speaks HTTP"),
        (
            ProxyMode.OFF,
            VERSION_1,
            "the connection begins with a PROXY header; set proxyProtocol=optional",
        ),
        (
            ProxyMode.OFF,
            VERSION_2,
            "the connection begins with a PROXY header; set proxyProtocol=optional",
        ),
    ],
)
async def test_an_error_closes_that_connection_with_one_log_entry(
    mode: ProxyMode, data: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(filter_factory=sniffer(mode).filter) as server,
        await RawPeer.open(server) as good,
    ):
        if mode is ProxyMode.REQUIRED:
            await good.send(VERSION_1)
        assert (await good.call(ECHO, b"before")).body == b"before"
        for _ in range(5):
            async with await RawPeer.open(server) as bad:
                await bad.send(data)
                await bad.ended()
        assert (await good.call(ECHO, b"after")).body == b"after"
        assert server.statistics().broken == 5
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1, "log entries that peers can cause are limited"
    assert words in lines[0]
