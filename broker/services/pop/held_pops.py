"""Pops that wait for a message: the one of a group that waits longest is woken first.

As for pulls, no checkpoint lies between a pop that finds nothing and its wait. Source:
broker/longpolling/PopLongPollingService.java.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

import attrs

from triomq.broker.services.held_requests import HeldRequests
from triomq.remoting.protocol.names import pop_retry_topics


@attrs.define(eq=False)
class HeldPop:
    """One waiting request."""

    group: str
    topics: tuple[str, ...]
    """The topic, and those in which its messages come again."""
    queue_id: int
    """-1: any."""
    deadline: float
    connection: Hashable
    resume: Callable[[], None] | None
    """Run the request again; None once the wait has ended."""


class Popping(Protocol):
    """What the headers of pops and notifications have."""

    @property
    def consumer_group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


@attrs.define(eq=False)
class Watch:
    """Whether a message comes to a topic while a pop reads its queues."""

    pop: HeldPop
    """An entry of the table that no client waits for."""
    woken: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)


def _do_nothing() -> None:
    """What a watch resumes."""


@attrs.define(eq=False)
class HeldPops(HeldRequests[HeldPop]):
    """The table of waiting pops; ``run`` is the task "held-pops-expire"."""

    count_max: int
    per_topic_max: int
    """Of one group and topic."""
    _by_topic: dict[str, dict[str, dict[HeldPop, None]]] = attrs.field(factory=dict, init=False)
    """Topic -> group -> pops, those that wait longest first."""

    def waiting(self, group: str, topic: str) -> int:
        """Return how many pops of a group wait for a topic."""
        return len(self._by_topic.get(topic, {}).get(group, ()))

    def hold(self, pop: HeldPop) -> bool:
        """Keep a pop; return False if there are too many already. Checkpoint: never."""
        waiting = self.waiting(pop.group, pop.topics[0])
        if self.count >= self.count_max or waiting >= self.per_topic_max:
            return False
        self._keep(pop)
        return True

    def watch(self, header: Popping, connection: Hashable) -> Watch:
        """Note what comes while a pop visits queues in turns with other tasks.

        A message that comes to a queue that was visited already wakes the watch instead of a pop.
        Checkpoint: never.
        """
        topics = (header.topic, *pop_retry_topics(header.consumer_group, header.topic))
        pop = HeldPop(
            header.consumer_group, topics, header.queue_id, float("inf"), connection, _do_nothing
        )
        self._keep(pop)
        return Watch(pop)

    def end_watch(self, watch: Watch) -> bool:
        """Return whether a message came. Checkpoint: never."""
        if watch.pop.resume is not None:
            self._remove(watch.pop)
        elif not watch.ended:
            watch.woken = True
        watch.ended = True
        return watch.woken

    def _list(self, held: HeldPop) -> None:
        for topic in held.topics:
            self._by_topic.setdefault(topic, {}).setdefault(held.group, {})[held] = None

    def _unlist(self, held: HeldPop) -> None:
        for topic in held.topics:
            groups = self._by_topic[topic]
            del groups[held.group][held]
            if not groups[held.group]:
                del groups[held.group]
            if not groups:
                del self._by_topic[topic]

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Wake one pop of each group for each arrival. Checkpoint: never.

        ``arrivals``: (topic, queue id, end offset, tags code) each.
        """
        if not self._by_topic:
            return
        for topic, queue_id, _, _ in arrivals:
            for group in list(self._by_topic.get(topic, ())):
                self._wake_one(topic, group, queue_id)

    def wake(self, group: str, topic: str) -> None:
        """Wake one pop: there are more messages than the last one took. Checkpoint: never."""
        self._wake_one(topic, group, -1)

    def wake_all(self, group: str, topic: str) -> None:
        """Wake all pops of a group: its offsets were moved. Checkpoint: never."""
        for pop in list(self._by_topic.get(topic, {}).get(group, ())):
            self._wake(pop)

    def _wake_one(self, topic: str, group: str, queue_id: int) -> None:
        for pop in self._by_topic.get(topic, {}).get(group, {}):
            if queue_id < 0 or pop.queue_id in (-1, queue_id) or topic != pop.topics[0]:
                self._wake(pop)
                return
