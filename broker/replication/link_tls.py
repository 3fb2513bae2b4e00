"""TLS on the connections between master and slave (``haTls``), before the login and the stream.

RocketMQ's HA protocol is never encrypted. With the setting the slave begins with a TLS handshake,
and verifies the master as it verifies other servers. With ``haCertificateNames`` the master demands
a certificate in return: of an authority of ``tls.server.trustCertPath``, with one of these common
names. Then both go on as without TLS.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator

import attrs
import trio

from triomq.broker.replication.errors import HaTlsFailed
from triomq.broker.replication.link_socket import LinkSocket
from triomq.broker.store.io.reads import Buffer
from triomq.remoting.client.tls_handshake import reason_of_peer, secure
from triomq.remoting.core.errors import TlsFailed
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.contexts import current_client_context
from triomq.remoting.tls.reload import ReloadingContext
from triomq.remoting.tls.stream import TlsStream

HANDSHAKE_SECONDS = 5.0
HANDSHAKE_BYTES_MAX = 256 * 1024
"""Of a peer that is not known yet; OpenSSL limits the chain of a certificate to 100 KiB."""
TLS_FIRST_BYTE = 0x16
ALIKE = "write haTls=true at all brokers of this brokerName; a broker of RocketMQ has no such TLS"


@attrs.define(eq=False)
class TlsLinkSocket(LinkSocket):
    """A ``LinkSocket`` that encrypts what is posted and decrypts what comes.

    Its methods also raise HaTlsFailed.
    """

    stream: TlsStream = attrs.field(kw_only=True)
    of_slave: bool = attrs.field(kw_only=True)
    """Whether this end is the slave's."""
    _begun: bool = attrs.field(default=False, init=False)
    _heard: bool = attrs.field(default=False, init=False)
    """Whether the peer has sent anything behind its handshake."""

    def post(self, data: bytes) -> bool:
        with _explained():
            sealed = self.stream.to_send(data)
        return super().post(sealed)

    def post_all(self, pieces: Iterable[Buffer]) -> bool:
        return self.post(b"".join(pieces))

    async def receive(self) -> memoryview:
        if not self._begun:  # the last bytes of the handshake may have brought more
            self._begun = True
            if (data := self._opened(b"")) is not None:
                await trio.lowlevel.checkpoint()
                return data
        return await super().receive()

    def why_broken(self) -> str:
        """Return the alert of a peer that refused this end behind the handshake, if there is one.

        A client of TLS 1.3 has finished its handshake before the server sees its certificate.
        """
        return reason_of_peer(self.sock, self.stream, super().why_broken())

    def _receive_now(self) -> memoryview | None:
        data = super()._receive_now()
        if data is None:
            return None
        if data:
            return self._opened(bytes(data))
        if self.of_slave and not self._heard:
            raise HaTlsFailed(
                "the master closed the connection right after the TLS handshake: its log says why;"
                " the certificate of this broker may have none of its haCertificateNames"
            )
        return data

    def _opened(self, data: bytes) -> memoryview | None:
        """Decrypt; return nothing at the end, None if more must come first."""
        with _explained():
            plain = self.stream.received(data)
        self._heard = self._heard or bool(plain)
        return memoryview(plain) if plain or self.stream.ended else None


@attrs.frozen(eq=False)
class MasterTls:
    """The master's end. ``names``: common names of slaves; empty: none shows a certificate."""

    context: ReloadingContext
    names: frozenset[str]

    async def admit(self, link: LinkSocket) -> TlsLinkSocket:
        """Shake hands with a slave. Raises: HaTlsFailed, trio.BrokenResourceError."""
        self.context.reload(settled=False)
        stream = TlsStream(self.context.context, server_side=True)
        with _time_limit("the slave"):
            taken = 0
            while not stream.ready:
                data = bytes(await link.receive())
                if not data:
                    raise HaTlsFailed(
                        "it closed the connection during the TLS handshake; its log says why"
                    )
                if not taken and data[0] != TLS_FIRST_BYTE:
                    raise HaTlsFailed(f"it does not speak TLS; {ALIKE}")
                taken += len(data)
                if taken > HANDSHAKE_BYTES_MAX:
                    raise HaTlsFailed(f"its handshake has more than {HANDSHAKE_BYTES_MAX} bytes")
                await _shake(link, stream, data)
        if self.names and (name := stream.peer_name()) not in self.names:
            raise HaTlsFailed(
                f"its certificate is for {name[:64]!r}, which is none of haCertificateNames"
            )
        return TlsLinkSocket(link.sock, stream=stream, of_slave=False)


@attrs.frozen(eq=False)
class SlaveTls:
    """The slave's end."""

    tls: Tls

    async def enter(self, sock: socket.socket, host: str) -> TlsLinkSocket:
        """Shake hands with the master at *host*; an error closes the socket.

        Raises: HaTlsFailed, OSError.
        """
        with _time_limit("the master"):
            try:
                stream = await secure(sock, current_client_context(self.tls), host)
            except TlsFailed as error:
                raise HaTlsFailed(f"haTls=true; the master needs it, too: {error}") from None
            except ConfigError as error:
                sock.close()
                raise HaTlsFailed(f"haTls: {error}") from None
        return TlsLinkSocket(sock, stream=stream, of_slave=True)


async def _shake(link: LinkSocket, stream: TlsStream, data: bytes) -> None:
    """Take a part of a handshake, and send the answer or the alert. Raises: HaTlsFailed."""
    try:
        with _explained():
            stream.shake(data)
    except HaTlsFailed:
        with contextlib.suppress(trio.BrokenResourceError):
            await link.send(stream.to_send(b""))
        raise
    await link.send(stream.to_send(b""))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except TlsFailed as error:
        raise HaTlsFailed(str(error)) from None


@contextlib.contextmanager
def _time_limit(peer: str) -> Iterator[None]:
    """Limit the time of a handshake. Raises: HaTlsFailed."""
    with trio.move_on_after(HANDSHAKE_SECONDS) as scope:
        yield
    if scope.cancelled_caught:
        raise HaTlsFailed(
            f"{peer} did not complete the TLS handshake within {HANDSHAKE_SECONDS:g} s; {ALIKE}"
        )
