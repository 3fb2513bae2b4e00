"""What one seed decides ahead of a simulated history, and what the history comes to."""

from __future__ import annotations

import enum
import random

import attrs

FAULTS = (
    *(
        "crash",
        "crash",
        "crash",
        "crash at operation",
        "crash at operation",
        "crash at operation",
        "crash all",
    ),
    *("restart", "cut", "cut", "cut", "reset", "reset", "slow", "disk full", "clock", "member"),
    *("failed fsync", "failed fsync", "pause", "pause"),
)
CONTROLLED_FAULTS = (
    *FAULTS,
    *("crash master",) * 6,
    *("isolate",) * 10,
    *("pause master",) * 4,
    *("elect",) * 4,
    *("lose disk",) * 2,
    *("lose controller",) * 3,
    *("replace controller",) * 2,
)
"""Of a group in controller mode."""
DAYS_40 = 40 * 86_400.0
"""Longer than retention, timers and invisible times reach."""
MINUTE_BACK = -60.0
POPS_EVERY = 12
"""Every so many histories have pops, which cost time."""


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
    delays: bool
    """Whether there are delayed messages, and a group that gives some back."""
    jump: float
    """With them, or with pops: by how many seconds the wall clock of a master jumps."""
    stuck: bool
    """The master's disk answers no fsync of the log for a while, and loses its power then."""
    detached: bool
    """Before the slave becomes master, it loses the stream of the log, but not the tables."""
    orderly: bool
    """It stops in order before it becomes master."""
    transactions: bool
    """Whether there are transactions."""
    timers: bool
    """Whether there are messages with a time of delivery; then no clock makes a large step."""
    requests: bool
    """Whether there are requests and replies."""
    pops: bool = False
    """Whether a topic is popped; then a clock goes back by a minute at most: after a restart, what
    was in flight comes again when the clock says so.
    """
    acting: bool = False
    """Whether the slave acts for its master, about POP only: there is no other traffic that would
    notice.
    """
    controllers: int = 0
    """If there are any, they elect the master of the group."""
    replicas: int = 2
    """Brokers of the group then."""
    copies_min: int = 0
    """``minInSyncReplicas``; 0: as it is unless set."""

    @classmethod
    def controlled(cls, seed: int) -> Plan:
        """Return the plan of a group in controller mode."""
        choose = random.Random(f"controlled {seed}")
        plain = attrs.evolve(
            cls.of(seed),
            mode=choose.choice((Mode.SYNC_SYNC, Mode.SYNC_SYNC, Mode.ASYNC_SYNC)),
            faults=choose.randint(5, 12),
            controllers=choose.choice((1, 3, 3, 3)),
            replicas=choose.choice((2, 3, 3)),
            copies_min=choose.choice((0, 0, 1)),
            jump=0.0,
        )
        off = dict.fromkeys(("promote", "second", "stuck", "detached", "orderly", "acting"), False)
        return attrs.evolve(plain, **off)

    @classmethod
    def of(cls, seed: int) -> Plan:
        choose = random.Random(seed)
        mode = choose.choice(
            (Mode.SYNC_SYNC, Mode.SYNC_SYNC, Mode.SYNC_SYNC, Mode.SYNC_ASYNC, Mode.ASYNC_SYNC)
        )
        promote = mode is not Mode.SYNC_ASYNC and choose.random() < 0.4
        drawn = cls(
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
            delays=choose.random() < 0.3,
            jump=choose.choice((-DAYS_40, -3600.0, -60.0, 3600.0, DAYS_40)),
            stuck=choose.random() < 0.5,
            detached=choose.random() < 0.6,
            orderly=choose.random() < 0.5,
            transactions=choose.random() < 0.3,
            timers=choose.random() < 0.3,
            requests=choose.random() < 0.2,
            pops=seed % POPS_EVERY == 3,
        )
        if (
            seed % (2 * POPS_EVERY) == POPS_EVERY + 3
            and not drawn.delays
            and mode is not Mode.SYNC_ASYNC
        ):
            alone = attrs.evolve(drawn, ordered=False, transactions=False, timers=False)
            drawn = attrs.evolve(alone, requests=False, acting=True)
        waiting = drawn.delays or drawn.timers or drawn.pops
        failover = waiting and drawn.promote
        steady = drawn.pops and not (drawn.delays or drawn.timers or drawn.acting)
        # A slave that becomes master has another clock, and what it did not pop goes by that one.
        jump = MINUTE_BACK if drawn.jump < 0 else 0.0 if drawn.promote else drawn.jump
        return attrs.evolve(
            drawn,
            jump=drawn.jump if drawn.delays else jump if steady else 0.0,
            timers=drawn.timers and not drawn.delays,
            pops=drawn.pops and not drawn.delays,
            stuck=drawn.stuck and waiting and drawn.power and not drawn.promote,
            detached=drawn.detached and failover and not drawn.acting,
            orderly=drawn.orderly and failover,
        )

    @property
    def power(self) -> bool:
        """Whether what no fsync has reached may be lost."""
        return self.mode is not Mode.ASYNC_SYNC

    def __str__(self) -> str:
        flags = [
            name
            for name in (
                "ordered",
                "slave_reads",
                "promote",
                "slow_disk",
                "second",
                "delays",
                "stuck",
                "detached",
                "orderly",
                "transactions",
                "timers",
                "requests",
                "pops",
                "acting",
            )
            if getattr(self, name)
        ]
        group = f"{self.controllers} controllers, {self.replicas} brokers, "
        return (
            f"{group * bool(self.controllers)}{self.mode.value}, {self.namesrvs} name servers,"
            f" {self.retries} retries,"
            f" {self.faults} faults{''.join(', ' + flag for flag in flags)}"
        )


@attrs.frozen
class HistoryResult:
    """What one played history gave."""

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
    delayed: int
    """Delayed messages that were acknowledged."""
    given_back: int
    """Messages that a group gave back."""
    transactions: int
    """Transactions whose block was entered."""
    timed: int
    """Messages with a time of delivery that were acknowledged."""
    requests: int
    """Requests that got a reply."""
    popped: int
    """Messages whose acknowledgement must hold."""
    seconds: float
    """Simulated seconds."""
    elected: int = 0
    """Masters that controllers have elected, and that have begun."""
