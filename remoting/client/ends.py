"""Why a connection ended, in words that help: a server that ends one before it ever answered usually wants something else."""

from triomq.remoting.protocol.peer import PeerStatistics


def with_hint(reason: str, statistics: PeerStatistics, *, tls: bool) -> str:
    """*reason*, and what to think of if the server never said a word on this connection though it was asked."""
    if statistics.replied or statistics.peer_requests or not statistics.sent:
        return reason
    question = "does it accept our certificate, or demand one" if tls else "does it demand TLS"
    return f"{reason} before it answered anything ({question}?)"
