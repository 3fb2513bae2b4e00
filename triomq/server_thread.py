"""`server_in_thread`: a cluster in a thread of its own, for tests that block or run under asyncio.

Loaded by `triomq.testing` on first use.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import trio

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
    """Run `local_cluster` in a thread of its own for the length of the block, for code without Trio.

    Of the cluster only what can be read (`namesrv_address`, `tls`) is for other threads.
    """
    ready: Future[InProcessCluster] = Future()
    stop: list[Callable[[], None]] = []

    async def main() -> None:
        async with local_cluster(brokers=brokers, namesrvs=namesrvs, dir=dir, settings=settings, tls=tls) as cluster:
            leave, token = trio.Event(), trio.lowlevel.current_trio_token()
            stop.append(lambda: token.run_sync_soon(leave.set))
            ready.set_result(cluster)
            await leave.wait()

    ended: Future[None] = Future()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:  # a thread has no caller: who waits for the start or the end gets it
            (ended if ready.done() else ready).set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=run, name="triomq-server", daemon=True)
    thread.start()
    cluster = ready.result()
    try:
        yield cluster
    finally:
        with contextlib.suppress(trio.RunFinishedError):
            stop[0]()
        thread.join()
    ended.result()
