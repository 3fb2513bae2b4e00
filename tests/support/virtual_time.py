"""Tests that wait for seconds of a cluster's time, and take milliseconds of real time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from triomq.testing import Simulation, local_cluster, simulate


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test inside ``simulate``: its cluster, clients and sleeps go by a virtual clock.

    The test's fixture ``triomq_cluster`` is a cluster there; other fixtures must not be Trio's.
    """
    signature = inspect.signature(test)
    fixtures = {name: each for name, each in signature.parameters.items() if name != CLUSTER}

    def run(**values: object) -> None:
        async def main(simulation: Simulation) -> None:
            if CLUSTER not in signature.parameters:
                await test(**values)
                return
            async with local_cluster() as cluster:
                await test(cluster, **values)

        simulate(1, main)

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.__signature__ = inspect.Signature(fixtures.values())  # type: ignore[attr-defined]
    return run


CLUSTER = "triomq_cluster"
