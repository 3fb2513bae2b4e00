"""The pulls of a task: those in flight, and the answers that wait for their turn.

Pure: this file neither sends nor waits.

The next offset of a queue is known only from the broker's answer, so one pull after the other would
cost a round trip each. Instead, the ranges of a task are cut into parts that are pulled
concurrently; ``step`` follows the number of messages that the broker gives per pull. Answers are
handed on in the order of the ranges; a short answer leaves a gap, which is pulled next.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import attrs

from triomq.client.spark.offsets import Queue
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.records import Block

FULL_ANSWERS_BEFORE_GROWTH = 16


@attrs.define(eq=False)
class PullPart:
    """Messages [first, end) of a queue: not pulled yet, in flight, or answered."""

    queue: Queue
    first: int
    end: int
    sent: bool = False
    answer: bytes | memoryview | None = None

    @property
    def in_flight(self) -> bool:
        return self.sent and self.answer is None


@attrs.define(eq=False)
class PullWindow:
    """The parts of a task in the order of its ranges.

    ``batch_max``: maximum messages per pull. ``sparse``: a tag filter is on; an answer then covers
    far more offsets than it has messages, so a range is never cut, and its pulls follow each other.
    """

    depth: int
    batch_max: int
    sparse: bool
    step: int
    """expected number of messages in an answer"""
    _parts: deque[PullPart]
    _in_flight: int = 0
    _full_answers: int = 0

    @classmethod
    def over(
        cls, ranges: Sequence[QueueRange], *, depth: int, batch_max: int, sparse: bool
    ) -> "PullWindow":
        parts = deque(
            PullPart(each.queue, each.first, each.end) for each in ranges if each.message_count > 0
        )
        return cls(depth=depth, batch_max=batch_max, sparse=sparse, parts=parts, step=batch_max)

    @property
    def done(self) -> bool:
        return not self._parts

    @property
    def oldest(self) -> PullPart:
        """The first part that is not handed on: all others wait for it."""
        return self._parts[0]

    def next_unsent(self, blocked: Collection[str]) -> PullPart | None:
        """Return the next part to pull, cut to the size of one pull; None while the window is full.

        At most ``depth`` parts are in flight or answered behind the oldest part. Brokers in
        ``blocked`` are skipped.
        """
        if self._in_flight >= self.depth:
            return None
        busy = 0
        for index, part in enumerate(self._parts):
            if busy >= self.depth:
                return None
            if part.sent:
                busy += 1
            elif part.queue.broker not in blocked:
                if not self.sparse and part.end - part.first > self.step:
                    rest = PullPart(part.queue, part.first + self.step, part.end)
                    part.end = rest.first
                    self._parts.insert(index + 1, rest)
                return part
        return None

    def sent(self, part: PullPart) -> None:
        """Note that ``part`` is in flight."""
        part.sent = True
        self._in_flight += 1

    def oldest_in_flight(self) -> PullPart | None:
        """Return the part whose answer to wait for, None if none is in flight."""
        return next((part for part in self._parts if part.in_flight), None)

    def answered(self, part: PullPart, next_offset: int, body: bytes | memoryview) -> None:
        """Store the answer to ``part`` up to ``next_offset``; the rest becomes a new part."""
        self._in_flight -= part.in_flight
        asked = part.end - part.first
        reached = min(max(next_offset, part.first), part.end)
        part.sent = True
        part.answer = body
        if reached < part.end:
            self._parts.insert(self._parts.index(part) + 1, PullPart(part.queue, reached, part.end))
            part.end = reached
            if reached > part.first and not self.sparse:
                self.step, self._full_answers = reached - part.first, 0
        elif asked == self.step:
            self._full_answers += 1
            if self._full_answers >= FULL_ANSWERS_BEFORE_GROWTH:
                self.step, self._full_answers = (
                    min(self.batch_max, self.step + self.step // 4 + 1),
                    0,
                )

    def ask_again(self, part: PullPart) -> None:
        """Note that ``part`` got no usable answer and must be pulled again."""
        self._in_flight -= part.in_flight
        part.sent = False

    def skip(self, queue: Queue) -> None:
        """Mark all parts of ``queue`` without answer as empty."""
        for part in self._parts:
            if part.queue == queue and part.answer is None:
                self._in_flight -= part.in_flight
                part.sent, part.answer = True, b""

    def take_ready(self) -> Iterator[Block]:
        """Yield, in order, the answers that wait for no older part."""
        while self._parts and self._parts[0].answer is not None:
            part = self._parts.popleft()
            if part.answer:
                yield Block(part.queue, part.first, part.end, part.answer)
