"""A cluster in a thread of its own that has a topic, for tests that block or run under asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import trio

from triomq import Admin
from triomq.testing import server_in_thread


@contextlib.contextmanager
def cluster_in_a_thread(
    *, topic: str = "Numbers", queues: int = 2, settings: Mapping[str, object] | None = None
) -> Iterator[str]:
    """Yield the name server's address."""

    async def create() -> None:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic(topic, queues=queues)

    with server_in_thread(settings=settings) as cluster:
        trio.run(create)
        yield cluster.namesrv_address
