"""TLS at the HA port (``haTls``), and which certificates make a slave (``haCertificateNames``)."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tls_files
import trio
from brokers import broker_config
from replicating import (
    following_slave,
    impatient,
    log_of,
    open_pair,
    quick_config,
    serving_master,
    wait_equal,
    wait_until,
)
from stores import draft, wait_durable

from triomq.broker.options import load_broker_config
from triomq.broker.replication import link_tls
from triomq.broker.replication.link_tls import MasterTls, SlaveTls
from triomq.broker.replication.login import ReplicationLogin
from triomq.broker.roles.replication_tls import open_replication_tls
from triomq.broker.store.log.durability import DurabilityResult
from triomq.broker.store.opening import open_store
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.server.connection_sniffer import server_context_of
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.security_settings import ClientAuth

SECRET = ReplicationLogin(Credentials(access_key="brokers", secret_key="a-long-secret"))
NAME = "slave-of-a"
LONG_AGO = datetime.now(UTC) - timedelta(days=90)


def master_tls(folder: Path, *names: str) -> MasterTls:
    asked = ClientAuth.REQUIRE if names else ClientAuth.NONE
    files = tls_files.write(folder / "master-tls")
    return MasterTls(server_context_of(files.server(asked)), frozenset(names))


def slave_tls(folder: Path, name: str = NAME, **issue: object) -> SlaveTls:
    files = tls_files.write(folder / f"tls-{name}", name, server=False, **issue)  # type: ignore[arg-type]
    files.ca.write_bytes(tls_files.authority("Test authority").certificate_pem())
    return SlaveTls(files.client(identity=True))


@pytest.mark.parametrize("login", [None, SECRET])
@pytest.mark.parametrize("names", [(), (NAME,)])
async def test_a_slave_follows_over_tls_and_comes_back_after_a_restart(
    tmp_path: Path, names: tuple[str, ...], login: ReplicationLogin | None
) -> None:
    tls = slave_tls(tmp_path)
    async with open_pair(tmp_path) as (first, second):
        for number in range(200):
            first.append([draft(bytes([number]) * 3_000)])
        of_master = master_tls(tmp_path, *names)
        async with serving_master(first, login=login, tls=of_master) as (master, port):
            async with following_slave(second, port, login=login, tls=tls):
                await wait_equal(first, second)
                first.append([draft(b"y" * 500)])
                await wait_equal(first, second)
                assert len(master.replicas.replicas) == 1
                assert not master.connection_limits.refused
        async with (
            following_slave(second, port, login=login, tls=tls),
            serving_master(first, port=port, login=login, tls=master_tls(tmp_path, *names)),
        ):
            first.append([draft(b"z" * 500)])
            await wait_equal(first, second)
        assert log_of(first) == log_of(second)


async def test_what_crosses_the_network_is_encrypted(tmp_path: Path) -> None:
    """A peer in the middle sees no byte of a message."""
    seen = b""

    async def relay(stream: trio.SocketStream) -> None:
        nonlocal seen
        async with await trio.open_tcp_stream("127.0.0.1", port) as onward, stream:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, stream, onward)
                await pump(onward, stream)
                nursery.cancel_scope.cancel()

    async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        nonlocal seen
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                seen += data
                await sink.send_all(data)

    async with (
        open_pair(tmp_path) as (first, second),
        serving_master(first, tls=master_tls(tmp_path, NAME)) as (_, port),
        trio.open_nursery() as nursery,
    ):
        first.append([draft(b"secret body")])
        listeners = await nursery.start(trio.serve_tcp, relay, 0)
        between = listeners[0].socket.getsockname()[1]
        async with following_slave(second, between, tls=slave_tls(tmp_path)):
            await wait_equal(first, second)
        nursery.cancel_scope.cancel()
        assert b"secret body" in log_of(second)
    assert seen
    assert b"secret body" not in seen


def without_certificate(folder: Path) -> SlaveTls:
    return SlaveTls(tls_files.write(folder / "none").client())


REFUSED: dict[str, tuple[Callable[[Path], SlaveTls | None], str, str]] = {
    "no certificate": (without_certificate, "showed no certificate", "demands a client cert"),
    "another authority": (
        lambda folder: slave_tls(folder, issuer="Other authority"),
        "is not trusted",
        "does not trust the authority of our certificate",
    ),
    "expired": (
        lambda folder: slave_tls(folder, days=1, now=LONG_AGO),
        "certificate has expired",
        "finds our certificate expired",
    ),
    "another name": (
        lambda folder: slave_tls(folder, "program"),
        "'program', which is none of haCertificateNames",
        "none of its haCertificateNames",
    ),
    "no TLS": (lambda folder: None, "does not speak TLS", "closed"),
}


@pytest.mark.feature(211)
@pytest.mark.parametrize("login", [None, SECRET])
@pytest.mark.parametrize("why", REFUSED)
async def test_a_slave_without_a_good_certificate_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str, login: ReplicationLogin | None
) -> None:
    """Both logs say why in one line, it counts for no send, and the master serves on."""
    make, of_master, of_slave = REFUSED[why]
    async with open_pair(tmp_path) as (first, second):
        first.append([draft(b"x" * 500)])
        async with (
            serving_master(first, login=login, tls=master_tls(tmp_path, NAME)) as (master, port),
            impatient(first, master) as durability,
        ):
            async with following_slave(second, port, login=login, tls=make(tmp_path)):
                await wait_until(lambda: "not following master" in caplog.text)
                await wait_until(lambda: master.connection_limits.refused["haTls"])
                first.append([draft(b"y")])
                result = await wait_durable(durability, first.appended.value)
                assert result is DurabilityResult.SLAVE_NOT_AVAILABLE
                assert set(master.connection_limits.refused) == {"haTls"}
                assert not master.replicas.replicas
            await wait_until(lambda: not master.connections)
            assert second.appended.value == 0
            assert master.places.taken == 0
            refusals = [each.message for each in caplog.records if "turned away" in each.message]
            assert "is turned away: haTls: " in refusals[0]
            assert of_master in refusals[0]
            mine = [each.message for each in caplog.records if "not following" in each.message]
            assert of_slave in mine[0]
            assert "came to nothing" not in caplog.text, "one line for one refusal"
            async with following_slave(second, port, login=login, tls=slave_tls(tmp_path)):
                await wait_equal(first, second)


@pytest.mark.parametrize("login", [None, SECRET])
async def test_a_slave_with_tls_at_a_master_without_says_what_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, login: ReplicationLogin | None
) -> None:
    async with open_pair(tmp_path) as (first, second):
        async with (
            serving_master(first, login=login) as (master, port),
            following_slave(second, port, login=login, tls=slave_tls(tmp_path)),
        ):
            await wait_until(lambda: "not following master" in caplog.text)
            await wait_until(lambda: not master.connections)
        assert second.appended.value == 0
    of_slave = [each.message for each in caplog.records if "not following" in each.message]
    assert "haTls=true; the master needs it, too" in of_slave[0]
    of_master = [each.message for each in caplog.records if "127.0.0.1:" in each.message]
    assert any("haTls" in line for line in of_master if line not in of_slave)


async def test_a_slave_does_not_follow_a_master_that_it_does_not_trust(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = tls_files.write(tmp_path / "stranger", issuer="Other authority")
    tls = MasterTls(server_context_of(stranger.server()), frozenset())
    async with open_pair(tmp_path) as (first, second):
        first.append([draft(b"x")])
        async with (
            serving_master(first, tls=tls) as (_, port),
            following_slave(second, port, tls=slave_tls(tmp_path)),
        ):
            await wait_until(lambda: "server's certificate is not trusted" in caplog.text)
            await wait_until(lambda: "turned away: haTls: TLS failed: the client" in caplog.text)
        assert second.appended.value == 0


async def test_a_new_certificate_counts_at_the_next_connection(tmp_path: Path) -> None:
    """The master's files are replaced while it runs, by those of another authority."""
    of_master = master_tls(tmp_path)
    new = SlaveTls(Tls(ca_file=tls_files.write(tmp_path / "n", issuer="Other authority").ca))
    async with (
        open_pair(tmp_path) as (first, second),
        serving_master(first, tls=of_master) as (_, port),
    ):
        async with following_slave(second, port, tls=slave_tls(tmp_path)):
            first.append([draft(b"x")])
            await wait_equal(first, second)
        tls_files.write(tmp_path / "master-tls", issuer="Other authority")
        async with following_slave(second, port, tls=new):
            first.append([draft(b"y")])
            await wait_equal(first, second)


STRANGERS: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 1),
    "the beginning of a handshake": (b"\x16\x03\x01\x02\x00\x01", 1),
    "a header of a handshake without end": (b"\x16\x03\x01\x40\x00" + bytes(16_384), 64),
    "garbage behind the first byte": (b"\x16" + bytes(64), 1),
    "a slave of RocketMQ": (bytes(8), 1),
}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_peer_that_does_not_complete_the_handshake_loses_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    monkeypatch.setattr(link_tls, "HANDSHAKE_SECONDS", 0.3)
    data, times = STRANGERS[stranger]
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, tls=master_tls(tmp_path, NAME)) as (master, port),
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        store.append([draft(b"secret body")])
        got = b""
        with trio.fail_after(60), contextlib.suppress(trio.BrokenResourceError):
            for _ in range(times):
                await stream.send_all(data)
            while more := await stream.receive_some():
                got += more
        await wait_until(lambda: not master.connections)
        assert len(got) < 32, "an alert at most"
        assert master.connection_limits.refused == {"haTls": 1}
        assert master.places.taken == 0


async def test_a_master_that_is_silent_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a master of RocketMQ is, which reads the handshake as the end of a log."""
    monkeypatch.setattr(link_tls, "HANDSHAKE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with (
            open_store(quick_config(tmp_path)) as store,
            following_slave(store, listener.getsockname()[1], tls=slave_tls(tmp_path)),
        ):
            await wait_until(lambda: "the TLS handshake within" in caplog.text)


async def test_a_program_that_only_knows_tls_is_not_a_slave(tmp_path: Path) -> None:
    """Its certificate has the right authority and another name; a report comes at once."""
    context = ssl.create_default_context(cafile=tls_files.write(tmp_path / "p").ca)
    files = tls_files.write(tmp_path / "program", "program", server=False)
    context.load_cert_chain(files.certificate, files.key)
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, tls=master_tls(tmp_path, NAME)) as (master, port),
    ):
        store.append([draft(b"secret body")])
        stream = trio.SSLStream(
            await trio.open_tcp_stream("127.0.0.1", port), context, server_hostname="localhost"
        )
        got: list[bytes] = []
        with trio.fail_after(60), contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(bytes(8))
            got.append(await stream.receive_some())
        assert not any(got), "the log came"
        await wait_until(lambda: not master.connections)
        assert master.connection_limits.refused == {"haTls": 1}
        await trio.aclose_forcefully(stream)


def settings(folder: Path, **more: str) -> dict[str, str]:
    files = tls_files.write(folder)
    return {
        "haTls": "true",
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
        "tls.client.trustCertPath": str(files.ca),
        **more,
    }


def test_each_role_needs_its_own_files(tmp_path: Path) -> None:
    """Whatever ``tls.server.mode`` says: it is that of the other ports."""
    given = settings(tmp_path, **{"tls.server.mode": "disabled"})
    master = open_replication_tls(broker_config(tmp_path, **given))
    assert master.master is not None
    assert not master.master.names
    assert master.slave is None
    only_trust = {key: given[key] for key in ("haTls", "tls.client.trustCertPath")}
    slave = {**only_trust, "brokerRole": "SLAVE", "brokerId": "1"}
    assert open_replication_tls(broker_config(tmp_path, **slave)).slave is not None
    both = {**given, "enableControllerMode": "true", "controllerAddr": "127.0.0.1:1"}
    opened = open_replication_tls(broker_config(tmp_path, **both))
    assert opened.master is not None
    assert opened.slave is not None
    with pytest.raises(ConfigError, match=r"haTls=true without a certificate"):
        open_replication_tls(broker_config(tmp_path, **only_trust))
    with pytest.raises(ConfigError, match=r"tls\.server\.trustCertPath"):
        open_replication_tls(broker_config(tmp_path, **given, haCertificateNames=NAME))


def test_names_of_certificates_need_tls() -> None:
    names = [Entry("haCertificateNames", "a, b")]
    with pytest.raises(ConfigError, match="haTls=true"):
        load_broker_config(None, environment={}, definitions=names)
    loaded = load_broker_config(None, environment={}, definitions=[*names, Entry("haTls", "true")])
    assert loaded.config.replication.certificate_names == ("a", "b")
    assert loaded.config.replication.asks_slaves == "haCertificateNames"
