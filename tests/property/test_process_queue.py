"""The process queue against a model: a set of unsettled offsets and the end of what was pulled."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triomq.client.receiving.process_queue import ProcessQueue, PullLimits


@attrs.frozen
class Letter:
    queue_offset: int
    size_bytes: int


class AgainstASet(RuleBasedStateMachine):
    """Whatever is pulled, filtered and settled, the committed offset is the lowest one that is not
    done, and never goes back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queue: ProcessQueue = ProcessQueue(10)
        self.unsettled: dict[int, int] = {}
        self.end = 10
        self.committed_before = 10

    @rule(
        steps=st.lists(st.integers(0, 3), max_size=6),
        filtered=st.integers(0, 4),
        size=st.integers(1, 100),
    )
    def pull(self, steps: list[int], filtered: int, size: int) -> None:
        offsets = []
        offset = self.end
        for step in steps:  # gaps are messages that the tag check dropped
            offset += step
            offsets.append(offset)
            offset += 1
        fresh = self.queue.put([Letter(number, size) for number in offsets], offset + filtered)
        assert [letter.queue_offset for letter in fresh] == offsets
        self.unsettled |= dict.fromkeys(offsets, size)
        self.end = offset + filtered

    @rule(back=st.integers(1, 5))
    def pull_what_was_seen_before(self, back: int) -> None:
        old = range(max(0, self.end - back), self.end)
        assert self.queue.put([Letter(number, 1) for number in old], self.end - back) == []

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.unsettled)))
        assert self.queue.settle(offset)
        del self.unsettled[offset]
        assert not self.queue.settle(offset)

    @rule(offset=st.integers(-5, 500))
    def settle_anything(self, offset: int) -> None:
        assert self.queue.settle(offset) == (offset in self.unsettled)
        self.unsettled.pop(offset, None)

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data())
    def stand_in(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.unsettled)))
        letter = Letter(offset, self.unsettled[offset])
        assert self.queue.replace(letter)
        assert letter in list(self.queue)

    @invariant()
    def agrees(self) -> None:
        assert self.queue.position == self.end
        assert self.queue.committed == min(self.unsettled, default=self.end)
        assert self.queue.committed >= self.committed_before
        self.committed_before = self.queue.committed
        assert len(self.queue) == len(self.unsettled)
        assert self.queue.size_bytes == sum(self.unsettled.values())
        assert [letter.queue_offset for letter in self.queue] == sorted(self.unsettled)
        assert self.queue.span == (
            max(self.unsettled) - min(self.unsettled) if self.unsettled else 0
        )
        head = self.queue.head()
        assert (head.queue_offset if head else None) == min(self.unsettled, default=None)

    @invariant()
    def limits_are_what_they_say(self) -> None:
        count, size, span = len(self.unsettled), sum(self.unsettled.values()), self.queue.span
        assert not self.queue.above(PullLimits(count, size, span))
        if self.unsettled:
            assert self.queue.above(PullLimits(count - 1, size, span))
            assert self.queue.above(PullLimits(count, size - 1, span))
            assert self.queue.above(PullLimits(count, size, span - 1))


TestAgainstASet = AgainstASet.TestCase
