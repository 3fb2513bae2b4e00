"""Routes of topics: asked for when they are needed, kept fresh while they are used, forgotten later.

A topic whose route somebody wanted is asked for again every `route_interval`; those that no name server knows more often at first.  One that
nobody has used for some of these rounds is forgotten, if there are many, so a producer that sends to ever new topics keeps those of the last minutes.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from math import inf

import attrs
import trio

from triomq.client.calls import Calls
from triomq.client.config import ClientSettings
from triomq.client.errors import ConnectionFailed, NoNameServer, RouteNotFound, TopicNotFound, TrioMQError
from triomq.client.retry import Backoff
from triomq.client.routes import NameServers, RouteTable, TopicQueues, as_template
from triomq.client.trouble import TroubleLog
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.names import DEFAULT_TOPIC

_MISSING_TOPIC_FIRST = 1.0
"""seconds until a topic that no name server knew is asked for again; doubles up to the refresh interval"""

_TOPICS_KEPT = 64
"""topics that are kept fresh in any case; more of them only while they are used"""

_UNUSED_ROUNDS_MAX = 10
"""look-ups in a row of a topic that nobody used in between, before it is forgotten"""


def _always(topic: str) -> bool:
    """Whether a topic is used, as long as nobody knows better."""
    return True


@attrs.define(eq=False)
class Watched:
    """A topic whose route is kept fresh."""

    due: float
    """trio time of the next look-up"""
    backoff: Backoff
    missing: bool = False
    """whether the name servers did not know it the last time"""
    unused_rounds: int = 0


@attrs.define(eq=False)
class LookUp:
    """One look-up at a time for each topic; whoever waited finds the answer already there."""

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    users: int = 0
    """tasks that look up or wait; the last one takes this object away"""
    failed_at: float = -inf
    failure: NoNameServer | RouteNotFound | None = None
    """when and why the publish list could not be found"""


@attrs.frozen
class _Found:
    """What a name server that answers says; None: it does not know the topic."""

    route: TopicRoute | None


@attrs.define(eq=False)
class RouteFinder:
    """The routes of one client."""

    settings: ClientSettings
    names: NameServers
    on_taken: Callable[[set[str], set[str]], None]
    """called after a route has changed, with the addresses of brokers that went and that came"""
    _calls: Calls
    _trouble: TroubleLog
    in_use: Callable[[str], bool] = _always
    """says whether a topic was used since it was asked the last time"""
    routes: RouteTable = attrs.field(factory=RouteTable, init=False)
    _watched: dict[str, Watched] = attrs.field(factory=dict, init=False)
    _look_ups: dict[str, LookUp] = attrs.field(factory=dict, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def look_up(self, topic: str) -> TopicRoute | None:
        """Ask the name servers for a topic's route; None if those that answer do not know it.

        The present name server is asked first and, if it does not answer or does not know the topic, all others, within
        `route_timeout` in all.  (The official client asks only one of them in a call.)  Errors: `NoNameServer`.
        """
        deadline = trio.current_time() + self.settings.route_timeout
        reasons: dict[str, str] = {}
        while True:
            addresses = self.names.order()
            found = await self._ask_route(topic, addresses, deadline, reasons)
            if found is not None:
                return found.route
            # The list may have changed meanwhile, and then the connections to those that left it were closed under the question.
            if set(self.names.addresses) <= set(addresses) or trio.current_time() >= deadline:
                raise NoNameServer(reasons)

    async def _ask_route(
        self, topic: str, addresses: Sequence[str], deadline: float, reasons: dict[str, str]
    ) -> _Found | None:
        """Ask these name servers, one after the other; None if none of them answers, which `reasons` tells of each."""
        unknown = False
        for index, address in enumerate(addresses):
            seconds = (deadline - trio.current_time()) / (len(addresses) - index)
            if seconds <= 0:
                reasons[address] = "no time was left to ask it"
                continue
            try:
                response = await self._calls.call(
                    address, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic)), seconds
                )
                route = TopicRoute.decode(bytes(response.body))
            except TopicNotFound:
                if not unknown and not reasons:
                    self.names.answered(address)
                unknown = True
            except (TrioMQError, RemotingError) as error:
                # What else a connection's error says is about brokers, and the addresses that they announce.
                reasons[address] = error.reason if isinstance(error, ConnectionFailed) else str(error)
                self._trouble.failed(f"name server {address}", error)
            else:
                self.names.answered(address)
                self._trouble.worked(f"name server {address}")
                return _Found(route)
        return _Found(None) if unknown else None

    async def check_name_server(self) -> None:
        """Make sure that some name server answers at all (that it does not know the topic is an answer, too), to fail early.  Errors: `NoNameServer`."""
        await self.look_up(DEFAULT_TOPIC)

    def watch(self, topics: Iterable[str]) -> None:
        """Keep the routes of these topics fresh from now on."""
        interval = self.settings.route_interval
        for topic in topics:
            if topic not in self._watched:
                self._watched[topic] = Watched(trio.current_time() + interval, Backoff(_MISSING_TOPIC_FIRST, interval))

    async def refresh(self, topic: str) -> TopicQueues | None:
        """Ask for one topic's route now; returns what is known afterwards (an unknown topic keeps its old route)."""
        self.watch([topic])
        watched = self._watched[topic]
        async with self._look_up(topic):
            watched.due = trio.current_time() + watched.backoff.wait()
            route = await self.look_up(topic)
            watched.missing = route is None
            if route is not None:
                self._take(topic, route)
            return self.routes.topic(topic)

    async def publish_queues(self, topic: str, template: str, queues_max: int) -> tuple[MessageQueue, ...]:
        """Return the queues to send a topic to, asking the name servers if they are not known yet.

        A topic that does not exist gets the route of the creation template, so that the first message creates it.  Checkpoint only when
        the route is unknown.  Errors: `RouteNotFound`, `NoNameServer`.
        """
        queues = self.routes.publish(topic)
        if queues:
            return queues
        began = trio.current_time()
        async with self._look_up(topic) as look_up:
            queues = self.routes.publish(topic)
            if queues:
                return queues
            if look_up.failure is not None and look_up.failed_at >= began:
                raise copy.copy(look_up.failure)  # asked while this task waited: the answer holds for it, too
            try:
                await self._find_publish_queues(topic, template, queues_max)
            except (NoNameServer, RouteNotFound) as error:
                look_up.failed_at, look_up.failure = trio.current_time(), error
                raise
            return self.routes.publish(topic)

    @asynccontextmanager
    async def _look_up(self, topic: str) -> AsyncIterator[LookUp]:
        """Wait for one's turn to ask for a topic."""
        look_up = self._look_ups.setdefault(topic, LookUp())
        look_up.users += 1
        try:
            async with look_up.lock:
                yield look_up
        finally:
            look_up.users -= 1
            if not look_up.users:
                del self._look_ups[topic]

    async def _find_publish_queues(self, topic: str, template: str, queues_max: int) -> None:
        route = await self.look_up(topic)
        if route is not None:
            self._take(topic, route)
        else:
            shape = await self.look_up(template)
            if shape is None:
                raise RouteNotFound(topic, f"and no broker creates topics: template {template} has no route either")
            self._take(topic, as_template(shape, queues_max), template=True)
        if not self.routes.publish(topic):
            raise RouteNotFound(
                topic,
                "no writable queue on a master",
                f"see with `mqadmin topicRoute -t {topic}` whether its perm has the write bit (2), and whether a master runs",
                offered=route is not None,
            )

    async def subscribe_queues(self, topic: str) -> TopicQueues | None:
        """Return the queues to consume a topic from; None while nobody knows the topic.  Errors: `NoNameServer`."""
        known = self.routes.topic(topic)
        if known is not None or (topic in self._watched and self._watched[topic].missing):
            return known
        return await self.refresh(topic)

    def _take(self, topic: str, route: TopicRoute, *, template: bool = False) -> None:
        self.watch([topic])
        watched = self._watched[topic]
        watched.backoff.reset()
        watched.due = trio.current_time() + self.settings.route_interval
        watched.unused_rounds = 0 if self.in_use(topic) else watched.unused_rounds + 1
        before = self._addresses()
        if self.routes.update(topic, route, template=template):
            self._tell(before)

    def _forget(self, topic: str) -> None:
        """Let a topic go that nobody uses.  Atomic: no checkpoint."""
        del self._watched[topic]
        before = self._addresses()
        if self.routes.forget(topic):
            self._tell(before)

    def _tell(self, before: set[str]) -> None:
        """Tell of a change of the routes, which named these addresses before it."""
        after = self._addresses()
        self._changed.set()
        self._changed = trio.Event()
        self.on_taken(before - after, after - before)

    def _addresses(self) -> set[str]:
        return set(self.routes.addresses(masters_only=False))

    async def wait_routes_changed(self) -> None:
        """Wait for the next change of any route."""
        await self._changed.wait()

    def wake_waiting(self) -> None:
        """Let who waits for a change look once more.  Atomic: no checkpoint."""
        self._changed.set()

    def doubt(self, topic: str) -> None:
        """Have a topic's route asked for soon, because a request went wrong.  Atomic: no checkpoint."""
        watched = self._watched.get(topic)
        if watched is not None:
            watched.due = min(watched.due, trio.current_time())

    async def run(self) -> None:
        """Ask for all watched topics every `route_interval`; for those that are unknown, or without answer, in growing steps."""
        while True:
            due = min((watched.due for watched in self._watched.values()), default=inf)
            await trio.sleep_until(min(due, trio.current_time() + _MISSING_TOPIC_FIRST))
            for topic in [topic for topic, watched in self._watched.items() if watched.due <= trio.current_time()]:
                watched = self._watched[topic]
                if (
                    watched.unused_rounds >= _UNUSED_ROUNDS_MAX
                    and len(self._watched) > _TOPICS_KEPT
                    and not self.in_use(topic)
                ):
                    self._forget(topic)
                    continue
                try:
                    await self.refresh(topic)
                except NoNameServer as error:
                    self._trouble.failed("route refresh", error)
                else:
                    self._trouble.worked("route refresh")
