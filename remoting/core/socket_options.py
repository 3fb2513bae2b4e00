"""The options of every TCP stream, of clients and of servers."""

import contextlib
import socket

IDLE_SECONDS, PROBE_SECONDS, PROBES = 30, 10, 3
"""An idle stream is probed after this time, so often, until it counts as dead."""
UNACKNOWLEDGED_MS = 60_000
"""How long bytes may stay without the other machine's acknowledgement."""

SILENT_SECONDS = 1.0
"""A silence that is shorter says nothing about whether the peer is there."""


def set_stream_options(sock: socket.socket) -> None:
    """Send small pieces at once, and notice a peer that is gone without a word: after a minute.

    A firewall that forgot the connection, or a machine without power, sends nothing. What a system
    does not have is left out.

    Raises: OSError if the peer is gone. Checkpoint: never.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_SECONDS),
        ("TCP_KEEPINTVL", PROBE_SECONDS),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):  # some sandboxes refuse it
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
