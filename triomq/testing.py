"""A whole TrioMQ cluster inside one Trio loop, for tests: ours and yours.

The law of this file: it is the pytest plugin that the installed package registers, so *every* pytest session of the environment loads it.  It
must be light (no Trio, no broker, until somebody asks) and must not fail when pytest or pytest-trio is missing.  The cluster itself is
`triomq.in_process`, which this module loads on first use.

    async def test_orders(triomq_cluster):
        await triomq_cluster.create_topic("orders")
        async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
            ...

or, with other numbers, ``async with local_cluster(brokers=2) as cluster: ...``; or ``simulate(seed, main)``, in virtual time and without a network
(`triomq.simulation`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.in_process import InProcessBroker, InProcessCluster, InProcessNameServer, local_cluster
    from triomq.simulation import Simulation, simulate

__all__ = ["InProcessBroker", "InProcessCluster", "InProcessNameServer", "Simulation", "local_cluster", "simulate"]

_SIMULATION = ("Simulation", "simulate")


def __getattr__(name: str) -> Any:
    """Load the cluster on first use of one of its public names."""
    if name in __all__:
        module = "triomq.simulation" if name in _SIMULATION else "triomq.in_process"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "pytest" in sys.modules:
    import pytest

    @pytest.fixture
    async def triomq_cluster() -> AsyncIterator[InProcessCluster]:
        """A running cluster of one name server and one broker on free ports; its store goes away with the test. Needs pytest-trio."""
        async with __getattr__("local_cluster")() as cluster:
            yield cluster
