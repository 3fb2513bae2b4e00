"""What a run does: its kind of fault, and the numbers that the seed draws for it. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

KINDS: dict[str, tuple[str, ...]] = {
    "driver killed": ("in its tasks", "after the write", "the source's process"),
    "batch 0 killed": ("latest", "earliest"),
    "worker killed": ("one", "all"),
    "broker killed and back": ("a task waits",),
    "topic recreated smaller": ("error", "new life"),
    "topic recreated larger": ("new life", "error"),
    "broker removed": ("skipped", "assigned away"),
    "broker late": ("latest", "a time"),
    "queues grown": ("more queues", "another broker"),
    "failover": ("promoted slave", "returned master"),
    "compaction beside a pipeline": ("killed in a merge", "killed in a batch"),
    "retention beside a pipeline": ("old dates", "files of the broker", "old dates and a kill"),
    "backfill beside a pipeline": ("killed in a step", "killed behind it"),
}
"""kind -> its variants, one for each round of the deck"""
OF_PIPELINES = tuple(kind for kind in KINDS if kind.endswith("beside a pipeline"))
MERGE_GATE = 1_000_000
"""the number of the gate of a merge, which belongs to no batch"""

SINK_VICTIMS = ("driver", "worker", "broker", "worker", "broker")
"""who is killed while a stream writes to a topic; dealt again and again"""


class DoesNotCount(Exception):
    """The fault did not fall into a batch; the run is played again."""


@attrs.frozen(kw_only=True)
class ChaosPlan:
    """One run of the reading side."""

    number: int
    kind: str
    variant: str
    batch: int
    """the micro-batch that the fault falls into"""
    per_batch: int
    """messages of a micro-batch"""
    tasks: int
    """about so many tasks read a micro-batch"""
    body_bytes: int
    passed: int
    """record batches that a task hands on before it is held"""
    victim: str
    """the broker that is killed, if the kind kills one"""
    away_seconds: float
    """how long a broker stays down while tasks wait for it"""
    seed: int
    """of the bodies"""


def draw(seed: int, number: int, kinds: Sequence[str] = tuple(KINDS)) -> ChaosPlan:
    """Return the plan of a run: a round of the deck has each kind once, in an order of its own."""
    rounds, place = divmod(number, len(kinds))
    deck = list(kinds)
    random.Random(f"{seed}/{rounds}").shuffle(deck)
    kind = deck[place]
    numbers = random.Random(f"{seed}/{number}")
    tasks = numbers.choice((1, 2))
    # A task must wait for the broker: it may not have pulled the whole batch ahead.
    waits = kind == "broker killed and back"
    return ChaosPlan(
        number=number,
        kind=kind,
        variant=KINDS[kind][rounds % len(KINDS[kind])],
        batch=0 if kind == "batch 0 killed" else numbers.choice((1, 2)),
        per_batch=numbers.randrange(160, 240),
        tasks=tasks,
        body_bytes=200
        if kind == "batch 0 killed"
        else numbers.randrange(6_000, 10_000) * (3 if waits else 1),
        # Where messages arrive while the query runs, a batch may be small.
        passed=0
        if waits or kind in ("batch 0 killed", "broker late")
        else numbers.choice((0, 1, 2)),
        # The task that is held reads broker-a first, with two tasks nothing else.
        victim="broker-a"
        if tasks == 2
        else "broker-b"
        if waits
        else numbers.choice(("broker-a", "broker-b")),
        away_seconds=numbers.uniform(0.3, 1.2),
        seed=numbers.randrange(1 << 30),
    )


def sink_victims(seed: int, kills: int) -> list[str]:
    """Return who is killed, in order."""
    numbers = random.Random(f"{seed}/sink")
    victims: list[str] = []
    while len(victims) < kills:
        victims += numbers.sample(SINK_VICTIMS, len(SINK_VICTIMS))
    return victims[:kills]
