"""Long polling: pulls that found nothing wait for a message or for the end of their time.

The indexer reports arrivals synchronously, right after the queue entries are readable; a pull that
finds nothing is held in the same step without a checkpoint, so no arrival falls between the two.
Source: broker/longpolling/PullRequestHoldService.java, NotifyMessageArrivingListener.java.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import attrs

from triomq.broker.services.held_requests import HeldRequests

HELD_PULLS_MAX = 100_000
"""About 1.5 KiB each. One more is answered at once, and comes back at once: slower for all clients,
but bounded.
"""


@attrs.define(eq=False)
class HeldPull:
    """One waiting request: what it wants, until when, and how it goes on."""

    topic: str
    queue_id: int
    next_offset: int
    tag_codes: frozenset[int] | None
    deadline: float
    connection: Hashable
    resume: Callable[[], None] | None
    """Run the request again; None once the pull has ended."""


@attrs.define(eq=False)
class HeldPulls(HeldRequests[HeldPull]):
    """The table of held pulls; ``run`` is the task "held-pulls-expire"."""

    _by_queue: dict[tuple[str, int], dict[HeldPull, None]] = attrs.field(factory=dict, init=False)
    """Dicts, not lists: removing one of 100,000 pulls of a queue takes constant time."""

    def hold(self, pull: HeldPull) -> bool:
        """Keep a pull; return False if there are too many already. Checkpoint: never.

        No checkpoint may come between the failed read and this call.
        """
        if self.count >= HELD_PULLS_MAX:
            return False
        self._keep(pull)
        return True

    def _list(self, held: HeldPull) -> None:
        self._by_queue.setdefault((held.topic, held.queue_id), {})[held] = None

    def _unlist(self, held: HeldPull) -> None:
        key = (held.topic, held.queue_id)
        waiting = self._by_queue[key]
        del waiting[held]
        if not waiting:
            del self._by_queue[key]

    def arrived(self, arrivals: Iterable[tuple[str, int, int, int]]) -> None:
        """Resume the pulls that wait for one of the arrivals. Checkpoint: never.

        ``arrivals``: (topic, queue id, end offset, tags code) each.
        """
        by_queue = self._by_queue
        if not by_queue:
            return
        for topic, queue_id, end_offset, tags_code in arrivals:
            waiting = by_queue.get((topic, queue_id))
            if waiting is None:
                continue
            for pull in [
                pull
                for pull in waiting
                if pull.next_offset < end_offset
                and (pull.tag_codes is None or tags_code in pull.tag_codes)
            ]:
                self._wake(pull)

    def wake_topic(self, topic: str) -> None:
        """Resume every pull of a topic that was deleted or is no longer readable."""
        for key in [key for key in self._by_queue if key[0] == topic]:
            for pull in list(self._by_queue.get(key, ())):
                self._wake(pull)
