"""``Receiver``: how a simple consumer gets messages from several brokers without waiting at one.

A receive asks all sources in turn, without waiting there, and returns what the first one gives. If
all are empty, each source is watched by one request (NOTIFICATION, 200054) that takes nothing; the
first that rings wakes a receive. So nothing is popped for an application that does not wait.

An orderly group's blocked queues ring all the time, so its receives wait in pops instead.
"""

from __future__ import annotations

import attrs
import trio

from triomq.client.core.errors import NotRunning, RouteNotFound, TrioMQError
from triomq.client.core.retry import concerns_route
from triomq.client.receiving.pop.pop_calls import Popped
from triomq.client.receiving.pop.pop_sources import PopSources
from triomq.client.receiving.pop.source_turns import PopSource, SourceTurns

WATCH_SECONDS = 5.0
"""Time of a request that watches a source. A ring that comes after the receive has ended may have
been meant for another member; that one's request then ends within this time.
"""
ORDERED_POLL_SECONDS = 1.0
"""Time of an orderly group's pop that waits, while other sources are not asked."""
GRACE_SECONDS = 0.5
"""Time after ``timeout`` for an answer on its way: giving messages back costs a delivery."""


@attrs.define(eq=False)
class Receiver(PopSources):
    """The pops of one simple consumer, for any number of tasks."""

    turns: SourceTurns = attrs.field(factory=SourceTurns, init=False)
    _watched: set[PopSource] = attrs.field(factory=set, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def sources_changed(self) -> None:
        self.turns.update(self.current())
        self._waiting.unpark_all()

    def stop(self) -> None:
        self._stopped = True
        self._waiting.unpark_all()

    async def receive(self, count: int, invisible: float, timeout: float) -> list[Popped]:
        """Wait for messages for up to ``timeout`` seconds; return at most ``count`` of one source.

        A cancelled call takes none.

        Raises: ``NotRunning``; ``TrioMQError`` that waiting does not mend, or if no broker has
        answered when the time is over.
        Checkpoint: always.
        """
        end = trio.current_time() + timeout
        attempt = self._new_attempt()
        trouble: TrioMQError | None = None
        answered = woken = False
        try:
            with trio.move_on_at(end + GRACE_SECONDS):
                while True:
                    for source in self.turns.order():
                        poll = self._poll(end) if self.ordered else 0.0
                        try:
                            found = await self._pop(source, count, invisible, poll, attempt)
                        except TrioMQError as error:
                            trouble = self._note_failure(source, error)
                            continue
                        answered = True
                        if found:
                            return found
                    if self._stopped:
                        raise NotRunning("this consumer is stopping")
                    if trio.current_time() >= end:
                        break
                    await self._wait(end, failed=trouble is not None)
                    woken = True
        finally:
            if woken:  # others wait for the same rings
                self._waiting.unpark()
        if answered:
            return []
        raise trouble or self._no_source()

    def _no_source(self) -> RouteNotFound:
        topic = next(iter(self.spec.subscriptions), "")
        known = self.session.routes.topic(topic)
        return RouteNotFound(
            topic, "no broker with a master can be read now" if known else "", offered=bool(known)
        )

    async def _pop(
        self, source: PopSource, count: int, invisible: float, poll: float, attempt: str | None
    ) -> list[Popped]:
        began = trio.current_time()
        result = await self.calls.pop(source, count, invisible, poll, attempt)
        self._failures.worked(source.name)
        found = list(result.popped)
        self.turns.asked(source, found=bool(found))
        if found:
            self.counts.of(source.topic).note_pull(len(found), trio.current_time() - began)
            if result.answer.rest:
                self.turns.ring(source)
        return found

    def _note_failure(self, source: PopSource, error: TrioMQError) -> TrioMQError:
        """Return a failure that may pass; raise others."""
        self.turns.asked(source, found=False)
        if not error.retriable:
            raise error
        if concerns_route(error):
            self.session.finder.invalidate(source.topic)
        self._failures.failed(source.name, error)
        return error

    def _poll(self, end: float) -> float:
        """Return how long an orderly group's pop may wait at a source."""
        longest = self.settings.suspend if len(self.turns.sources) == 1 else ORDERED_POLL_SECONDS
        # A caller's own deadline counts: a pop that nobody waits for has to be given back.
        left = min(end, trio.current_effective_deadline() - GRACE_SECONDS) - trio.current_time()
        return max(0.0, min(longest, left))

    async def _wait(self, end: float, *, failed: bool) -> None:
        """Wait until a source rings, routes change, or the time is over."""
        sources = self.turns.sources
        with trio.move_on_at(end):
            if self.ordered and sources:  # the pops have waited, unless they failed
                settings = self.settings
                await trio.sleep(settings.error_delay if failed else settings.flow_control_delay)
                return
            for source in sources:
                if source not in self._watched:
                    self._watched.add(source)
                    self.nursery.start_soon(self._watch, source, name=f"watch {source.topic}")
            if not self.turns.rang:
                await self._waiting.park()

    async def _watch(self, source: PopSource) -> None:
        """Wait until a source has messages, once."""
        pause = self.turns.pause(source)
        if pause:
            await trio.sleep(pause)
        try:
            rang = await self.calls.requests.has_messages(source, WATCH_SECONDS)
            self._failures.worked(source.name)
            if rang is None:  # the broker has no place for waiting requests
                await trio.sleep(self.settings.error_delay)
        except TrioMQError as error:
            self._failures.failed(source.name, error)
            await trio.sleep(self.settings.error_delay)
            rang = None  # the next pop says what is wrong
        self._watched.discard(source)
        if rang is False:
            self.turns.quiet(source)
        else:
            self.turns.ring(source)
        self._waiting.unpark()
