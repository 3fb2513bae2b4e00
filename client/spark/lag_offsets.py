"""The offsets of the query's group at the brokers, for lag displays."""

from collections.abc import Callable

import attrs

from triomq.client.spark.driver_client import DriverClient
from triomq.client.spark.offsets import Offsets

INTERVAL_SECONDS = 1.0
"""least time between two writes"""


@attrs.define(eq=False)
class LagOffsets:
    """Writes the offsets of finished batches to the brokers. Failures are logged."""

    clock: Callable[[], float]
    _done: Offsets = attrs.field(factory=dict, init=False)
    _stored: Offsets = attrs.field(factory=dict, init=False)
    _stored_at: float = attrs.field(default=float("-inf"), init=False)

    def note(self, done: Offsets) -> None:
        """Note the next offsets after a finished batch."""
        self._done = done

    def store(self, cluster: DriverClient, *, at_once: bool) -> None:
        """Write changed offsets, at most once a second, or ``at_once``."""
        changed = {
            queue: offset
            for queue, offset in self._done.items()
            if self._stored.get(queue) != offset
        }
        if not changed or (not at_once and self.clock() - self._stored_at < INTERVAL_SECONDS):
            return
        cluster.refresh()
        cluster.store_group_offsets(changed)
        self._stored = dict(self._done)
        self._stored_at = self.clock()
