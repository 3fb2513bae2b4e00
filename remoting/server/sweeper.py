"""Refuse requests that have been in the queue of a pool for too long."""

from collections.abc import Sequence

import attrs
import trio

from triomq.remoting.server.pool import Pool

SWEEP_SECONDS = 0.010


@attrs.define(eq=False)
class Sweeper:
    """Sweeps the pools every 10 ms while one has a queue; sleeps otherwise, until ``wake``."""

    pools: Sequence[Pool] = ()
    _asleep: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def wake(self) -> None:
        """Start sweeping: a pool has queued requests. Checkpoint: never."""
        if self._asleep:
            self._asleep.unpark_all()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            if not any(map(len, self.pools)):
                await self._asleep.park()
            await trio.sleep(SWEEP_SECONDS)
            for pool in self.pools:
                pool.sweep()
