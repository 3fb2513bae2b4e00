"""A port with probes and figures for asyncio."""

from __future__ import annotations

from typing import Any, SupportsIndex

from triomq import client
from triomq.aio.calls import AsyncioLifetime


class Probes(AsyncioLifetime[client.Probes]):
    """A ``triomq.Probes`` for asyncio, of objects of this package; see there."""

    def __init__(
        self,
        *clients: AsyncioLifetime[Any],
        port: SupportsIndex,
        host: str = "127.0.0.1",
    ) -> None:
        targets: list[Any] = [getattr(each, "_target", each) for each in clients]
        super().__init__(client.Probes(*targets, port=port, host=host))
