"""TLS through real sockets: three modes on one port, both kinds of clients, mutual TLS, and files that change."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tls_files
import trio
from serving import ECHO, RawPeer, serving

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.config import ConnectorConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.dial import dial
from triomq.remoting.client.secure import secure
from triomq.remoting.errors import ConnectFailed, ConnectionLost
from triomq.remoting.protocol.command import Command, encode_command
from triomq.remoting.server.entrance import Certificates, Entrance
from triomq.remoting.server.server import Server
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.contexts import client_context
from triomq.remoting.tls.settings import ClientAuth, ProxyMode, ServerTls, TlsMode

# The alert says it; a server that resets the connection before the alert is read leaves a question.
DEMANDED = r"the server demands a client certificate; give one|does it accept our certificate, or demand one\?"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tls_files.Files:
    return tls_files.write(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def tls_server(
    settings: ServerTls | None, mode: TlsMode = TlsMode.PERMISSIVE, proxy: ProxyMode = ProxyMode.OFF, **more: object
) -> AsyncIterator[tuple[Server, Entrance]]:
    entrance = Entrance(mode, proxy, Certificates.load(settings) if settings is not None else None)
    async with serving(filter_factory=entrance.filter, **more) as server:
        yield server, entrance


def connector(tls: Tls | None) -> Connector:
    return Connector(ConnectorConfig(tls=tls))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().partition(": ")[2]
        for record in caplog.records
        if record.name == "triomq.remoting.server.codec"
    ]


@pytest.mark.feature(151, 21)
@pytest.mark.parametrize("size", [0, 100, 3_000_000])
async def test_tls_and_plain_share_a_port(files: tls_files.Files, size: int) -> None:
    async with tls_server(files.server()) as (server, _):
        address = f"127.0.0.1:{server.port}"
        body = bytes(range(256)) * (size // 256)
        async with connector(files.client()) as secret, connector(None) as plain:
            for client in (secret, plain, secret):
                assert (await client.invoke(address, Command(ECHO, body=body), timeout=20)).body == body
            async with trio.open_nursery() as nursery:
                for number in range(64):
                    nursery.start_soon(call_and_check, secret, address, b"%d" % number * 1000)
        filters = [connection.filter for connection in server.connections()]
        assert None in filters or not filters, "a plain connection loses its filter"


async def call_and_check(client: Connector, address: str, body: bytes) -> None:
    assert (await client.invoke(address, Command(ECHO, body=body), timeout=20)).body == body


@pytest.mark.feature(151)
async def test_the_blocking_twin_speaks_tls(files: tls_files.Files) -> None:
    async with tls_server(files.server(), TlsMode.ENFORCING) as (server, _):

        def talk() -> list[bytes]:
            with BlockingConnection(f"localhost:{server.port}", tls=files.client()) as connection:
                numbers = [connection.send(Command(ECHO, body=bytes([number]) * 50_000)) for number in range(20)]
                return [bytes(connection.receive(number, 20).body) for number in reversed(numbers)]

        assert await trio.to_thread.run_sync(talk) == [bytes([number]) * 50_000 for number in reversed(range(20))]


@pytest.mark.feature(151)
async def test_enforcing_refuses_plain_clients_and_both_sides_say_why(
    files: tls_files.Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_server(files.server(), TlsMode.ENFORCING) as (server, _):
        address = f"127.0.0.1:{server.port}"
        async with connector(None) as plain:
            with pytest.raises(ConnectionLost, match=r"before it answered anything \(does it demand TLS\?\)"):
                await plain.invoke(address, Command(ECHO))
        with pytest.raises(ConnectionLost, match="does it demand TLS"):
            await trio.to_thread.run_sync(lambda: BlockingConnection(address).invoke(Command(ECHO)))
        async with connector(files.client()) as secret:
            assert (await secret.invoke(address, Command(ECHO, body=b"x"))).body == b"x"
        assert server.statistics().broken == 2
    assert warnings(caplog) == [
        "the client does not speak TLS, and tls.server.mode=enforcing demands it; switch TLS on in the client, or set tls.server.mode=permissive"
    ]


@pytest.mark.feature(151)
@pytest.mark.parametrize("entrance", [True, False])
async def test_a_tls_client_on_a_plain_port_and_both_sides_say_why(
    files: tls_files.Files, caplog: pytest.LogCaptureFixture, entrance: bool
) -> None:
    filter_factory = Entrance(TlsMode.PERMISSIVE, ProxyMode.OFF).filter if entrance else None
    async with serving(filter_factory=filter_factory) as server, await RawPeer.open(server) as good:
        address = f"127.0.0.1:{server.port}"
        async with connector(files.client()) as secret:
            with pytest.raises(
                ConnectFailed, match=r"closed the connection during the TLS handshake; it may not speak TLS"
            ):
                await secret.invoke(address, Command(ECHO))
        with pytest.raises(ConnectFailed, match="during the TLS handshake"):
            await trio.to_thread.run_sync(lambda: BlockingConnection(address, tls=files.client()))
        assert (await good.call(ECHO, b"still served")).body == b"still served"
    assert len(warnings(caplog)) == 1
    assert "speaks TLS, and this s" in warnings(caplog)[0]
    assert "set tls.server.certPath and tls.server.keyPath" in warnings(caplog)[0]


@pytest.mark.feature(151)
async def test_a_certificate_that_is_not_trusted_is_a_clear_error_on_both_sides(
    files: tls_files.Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = tls_files.write(tmp_path, issuer="Somebody else")
    async with tls_server(files.server()) as (server, _):
        address = f"127.0.0.1:{server.port}"
        async with connector(stranger.client()) as client:
            with pytest.raises(ConnectFailed, match=r"the server's certificate is not trusted: .*trustCertPath"):
                await client.invoke(address, Command(ECHO))
        with pytest.raises(ConnectFailed, match="is not trusted"):
            await trio.to_thread.run_sync(lambda: BlockingConnection(address, tls=stranger.client()))
        async with connector(Tls(verify=False)) as client:
            await client.invoke(address, Command(ECHO))
    assert warnings(caplog)[0].startswith("TLS failed: the client does not trust the authority of our certificate; ")


@pytest.mark.feature(189)
async def test_mutual_tls_refuses_who_shows_no_certificate(
    files: tls_files.Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_server(files.server(ClientAuth.REQUIRE), TlsMode.ENFORCING) as (server, _):
        address = f"127.0.0.1:{server.port}"
        async with connector(files.client(identity=True)) as known, connector(files.client()) as nobody:
            assert (await known.invoke(address, Command(ECHO, body=b"hello"))).body == b"hello"
            with pytest.raises(ConnectionLost, match=DEMANDED):
                await nobody.invoke(address, Command(ECHO))
            assert (await known.invoke(address, Command(ECHO, body=b"again"))).body == b"again"

        def talk(tls: Tls) -> bytes:
            with BlockingConnection(address, tls=tls) as connection:
                return bytes(connection.invoke(Command(ECHO, body=b"hello")).body)

        assert await trio.to_thread.run_sync(talk, files.client(identity=True)) == b"hello"
        with pytest.raises(ConnectionLost, match=DEMANDED):
            await trio.to_thread.run_sync(talk, files.client())
    assert warnings(caplog) == [
        "TLS failed: the client showed no certificate; give the client one (tls.client.certPath, tls.client.keyPath), or set tls.server.need.client.auth=optional"
    ]


async def shown(address: str, tls: Tls) -> bytes | None:
    """The certificate that a new connection gets to see."""
    async with connector(tls) as client:
        await client.invoke(address, Command(ECHO))
        (connection,) = client._connections.values()
        assert connection.tls is not None
        return connection.tls.peer_certificate()


@pytest.mark.feature(189)
async def test_changed_files_are_used_by_new_connections_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = tls_files.write(tmp_path)
    async with tls_server(files.server()) as (server, entrance), connector(files.client()) as old:
        address = f"127.0.0.1:{server.port}"
        certificates = entrance.certificates
        assert certificates is not None
        await old.invoke(address, Command(ECHO))
        before = await shown(address, files.client())
        assert not certificates.look()

        # Half of a change: key and certificate do not match for now, which is no reason to complain yet.
        other = tls_files.write(tmp_path / "new")
        files.certificate.write_bytes(other.certificate.read_bytes())
        assert not certificates.look()
        files.key.write_bytes(other.key.read_bytes())
        assert not certificates.look()
        assert certificates.look()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        after = await shown(address, files.client())
        assert before != after
        assert (await old.invoke(address, Command(ECHO, body=b"goes on"))).body == b"goes on"
        assert old.statistics().opened == 1


@pytest.mark.feature(189)
@pytest.mark.parametrize("damage", ["garbage", "mismatch", "expired"])
async def test_broken_files_leave_the_old_certificate_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    files = tls_files.write(tmp_path)
    async with tls_server(files.server()) as (server, entrance):
        address = f"127.0.0.1:{server.port}"
        assert entrance.certificates is not None
        before = await shown(address, files.client())
        good = files.certificate.read_bytes()
        if damage == "garbage":
            files.certificate.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        elif damage == "mismatch":
            files.certificate.write_bytes(tls_files.write(tmp_path / "other").certificate.read_bytes())
        else:
            tls_files.write(tmp_path, days=0)
        for _ in range(4):
            assert not entrance.certificates.look()
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1, "one line, however often it is looked at"
        assert errors[0].startswith(
            "the changed TLS files are not used, the certificate loaded before stays in force: TLS: "
        )
        assert await shown(address, files.client()) == before
        files.certificate.unlink()
        assert not entrance.certificates.look()
        if damage != "expired":
            files.certificate.write_bytes(good)
            entrance.certificates.look()
            assert await shown(address, files.client()) == before


@pytest.mark.feature(189)
async def test_the_watcher_sees_a_change(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    files = tls_files.write(tmp_path)
    entrance = Entrance(TlsMode.PERMISSIVE, ProxyMode.OFF, Certificates.load(files.server()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(entrance.run)
        await trio.sleep(0.7)
        tls_files.write(tmp_path)
        await trio.sleep(1.5)
        assert entrance.certificates is not None
        assert entrance.certificates.reloads == 1
        nursery.cancel_scope.cancel()


async def test_a_client_whose_files_are_missing_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.pem: cannot be read \(no such file or directory\); name a PEM file"):
        async with connector(Tls(ca_file=tmp_path / "no.pem")):
            raise AssertionError("opened")
    with pytest.raises(ConnectFailed, match="cannot be read"), socket.create_server(("127.0.0.1", 0)) as listener:
        BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}", tls=Tls(ca_file=tmp_path / "no.pem"))


async def test_a_handshake_that_never_ends_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with Connector(ConnectorConfig(tls=Tls(verify=False), connect_seconds=0.05)) as client:
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
                await client.invoke(address, Command(ECHO), timeout=20)
        with pytest.raises(ConnectFailed, match=r"no TLS handshake within 0\.05 s"):
            await trio.to_thread.run_sync(lambda: BlockingConnection(address, timeout=0.05, tls=Tls(verify=False)))


@pytest.mark.feature(151)
async def test_a_slow_handshake_in_single_bytes_delays_nobody(files: tls_files.Files) -> None:
    async with (
        tls_server(files.server()) as (server, _),
        await RawPeer.open(server) as slow,
        connector(files.client()) as good,
    ):
        address = f"127.0.0.1:{server.port}"
        for byte in bytes.fromhex("16030100c8010000c40303"):
            await slow.send(bytes([byte]))
            assert (await good.invoke(address, Command(ECHO, body=b"quick"))).body == b"quick"


@pytest.mark.feature(151)
async def test_a_tls_client_that_does_not_read_is_held_back_and_then_closed(files: tls_files.Files) -> None:
    limits = {"outbox_high_bytes": 200_000, "outbox_hard_bytes": 2_000_000}
    async with tls_server(files.server(), **limits) as (server, _), connector(files.client()) as good:
        address = f"127.0.0.1:{server.port}"
        sock = await dial("127.0.0.1", server.port)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream = await secure(sock, client_context(files.client()), "127.0.0.1")
            data = b""
            sent = 0
            with trio.fail_after(20):
                while server.statistics().connections and sent < 400:
                    data = data or stream.to_send(encode_command(Command(ECHO, sent, body=bytes(100_000))))
                    with trio.move_on_after(0.2) as patience:
                        await trio.lowlevel.wait_writable(sock)
                    if patience.cancelled_caught:
                        break  # nobody reads what we send: the server holds us back
                    data = data[sock.send(data) :]
                    sent += not data
            (slow,) = [connection for connection in server.connections() if connection.outbox_bytes]
            assert not slow.reading
            assert slow.outbox_bytes <= limits["outbox_hard_bytes"]
            assert (await good.invoke(address, Command(ECHO, body=b"served"))).body == b"served"
        finally:
            sock.close()


async def test_whoever_is_cancelled_during_a_handshake_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with connector(Tls(verify=False)) as client:
            with trio.move_on_after(0.05) as scope:
                await client.invoke(address, Command(ECHO), timeout=20)
            assert scope.cancelled_caught
        listener.settimeout(5)
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(5)
            while peer.recv(4096):
                pass  # the client hello, and then the end: the socket is closed
