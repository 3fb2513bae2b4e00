"""What one seed decides ahead of a simulated history, and what the history comes to."""

from __future__ import annotations

import enum
import random

import attrs

FAULTS = (
    *("crash", "crash", "crash", "crash at operation", "crash at operation", "crash at operation", "crash all"),
    *("restart", "cut", "cut", "cut", "reset", "reset", "slow", "disk full", "clock", "member"),
    *("failed fsync", "failed fsync", "pause", "pause"),
)


class Mode(enum.Enum):
    """What the cluster promises."""

    SYNC_SYNC = "SYNC_FLUSH + SYNC_MASTER"
    SYNC_ASYNC = "SYNC_FLUSH + ASYNC_MASTER"
    ASYNC_SYNC = "ASYNC_FLUSH + SYNC_MASTER"
    """Survives what leaves the page caches."""


@attrs.frozen
class Plan:
    """What a seed decides before anything runs."""

    seed: int
    mode: Mode
    namesrvs: int
    ordered: bool
    retries: int
    slave_reads: bool
    promote: bool
    slow_disk: bool
    faults: int
    second: bool
    """Whether there is a second master, without a slave, and the topic has queues on both."""

    @classmethod
    def of(cls, seed: int) -> Plan:
        choose = random.Random(seed)
        mode = choose.choice((Mode.SYNC_SYNC, Mode.SYNC_SYNC, Mode.SYNC_SYNC, Mode.SYNC_ASYNC, Mode.ASYNC_SYNC))
        promote = mode is not Mode.SYNC_ASYNC and choose.random() < 0.4
        return cls(
            seed=seed,
            mode=mode,
            namesrvs=choose.choice((1, 2)),
            ordered=choose.random() < 0.5,
            retries=choose.choice((0, 2)),
            slave_reads=choose.random() < 0.5,
            promote=promote,
            slow_disk=choose.random() < 0.5,
            faults=choose.randint(2, 7),
            second=choose.random() < 0.3,
        )

    @property
    def power(self) -> bool:
        """Whether what no fsync has reached may be lost."""
        return self.mode is not Mode.ASYNC_SYNC

    def __str__(self) -> str:
        flags = [name for name in ("ordered", "slave_reads", "promote", "slow_disk", "second") if getattr(self, name)]
        return f"{self.mode.value}, {self.namesrvs} name servers, {self.retries} retries, {self.faults} faults{''.join(', ' + flag for flag in flags)}"


@attrs.frozen
class Told:
    """How a history went."""

    seed: int
    plan: Plan
    digest: str
    broken: list[str]
    acknowledged: int
    unknown: int
    refused: int
    faults: int
    hits: int
    """Faults that found a request in flight."""
    delivered: int
    seconds: float
    """Simulated ones."""
