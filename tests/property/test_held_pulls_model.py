"""Held pulls against a plain list: whatever happens in which order, the same pulls are resumed,
each at most once.
"""

from __future__ import annotations

import time
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from triomq.broker.services.held_pulls import HeldPull, HeldPulls
from triomq.broker.services.held_requests import STALE_DEADLINES_MAX

TOPICS = st.sampled_from(["T", "U"])
QUEUES = st.integers(0, 1)
CODES = st.none() | st.frozensets(st.integers(0, 2), max_size=2)


class HeldPullsAgainstAList(RuleBasedStateMachine):
    """The model keeps pulls and their requests in a list and looks at all of them each time; a pull
    that has ended has let its request go.
    """

    @initialize()
    def start(self) -> None:
        self.held = HeldPulls()
        self.resumed: list[object] = []
        self.model: list[tuple[HeldPull, int]] = []
        self.expected: list[object] = []
        self.now = 0.0
        self.number = 0

    @rule(
        topic=TOPICS,
        queue=QUEUES,
        offset=st.integers(0, 5),
        codes=CODES,
        seconds=st.integers(0, 9),
        connection=st.integers(0, 2),
    )
    def hold(
        self,
        topic: str,
        queue: int,
        offset: int,
        codes: frozenset[int] | None,
        seconds: int,
        connection: int,
    ) -> None:
        self.number += 1
        resume = partial(self.resumed.append, self.number)
        pull = HeldPull(topic, queue, offset, codes, self.now + seconds, connection, resume)
        self.held.hold(pull)
        self.model.append((pull, self.number))

    @rule(topic=TOPICS, queue=QUEUES, end=st.integers(1, 6), code=st.integers(0, 2))
    def arrive(self, topic: str, queue: int, end: int, code: int) -> None:
        self.held.arrived([(topic, queue, end, code)])
        self.resume_where(
            lambda pull: (
                (pull.topic, pull.queue_id) == (topic, queue)
                and pull.next_offset < end
                and (pull.tag_codes is None or code in pull.tag_codes)
            )
        )

    @rule(topic=TOPICS)
    def topic_changes(self, topic: str) -> None:
        self.held.wake_topic(topic)
        self.resume_where(lambda pull: pull.topic == topic)

    @rule(connection=st.integers(0, 2))
    def connection_closes(self, connection: int) -> None:
        self.held.forget_connection(connection)
        self.model = [
            (pull, request) for pull, request in self.model if pull.connection != connection
        ]

    @rule(seconds=st.integers(0, 5))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        next_due = self.held.expire(self.now)
        self.resume_where(lambda pull: pull.deadline <= self.now)
        assert next_due == min((pull.deadline for pull, _ in self.model), default=float("inf"))

    def resume_where(self, condition: object) -> None:
        self.expected += [request for pull, request in self.model if condition(pull)]  # type: ignore[operator]
        self.model = [(pull, request) for pull, request in self.model if not condition(pull)]  # type: ignore[operator]

    @invariant()
    def the_same_pulls_were_resumed(self) -> None:
        assert sorted(self.resumed) == sorted(self.expected)  # type: ignore[type-var]
        assert self.held.count == len(self.model)
        assert not any(pull.resume is None for pull, _ in self.model)
        assert len(self.held._deadlines) <= 2 * len(self.model) + STALE_DEADLINES_MAX + 1


TestHeldPulls = HeldPullsAgainstAList.TestCase


def test_a_hundred_thousand_pulls_of_one_queue_end_without_going_through_each_other() -> None:
    """Twice as many take about twice as long; it was four times, and 18 s for 100,000."""

    def seconds(count: int) -> float:
        held = HeldPulls()
        for number in range(count):
            held.hold(HeldPull("T", 0, 0, None, 1.0, number % 1_000, object))
        begun = time.process_time()
        assert held.expire(2.0) == float("inf")
        assert held.count == 0
        return time.process_time() - begun

    assert seconds(100_000) < 5
