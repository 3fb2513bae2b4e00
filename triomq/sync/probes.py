"""A port with probes and figures for threads."""

from __future__ import annotations

from typing import Any, SupportsIndex

from triomq import client
from triomq.sync.lifetime import BlockingLifetime


class Probes(BlockingLifetime[client.Probes]):
    """A ``triomq.Probes`` for threads, of objects of this package; see there."""

    def __init__(
        self,
        *clients: BlockingLifetime[Any],
        port: SupportsIndex,
        host: str = "127.0.0.1",
    ) -> None:
        targets: list[Any] = [getattr(each, "_target", each) for each in clients]
        super().__init__(client.Probes(*targets, port=port, host=host))
