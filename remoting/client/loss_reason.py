"""Explain why a connection ended: the server may expect another protocol."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from triomq.remoting.protocol.peer import PeerStatistics

if TYPE_CHECKING:
    from triomq.remoting.tls.stream import TlsStream


def with_hint(reason: str, statistics: PeerStatistics, tls: TlsStream | None) -> str:
    """Return *reason*, with a hint if requests were sent and the server never sent anything."""
    if statistics.replied or statistics.peer_requests or not statistics.sent:
        return reason
    question = (
        "does it demand TLS" if tls is None else "does it accept our certificate, or demand one"
    )
    return f"{reason} before it answered anything ({question}?)"


def sending_failed(
    error: OSError, statistics: PeerStatistics, sock: socket.socket, tls: TlsStream | None
) -> str:
    """Return why a connection ended on which nothing can be sent: an alert of TLS may tell."""
    reason = with_hint(f"sending failed: {error.strerror or error}", statistics, tls)
    if tls is None:
        return reason
    from triomq.remoting.client.tls_handshake import reason_of_peer  # ssl, only with TLS

    return reason_of_peer(sock, tls, reason)
