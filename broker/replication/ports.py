"""The HA port of a master: opened as late as the number of the broker's own port is known."""

from __future__ import annotations

import trio

from triomq.remoting.server.listen import open_listener

BACKLOG = 64


def open_ha_port(host: str, port: int) -> tuple[trio.SocketListener, int]:
    """Listen; the listener, and the port it got.  Raises AddressInUse, ListenFailed."""
    listener = open_listener(host, port, BACKLOG, "haListenPort")
    return trio.SocketListener(trio.socket.from_stdlib_socket(listener)), listener.getsockname()[1]
