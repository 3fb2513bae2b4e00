"""Orderly POP against a list: in order, and nothing that was acknowledged comes again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from triomq.broker.services.pop import ordered_pop
from triomq.broker.services.pop.ordered_pop import OrderedPop, Refused

MESSAGES = 30


@attrs.define(eq=False)
class Queue:
    """A queue with one orderly group."""

    now: int = 1
    info: OrderedPop = attrs.field(factory=lambda: OrderedPop(0, 0, []))
    committed: int = 0
    taken: list[int] = attrs.field(factory=list)
    """What the last pop delivered."""
    attempt: int = 0
    acknowledged: set[int] = attrs.field(factory=set)
    visible_at: dict[int, int] = attrs.field(factory=dict)
    delivered: dict[int, int] = attrs.field(factory=dict)
    """Offset -> how often."""
    earlier: list[tuple[int, int]] = attrs.field(factory=list)
    """(offset, pop time) of all deliveries: a handler may end when another member has them."""

    def pop(self, choose: random.Random) -> None:
        again = choose.random() < 0.1
        attempt = str(self.attempt) if again else str(self.attempt + 1)
        blocked = any(
            self.visible_at[offset] > self.now
            for offset in self.taken
            if offset not in self.acknowledged
        )
        free = self.info.free_at(attempt) <= self.now
        assert free is (again or not blocked)
        if not free:
            return
        self.attempt = int(attempt)
        end = min(MESSAGES, self.committed + choose.randint(1, 5))
        offsets = list(range(self.committed, end))
        passed = self.info.acknowledged
        assert passed >= self.acknowledged & set(offsets)
        taken = [offset for offset in offsets if offset not in passed]
        if not taken:
            self.committed = end
            return
        before = dict(self.info.counts)
        self.info = self.info.next(self.now, choose.randint(10, 50), offsets, attempt)
        for offset in taken:
            if not again:
                expected = before.get(offset, 0) + (offset in self.taken)
                assert self.info.counts.get(offset, 0) == expected
            self.delivered[offset] = self.delivered.get(offset, 0) + 1
            assert offset not in self.acknowledged
        assert taken == sorted(taken)
        self.earlier += [(offset, self.now) for offset in taken]
        self.taken = taken
        self.visible_at = dict.fromkeys(taken, self.now + self.info.invisible_ms)
        decoded = OrderedPop.decode(self.info.encode())
        assert decoded is not None
        assert decoded.encode() == self.info.encode()
        self.info = decoded

    def acknowledge(self, choose: random.Random) -> None:
        if not self.taken:
            return
        offset = choose.choice(self.taken)
        if choose.random() < 0.1:
            assert self.info.acknowledge(offset, self.info.pop_time - 1) is Refused.LATE
            assert self.info.acknowledge(MESSAGES + 1, self.info.pop_time) is Refused.UNKNOWN
            return
        if offset < self.committed:
            return  # a broker answers that it is well
        following = self.info.acknowledge(offset, self.info.pop_time)
        assert not isinstance(following, Refused)
        self.acknowledged.add(offset)
        assert following >= self.committed
        self.committed = following
        missing = set(range(following)) - self.acknowledged
        assert not missing

    def acknowledge_late(self, choose: random.Random) -> None:
        """What an earlier pop delivered: it neither frees nor skips what the last one has.

        RocketMQ: ConsumerOrderInfoManager.commitAndNext, updateNextVisibleTime.
        """
        late = [each for each in self.earlier if each[1] != self.info.pop_time]
        if late:
            offset, pop_time = choose.choice(late)
            before = self.info.encode()
            assert self.info.acknowledge(offset, pop_time) is Refused.LATE
            assert not self.info.change(offset, pop_time, self.now)
            assert self.info.encode() == before

    def change(self, choose: random.Random) -> None:
        if self.taken:
            offset = choose.choice(self.taken)
            self.visible_at[offset] = self.now + choose.randint(1, 80)
            assert self.info.change(offset, self.info.pop_time, self.visible_at[offset])


def play(seed: int) -> Queue:
    choose, queue = random.Random(seed), Queue()
    for _ in range(600):
        action = choose.random()
        if action < 0.3:
            queue.pop(choose)
        elif action < 0.6:
            queue.acknowledge(choose)
        elif action < 0.7:
            queue.change(choose)
        elif action < 0.75:
            queue.acknowledge_late(choose)
        else:
            queue.now += choose.randint(1, 30)
    return queue


@pytest.mark.parametrize("seed", range(40))
def test_order_is_kept(seed: int) -> None:
    queue = play(seed)
    assert queue.committed == MESSAGES
    assert max(queue.delivered.values()) > 1


def never_blocks(self: OrderedPop, attempt_id: str | None) -> int:
    return 0


def forgets(self: OrderedPop) -> frozenset[int]:
    return frozenset()


def last_plus_one(self: OrderedPop, offset: int, pop_time: int) -> int | Refused:
    found = ACKNOWLEDGE(self, offset, pop_time)
    return found if isinstance(found, Refused) else self.offsets[-1] + 1


def of_any_pop(self: OrderedPop, offset: int, pop_time: int) -> int | Refused:
    return ACKNOWLEDGE(self, offset, self.pop_time)


ACKNOWLEDGE = OrderedPop.acknowledge


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("free_at", never_blocks),
        ("acknowledged", property(forgets)),
        ("acknowledge", last_plus_one),
        ("acknowledge", of_any_pop),
    ],
)
def test_broken_rules_are_found(
    name: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_pop.OrderedPop, name, broken)
    found = 0
    for seed in range(10):
        try:
            play(seed)
        except AssertionError:
            found += 1
    assert found > 0
