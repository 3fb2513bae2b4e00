"""``server_in_thread``: a cluster in a thread, for tests that block or run under asyncio.

``triomq.testing`` loads it on first use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from triomq.client.core.portal import Portal
from triomq.in_process import InProcessCluster, local_cluster


@contextmanager
def server_in_thread(
    *,
    brokers: int | Sequence[str] = 1,
    namesrvs: int = 1,
    dir: Path | str | None = None,  # noqa: A002  (the word that tests expect)
    settings: Mapping[str, object] | None = None,
    tls: bool = False,
) -> Iterator[InProcessCluster]:
    """Run ``local_cluster`` in a thread of its own for the length of the block.

    Other threads may only read ``namesrv_address`` and ``tls`` of the cluster.
    """
    portal = Portal(
        local_cluster(brokers=brokers, namesrvs=namesrvs, dir=dir, settings=settings, tls=tls)
    )
    cluster = portal.start().result()
    try:
        yield cluster
    finally:
        stopped = portal.stop()
        portal.join()
    stopped.result()
