"""TLS through real sockets: three modes on one port, both kinds of clients, mutual TLS, and
changing files.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tls_files
import trio
from no_files import opening_fails
from serving import ECHO, RawPeer, serving

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.client.dial import dial
from triomq.remoting.client.tls_handshake import secure
from triomq.remoting.core.errors import ConnectFailed, ConnectionLost
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.command import Command, encode_command
from triomq.remoting.server.connection_sniffer import ConnectionSniffer, server_context_of
from triomq.remoting.server.server import Server
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.contexts import client_context, current_client_context
from triomq.remoting.tls.security_settings import ClientAuth, ProxyMode, ServerTls, TlsMode

# The alert names it; a server that resets before the alert is read leaves only a hint.
DEMANDED = (
    r"the server demands a client certificate; give one|does it accept our certificate, or demand"
    r" one\?"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tls_files.Files:
    return tls_files.write(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def tls_server(
    settings: ServerTls | None,
    mode: TlsMode = TlsMode.PERMISSIVE,
    proxy: ProxyMode = ProxyMode.OFF,
    **more: object,
) -> AsyncIterator[tuple[Server, ConnectionSniffer]]:
    sniffer = ConnectionSniffer(
        mode, proxy, server_context_of(settings) if settings is not None else None
    )
    async with serving(filter_factory=sniffer.filter, **more) as server:
        yield server, sniffer


def connector(tls: Tls | None) -> Connector:
    return Connector(ConnectorConfig(tls=tls))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().partition(": ")[2]
        for record in caplog.records
        if record.name == "triomq.remoting.server.codec"
    ]


@pytest.mark.feature("21b", "151a", "151b")
@pytest.mark.parametrize("size", [0, 100, 3_000_000])
async def test_tls_and_plain_share_a_port(files: tls_files.Files, size: int) -> None:
    async with tls_server(files.server()) as (server, _):
        address = f"127.0.0.1:{server.port}"
        body = bytes(range(256)) * (size // 256)
        async with connector(files.client()) as secret, connector(None) as plain:
            for client in (secret, plain, secret):
                assert (
                    await client.invoke(address, Command(ECHO, body=body), timeout=20)
                ).body == body
            async with trio.open_nursery() as nursery:
                for number in range(64):
                    nursery.start_soon(call_and_check, secret, address, b"%d" % number * 1000)
        filters = [connection.filter for connection in server.connections()]
        assert None in filters or not filters, "a plain connection loses its filter"


async def call_and_check(client: Connector, address: str, body: bytes) -> None:
    assert (await client.invoke(address, Command(ECHO, body=body), timeout=20)).body == body


@pytest.mark.feature("151a")
async def test_the_blocking_connection_speaks_tls(files: tls_files.Files) -> None:
    async with tls_server(files.server(), TlsMode.ENFORCING) as (server, _):

        def talk() -> list[bytes]:
            with BlockingConnection(f"localhost:{server.port}", tls=files.client()) as connection:
                numbers = [
                    connection.send(Command(ECHO, body=bytes([number]) * 50_000))
                    for number in range(20)
                ]
                return [bytes(connection.receive(number, 20).body) for number in reversed(numbers)]

        assert await trio.to_thread.run_sync(talk) == [
            bytes([number]) * 50_000 for number in reversed(range(20))
        ]


@pytest.mark.feature("151b")
async def test_enforcing_refuses_plain_clients_and_both_sides_report_why(
    files: tls_files.Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_server(files.server(), TlsMode.ENFORCING) as (server, _):
        address = f"127.0.0.1:{server.port}"
        async with connector(None) as plain:
            with pytest.raises(
                ConnectionLost, match=r"before it answered anything \(does it demand TLS\?\)"
            ):
                await plain.invoke(address, Command(ECHO))
        with pytest.raises(ConnectionLost, match="does it demand TLS"):
            await trio.to_thread.run_sync(lambda: BlockingConnection(address).invoke(Command(ECHO)))
        async with connector(files.client()) as secret:
            assert (await secret.invoke(address, Command(ECHO, body=b"x"))).body == b"x"
        assert server.statistics().broken == 2
    assert warnings(caplog) == [
        (
            "the client does not speak TLS, and tls.server.mode=enforcing demands it; switch TLS on"
            " in the client, or set tls.server.mode=permissive"
        )
    ]


@pytest.mark.parametrize("sniffer", [True, False])
async def test_a_tls_client_on_a_plain_port_and_both_sides_report_why(
    files: tls_files.Files, caplog: pytest.LogCaptureFixture, sniffer: bool
) -> None:
    filter_factory = (
        ConnectionSniffer(TlsMode.PERMISSIVE, ProxyMode.OFF).filter if sniffer else None
    )
    async with serving(filter_factory=filter_factory) as server, await RawPeer.open(server) as good:
        address = f"127.0.0.1:{server.port}"
        async with connector(files.client()) as secret:
            with pytest.raises(
                ConnectFailed,
                match=r"closed the connection during the TLS handshake; it may not speak TLS",
            ):
                await secret.invoke(address, Command(ECHO))
        with pytest.raises(ConnectFailed, match="during the TLS handshake"):
            await trio.to_thread.run_sync(lambda: BlockingConnection(address, tls=files.client()))
        assert (await good.call(ECHO, b"still served")).body == b"still served"
    assert len(warnings(caplog)) == 1
    assert "speaks TLS, and this s" in warnings(caplog)[0]
    assert "set tls.server.certPath and tls.server.keyPath" in warnings(caplog)[0]


@pytest.mark.feature("151c")
async def test_a_certificate_that_is_not_trusted_is_a_clear_error_on_both_sides(
    files: tls_files.Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = tls_files.write(tmp_path, issuer="Somebody else")
    async with tls_server(files.server()) as (server, _):
        address = f"127.0.0.1:{server.port}"
        async with connector(stranger.client()) as client:
            with pytest.raises(
                ConnectFailed, match=r"the server's certificate is not trusted: .*trustCertPath"
            ):
                await client.invoke(address, Command(ECHO))
        with pytest.raises(ConnectFailed, match="is not trusted"):
            await trio.to_thread.run_sync(
                lambda: BlockingConnection(address, tls=stranger.client())
            )
        async with connector(Tls(verify=False)) as client:
            await client.invoke(address, Command(ECHO))
    assert warnings(caplog)[0].startswith(
        "TLS failed: the client does not trust the authority of our certificate; "
    )


@pytest.mark.feature("189b")
async def test_mutual_tls_refuses_clients_without_a_certificate(
    files: tls_files.Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_server(files.server(ClientAuth.REQUIRE), TlsMode.ENFORCING) as (server, _):
        address = f"127.0.0.1:{server.port}"
        async with (
            connector(files.client(identity=True)) as known,
            connector(files.client()) as nobody,
        ):
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
        (
            "TLS failed: the client showed no certificate; give the client one"
            " (tls.client.certPath, tls.client.keyPath), or set"
            " tls.server.need.client.auth=optional"
        )
    ]


async def shown(address: str, tls: Tls) -> bytes | None:
    """Return the certificate that a new connection gets."""
    async with connector(tls) as client:
        await client.invoke(address, Command(ECHO))
        (connection,) = client._connections.values()
        assert connection.tls is not None
        return connection.tls.peer_certificate()


@pytest.mark.feature("189a")
async def test_changed_files_are_used_by_new_connections_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = tls_files.write(tmp_path)
    async with tls_server(files.server()) as (server, sniffer), connector(files.client()) as old:
        address = f"127.0.0.1:{server.port}"
        certificates = sniffer.tls
        assert certificates is not None
        await old.invoke(address, Command(ECHO))
        before = await shown(address, files.client())
        assert not certificates.reload(settled=True)

        # Half of a change: key and certificate do not match, which is not reported yet.
        other = tls_files.write(tmp_path / "new")
        files.certificate.write_bytes(other.certificate.read_bytes())
        assert not certificates.reload(settled=True)
        files.key.write_bytes(other.key.read_bytes())
        assert not certificates.reload(settled=True)
        assert certificates.reload(settled=True)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        after = await shown(address, files.client())
        assert before != after
        assert (await old.invoke(address, Command(ECHO, body=b"goes on"))).body == b"goes on"
        assert old.statistics().opened == 1


@pytest.mark.parametrize("damage", ["garbage", "mismatch", "expired"])
async def test_broken_files_leave_the_old_certificate_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    files = tls_files.write(tmp_path)
    async with tls_server(files.server()) as (server, sniffer):
        address = f"127.0.0.1:{server.port}"
        assert sniffer.tls is not None
        before = await shown(address, files.client())
        good = files.certificate.read_bytes()
        if damage == "garbage":
            files.certificate.write_text(
                "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"
            )
        elif damage == "mismatch":
            files.certificate.write_bytes(
                tls_files.write(tmp_path / "other").certificate.read_bytes()
            )
        else:
            tls_files.write(tmp_path, days=0)
        for _ in range(4):
            assert not sniffer.tls.reload(settled=True)
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1, "one entry, however often it reloads"
        assert errors[0].startswith(
            "the changed TLS files are not used, what was loaded before stays in force: TLS: "
        )
        assert await shown(address, files.client()) == before
        files.certificate.unlink()
        assert not sniffer.tls.reload(settled=True)
        if damage != "expired":
            files.certificate.write_bytes(good)
            sniffer.tls.reload(settled=True)
            assert await shown(address, files.client()) == before


@pytest.mark.feature("189a")
async def test_a_key_that_comes_long_after_its_certificate_completes_the_pair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = tls_files.write(tmp_path)
    async with tls_server(files.server()) as (server, sniffer):
        address = f"127.0.0.1:{server.port}"
        certificates = sniffer.tls
        assert certificates is not None
        seen = [await shown(address, files.client())]
        for number in (1, 2):
            other = tls_files.write(tmp_path / f"new{number}")
            files.certificate.write_bytes(other.certificate.read_bytes())
            assert [certificates.reload(settled=True) for _ in range(3)] == [False] * 3
            assert [record.levelname for record in caplog.records].count("ERROR") == number, (
                "one entry for each half of a pair"
            )
            assert await shown(address, files.client()) == seen[-1]
            files.key.write_bytes(other.key.read_bytes())
            assert [certificates.reload(settled=True) for _ in range(3)] == [False, True, False]
            seen.append(await shown(address, files.client()))
        assert len(set(seen)) == 3
        assert certificates.reloads == 2


@pytest.mark.feature("189a")
async def test_files_that_were_refused_are_refused_again_after_good_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = tls_files.write(tmp_path)
    certificates = server_context_of(files.server())
    good, before = files.certificate.read_bytes(), files.key.read_bytes()
    for content, complaints in ((b"nonsense", 1), (good, 1), (b"nonsense", 2)):
        files.certificate.write_bytes(content)
        loaded = [certificates.reload(settled=True) for _ in range(3)]
        assert loaded == [False] * 3, "the certificate in force is not loaded again"
        assert [record.levelname for record in caplog.records].count("ERROR") == complaints
    tls_files.write(tmp_path)
    assert [certificates.reload(settled=True) for _ in range(3)] == [False, True, False]
    files.certificate.write_bytes(b"nonsense")
    files.key.write_bytes(before)
    for _ in range(3):
        certificates.reload(settled=True)
    assert [record.levelname for record in caplog.records].count("ERROR") == 3


@pytest.mark.feature("189a")
@pytest.mark.parametrize("number", range(1, 11))
async def test_too_many_open_files_do_not_spoil_a_good_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """Whatever file a reload cannot open now, it tries again."""
    files = tls_files.write(tmp_path)
    certificates = server_context_of(files.server(ClientAuth.REQUIRE))
    tls_files.write(tmp_path)
    assert not certificates.reload(settled=True)
    with opening_fails(tmp_path, number) as opened:
        assert not certificates.reload(settled=True)
    assert len(opened) == number, "a reload opens ten files"
    assert [certificates.reload(settled=True) for _ in range(3)].count(True) == 1
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    if number > 3:  # a file that cannot be opened at first may be under replacement
        assert [line.partition(":")[0] for line in errors] == [
            "the changed TLS files cannot be read for now"
        ]
        assert "(ulimit -n)" in errors[0]
    else:
        assert errors == []


@pytest.mark.feature("189a")
@pytest.mark.parametrize("number", range(1, 6))
def test_too_many_open_files_do_not_keep_a_client_from_a_new_certificate(
    tmp_path: Path, number: int
) -> None:
    files = tls_files.write(tmp_path)
    tls = files.client(identity=True)
    with (
        opening_fails(tmp_path, number) as opened,
        pytest.raises(ConfigError, match=r"\(ulimit -n\)"),
    ):
        current_client_context(tls)
    assert len(opened) == number
    first = current_client_context(tls)
    assert current_client_context(tls) is first
    tls_files.write(tmp_path)
    with opening_fails(tmp_path, number) as opened:
        assert current_client_context(tls) is first
    assert len(opened) == number
    assert current_client_context(tls) is not first


@pytest.mark.feature("189a")
def test_a_certificate_replaced_while_it_is_loaded_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = tls_files.write(tmp_path).client(identity=True)

    def load_and_replace(wanted: Tls) -> ssl.SSLContext:
        context = client_context(wanted)
        tls_files.write(tmp_path)
        return context

    with monkeypatch.context() as patch:
        patch.setattr("triomq.remoting.tls.contexts.client_context", load_and_replace)
        first = current_client_context(tls)
    assert current_client_context(tls) is not first


@pytest.mark.feature("189a")
def test_a_client_reports_files_that_it_cannot_read_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = tls_files.write(tmp_path)
    tls = files.client(identity=True)
    first = current_client_context(tls)
    key = files.key.read_bytes()
    files.key.unlink()
    assert all(current_client_context(tls) is first for _ in range(3))
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "cannot be read" in errors[0]
    files.key.write_bytes(key)
    assert current_client_context(tls) is first


@pytest.mark.feature("189a")
async def test_a_change_is_noticed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    files = tls_files.write(tmp_path)
    sniffer = ConnectionSniffer(
        TlsMode.PERMISSIVE, ProxyMode.OFF, server_context_of(files.server())
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sniffer.run)
        await trio.sleep(0.7)
        tls_files.write(tmp_path)
        await trio.sleep(1.5)
        assert sniffer.tls is not None
        assert sniffer.tls.reloads == 1
        nursery.cancel_scope.cancel()


async def test_missing_files_of_a_client_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no\.pem: cannot be read \(no such file or directory\); name a PEM file"
    ):
        async with connector(Tls(ca_file=tmp_path / "no.pem")):
            raise AssertionError("opened")
    with (
        pytest.raises(ConnectFailed, match="cannot be read"),
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        BlockingConnection(
            f"127.0.0.1:{listener.getsockname()[1]}", tls=Tls(ca_file=tmp_path / "no.pem")
        )


async def test_a_handshake_that_never_ends_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with Connector(
            ConnectorConfig(tls=Tls(verify=False), connect_seconds=0.05)
        ) as client:
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
                await client.invoke(address, Command(ECHO), timeout=20)
        with pytest.raises(ConnectFailed, match=r"no TLS handshake within 0\.05 s"):
            await trio.to_thread.run_sync(
                lambda: BlockingConnection(address, timeout=0.05, tls=Tls(verify=False))
            )


async def test_a_slow_handshake_in_single_bytes_delays_no_other(files: tls_files.Files) -> None:
    async with (
        tls_server(files.server()) as (server, _),
        await RawPeer.open(server) as slow,
        connector(files.client()) as good,
    ):
        address = f"127.0.0.1:{server.port}"
        for byte in bytes.fromhex("16030100c8010000c40303"):
            await slow.send(bytes([byte]))
            assert (await good.invoke(address, Command(ECHO, body=b"quick"))).body == b"quick"


async def test_a_tls_client_that_does_not_read_is_held_back_and_then_closed(
    files: tls_files.Files,
) -> None:
    limits = {"outbox_high_bytes": 200_000, "outbox_hard_bytes": 2_000_000}
    async with (
        tls_server(files.server(), **limits) as (server, _),
        connector(files.client()) as good,
    ):
        address = f"127.0.0.1:{server.port}"
        sock = await dial("127.0.0.1", server.port)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream = await secure(sock, client_context(files.client()), "127.0.0.1")
            data = b""
            sent = 0
            with trio.fail_after(20):
                while server.statistics().connections and sent < 400:
                    data = data or stream.to_send(
                        encode_command(Command(ECHO, sent, body=bytes(100_000)))
                    )
                    with trio.move_on_after(0.2) as scope:
                        await trio.lowlevel.wait_writable(sock)
                    if scope.cancelled_caught:
                        break  # the server stops reading, because this peer does not read
                    data = data[sock.send(data) :]
                    sent += not data
            (slow,) = [connection for connection in server.connections() if connection.outbox_bytes]
            assert not slow.reading
            assert slow.outbox_bytes <= limits["outbox_hard_bytes"]
            assert (await good.invoke(address, Command(ECHO, body=b"served"))).body == b"served"
        finally:
            sock.close()


async def test_a_client_cancelled_during_a_handshake_leaves_nothing() -> None:
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
