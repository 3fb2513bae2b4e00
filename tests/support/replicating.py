"""Two stores joined by a real HA connection, in the test's own loop; and peers that speak the bare
protocol, as Java's do.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from stores import tiny_config

from triomq.broker.replication.link_tls import MasterTls, SlaveTls
from triomq.broker.replication.login import ReplicationLogin
from triomq.broker.replication.master import ReplicationMaster, open_ha_port
from triomq.broker.replication.master_link import LinkRules
from triomq.broker.replication.parted import PartedLogs
from triomq.broker.replication.replicas import ReplicaRules, ReplicaSet
from triomq.broker.replication.replicated_durability import ReplicatedDurability
from triomq.broker.replication.slave import MasterAddress, ReplicationSlave
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore

SECONDS_MAX = 60


def quick_config(root: Path, **changes: Any) -> Any:
    return tiny_config(root, **{"flush_interval_ms": 5, **changes})


def quick_rules(store: MessageStore, **changes: Any) -> LinkRules:
    return LinkRules(
        segment_size=store.config.segment_size_bytes,
        **{"heartbeat_seconds": 0.2, "silence_seconds": 30.0, **changes},
    )


@asynccontextmanager
async def impatient(
    store: MessageStore, master: ReplicationMaster
) -> AsyncIterator[ReplicatedDurability]:
    """Senders that wait 50 ms for slaves."""
    durability = ReplicatedDurability(store, master, timeout_seconds=0.05)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(durability.run_deadlines)
        yield durability
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving_master(
    store: MessageStore,
    *,
    bytes_per_second: int = 0,
    port: int = 0,
    rules: LinkRules | None = None,
    awaited: bool = False,
    busy_poll: bool = False,
    login: ReplicationLogin | None = None,
    tls: MasterTls | None = None,
    **replica_rules: Any,
) -> AsyncIterator[tuple[ReplicationMaster, int]]:
    """Serve the HA port of a store; yield (master, port)."""
    master = ReplicationMaster(
        store,
        rules or quick_rules(store),
        ReplicaSet(ReplicaRules(**replica_rules)),
        bytes_per_second,
        awaited,
        busy_poll,
        login=login,
        tls=tls,
    )
    listener = open_ha_port("127.0.0.1", port)
    port = listener.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.run, listener)
        try:
            yield master, port
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def following_slave(
    store: MessageStore,
    port: int,
    *,
    last_segment_only: bool = False,
    rules: LinkRules | None = None,
    busy_poll: bool = False,
    login: ReplicationLogin | None = None,
    tls: SlaveTls | None = None,
) -> AsyncIterator[ReplicationSlave]:
    slave = ReplicationSlave(
        store,
        store.follow(),
        rules or quick_rules(store),
        MasterAddress(ha=f"127.0.0.1:{port}"),
        PartedLogs(store.config.root / "config" / "logsParted", store.disk),
        last_segment_only,
        busy_poll,
        login=login,
        tls=tls,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.run)
        try:
            yield slave
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_pair(
    folder: Path, *, slave: dict[str, Any] | None = None, **master: Any
) -> AsyncIterator[tuple[MessageStore, MessageStore]]:
    async with (
        open_store(quick_config(folder / "master", **master)) as first,
        open_store(quick_config(folder / "slave", **(slave or {}))) as second,
    ):
        yield first, second


async def wait_equal(master: MessageStore, slave: MessageStore) -> None:
    """Wait until the slave has the whole log."""
    with trio.fail_after(SECONDS_MAX):
        await slave.appended.wait_reached(master.appended.value)
        await slave.indexed.wait_reached(master.appended.value)


async def wait_until(condition: Any) -> None:
    with trio.fail_after(SECONDS_MAX):
        while not condition():
            await trio.sleep(0.005)


def log_of(store: MessageStore, begin: int | None = None) -> bytes:
    """Return all bytes of the log, from ``begin`` on."""
    data = b"".join(segment.path.read_bytes() for segment in store.log.segments.items)
    return data[
        (store.first_offset if begin is None else begin) - store.first_offset : store.appended.value
        - store.first_offset
    ]


async def read_frame(stream: trio.SocketStream) -> tuple[int, bytes]:
    """Return one frame as a Java slave reads it."""
    start, size = struct.unpack(">qi", await read_exactly(stream, 12))
    return start, await read_exactly(stream, size)


async def read_exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        assert more, "the other side closed the connection"
        data += more
    return data
