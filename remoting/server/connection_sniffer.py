"""Find out how a new connection begins: PROXY header, then TLS or unencrypted frames.

The first bytes decide, once per connection: a PROXY header where that is switched on, then 0x16 for
TLS (a handshake record), any other byte for unencrypted frames, whose first byte is 0. Such a
connection loses its filter and costs no more than on a server without TLS. A server with neither
TLS nor PROXY headers has no sniffer and does not load this module.

Source: remoting/…/netty/NettyRemotingServer.java (HandshakeHandler, TlsModeHandler).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from triomq.remoting.core.errors import FrameError, TlsFailed
from triomq.remoting.protocol.proxy_header import NoProxyHeader, read_proxy_header
from triomq.remoting.server.connection import BytesFilter
from triomq.remoting.tls.security_settings import ProxyMode, Security, ServerTls, TlsMode

if TYPE_CHECKING:
    import ssl

    from triomq.remoting.tls.reload import ReloadingContext

_TLS_FIRST_BYTE = 0x16
RELOAD_SECONDS = 0.5
"""as often as Java checks the files"""


class SniffedConnection(Protocol):
    """What the sniffer changes about a connection."""

    filter: BytesFilter | None

    def set_peer(self, peer: tuple[str, int]) -> None:
        """Set the client's address, which a load balancer names."""


def open_sniffer(
    security: Security, host_names: Sequence[str] = (), alpn: Sequence[str] = ()
) -> ConnectionSniffer:
    """Check and load the configured certificate.

    *host_names*: what clients connect to; a certificate for other names gets a warning. *alpn*:
    the protocols that TLS offers, instead of RocketMQ's own.

    Raises: ConfigError with cause and fix, OSError when too many files are open.
    """
    if security.server is None:
        return ConnectionSniffer(security.mode, security.proxy_protocol)
    context = server_context_of(security.server, host_names, alpn)
    return ConnectionSniffer(security.mode, security.proxy_protocol, context)


def server_context_of(
    settings: ServerTls, host_names: Sequence[str] = (), alpn: Sequence[str] = ()
) -> ReloadingContext:
    """Return the context of a server, which follows its files.

    Raises: ConfigError, OSError (too many open files).
    """
    from triomq.remoting.tls.reload import ReloadingContext  # ssl, only with TLS

    return ReloadingContext(settings.files, partial(_checked_context, settings, host_names, alpn))


def _checked_context(
    settings: ServerTls, host_names: Sequence[str], alpn: Sequence[str]
) -> ssl.SSLContext:
    from triomq.remoting.tls.certificates import require_usable  # cryptography, only with TLS
    from triomq.remoting.tls.contexts import ALPN, server_context  # ssl, only with TLS

    require_usable(settings, host_names)
    return server_context(settings, alpn or ALPN)


@attrs.define(eq=False)
class ConnectionSniffer:
    """How the connections of one process begin; all its servers share it."""

    mode: TlsMode
    proxy_protocol: ProxyMode
    tls: ReloadingContext | None = None
    make_tls: Callable[[], ReloadingContext] | None = None
    """Makes ``tls`` when the first client begins with it."""

    def filter(self, connection: SniffedConnection) -> BytesFilter | None:
        """Return the filter of a new connection, for a server's ``filter_factory``."""
        return FirstBytes(
            self, connection, waits_for_proxy=self.proxy_protocol is not ProxyMode.OFF
        )

    async def run(self) -> None:
        """Reload changed files of the certificate until cancelled."""
        while self.tls is not None and self.tls.files:
            await trio.sleep(RELOAD_SECONDS)
            self.tls.reload(settled=True)


def self_signed_sniffer(
    security: Security, host_names: Sequence[str] = (), alpn: Sequence[str] = ()
) -> ConnectionSniffer:
    """Return a sniffer for a server without a certificate: it makes one when a client wants TLS.

    Clients cannot verify it.
    """

    def make() -> ReloadingContext:
        return server_context_of(ServerTls(), host_names, alpn)

    return ConnectionSniffer(security.mode, security.proxy_protocol, make_tls=make)


@attrs.define(eq=False)
class FirstBytes:
    """The filter for the first bytes of a connection; then a TLS filter or none replaces it."""

    sniffer: ConnectionSniffer
    connection: SniffedConnection
    waits_for_proxy: bool
    _data: bytes = attrs.field(default=b"", init=False)

    def received(self, data: bytes) -> bytes:
        self._data += data
        if self.waits_for_proxy and not self._pass_proxy_header():
            return b""
        data, self._data = self._data, b""
        return self._choose(data) if data else b""

    def to_send(self, data: bytes) -> bytes:
        return data  # no request has been read yet: a request of the server, sent unchanged

    def closing(self) -> bytes:
        return b""

    def peer_name(self) -> str:
        return ""

    def _pass_proxy_header(self) -> bool:
        """Read and remove the PROXY header, if there is one; return whether that is done."""
        try:
            header = read_proxy_header(self._data)
        except NoProxyHeader:
            if self.sniffer.proxy_protocol is ProxyMode.REQUIRED:
                raise FrameError(
                    "the connection does not begin with a PROXY header",
                    "connect through the load balancer, or set proxyProtocol=optional",
                ) from None
            self.waits_for_proxy = False
            return True
        if header is None:
            return False
        self._data = self._data[header.size :]
        if header.client is not None:
            self.connection.set_peer(header.client)
        self.waits_for_proxy = False
        return True

    def _choose(self, data: bytes) -> bytes:
        sniffer, connection = self.sniffer, self.connection
        if data[0] != _TLS_FIRST_BYTE:
            if sniffer.mode is TlsMode.ENFORCING:
                raise TlsFailed(
                    "the client does not speak TLS, and tls.server.mode=enforcing demands it",
                    "switch TLS on in the client, or set tls.server.mode=permissive",
                )
            connection.filter = None
            return data
        if sniffer.tls is None and sniffer.make_tls is not None:
            sniffer.tls = sniffer.make_tls()
        if sniffer.tls is None:
            raise TlsFailed(
                "the client speaks TLS, and this server has no TLS",
                "set tls.server.certPath and tls.server.keyPath, or switch TLS off in the client",
            )
        from triomq.remoting.tls.stream import TlsStream  # ssl, only with TLS

        stream = connection.filter = TlsStream(sniffer.tls.context, server_side=True)
        return stream.received(data)
