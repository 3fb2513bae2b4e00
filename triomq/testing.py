"""A whole TrioMQ cluster inside one Trio loop, for tests: ours and yours.

The law of this file: it is the pytest plugin that the installed package registers, so *every* pytest session of the environment loads it.  It
must be light (no Trio, no broker, until somebody asks) and must not fail when pytest or pytest-trio is missing.  The cluster itself is
`triomq.in_process`, which this module loads on first use.

    async def test_orders(triomq_cluster):
        await triomq_cluster.create_topic("orders")
        async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
            ...

Tests without Trio (plain pytest, pytest-asyncio, anyio) take `triomq_server`, the address of a cluster that runs in a thread for the whole session:

    def test_orders(triomq_server):
        with triomq.sync.Producer(triomq_server, group="shop") as producer:
            ...

or, with other numbers, ``async with local_cluster(brokers=2) as cluster: ...``; or ``simulate(seed, main)``, in virtual time and without a network
(`triomq.simulation`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.in_process import InProcessBroker, InProcessCluster, InProcessNameServer, local_cluster
    from triomq.server_thread import server_in_thread
    from triomq.simulation import Simulation, simulate

__all__ = ["InProcessBroker", "InProcessCluster", "InProcessNameServer", "Simulation", "local_cluster", "server_in_thread", "simulate"]

_HOMES = {"Simulation": "triomq.simulation", "simulate": "triomq.simulation", "server_in_thread": "triomq.server_thread"}
"""where the public names are defined; the others in `triomq.in_process`"""


def __getattr__(name: str) -> Any:
    """Load the cluster on first use of one of its public names."""
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "triomq.in_process")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "pytest" in sys.modules:
    import pytest

    @pytest.fixture
    async def triomq_cluster() -> AsyncIterator[InProcessCluster]:
        """A running cluster of one name server and one broker on free ports; its store goes away with the test. Needs pytest-trio."""
        async with __getattr__("local_cluster")() as cluster:
            yield cluster

    @pytest.fixture(scope="session")
    def triomq_server() -> Iterator[str]:
        """The name server's address of a cluster that runs in a thread until the session ends; use topics and groups of your own in each test."""
        with __getattr__("server_in_thread")() as cluster:
            yield cluster.namesrv_address
