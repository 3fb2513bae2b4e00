"""A name server and a broker that are reached by IPv6 only."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio
from brokers import broker_config

from triomq.broker.app import BrokerReady, run_broker
from triomq.client.admin.admin import Admin
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NamesrvConfig


def has_ipv6() -> bool:
    """Whether this machine has the loopback address ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@attrs.frozen
class IPv6Cluster:
    namesrv_address: str
    broker: BrokerReady


@asynccontextmanager
async def ipv6_cluster(folder: Path, **settings: object) -> AsyncIterator[IPv6Cluster]:
    """Run both for the block; the broker is registered when it begins."""
    async with trio.open_nursery() as nursery:
        namesrv = await nursery.start(
            run_namesrv, NamesrvConfig(listen_host="::1", listen_port=0, kv_path=folder / "kv.json")
        )
        address = f"[::1]:{namesrv.port}"
        lines = {"bindAddress": "::1", "brokerIP1": "::1", "namesrvAddr": address, **settings}
        broker = await nursery.start(run_broker, broker_config(folder / "store", **lines))
        async with Admin(address) as admin:
            with trio.fail_after(20):
                while not await admin.brokers():
                    await trio.sleep(0.01)
        yield IPv6Cluster(address, broker)
        broker.stop()
        namesrv.stop()
