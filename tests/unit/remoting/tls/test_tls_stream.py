"""TLS as bytes: two streams exchange bytes without a socket, in pieces of any size."""

from __future__ import annotations

import contextlib
import random
import ssl
from pathlib import Path

import pytest
import tls_files
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.remoting.core.errors import TlsFailed
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.contexts import client_context, server_context
from triomq.remoting.tls.security_settings import ClientAuth
from triomq.remoting.tls.stream import TlsStream


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tls_files.Files:
    return tls_files.write(tmp_path_factory.mktemp("tls"))


def pair_of(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> tuple[TlsStream, TlsStream]:
    return TlsStream(server, server_side=True), TlsStream(client, server_side=False, host_name=host)


def talk(
    server: TlsStream, client: TlsStream, *, pieces: random.Random | None = None
) -> tuple[bytes, bytes]:
    """Carry bytes in both directions until no side has any; return what the server and the client
    received.
    """
    got = {server: b"", client: b""}
    ways = {server: client.start(), client: server.to_send(b"")}
    while any(ways.values()):
        for receiver, sender in ((server, client), (client, server)):
            data, ways[receiver] = ways[receiver], b""
            while data:
                size = pieces.randint(1, 400) if pieces is not None else len(data)
                piece, data = data[:size], data[size:]
                got[receiver] += receiver.received(piece)
                ways[sender] += receiver.to_send(b"")
    return got[server], got[client]


@given(sizes=st.lists(st.integers(0, 40_000), max_size=4), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_any_split_gives_the_same_bytes(
    files: tls_files.Files, sizes: list[int], seed: int
) -> None:
    server, client = pair_of(server_context(files.server()), client_context(files.client()))
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    waiting = b"".join(
        client.to_send(message) for message in messages
    )  # before the handshake: kept, or the first bytes
    assert waiting == b""
    to_server, to_client = talk(server, client, pieces=random.Random(seed))
    assert (to_server, to_client) == (b"".join(messages), b"")
    assert server.ready
    assert client.ready
    assert client.received(server.to_send(b"".join(messages))) == b"".join(messages)


def test_versions_and_alpn(files: tls_files.Files) -> None:
    context = client_context(files.client())
    server, client = pair_of(server_context(files.server()), context)
    talk(server, client)
    assert (server.version, client.version) == ("TLSv1.3", "TLSv1.3")
    context = client_context(files.client())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["something-else"])
    server, client = pair_of(server_context(files.server()), context)
    talk(server, client)
    assert server.version == "TLSv1.2"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_1_1_is_refused(files: tls_files.Files) -> None:
    context = client_context(files.client())
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    server, client = pair_of(server_context(files.server()), context)
    with pytest.raises(TlsFailed, match=r"older than TLS 1\.2"):
        talk(server, client)


def test_close_notify_ends_the_stream(files: tls_files.Files) -> None:
    server, client = pair_of(server_context(files.server()), client_context(files.client()))
    talk(server, client)
    last = client.to_send(b"bye") + client.closing()
    assert server.received(last) == b"bye"
    assert server.ended


def test_both_sides_learn_why_a_certificate_is_not_trusted(
    files: tls_files.Files, tmp_path: Path
) -> None:
    stranger = tls_files.write(tmp_path, issuer="Somebody else")
    server, client = pair_of(server_context(files.server()), client_context(stranger.client()))
    server.received(client.start())
    with pytest.raises(
        TlsFailed,
        match=(
            r"the server's certificate is not trusted: .*; put .* into tls\.client\.trustCertPath"
        ),
    ):
        client.received(server.to_send(b""))
    with pytest.raises(
        TlsFailed, match="the client does not trust the authority of our certificate"
    ):
        server.received(client.to_send(b""))


def test_the_host_name_is_checked_unless_that_is_switched_off(files: tls_files.Files) -> None:
    server, client = pair_of(
        server_context(files.server()), client_context(files.client()), "broker.example"
    )
    server.received(client.start())
    with pytest.raises(TlsFailed, match=r"for other hosts: .*broker\.example.*checkHostName=false"):
        client.received(server.to_send(b""))
    for lenient in (files.client(check_host_name=False), Tls(verify=False)):
        server, client = pair_of(
            server_context(files.server()), client_context(lenient), "broker.example"
        )
        talk(server, client)
        assert client.ready
    for host in tls_files.LOCAL:
        server, client = pair_of(
            server_context(files.server()), client_context(files.client()), host
        )
        talk(server, client)
        assert client.ready


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_mutual_tls(files: tls_files.Files, tmp_path: Path, version: ssl.TLSVersion) -> None:
    own = tls_files.write(tmp_path / "own", "worker", (), server=False)
    foreign = tls_files.write(
        tmp_path / "foreign", "worker", (), server=False, issuer="Somebody else"
    )

    def attempt(client_auth: ClientAuth, tls: Tls) -> TlsStream:
        context = client_context(tls)
        context.maximum_version = version
        server, client = pair_of(server_context(files.server(client_auth)), context)
        talk(server, client)
        assert server.ready
        return server

    shown = Tls(ca_file=files.ca, certificate_file=own.certificate, key_file=own.key)
    assert attempt(ClientAuth.REQUIRE, shown).peer_certificate() == ssl.PEM_cert_to_DER_cert(
        own.certificate.read_text()
    )
    assert attempt(ClientAuth.OPTIONAL, shown).peer_certificate() is not None
    assert attempt(ClientAuth.OPTIONAL, files.client()).peer_certificate() is None
    assert attempt(ClientAuth.NONE, shown).peer_certificate() is None
    with pytest.raises(TlsFailed, match="the client showed no certificate; give the client one"):
        attempt(ClientAuth.REQUIRE, files.client())
    with pytest.raises(
        TlsFailed, match=r"the client's certificate is not trusted: .*tls\.server\.trustCertPath"
    ):
        attempt(
            ClientAuth.OPTIONAL,
            Tls(ca_file=files.ca, certificate_file=foreign.certificate, key_file=foreign.key),
        )


def test_the_client_learns_that_a_certificate_is_demanded(files: tls_files.Files) -> None:
    server, client = pair_of(
        server_context(files.server(ClientAuth.REQUIRE)), client_context(files.client())
    )
    server.received(client.start())
    client.received(server.to_send(b""))
    with pytest.raises(TlsFailed, match="showed no certificate"):
        server.received(client.to_send(b""))
    with pytest.raises(TlsFailed, match="the server demands a client certificate"):
        client.received(server.to_send(b""))


@pytest.mark.parametrize("data", [b"\x00\x00\x01\x00\x00\x00\x00\x50{", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_plain_peer_is_named(files: tls_files.Files, data: bytes) -> None:
    server = TlsStream(server_context(files.server()), server_side=True)
    with pytest.raises(TlsFailed, match=r"does not speak TLS|speaks HTTP"):
        server.received(data)


def test_damage_after_the_handshake_is_detected(files: tls_files.Files) -> None:
    server, client = pair_of(server_context(files.server()), client_context(files.client()))
    talk(server, client)
    data = bytearray(client.to_send(b"a message"))
    data[-1] ^= 1
    with pytest.raises(TlsFailed, match="bad record mac"):
        server.received(bytes(data))


@given(
    data=st.binary(max_size=400),
    begin=st.sampled_from(
        [b"", b"\x16\x03\x01\x00\x40", b"\x15\x03\x03\x00\x02", b"\x17\x03\x03\x00\x10"]
    ),
)
@settings(deadline=None)
def test_garbage_is_refused_with_a_reason(
    files: tls_files.Files, data: bytes, begin: bytes
) -> None:
    """Before, during and after the handshake, on both sides."""
    server, client = pair_of(server_context(files.server()), client_context(files.client()))
    client.start()
    later_server, later_client = pair_of(
        server_context(files.server()), client_context(files.client())
    )
    talk(later_server, later_client)
    for stream in (server, client, later_server, later_client):
        with contextlib.suppress(TlsFailed):
            stream.received(begin + data)
            stream.received(data)
        stream.to_send(b"")
        stream.closing()


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    files = tls_files.write(tmp_path, password="open sesame")
    server, client = pair_of(
        server_context(files.server(password="open sesame")), client_context(files.client())
    )
    talk(server, client)
    assert server.ready
    for password in (None, "wrong"):
        with pytest.raises(ValueError, match="cannot be loaded"):
            server_context(files.server(password=password))
