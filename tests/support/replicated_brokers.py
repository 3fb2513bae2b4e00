"""A name server, masters and slaves inside the test's own loop, each to be stopped alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from brokers import BrokerPeer, broker_config, peer_of

from triomq.broker.app import BrokerReady, run_broker
from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig

SECONDS_MAX = 60
SEGMENT_BYTES = 65_536


@attrs.define(eq=False)
class Member:
    """One broker that runs."""

    ready: BrokerReady
    peer: BrokerPeer
    root: Path
    scope: trio.CancelScope
    ended: trio.Event

    async def stop(self) -> None:
        """In order."""
        self.ready.stop()
        await self.ended.wait()

    async def crash(self) -> None:
        """As a crash would, but for what the operating system has."""
        self.scope.cancel()
        await self.ended.wait()


@attrs.define(eq=False)
class Group:
    """Brokers of one name and one name server."""

    nursery: trio.Nursery
    folder: Path
    namesrv: str

    async def start(
        self, broker_id: int, role: str = "", folder: str = "", **settings: Any
    ) -> Member:
        role = role or ("SLAVE" if broker_id else "ASYNC_MASTER")
        root = self.folder / (folder or f"broker-{broker_id}")
        lines = {
            "brokerRole": role,
            "brokerId": broker_id,
            "namesrvAddr": self.namesrv,
            "mappedFileSizeCommitLog": SEGMENT_BYTES,
            **settings,
        }
        member: Member = await self.nursery.start(self._run, root, lines)
        return member

    async def _run(
        self, root: Path, settings: dict[str, Any], *, task_status: trio.TaskStatus[Member]
    ) -> None:
        ended = trio.Event()
        try:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    ready: BrokerReady = await nursery.start(
                        run_broker, broker_config(root, **settings)
                    )
                    async with peer_of(ready) as peer:
                        task_status.started(Member(ready, peer, root, scope, ended))
                        await _stopped(nursery)
        finally:
            ended.set()


async def _stopped(nursery: trio.Nursery) -> None:
    """Until the broker's own task has ended."""
    while nursery.child_tasks:
        await trio.sleep(0.01)


@asynccontextmanager
async def broker_group(folder: Path, **settings: Any) -> AsyncIterator[Group]:
    async with trio.open_nursery() as nursery:
        config = NamesrvConfig(
            listen_host="127.0.0.1", listen_port=0, kv_path=folder / "kv.json", **settings
        )
        ready: NamesrvReady = await nursery.start(run_namesrv, config)
        async with trio.open_nursery() as brokers:
            try:
                yield Group(brokers, folder, f"127.0.0.1:{ready.port}")
            finally:
                brokers.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


def log_bytes(root: Path) -> bytes:
    """Return a whole commit log from its files, without the zeros behind its end."""
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir())).rstrip(
        b"\0"
    )


async def eventually(condition: Callable[[], Any]) -> None:
    """Until a condition holds; it may be an async function."""
    with trio.fail_after(SECONDS_MAX):
        while True:
            found = condition()
            if hasattr(found, "__await__"):
                found = await found
            if found:
                return
            await trio.sleep(0.01)
