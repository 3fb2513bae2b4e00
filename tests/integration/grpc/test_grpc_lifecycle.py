"""How a gRPC server begins and ends: ports, TLS and ALPN, certificates, GOAWAY, drain."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import grpc
import pytest
import tls_files
import trio
from grpc_serving import ECHO, HOLD, Echo, channel_to, grpc_serving, in_thread
from serving import until

from triomq.remoting.core.open_files import Places
from triomq.remoting.grpc.grpc_server import ALPN, GrpcServer
from triomq.remoting.grpc.grpc_settings import GrpcSettings
from triomq.remoting.grpc.methods import MethodTable
from triomq.remoting.server.connection_sniffer import ConnectionSniffer, open_sniffer
from triomq.remoting.server.listen import AddressInUse
from triomq.remoting.tls.security_settings import ProxyMode, Security, TlsMode


def sniffer(
    files: tls_files.Files, mode: TlsMode = TlsMode.PERMISSIVE, proxy: ProxyMode = ProxyMode.OFF
) -> ConnectionSniffer:
    return open_sniffer(
        Security(mode=mode, server=files.server(), client=None, proxy_protocol=proxy), (), ALPN
    )


def secure_channel(server: GrpcServer, files: tls_files.Files) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(root_certificates=files.ca.read_bytes())
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(f"localhost:{server.port}", credentials, options=options)


async def test_plain_and_tls_on_one_port(tmp_path: Path) -> None:
    files = tls_files.write(tmp_path / "tls")
    options = {"sniffer": sniffer(files)}
    async with grpc_serving(server_options=options) as server, channel_to(server) as plain:
        assert await in_thread(plain.unary_unary(ECHO), b"plain", timeout=20) == b"plain"
        with secure_channel(server, files) as secure:
            data = b"tls" * 400_000
            assert await in_thread(secure.unary_unary(ECHO), data, timeout=20) == data
        context = ssl.create_default_context(cafile=str(files.ca))
        context.set_alpn_protocols(["http/1.1", "h2"])

        def negotiated() -> str | None:
            with (
                socket.create_connection(("127.0.0.1", server.port), 20) as sock,
                context.wrap_socket(sock, server_hostname="localhost") as tls,
            ):
                return tls.selected_alpn_protocol()

        assert await in_thread(negotiated) == "h2"


async def test_tls_can_be_demanded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = tls_files.write(tmp_path / "tls")
    options = {"sniffer": sniffer(files, TlsMode.ENFORCING)}
    async with grpc_serving(server_options=options) as server, channel_to(server) as plain:
        with pytest.raises(grpc.RpcError) as caught:
            await in_thread(plain.unary_unary(ECHO), b"plain", timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.statistics().broken >= 1
        with secure_channel(server, files) as secure:
            assert await in_thread(secure.unary_unary(ECHO), b"tls", timeout=20) == b"tls"
    assert "tls.server.mode=enforcing" in caplog.text


async def test_new_connections_get_a_changed_certificate(tmp_path: Path) -> None:
    files = tls_files.write(tmp_path / "tls")
    options = {"sniffer": sniffer(files)}
    async with grpc_serving(server_options=options) as server:

        def subject() -> bytes:
            context = ssl.create_default_context(cafile=str(files.ca))
            with (
                socket.create_connection(("127.0.0.1", server.port), 20) as sock,
                context.wrap_socket(sock, server_hostname="localhost") as tls,
            ):
                return tls.getpeercert(binary_form=True) or b""

        first = await in_thread(subject)
        tls_files.write(tmp_path / "tls", "another")
        with trio.fail_after(30):
            while await in_thread(subject) == first:
                await trio.sleep(0.1)


async def test_the_client_behind_a_load_balancer(tmp_path: Path) -> None:
    files = tls_files.write(tmp_path / "tls")
    echo = Echo()
    options = {"sniffer": sniffer(files, proxy=ProxyMode.OPTIONAL)}
    async with grpc_serving(echo, server_options=options) as server:

        async def relay(client: trio.SocketStream) -> None:
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as upstream:
                await upstream.send_all(b"PROXY TCP4 203.0.113.9 192.0.2.1 56324 8081\r\n")

                async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
                    async for data in source:
                        await target.send_all(data)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(copy, client, upstream)
                    await copy(upstream, client)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, relay, listeners)
            port = listeners[0].socket.getsockname()[1]
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary(HOLD).future(b"")
                await until(lambda: bool(echo.started))
                assert echo.started[0].peer == ("203.0.113.9", 56324)
                call.cancel()
            nursery.cancel_scope.cancel()


async def test_a_port_in_use_names_its_setting() -> None:
    async with grpc_serving() as server:
        second = GrpcServer(
            MethodTable(()),
            listen_host="127.0.0.1",
            listen_port=server.port,
            port_setting="grpcServerPort",
        )
        with pytest.raises(AddressInUse, match="grpcServerPort"):
            await second.run()


async def test_connections_beyond_the_limits_are_turned_away() -> None:
    for options, settings in (
        ({}, {"connections_max": 1}),
        ({}, {"address_connections_max": 1}),
        ({"places": Places(1)}, {}),
    ):
        async with (
            grpc_serving(server_options=options, **settings) as server,
            channel_to(server) as channel,
        ):
            assert await in_thread(channel.unary_unary(ECHO), b"1", timeout=20) == b"1"
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as second:
                assert await second.receive_some() == b""
            assert server.statistics().turned_away == 1
            assert await in_thread(channel.unary_unary(ECHO), b"2", timeout=20) == b"2"


async def test_a_stopping_server_finishes_calls() -> None:
    """One call ends by itself when it hears of the stop, the other is cut off with a status."""
    echo = Echo()
    server = GrpcServer(
        MethodTable(echo.methods()), GrpcSettings(drain_seconds=1), listen_host="127.0.0.1"
    )
    results: dict[bytes, object] = {}
    async with trio.open_nursery() as nursery:
        stop = trio.CancelScope()

        async def serve(task_status: trio.TaskStatus[object]) -> None:
            with stop:
                await server.run(task_status=task_status)

        await nursery.start(serve)
        async with channel_to(server) as channel:

            async def call(request: bytes) -> None:
                future = channel.unary_unary(HOLD).future(request)
                results[request] = await in_thread(future.exception, 20) or future.result()

            nursery.start_soon(call, b"drain")
            nursery.start_soon(call, b"")
            await until(lambda: len(echo.started) == 2)
            stop.cancel()
            await until(lambda: len(results) == 2)
    assert results[b"drain"] == b"drained"
    failure = results[b""]
    assert isinstance(failure, grpc.RpcError)
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    assert "the server stops" in failure.details()
    assert server.connections == set()
    assert server.places.taken == 0


async def test_a_stop_that_is_cancelled_ends_calls_at_once() -> None:
    """As by the second signal to a process; the first one begins ``drain``."""
    echo = Echo()
    server = GrpcServer(
        MethodTable(echo.methods()), GrpcSettings(drain_seconds=1000), listen_host="127.0.0.1"
    )
    results: list[object] = []
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20), trio.CancelScope() as second:
            async with trio.open_nursery() as serving:
                await serving.start(server.run)
                async with channel_to(server) as channel:

                    async def call() -> None:
                        future = channel.unary_unary(HOLD).future(b"")
                        results.append(await in_thread(future.exception, 20))

                    nursery.start_soon(call)
                    await until(lambda: len(echo.started) == 1)
                    with trio.move_on_after(0.2) as scope:
                        await server.drain()
                    assert scope.cancelled_caught
                    assert not results, "the call still has its time"
                    with pytest.raises(OSError, match="failed"):
                        await trio.open_tcp_stream("127.0.0.1", server.port)
                    second.cancel()
                    await trio.lowlevel.checkpoint()
        assert second.cancelled_caught
        with trio.fail_after(20):
            await until(lambda: len(results) == 1)
    assert not server.connections


async def test_a_client_moves_on_after_goaway() -> None:
    """Its calls go on without an error, on a new connection."""
    async with grpc_serving() as server, channel_to(server) as channel:
        echo = channel.unary_unary(ECHO)
        assert await in_thread(echo, b"1", timeout=20) == b"1"

        async def leave() -> None:
            connection = next(iter(server.connections))
            connection.announce_end()
            await trio.sleep(0.05)
            connection.begin_drain()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            for number in range(200):
                data = b"%d" % number
                assert await in_thread(echo, data, timeout=20) == data
        assert server.statistics().accepted == 2
