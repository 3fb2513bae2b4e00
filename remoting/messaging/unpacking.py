"""Where messages are made for clients: in a thread if a body is unpacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import trio

from triomq.remoting.messaging.delivered_message import unpacks
from triomq.remoting.protocol.record import StoredMessage

T = TypeVar("T")


async def off_the_loop(make: Callable[[], T], messages: Iterable[StoredMessage]) -> T:
    """Return ``make()``, which makes these messages for a client.

    Some KiB of a body may unfold to ``PLAIN_BYTES_MAX``, which takes 50 ms; zlib lets other threads
    go on meanwhile.
    """
    if any(unpacks(message) for message in messages):
        return await trio.to_thread.run_sync(make)
    return make()
