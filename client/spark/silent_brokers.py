"""How long a query waits for brokers that do not answer. Pure, except for warnings in the log."""

import logging
from collections.abc import Collection, Mapping

import attrs

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class SilenceLimit:
    """The brokers that do not answer, since when, and for how long that is allowed."""

    limit_seconds: float
    since: Mapping[str, float] = attrs.field(factory=dict)
    """broker name → time of the clock when it was first silent"""
    _reported: set[str] = attrs.field(factory=set)

    def note(self, silent: Collection[str], now: float) -> list[str]:
        """Note which brokers are silent now; return those that are silent for too long."""
        self.since = {broker: self.since.get(broker, now) for broker in silent}
        self._reported &= self.since.keys()
        return sorted(
            broker for broker, since in self.since.items() if now - since >= self.limit_seconds
        )

    def report(self, brokers: Collection[str]) -> None:
        """Warn that a query goes on without these brokers, once for each silence of a broker."""
        for broker in sorted(set(brokers) - self._reported):
            logger.warning(
                "broker %s has not answered for %g s (unavailableBrokerTimeout): its queues are"
                " skipped (failOnDataLoss=false) until it answers again",
                broker,
                self.limit_seconds,
            )
        self._reported.update(brokers)
