"""Clients through a SOCKS5 proxy, plain and with TLS; the proxy is a small one of the tests."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tls_files
import trio
from serving import ECHO, serving

from triomq.remoting.client.access import Access
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.core.errors import ConnectFailed
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.connection_sniffer import ConnectionSniffer, server_context_of
from triomq.remoting.tls.security_settings import ProxyMode, TlsMode


async def exactly(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = await stream.receive_some(size - len(data))
        if not got:
            raise EOFError
        data += got
    return data


@asynccontextmanager
async def socks_proxy(password: str = "") -> AsyncIterator[tuple[str, list[str]]]:
    """Yield (address, requested targets)."""
    asked: list[str] = []

    async def serve(client: trio.SocketStream) -> None:
        async with client:
            count = (await exactly(client, 2))[1]
            methods = await exactly(client, count)
            if password:
                if 2 not in methods:
                    await client.send_all(b"\x05\xff")
                    return
                await client.send_all(b"\x05\x02")
                user = await exactly(client, (await exactly(client, 2))[1])
                secret = await exactly(client, (await exactly(client, 1))[0])
                good = (user, secret) == (b"me", password.encode())
                await client.send_all(b"\x01\x00" if good else b"\x01\x01")
                if not good:
                    return
            else:
                await client.send_all(b"\x05\x00")
            kind = (await exactly(client, 4))[3]
            host = (
                socket.inet_ntoa(await exactly(client, 4))
                if kind == 1
                else (await exactly(client, (await exactly(client, 1))[0])).decode()
            )
            port = int.from_bytes(await exactly(client, 2), "big")
            asked.append(f"{host}:{port}")
            try:
                target = await trio.open_tcp_stream(
                    "127.0.0.1" if host == "broker.invalid" else host, port
                )
            except OSError:
                await client.send_all(b"\x05\x05\x00\x01" + bytes(6))
                return
            async with target:
                await client.send_all(b"\x05\x00\x00\x01" + bytes(6))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(carry, client, target, nursery.cancel_scope.cancel)
                    nursery.start_soon(carry, target, client, nursery.cancel_scope.cancel)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}", asked
        nursery.cancel_scope.cancel()


async def carry(
    source: trio.SocketStream, sink: trio.SocketStream, end: Callable[[], None]
) -> None:
    try:
        async for data in source:
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    end()


def access(proxy: str, tls_of: tls_files.Files | None = None, password: str = "") -> Access:
    entry = f'{{"addr":"{proxy}","username":"{"me" if password else ""}","password":"{password}"}}'
    tls = tls_of.client() if tls_of is not None else None
    return Access(tls=tls, socks=SocksProxies.parse(f'{{"0.0.0.0/0":{entry}}}'))


@pytest.mark.parametrize("password", ["", "open sesame"])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_both_clients_reach_a_server_through_a_proxy(
    tmp_path: Path, password: str, encrypted: bool
) -> None:
    files = tls_files.write(tmp_path, hosts=["broker.invalid"]) if encrypted else None
    door = ConnectionSniffer(
        TlsMode.PERMISSIVE, ProxyMode.OFF, server_context_of(files.server()) if files else None
    )
    async with (
        socks_proxy(password) as (proxy, asked),
        serving(filter_factory=door.filter) as server,
    ):
        # A name that only the proxy can look up.
        address = f"broker.invalid:{server.port}"
        options = access(proxy, files, password).options()
        async with Connector(ConnectorConfig(**options)) as connector:
            for body in (b"one", b"two" * 100_000):
                assert (
                    await connector.invoke(address, Command(ECHO, body=body), timeout=20)
                ).body == body

        def talk() -> bytes:
            with BlockingConnection(address, **options) as connection:
                return bytes(connection.invoke(Command(ECHO, body=b"three")).body)

        assert await trio.to_thread.run_sync(talk) == b"three"
        assert asked == [address, address]


async def test_refusals_name_the_cause() -> None:
    async with socks_proxy("secret") as (proxy, _), serving() as server:
        cases = [
            (
                access(proxy),
                f"127.0.0.1:{server.port}",
                "set username and password in socksProxyConfig",
            ),
            (
                access(proxy, password="wrong"),
                f"127.0.0.1:{server.port}",
                "does not accept user and password",
            ),
            (access(proxy, password="secret"), "127.0.0.1:1", "the target refused the connection"),
            (access("127.0.0.1:1"), f"127.0.0.1:{server.port}", "refused"),
        ]
        for case, address, words in cases:
            async with Connector(ConnectorConfig(**case.options())) as connector:
                with pytest.raises(ConnectFailed, match=words):
                    await connector.invoke(address, Command(ECHO))
            with pytest.raises(ConnectFailed, match=words):
                await trio.to_thread.run_sync(
                    lambda address=address, case=case: BlockingConnection(address, **case.options())
                )
