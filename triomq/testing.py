"""A whole TrioMQ cluster inside one Trio loop, for tests: the project's own and yours.

The installed package registers this file as a pytest plugin, so *every* pytest session of the
environment loads it. It must be light (no Trio and no broker until a test uses them) and must not
fail if pytest or pytest-trio is missing. The cluster itself is ``triomq.in_process``, loaded on
first use.

    async def test_orders(triomq_cluster):
        await triomq_cluster.create_topic("orders")
        async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
            ...

Tests without Trio (plain pytest, pytest-asyncio, anyio) take ``triomq_server``, the address of a
cluster that runs in a thread for the whole session:

    def test_orders(triomq_server):
        with triomq.sync.Producer(triomq_server, group="shop") as producer:
            ...

For other sizes there is ``async with local_cluster(brokers=2) as cluster: ...``; for virtual time
without a network ``simulate(seed, main)`` (``triomq.simulation``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.in_process import (
        InProcessBroker,
        InProcessCluster,
        InProcessNameServer,
        local_cluster,
        server_in_thread,
    )
    from triomq.remoting.simulated.network import Machine, SimulatedNetwork
    from triomq.remoting.simulated.simulate import Trace
    from triomq.simulation import Simulation, simulate

__all__ = [
    "InProcessBroker",
    "InProcessCluster",
    "InProcessNameServer",
    "Machine",
    "SimulatedNetwork",
    "Simulation",
    "Trace",
    "local_cluster",
    "server_in_thread",
    "simulate",
]

_HOMES = {
    "Machine": "triomq.remoting.simulated.network",
    "SimulatedNetwork": "triomq.remoting.simulated.network",
    "Simulation": "triomq.simulation",
    "Trace": "triomq.remoting.simulated.simulate",
    "simulate": "triomq.simulation",
}
"""Where public names are defined; the others are in ``triomq.in_process``."""


def __getattr__(name: str) -> Any:
    """Load the cluster on first use of one of its public names.

    There is no ``__dir__`` of them: pytest reads every name of a plugin that ``dir`` lists.
    """
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "triomq.in_process")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "pytest" in sys.modules:
    import pytest

    @pytest.fixture
    async def triomq_cluster() -> AsyncIterator[InProcessCluster]:
        """A running name server and broker; stores are deleted with the test. Needs pytest-trio."""
        async with __getattr__("local_cluster")() as cluster:
            yield cluster

    @pytest.fixture(scope="session")
    def triomq_server() -> Iterator[str]:
        """The name server's address of a cluster that runs in a thread until the session ends.

        Use topics and groups of your own in each test.
        """
        with __getattr__("server_in_thread")() as cluster:
            yield cluster.namesrv_address
