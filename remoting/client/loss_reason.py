"""Explain why a connection ended: the server may expect another protocol, or be gone in silence."""

from __future__ import annotations

import socket
from math import inf
from typing import TYPE_CHECKING

import attrs

from triomq.remoting.core.socket_options import SILENT_SECONDS
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


@attrs.define(eq=False)
class TimeOuts:
    """The time-outs of one connection since the last byte of its peer.

    One time-out of ``SILENT_SECONDS`` without any byte shows that the peer is gone: a held pull,
    too, is answered before its caller gives up. So do several shorter ones in a row, if nothing
    came since the first of their requests was sent, for as long.
    """

    _since: float = attrs.field(default=inf, init=False)
    """when the first of these requests was sent"""
    _reads: int = attrs.field(default=-1, init=False)

    def timed_out(self, sent_at: float, reads: int, now: float) -> float:
        """Note a request that nothing answered; return the seconds of a deadly silence, or 0.

        ``reads``: of the connection, the same when the request was sent and now.
        """
        if reads != self._reads:
            self._since, self._reads = inf, reads
        self._since = min(self._since, sent_at)
        silent = now - self._since
        return silent if silent >= SILENT_SECONDS else 0.0
