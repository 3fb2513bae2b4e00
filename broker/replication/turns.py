"""Turns to send on one stream: several tasks do, and none may cut into another's bytes."""

from __future__ import annotations

import attrs
import trio


@attrs.define(eq=False)
class SendTurns:
    """First come, first served. Nobody gives way to the other tasks before its bytes have gone out, unless it must: at the other end somebody waits for them."""

    _lock: trio.StrictFIFOLock = attrs.field(factory=trio.StrictFIFOLock)

    async def send(self, stream: trio.SocketStream, data: bytes) -> None:
        """Raises what ``send_all`` does. Checkpoint: always."""
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            await stream.send_all(data)
        finally:
            self._lock.release()
