"""Peers of the HA port that are no slaves leave room for those that are."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import trio
from replicating import quick_config, quick_rules, serving_master, wait_until

from triomq.broker.replication.admission import NETWORKS
from triomq.broker.store.store import open_store

REPORT = struct.Struct(">q")


async def test_one_address_does_not_take_all_places(tmp_path: Path) -> None:
    """Connections of one address beyond its limit are turned away; a slave at another address still finds a place, and a freed place is used again."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        master.admission.address_connections_max = 2
        async with await trio.open_tcp_stream("127.0.0.1", port), await trio.open_tcp_stream("127.0.0.1", port):
            await wait_until(lambda: len(master.connections) == 2)
            with trio.fail_after(20):
                async with await trio.open_tcp_stream("127.0.0.1", port) as third:
                    assert await third.receive_some(1) == b""
            async with await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.0.2") as slave:
                await slave.send_all(REPORT.pack(0))
                await wait_until(lambda: len(master.replicas.replicas) == 1)
        await wait_until(lambda: not master.connections)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(0))
            await wait_until(lambda: len(master.replicas.replicas) == 1)


async def test_a_peer_that_never_reports_loses_its_place(tmp_path: Path) -> None:
    async with open_store(quick_config(tmp_path)) as store, serving_master(store, rules=quick_rules(store, silence_seconds=0.3)) as (master, port):
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                assert await stream.receive_some(1) == b""
        await wait_until(lambda: not master.connections)
        assert not master.replicas.replicas


async def test_only_listed_addresses_count_as_replicas(tmp_path: Path) -> None:
    """A stranger speaks the protocol well, and reports all that there is; no sender takes that for a copy."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        master.admission.networks = NETWORKS.read("127.0.0.2")
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stranger:
                await stranger.send_all(REPORT.pack(0))
                with contextlib.suppress(trio.BrokenResourceError):
                    assert await stranger.receive_some(1) == b""
            async with await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.0.2") as slave:
                await slave.send_all(REPORT.pack(0))
                await wait_until(lambda: len(master.replicas.replicas) == 1)
        assert master.admission.refused == {"haSlaveAddresses": 1}
