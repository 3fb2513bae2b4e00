"""Which pulls of a task are in flight, which answers wait for their turn, and in which order messages are handed on.

The next offset of a queue is known only from the broker's answer, so one pull after the other would cost a round trip each.  Instead
the ranges of a task are cut into segments that are asked for side by side; `step` follows what the broker really gives per pull.
Answers are handed on in the order of the ranges; a short answer opens a gap, which is asked for next.

The law of this file: pure; it neither sends nor waits.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import attrs

from triomq.client.spark.offsets import Queue
from triomq.client.spark.planning import QueueRange
from triomq.client.spark.records import Block

FULL_ANSWERS_BEFORE_GROWTH = 16


@attrs.define(eq=False)
class Segment:
    """Messages [first, end) of a queue: not asked for, in flight, or answered."""

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
    """The segments of a task in the order of its ranges.

    *batch_max*: messages per pull at most.  *sparse*: a tag filter is on; answers then reach far beyond the number of messages that
    was asked for, so a range is never cut, and pulls of one range follow each other.
    """

    depth: int
    batch_max: int
    sparse: bool
    step: int
    """messages per pull that the broker can be expected to give"""
    _segments: deque[Segment]
    _in_flight: int = 0
    _full_answers: int = 0

    @classmethod
    def over(cls, ranges: Sequence[QueueRange], *, depth: int, batch_max: int, sparse: bool) -> "PullWindow":
        segments = deque(Segment(each.queue, each.first, each.end) for each in ranges if each.message_count > 0)
        return cls(depth=depth, batch_max=batch_max, sparse=sparse, segments=segments, step=batch_max)

    @property
    def done(self) -> bool:
        return not self._segments

    @property
    def oldest(self) -> Segment:
        """The segment that everything waits for."""
        return self._segments[0]

    def next_unsent(self, blocked: Collection[str]) -> Segment | None:
        """The first segment to ask for, cut to the size of one pull, or None while enough is under way.

        At most `depth` segments are in flight, and at most `depth` are ahead of the one that everything waits for; brokers in
        *blocked* are passed over.
        """
        if self._in_flight >= self.depth:
            return None
        busy = 0
        for index, segment in enumerate(self._segments):
            if busy >= self.depth:
                return None
            if segment.sent:
                busy += 1
            elif segment.queue.broker not in blocked:
                if not self.sparse and segment.end - segment.first > self.step:
                    rest = Segment(segment.queue, segment.first + self.step, segment.end)
                    segment.end = rest.first
                    self._segments.insert(index + 1, rest)
                return segment
        return None

    def sent(self, segment: Segment) -> None:
        """*segment* has been asked for."""
        segment.sent = True
        self._in_flight += 1

    def oldest_in_flight(self) -> Segment | None:
        """The segment whose answer to wait for."""
        return next((segment for segment in self._segments if segment.in_flight), None)

    def answered(self, segment: Segment, next_offset: int, body: bytes | memoryview) -> None:
        """The broker has answered *segment* up to *next_offset*; what is missing becomes a segment of its own."""
        self._in_flight -= segment.in_flight
        asked = segment.end - segment.first
        reached = min(max(next_offset, segment.first), segment.end)
        segment.sent = True
        segment.answer = body
        if reached < segment.end:
            self._segments.insert(self._segments.index(segment) + 1, Segment(segment.queue, reached, segment.end))
            segment.end = reached
            if reached > segment.first and not self.sparse:
                self.step, self._full_answers = reached - segment.first, 0
        elif asked == self.step:
            self._full_answers += 1
            if self._full_answers >= FULL_ANSWERS_BEFORE_GROWTH:
                self.step, self._full_answers = min(self.batch_max, self.step + self.step // 4 + 1), 0

    def ask_again(self, segment: Segment) -> None:
        """*segment* got no usable answer."""
        self._in_flight -= segment.in_flight
        segment.sent = False

    def skip(self, queue: Queue) -> None:
        """Nothing more will come of *queue*."""
        for segment in self._segments:
            if segment.queue == queue and segment.answer is None:
                self._in_flight -= segment.in_flight
                segment.sent, segment.answer = True, b""

    def take_ready(self) -> Iterator[Block]:
        """Hand on answers that nothing older holds back, in order."""
        while self._segments and self._segments[0].answer is not None:
            segment = self._segments.popleft()
            if segment.answer:
                yield Block(segment.queue, segment.first, segment.end, segment.answer)
