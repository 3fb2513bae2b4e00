"""The first bytes of a connection, cut anywhere: with and without PROXY header, TLS or plain."""

from __future__ import annotations

from pathlib import Path

import pytest
import tls_files
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq.remoting.core.errors import RemotingError
from triomq.remoting.server.connection import BytesFilter
from triomq.remoting.server.connection_sniffer import ConnectionSniffer, server_context_of
from triomq.remoting.tls.contexts import client_context
from triomq.remoting.tls.reload import ReloadingContext
from triomq.remoting.tls.security_settings import ProxyMode, TlsMode
from triomq.remoting.tls.stream import TlsStream

PAYLOAD = b'\x00\x00\x00\x0c\x00\x00\x00\x08{"a":1}!' * 3
HEADERS = [
    b"",
    b"PROXY TCP4 203.0.113.9 192.0.2.1 56324 9876\r\n",
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x09\xc0\x00\x02\x01\xdc\x04\x26\x94",
]


class FakeConnection:
    """Stands for a connection."""

    def __init__(self, sniffer: ConnectionSniffer) -> None:
        self.peer = ("127.0.0.1", 1)
        self.filter: BytesFilter | None = sniffer.filter(self)  # type: ignore[arg-type]

    def set_peer(self, peer: tuple[str, int]) -> None:
        self.peer = peer

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return plain bytes and bytes to send, as the codec gets them."""
        if self.filter is None:
            return data, b""
        plain = self.filter.received(data)
        return plain, self.filter.to_send(b"") if self.filter is not None else b""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tls_files.Files:
    return tls_files.write(Path(tmp_path_factory.mktemp("tls")))


@pytest.fixture(scope="module")
def certificates(files: tls_files.Files) -> ReloadingContext:
    return server_context_of(files.server())


@given(
    header=st.sampled_from(HEADERS),
    encrypted=st.booleans(),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=50),
)
@settings(max_examples=60, deadline=None)
def test_any_cut_gives_the_same(
    files: tls_files.Files,
    certificates: ReloadingContext,
    header: bytes,
    encrypted: bool,
    sizes: list[int],
) -> None:
    connection = FakeConnection(
        ConnectionSniffer(TlsMode.PERMISSIVE, ProxyMode.OPTIONAL, certificates)
    )
    client = TlsStream(client_context(files.client()), server_side=False, host_name="localhost")
    waiting = header
    if encrypted:
        waiting += client.start()
        client.to_send(PAYLOAD)  # kept until the handshake is complete
    else:
        waiting += PAYLOAD
    got = b""
    turn = 0
    while waiting:
        size = sizes[turn % len(sizes)]
        turn += 1
        piece, waiting = waiting[:size], waiting[size:]
        plain, said = connection.take(piece)
        got += plain
        if said:
            client.received(said)
            waiting += client.to_send(b"")
    assert got == PAYLOAD
    assert connection.peer == (("203.0.113.9", 56324) if header else ("127.0.0.1", 1))
    assert (connection.filter is None) == (not encrypted), (
        "a plain connection has no filter any more"
    )


@given(
    data=st.binary(min_size=1, max_size=200),
    cut=st.integers(1, 20),
    proxy=st.sampled_from(ProxyMode),
    mode=st.sampled_from([TlsMode.PERMISSIVE, TlsMode.ENFORCING]),
)
@settings(deadline=None)
def test_garbage_is_refused_or_passed_on_but_never_crashes(
    certificates: ReloadingContext, data: bytes, cut: int, proxy: ProxyMode, mode: TlsMode
) -> None:
    connection = FakeConnection(ConnectionSniffer(mode, proxy, certificates))
    got = b""
    for start in range(0, len(data), cut):
        try:
            got += connection.take(data[start : start + cut])[0]
        except RemotingError as error:
            assert "; " in str(error)  # noqa: PT017 - cause and fix
            return
    assert data.endswith(got)
