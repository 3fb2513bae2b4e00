"""Peers of the HA port that are not slaves leave room for slaves."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
import trio
from replicating import quick_config, quick_rules, serving_master, wait_until

from triomq.broker.store.opening import open_store
from triomq.remoting.core import open_files
from triomq.remoting.core.networks import NETWORKS
from triomq.remoting.core.open_files import Places

REPORT = struct.Struct(">q")


async def test_one_address_cannot_take_all_places(tmp_path: Path) -> None:
    """Connections of one address beyond its limit are turned away; a slave at another address still
    finds a place, and a freed place is used again.
    """
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        master.connection_limits.address_connections_max = 2
        async with (
            await trio.open_tcp_stream("127.0.0.1", port),
            await trio.open_tcp_stream("127.0.0.1", port),
        ):
            await wait_until(lambda: len(master.connections) == 2)
            with trio.fail_after(20):
                async with await trio.open_tcp_stream("127.0.0.1", port) as third:
                    assert await third.receive_some(1) == b""
            async with await trio.open_tcp_stream(
                "127.0.0.1", port, local_address="127.0.0.2"
            ) as slave:
                await slave.send_all(REPORT.pack(0))
                await wait_until(lambda: len(master.replicas.replicas) == 1)
        await wait_until(lambda: not master.connections)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(REPORT.pack(0))
            await wait_until(lambda: len(master.replicas.replicas) == 1)


async def test_a_peer_that_never_reports_loses_its_place(tmp_path: Path) -> None:
    async with (
        open_store(quick_config(tmp_path)) as store,
        serving_master(store, rules=quick_rules(store, silence_seconds=0.3)) as (master, port),
    ):
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                assert await stream.receive_some(1) == b""
        await wait_until(lambda: not master.connections)
        assert not master.replicas.replicas


async def test_only_listed_addresses_count_as_replicas(tmp_path: Path) -> None:
    """A stranger speaks the protocol and reports the whole log; no send counts that as a copy."""
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        master.connection_limits.networks = NETWORKS.read("127.0.0.2")
        with trio.fail_after(20):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stranger:
                await stranger.send_all(REPORT.pack(0))
                with contextlib.suppress(trio.BrokenResourceError):
                    assert await stranger.receive_some(1) == b""
            assert master.places.taken == 0, "who is turned away takes no place"
            async with await trio.open_tcp_stream(
                "127.0.0.1", port, local_address="127.0.0.2"
            ) as slave:
                await slave.send_all(REPORT.pack(0))
                await wait_until(lambda: len(master.replicas.replicas) == 1)
        assert master.connection_limits.refused == {"haSlaveAddresses": 1}


async def test_places_of_the_open_files_limit_are_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):
        master.places = Places(1)
        for turn in (1, 2):
            async with await trio.open_tcp_stream("127.0.0.1", port) as slave:
                await slave.send_all(REPORT.pack(0))
                await wait_until(lambda: len(master.replicas.replicas) == 1)
                with trio.fail_after(20):
                    async with await trio.open_tcp_stream("127.0.0.1", port) as second:
                        assert await second.receive_some(1) == b""
                assert (master.places.taken, master.places.refused) == (1, turn)
            await wait_until(lambda: not master.connections)
            assert master.places.taken == 0
        assert sum(master.connection_limits.refused.values()) == 0
    lines = [
        record.getMessage() for record in caplog.records if "is turned away" in record.getMessage()
    ]
    assert len(lines) == 1, "told once in ten seconds"
    assert lines[0].endswith(
        f"is turned away: the limit of open files (ulimit -n, {open_files.limit()}) leaves 1 for"
        " slaves; raise it"
    )


async def test_a_slave_that_connects_while_too_many_files_are_open_is_accepted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[int] = []
    accept = socket.socket.accept
    async with open_store(quick_config(tmp_path)) as store, serving_master(store) as (master, port):

        def flaky(listener: socket.socket) -> tuple[socket.socket, Any]:
            if failures and listener.getsockname()[1] == port:
                number = failures.pop()
                raise OSError(number, os.strerror(number))
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", flaky)
        for turn in (1, 2):
            failures += [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]
            async with await trio.open_tcp_stream("127.0.0.1", port) as slave:
                await slave.send_all(REPORT.pack(0))
                await wait_until(lambda: len(master.replicas.replicas) == 1)
            await wait_until(lambda: not master.connections)
            assert master.places.failed_accepts == 2 * turn
    assert [
        record.getMessage().partition(":")[0]
        for record in caplog.records
        if record.levelname == "ERROR"
    ] == ["cannot accept slaves for now"], "once in ten seconds"
