"""A story that one client plays with a simulated cluster, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from simulated_cluster import SimulatedCluster
from simulated_reading import scratch_folder

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.simulated.simulate import Simulation, simulate


def play_story(
    build: Callable[[SimulatedCluster], None],
    story: Callable[[SimulatedCluster, Connector], Awaitable[None]],
    *,
    acting: bool = False,
) -> None:
    """Build a cluster, then run ``story`` on a machine of its own; no service may end by itself.

    Raises: the error of the story.
    """

    async def run(simulation: Simulation) -> None:
        failures: list[Exception] = []
        with scratch_folder() as folder:
            async with trio.open_nursery() as nursery:
                cluster = SimulatedCluster(simulation, nursery, folder, acting=acting)
                build(cluster)
                done = trio.Event()

                async def play() -> None:
                    try:
                        async with Connector(ConnectorConfig()) as connector:
                            await story(cluster, connector)
                    except Exception as error:
                        failures.append(error)
                    done.set()

                simulation.machine("client").start(nursery, play)
                await done.wait()
                nursery.cancel_scope.cancel()
            if failures:
                raise failures[0]
            assert cluster.deaths == []

    simulate(1, run)
