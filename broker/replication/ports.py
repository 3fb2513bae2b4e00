"""The HA port of a master: opened as late as the number of the broker's own port is known."""

from __future__ import annotations

import socket

from triomq.remoting.server.listen import open_listener

BACKLOG = 64


def open_ha_port(host: str, port: int) -> tuple[socket.socket, int]:
    """Listen; the listener, and the port it got.  Raises AddressInUse, ListenFailed."""
    listener = open_listener(host, port, BACKLOG, "haListenPort")
    return listener, listener.getsockname()[1]
