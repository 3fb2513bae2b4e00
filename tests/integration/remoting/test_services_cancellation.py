"""A name server and a broker, cancelled while they start, work or stop, leave no task, no file and
no lock.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import broker_config, peer_of
from cancelling import cancel_everywhere

from triomq.broker.app import run_broker
from triomq.broker.store.lock import StoreLock
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command

Begin = Callable[[trio.CancelScope], None]


async def run_until_ready(
    begin: Begin,
    service: Callable[..., Awaitable[None]],
    config: Any,
    use: Callable[[Any], Awaitable[None]],
) -> None:
    """Start the service in the scope that will be cancelled, use it, and stop it in order, as far
    as it comes.
    """
    with trio.CancelScope() as scope:
        begin(scope)
        async with trio.open_nursery() as nursery:
            ready = await nursery.start(service, config)
            with contextlib.suppress(RemotingError, OSError, trio.BrokenResourceError):
                await use(ready)  # cancelled in the middle: only what it leaves is checked
            ready.stop()


@pytest.mark.slow
def test_a_broker_cancelled_again_and_again(tmp_path: Path) -> None:
    """Every seventh step: recovery, first registration, a message in flight to the disk, the
    orderly stop.
    """
    numbers = itertools.count()

    async def scenario(begin: Begin) -> None:
        folder = tmp_path / str(next(numbers))

        async def use(ready: Any) -> None:
            async with peer_of(ready) as peer:
                await peer.create_topic("T", 1)
                await peer.send("T")
                assert (await peer.pull("T")).code == 0

        await run_until_ready(
            begin,
            run_broker,
            broker_config(folder, flushDiskType="SYNC_FLUSH", namesrvAddr="127.0.0.1:9"),
            use,
        )
        if folder.exists():
            lock = StoreLock(folder / "lock")
            lock.take()  # the lock is free
            lock.release()

    assert cancel_everywhere(scenario, stride=7, jump=False) > 10


def test_a_name_server_cancelled_at_every_step(tmp_path: Path) -> None:
    async def scenario(begin: Begin) -> None:
        async def use(ready: Any) -> None:
            async with Connector() as connector:
                await connector.invoke(
                    f"127.0.0.1:{ready.port}", Command(Code.GET_BROKER_CLUSTER_INFO)
                )

        await run_until_ready(
            begin,
            run_namesrv,
            NamesrvConfig(listen_host="127.0.0.1", listen_port=0, kv_path=tmp_path / "kv.json"),
            use,
        )

    assert cancel_everywhere(scenario) > 10
