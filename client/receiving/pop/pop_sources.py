"""``PopSources``: the brokers of a consumer's topics, and what pops of all kinds share."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import attrs
import trio

from triomq.client.core.config import ConsumerSettings
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.session import Session
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.member_spec import MemberSpec
from triomq.client.receiving.pop.pop_calls import PopCalls
from triomq.client.receiving.pop.source_turns import PopSource
from triomq.client.receiving.rates import ConsumerCounts
from triomq.client.receiving.replier import Replier
from triomq.remoting.protocol.bodies.route import MessageQueue

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class PopSources:
    """A member of a POP group: it owns no queue."""

    session: Session
    settings: ConsumerSettings
    spec: MemberSpec
    calls: PopCalls
    nursery: trio.Nursery
    ordered: bool
    counts: ConsumerCounts = attrs.field(factory=ConsumerCounts, init=False)
    replier: Replier = attrs.field(init=False)
    _stopped: bool = attrs.field(default=False, init=False)
    _attempts: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)

    def __attrs_post_init__(self) -> None:
        self.replier = Replier(self.spec.group, self.session)

    @property
    def assignments(self) -> dict[MessageQueue, Assignment]:
        """Nothing: any member takes messages of any queue."""
        return {}

    def owned(self) -> list[Assignment]:
        """Return no assignment."""
        return []

    def held(self) -> int:
        """Return how many messages are not settled, as far as this consumer knows."""
        return 0

    def pause(self) -> None:
        """Pop nothing until ``resume``."""

    def resume(self) -> None:
        """Continue after ``pause``."""

    def stop(self) -> None:
        """Pop nothing more."""

    def sources_changed(self) -> None:
        """Note that routes or subscriptions have changed."""

    def _new_attempt(self) -> str | None:
        """Return the id of an orderly group's next pop, which a repeated request keeps."""
        return f"{self.session.client_id}@{next(self._attempts)}" if self.ordered else None

    def popped_queues(self) -> list[MessageQueue]:
        """Return the queues of the subscribed topics, which are popped."""
        routes = self.session.routes
        return [
            queue
            for topic in self.spec.subscriptions
            if (known := routes.topic(topic)) is not None
            for queue in known.subscribe
        ]

    def current(self) -> list[PopSource]:
        """Return the sources that can be popped now: brokers with a master and the read bit."""
        routes = self.session.routes
        return [
            PopSource(topic, name)
            for topic in self.spec.subscriptions
            if (known := routes.topic(topic)) is not None
            for name in dict.fromkeys(queue.broker_name for queue in known.subscribe)
            if routes.master(name) is not None
        ]
