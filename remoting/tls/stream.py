"""TLS without sockets, for servers and both kinds of clients: bytes in, bytes out.

It is a ``BytesFilter`` between socket and frames. Data sent before the handshake is complete is
kept until then.
"""

from __future__ import annotations

import ssl
from typing import Any

from triomq.remoting.core.errors import TlsFailed

_READ_BYTES = 64 * 1024


class TlsStream:
    """One TLS session over a ``MemoryBIO`` in each direction.

    After TlsFailed only ``to_send(b"")`` is useful: it returns the alert for the peer.
    """

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, host_name: str | None = None
    ) -> None:
        """Make a session; a client sends *host_name*, which the server's certificate must name."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, host_name)
        self._server_side = server_side
        self._early: list[bytes] = []
        self._peer_name: str | None = None
        self.ready = False
        """whether the handshake is complete"""
        self.ended = False
        """whether the peer has sent close_notify"""

    def start(self) -> bytes:
        """Return the first bytes of a client."""
        self._shake()
        return self._outgoing.read()

    def received(self, data: bytes) -> bytes:
        """Decrypt bytes; return b"" if there is no plain text yet.

        Raises: TlsFailed with cause and fix.
        """
        if not self.shake(data):
            return b""
        pieces: list[bytes] = []
        while not self.ended:
            try:
                piece = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                self.ended = True
                break
            except ssl.SSLError as error:
                raise explained(error, server_side=self._server_side, ready=True) from None
            self.ended = not piece
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def shake(self, data: bytes) -> bool:
        """Take encrypted bytes for the handshake; return whether it is complete.

        Raises: TlsFailed.
        """
        self._incoming.write(data)
        return self.ready or self._shake()

    def to_send(self, data: bytes) -> bytes:
        """Encrypt bytes; return them with the bytes that the session itself must send."""
        if data:
            if self.ready:
                self._encrypt(data)
            else:
                self._early.append(data)
        return self._outgoing.read()

    def closing(self) -> bytes:
        """Return close_notify, which tells the peer that nothing was cut off."""
        if self.ready:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                return self._outgoing.read()  # ours is written; the peer has not sent its own yet
        return self._outgoing.read()

    @property
    def version(self) -> str:
        """``TLSv1.3``; empty before the handshake is complete."""
        return self._tls.version() or ""

    def peer_certificate(self) -> bytes | None:
        """Return the peer's certificate in DER form, None without one."""
        return self._tls.getpeercert(binary_form=True)

    def peer_name(self) -> str:
        """Return the common name of the peer's verified certificate; empty without one."""
        if self._peer_name is None:
            found: Any = self._tls.getpeercert() if self.ready else None
            parts = (pair for part in (found or {}).get("subject", ()) for pair in part)
            names = [value for key, value in parts if key == "commonName"]
            # With several names it would be the issuer's choice which of them counts.
            self._peer_name = names[0] if len(names) == 1 else ""
        return self._peer_name

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise explained(error, server_side=self._server_side) from None
        self.ready = True
        early, self._early = self._early, []
        for data in early:
            self._encrypt(data)
        return True

    def _encrypt(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            raise explained(error, server_side=self._server_side) from None


_SERVER_FIXES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client showed no certificate",
        (
            "give the client one (tls.client.certPath, tls.client.keyPath), or set"
            " tls.server.need.client.auth=optional"
        ),
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the client does not trust the authority of our certificate",
        "give the client the authority's certificate (tls.client.trustCertPath)",
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        "the client does not accept our certificate",
        (
            "give the client the authority's certificate (tls.client.trustCertPath), and check"
            " names and dates (`mqadmin tls check`)"
        ),
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "the client does not accept our certificate",
        "check its names: it must name the host that clients connect to (`mqadmin tls check`)",
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "the client finds our certificate expired",
        "make a new certificate; check both clocks",
    ),
}
_NOT_ACCEPTED = (
    "the server does not accept our certificate",
    "let an authority of its tls.server.trustCertPath issue it",
)
_CLIENT_FIXES = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "the server finds our certificate expired",
        "make a new certificate; check both clocks",
    ),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (
        "the server demands a client certificate",
        "give one (tls.client.certPath and tls.client.keyPath)",
    ),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "the server refuses the handshake; it may demand a client certificate",
        (
            "give one (tls.client.certPath and tls.client.keyPath), and let both sides speak TLS"
            " 1.2 or 1.3"
        ),
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the server does not trust the authority of our certificate",
        "let the server trust it (tls.server.trustCertPath)",
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_ACCEPTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_ACCEPTED,
}
_NO_TLS = ("the peer does not speak TLS on this port", "switch TLS on there, or off here")
_COMMON_FIXES = {
    "UNSUPPORTED_PROTOCOL": (
        "the peer offers only versions older than TLS 1.2",
        "update the peer, or let it speak TLS 1.2",
    ),
    "TLSV1_ALERT_PROTOCOL_VERSION": (
        "the peer accepts none of TLS 1.2 and 1.3",
        "let it speak TLS 1.2",
    ),
    "NO_SHARED_CIPHER": (
        "the two sides have no cipher in common",
        "let the peer offer the usual ciphers of TLS 1.2 or 1.3",
    ),
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "HTTP_REQUEST": ("the peer speaks HTTP", "send messages to this port with a RocketMQ client"),
}


_DAMAGED = (
    "RECORD_LAYER_FAILURE",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC",
    "SSLV3_ALERT_BAD_RECORD_MAC",
)
"""OpenSSL's names of damage; which one depends on its version"""


def explained(error: ssl.SSLError, *, server_side: bool, ready: bool = False) -> TlsFailed:
    """Return an error of the ``ssl`` module with cause and fix; *ready*: after the handshake."""
    if ready and error.reason in _DAMAGED:
        return TlsFailed(
            "TLS failed: bad record mac, so the bytes are not those that the peer sent",
            "check proxies and firewalls between the two sides: one of them changes bytes",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        whose = "client" if server_side else "server"
        trust = "tls.server.trustCertPath" if server_side else "tls.client.trustCertPath"
        if (
            "ostname mismatch" in error.verify_message
            or "IP address mismatch" in error.verify_message
        ):
            return TlsFailed(
                f"the server's certificate is for other hosts: {error.verify_message}",
                "make one that names this host (`mqadmin tls init --hosts`), or set"
                " tls.client.checkHostName=false",
            )
        if "expired" in error.verify_message or "not yet valid" in error.verify_message:
            return TlsFailed(
                f"the {whose}'s certificate does not hold now: {error.verify_message}",
                "make a new certificate; check both clocks",
            )
        return TlsFailed(
            f"the {whose}'s certificate is not trusted: {error.verify_message}",
            f"put the certificate of its authority into {trust}",
        )
    known = (_SERVER_FIXES if server_side else _CLIENT_FIXES).get(
        error.reason
    ) or _COMMON_FIXES.get(error.reason)
    if known is not None:
        return TlsFailed(f"TLS failed: {known[0]}", known[1])
    text = (error.reason or str(error)).replace("_", " ").lower()
    return TlsFailed(
        f"TLS failed: {text}", "check the TLS settings of both sides (`mqadmin tls check`)"
    )
