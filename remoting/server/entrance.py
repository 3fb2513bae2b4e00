"""What a new connection passes before its first frame: the PROXY header of a load balancer, then TLS or plain bytes on one port.

The first bytes decide, once per connection: a PROXY header where that is switched on, then 0x16 for TLS (a handshake record),
anything else for plain frames, whose first byte is 0.  A connection that turns out to be plain loses its filter again and costs
no more than on a server without TLS.  A server with neither has no `Entrance` at all and does not load this module.

Files of certificates are looked at every half second, as in Java; when their content has changed and has come to rest, new
connections get the new certificate and existing ones go on.  Files that cannot be used leave the old certificate in force.
Source: remoting/…/netty/NettyRemotingServer.java (HandshakeHandler, TlsModeHandler), srvutil/…/FileWatchService.java.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.remoting.errors import FrameError, TlsFailed
from triomq.remoting.protocol.proxy_header import NoProxyHeader, read_proxy_header
from triomq.remoting.server.connection import BytesFilter, Connection
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.settings import ProxyMode, Security, ServerTls, TlsMode

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger(__name__)

_TLS_FIRST_BYTE = 0x16
RELOAD_SECONDS = 0.5


def open_entrance(security: Security, host_names: Sequence[str] = ()) -> Entrance:
    """Check and load what is configured.

    *host_names* are what clients connect to: a certificate for other names gets a warning. Raises ConfigError with cause and fix.
    """
    if security.server is None:
        return Entrance(security.mode, security.proxy_protocol)
    check_identity(security.server, host_names)
    return Entrance(security.mode, security.proxy_protocol, Certificates.load(security.server))


def check_identity(settings: ServerTls, host_names: Sequence[str]) -> None:
    """Look at the server's certificate before anybody meets it: warnings to the log, the first error as ConfigError."""
    from triomq.remoting.tls.certificates import Identity, Level, examine, first_error  # cryptography, only with TLS

    if settings.certificate_file is None or settings.key_file is None:
        _log.warning(
            "TLS test mode: the certificate of this server cannot be verified by anybody; set tls.server.certPath and tls.server.keyPath"
        )
        return
    identity = Identity(
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
        key_password=settings.key_password,
        host_names=host_names,
    )
    findings = examine(identity)
    error = first_error(findings)
    if error is not None:
        raise ConfigError("TLS", error.text, error.fix)
    for finding in findings:
        if finding.level is Level.WARNING:
            _log.warning("TLS: %s; %s", finding.text, finding.fix)


@attrs.define(eq=False)
class Certificates:
    """The context that new connections get, and the files that it was made from."""

    settings: ServerTls
    context: ssl.SSLContext
    reloads: int = attrs.field(default=0, init=False)
    _loaded: bytes = attrs.field(default=b"", init=False)
    _seen: bytes = attrs.field(default=b"", init=False)
    _refused: bytes = attrs.field(default=b"", init=False)

    @classmethod
    def load(cls, settings: ServerTls) -> Certificates:
        """Read the files now. Raises ConfigError."""
        from triomq.remoting.tls.contexts import server_context  # ssl, only with TLS

        made = cls(settings, server_context(settings))
        made._loaded = made._seen = _digest(settings.files)
        return made

    def look(self) -> bool:
        """Look at the files once; True if there is a new context. Called again and again, since a change must have come to rest."""
        digest = _digest(self.settings.files)
        settled = digest == self._seen
        self._seen = digest
        if not digest or not settled or digest in (self._loaded, self._refused):
            return False
        try:
            check_identity(self.settings, ())
            fresh = Certificates.load(self.settings)
        except ConfigError as error:
            self._refused = digest
            _log.error("the changed TLS files are not used, the certificate loaded before stays in force: %s", error)
            return False
        self.context, self._loaded, self._refused = fresh.context, digest, b""
        self.reloads += 1
        _log.info("TLS files have changed: new connections get the certificate in %s", self.settings.certificate_file)
        return True


def _digest(paths: Sequence[Path]) -> bytes:
    """Of all contents; empty while one of the files cannot be read (it is being replaced, or was deleted, which changes nothing)."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError:
            return b""
        digest.update(b"%d:" % len(data) + data)
    return digest.digest()


@attrs.define(eq=False)
class Entrance:
    """The doors of one process; all its servers share them."""

    mode: TlsMode
    proxy_protocol: ProxyMode
    certificates: Certificates | None = None

    def filter(self, connection: Connection) -> BytesFilter | None:
        """What a server's `filter_factory` gives to each new connection."""
        return FirstBytes(self, connection, waits_for_proxy=self.proxy_protocol is not ProxyMode.OFF)

    async def run(self) -> None:
        """Watch the files of the certificate until cancelled."""
        while self.certificates is not None and self.certificates.settings.files:
            await trio.sleep(RELOAD_SECONDS)
            self.certificates.look()


@attrs.define(eq=False)
class FirstBytes:
    """The filter of a connection until its first bytes have decided; then it puts another, or none, in its place."""

    entrance: Entrance
    connection: Connection
    waits_for_proxy: bool
    _data: bytes = attrs.field(default=b"", init=False)

    def received(self, data: bytes) -> bytes:
        self._data += data
        if self.waits_for_proxy and not self._pass_proxy_header():
            return b""
        data, self._data = self._data, b""
        return self._choose(data) if data else b""

    def to_send(self, data: bytes) -> bytes:
        return data  # nothing has been read, so this is no answer: it goes out as it is

    def closing(self) -> bytes:
        return b""

    def _pass_proxy_header(self) -> bool:
        """Whether the PROXY header, if there is one, has been read and taken away."""
        try:
            header = read_proxy_header(self._data)
        except NoProxyHeader:
            if self.entrance.proxy_protocol is ProxyMode.REQUIRED:
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
        entrance, connection = self.entrance, self.connection
        if data[0] != _TLS_FIRST_BYTE:
            if entrance.mode is TlsMode.ENFORCING:
                raise TlsFailed(
                    "the client does not speak TLS, and tls.server.mode=enforcing demands it",
                    "switch TLS on in the client, or set tls.server.mode=permissive",
                )
            connection.filter = None
            return data
        if entrance.certificates is None:
            raise TlsFailed(
                "the client speaks TLS, and this server has no TLS",
                "set tls.server.certPath and tls.server.keyPath, or switch TLS off in the client",
            )
        from triomq.remoting.tls.stream import TlsStream  # ssl, only with TLS

        stream = connection.filter = TlsStream(entrance.certificates.context, server_side=True)
        return stream.received(data)
