"""A cluster in a loop of its own, for tests that block or run under asyncio."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator

import trio

from triomq.testing import local_cluster


@contextlib.contextmanager
def cluster_in_a_thread(*, topic: str = "Numbers", queues: int = 2) -> Iterator[str]:
    """A cluster in a loop of its own, for callers that block; yields the name server's address."""
    ready: concurrent.futures.Future[tuple[str, trio.lowlevel.TrioToken, trio.Event]] = concurrent.futures.Future()

    async def run() -> None:
        try:
            async with local_cluster() as cluster:
                await cluster.create_topic(topic, queues=queues)
                done = trio.Event()
                ready.set_result((cluster.namesrv_address, trio.lowlevel.current_trio_token(), done))
                await done.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=trio.run, args=[run])
    thread.start()
    try:
        address, token, done = ready.result(30)
        try:
            yield address
        finally:
            token.run_sync_soon(done.set)
    finally:
        thread.join()
