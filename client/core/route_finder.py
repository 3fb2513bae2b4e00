"""Look up the routes of topics when they are needed, refresh them while they are used.

The route of a watched topic is looked up every ``route_interval``, at first more often if no name
server knows the topic. If there are many topics, a topic that was not used for some of these rounds
is removed, so a producer that always sends to new topics keeps those of the last minutes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import TypeVar

import attrs
import trio

from triomq.client.core.back_off import until_reached
from triomq.client.core.broker_errors import shorten
from triomq.client.core.calls import Calls
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import (
    ConnectionFailed,
    ConnectionLost,
    NoBrokerRegistered,
    NoNameServer,
    RouteNotFound,
    TopicNotFound,
    TrioMQError,
)
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.routes import KnownRoutes, TopicQueues, as_template
from triomq.remoting.client.discovery import fetch_addresses
from triomq.remoting.client.name_servers import NameServers
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.names import DEFAULT_TOPIC

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 1.0
"""Wait before the next look-up of an unknown topic; doubles up to ``route_interval``."""

_AGAIN_SECONDS = 0.05
"""Least pause between two look-ups of a topic whose requests fail; doubles up to a second. A group
that changes its master registers the next one within tenths of a second.
"""

_RELEARN_SECONDS = 5.0
"""Time after an outage of all name servers, or brokers, in which "unknown topic" is not believed:
brokers register again within a second (Java's within 30).
"""

_ANY_BROKER_SECONDS = 1.0
"""Time for asking the name servers whether any broker is registered."""

_TOPICS_KEPT = 64
"""Number of topics that are always refreshed; of more, only those in use are."""

_UNUSED_ROUNDS_MAX = 10
"""Look-ups in a row after which an unused topic is removed."""


@attrs.define(eq=False)
class Watched:
    """A topic whose route is refreshed."""

    due: float
    """trio time of the next look-up"""
    wait: float = _FIRST_WAIT_SECONDS
    """seconds until the look-up after the next one, while none succeeds"""
    asked_at: float = -inf
    """trio time of the last look-up"""
    pause: float = _AGAIN_SECONDS
    """seconds after the last look-up before a failed request causes another one; growing until the
    route is another one
    """
    missing: bool = False
    """whether the name servers did not know the topic the last time"""
    unused_rounds: int = 0
    kept: bool = False
    """whether it stays although nothing is sent to it"""


@attrs.define(eq=False)
class LookUp:
    """The look-ups of one topic, one at a time; a task that waited finds the answer."""

    lock: trio.Lock = attrs.field(factory=trio.Lock)
    users: int = 0
    """tasks that look up or wait; the last of them removes this object"""
    failed_at: float = -inf
    failure: NoNameServer | RouteNotFound | None = None
    """why the publish list was not found at ``failed_at``"""


@attrs.frozen
class _Found:
    """The answer of a name server; ``route`` is None if it does not know the topic."""

    route: TopicRoute | None


@attrs.define(eq=False)
class RouteFinder:
    """The routes of one client."""

    settings: ClientSettings
    names: NameServers
    on_changed: Callable[[set[str], set[str]], None]
    """called after a change, with the broker addresses that were removed and those added"""
    in_use: Callable[[str], bool]
    """returns whether a topic was used since the last call for it"""
    _calls: Calls
    _failures: FailureLog
    routes: KnownRoutes = attrs.field(factory=KnownRoutes, init=False)
    _watched: dict[str, Watched] = attrs.field(factory=dict, init=False)
    _look_ups: dict[str, LookUp] = attrs.field(factory=dict, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _due_sooner: trio.Event = attrs.field(factory=trio.Event, init=False)
    _unreached_at: float = attrs.field(default=-inf, init=False)
    """trio time of the last outage: no name server answered, or none knew a broker"""

    async def _through_outages(self, ask: Callable[[float], Awaitable[T]], seconds: float) -> T:
        """Call ``ask`` until a name server is reached, with growing waits, for up to ``seconds``.

        A cluster without brokers counts as an outage: its only broker may be restarting. Right
        after an outage, "unknown topic" counts as one: a name server that was away learns its
        topics from the brokers when they register again, and a broker may register between the
        request about the topic and that about the cluster.

        Raises: the last error of ``ask``.
        """

        def again(error: TrioMQError) -> bool:
            if isinstance(error, NoBrokerRegistered):
                self._unreached_at = trio.current_time()
                return True
            since = trio.current_time() - self._unreached_at
            return since < _RELEARN_SECONDS and isinstance(error, NoNameServer | RouteNotFound)

        return await until_reached(ask, seconds, again=again)

    async def look_up(self, topic: str) -> TopicRoute | None:
        """Return a topic's route from the name servers, or None if they do not know the topic.

        The current name server is asked first; if it does not answer, or does not know the topic,
        all others are, within ``route_timeout`` in all. (The official client asks only one.)

        Raises: ``NoNameServer``.
        """
        deadline = trio.current_time() + self.settings.route_timeout
        reasons: dict[str, str] = {}
        while True:
            asked = set(self.names.addresses)
            found = await self._ask_route(topic, deadline, reasons)
            if found is not None:
                return found.route
            # If the list has changed, connections to removed name servers were closed during the
            # look-up.
            if set(self.names.addresses) <= asked or trio.current_time() >= deadline:
                raise NoNameServer(reasons)

    async def _ask_route(
        self, topic: str, deadline: float, reasons: dict[str, str]
    ) -> _Found | None:
        """Ask the name servers in turn, noting ``reasons``; return None if none answers."""
        unknown = unreached = False
        for turn in self.names.turns(trio.current_time, deadline, reasons):
            address = turn.address
            try:
                response = await self._calls.call(
                    address,
                    request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic)),
                    turn.seconds,
                )
                route = TopicRoute.decode(bytes(response.body))
            except TopicNotFound:
                if not unknown and not reasons:
                    self.names.answered(address)
                unknown = turn.answered = True
            except (TrioMQError, RemotingError) as error:
                if isinstance(error, ConnectionFailed):
                    error.fix = "check that a name server (mqnamesrv) runs there"
                    reasons[address] = error.reason
                else:
                    reasons[address] = str(error)
                unreached = unreached or isinstance(error, ConnectionFailed | ConnectionLost)
                self._failures.failed(f"name server {address}", error)
            else:
                self.names.answered(address)
                self._failures.worked(f"name server {address}")
                return _Found(route)
        if unknown:
            return _Found(None)
        if unreached:
            self._unreached_at = trio.current_time()
        return None

    async def check_name_server(self) -> None:
        """Make sure that a name server answers, so that a wrong address fails at the start.

        "Unknown topic" is an answer. While no name server can be reached, the request is repeated
        for ``route_timeout``.

        Raises: ``NoNameServer``.
        """
        await self._through_outages(
            lambda seconds: self.look_up(DEFAULT_TOPIC), self.settings.route_timeout
        )

    def keep(self, topic: str) -> None:
        """Look up a topic's route soon and refresh it from now on, whether it is used or not."""
        self.watch([topic])
        self._watched[topic].kept = True
        self.invalidate(topic)

    def watch(self, topics: Iterable[str]) -> None:
        """Refresh the routes of these topics from now on."""
        interval = self.settings.route_interval
        for topic in topics:
            if topic not in self._watched:
                self._watched[topic] = Watched(trio.current_time() + interval)

    async def refresh(self, topic: str) -> TopicQueues | None:
        """Look up one topic's route now and return what is known afterwards.

        A topic that the name servers do not know keeps its old route. While no name server can be
        reached, the request is repeated for ``route_timeout``.

        Raises: ``NoNameServer``.
        """

        try:
            return await self.require(topic, first_broker=False)
        except RouteNotFound:
            return None

    async def require(self, topic: str, *, first_broker: bool = True) -> TopicQueues:
        """Look up one topic's route now, as ``refresh`` does.

        ``first_broker``: while no broker is registered, the request is repeated as well.

        Raises: ``RouteNotFound``, ``NoBrokerRegistered``, ``NoNameServer``.
        """

        async def ask(seconds: float) -> TopicQueues:
            known = await self._refresh_once(topic)
            if known is None:
                raise await self._unknown(topic) if first_broker else RouteNotFound(topic)
            return known

        return await self._through_outages(ask, self.settings.route_timeout)

    async def _unknown(self, topic: str, detail: str = "") -> RouteNotFound:
        """Return the error for a topic that no name server knows: do they know any broker?"""
        answered = False
        deadline = trio.current_time() + _ANY_BROKER_SECONDS
        for turn in self.names.turns(trio.current_time, deadline, {}):
            try:
                response = await self._calls.call(
                    turn.address, request(RequestCode.GET_BROKER_CLUSTER_INFO), turn.seconds
                )
                brokers = ClusterTable.decode(bytes(response.body)).broker_addr_table
            except (TrioMQError, RemotingError):
                continue
            if brokers:
                return RouteNotFound(topic, detail)
            answered = turn.answered = True
        return NoBrokerRegistered(topic) if answered else RouteNotFound(topic, detail)

    async def _refresh_once(self, topic: str) -> TopicQueues | None:
        self.watch([topic])
        watched = self._watched[topic]
        async with self._look_up(topic):
            now = trio.current_time()
            hurried = now < watched.asked_at + _RELEARN_SECONDS
            watched.pause = min(watched.pause * 2, 1.0) if hurried else _AGAIN_SECONDS
            watched.asked_at, watched.due = now, now + watched.wait
            watched.wait = min(watched.wait * 2, self.settings.route_interval)
            route = await self.look_up(topic)
            watched.missing = route is None
            if route is not None:
                self._take(topic, route)
            return self.routes.topic(topic)

    async def publish_queues(
        self, topic: str, template: str, queues_max: int, seconds: float | None = None
    ) -> tuple[MessageQueue, ...]:
        """Return the queues to send a topic to; look up the route if it is not known.

        A topic that does not exist gets the route of the creation template: the first message
        creates it. While no name server can be reached, the request is repeated for ``seconds``, by
        default ``route_timeout``.

        Raises: ``RouteNotFound``, ``NoNameServer``.
        Checkpoint: maybe, only when the route is not known.
        """
        queues = self.routes.publish(topic)
        if queues:
            return queues
        limit = self.settings.route_timeout if seconds is None else seconds
        try:
            return await self._through_outages(
                lambda left: self._publish_queues_once(topic, template, queues_max), limit
            )
        except TrioMQError as error:
            raise shorten(error)  # noqa: B904

    async def _publish_queues_once(
        self, topic: str, template: str, queues_max: int
    ) -> tuple[MessageQueue, ...]:
        began = trio.current_time()
        async with self._look_up(topic) as look_up:
            queues = self.routes.publish(topic)
            if queues:
                return queues
            if look_up.failure is not None and look_up.failed_at >= began:
                # Another task asked while this one waited: its answer holds for both.
                raise copy.copy(look_up.failure)
            try:
                await self._find_publish_queues(topic, template, queues_max)
            except (NoNameServer, RouteNotFound) as error:
                look_up.failed_at, look_up.failure = trio.current_time(), error
                raise
            return self.routes.publish(topic)

    @asynccontextmanager
    async def _look_up(self, topic: str) -> AsyncIterator[LookUp]:
        """Wait for this task's turn to look a topic up."""
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
                raise await self._unknown(
                    topic, f"and no broker creates topics: template {template} has no route either"
                )
            self._take(topic, as_template(shape, queues_max), template=True)
        if not self.routes.publish(topic):
            raise RouteNotFound(
                topic,
                "no writable queue on a master",
                f"see with `mqadmin topic route -t {topic}` whether its perm has the write bit (2),"
                " and whether a master runs",
                offered=route is not None,
            )

    async def subscribe_queues(self, topic: str) -> TopicQueues | None:
        """Return the queues to consume a topic from, or None while the topic is unknown.

        Raises: ``NoNameServer``.
        Checkpoint: maybe, only when the route is not known.
        """
        known = self.routes.topic(topic)
        if known is not None or (topic in self._watched and self._watched[topic].missing):
            return known
        return await self.refresh(topic)

    def _take(self, topic: str, route: TopicRoute, *, template: bool = False) -> None:
        self.watch([topic])
        watched = self._watched[topic]
        watched.wait = _FIRST_WAIT_SECONDS
        watched.due = trio.current_time() + self.settings.route_interval
        watched.unused_rounds = 0 if self.in_use(topic) else watched.unused_rounds + 1
        before = self._addresses()
        if self.routes.update(topic, route, template=template):
            watched.pause = _AGAIN_SECONDS
            self._notify(before)

    def _forget(self, topic: str) -> None:
        """Remove a topic that is not used."""
        del self._watched[topic]
        before = self._addresses()
        if self.routes.forget(topic):
            self._notify(before)

    def _notify(self, before: set[str]) -> None:
        """Report a change of the routes; ``before`` has the broker addresses before it."""
        after = self._addresses()
        self._changed.set()
        self._changed = trio.Event()
        self.on_changed(before - after, after - before)

    def _addresses(self) -> set[str]:
        return set(self.routes.addresses(masters_only=False))

    async def wait_routes_changed(self) -> None:
        """Wait for the next change of any route."""
        await self._changed.wait()

    def wake_waiting(self) -> None:
        """Wake the tasks in ``wait_routes_changed`` without a change."""
        self._changed.set()

    def invalidate(self, topic: str) -> None:
        """Look a topic's route up soon, because a request failed."""
        watched = self._watched.get(topic)
        if watched is not None:
            soon = max(watched.asked_at + watched.pause, trio.current_time())
            if soon < watched.due:
                watched.due = soon
                self._due_sooner.set()

    async def refresh_watched(self) -> None:
        """Refresh the watched topics every ``route_interval``, at first sooner after a failure."""
        while True:
            due = min((watched.due for watched in self._watched.values()), default=inf)
            self._due_sooner = trio.Event()
            with trio.move_on_at(min(due, trio.current_time() + _FIRST_WAIT_SECONDS)):
                await self._due_sooner.wait()
            for topic in [
                topic
                for topic, watched in self._watched.items()
                if watched.due <= trio.current_time()
            ]:
                watched = self._watched[topic]
                if (
                    watched.unused_rounds >= _UNUSED_ROUNDS_MAX
                    and len(self._watched) > _TOPICS_KEPT
                    and not watched.kept
                    and not self.in_use(topic)
                ):
                    self._forget(topic)
                    continue
                try:
                    await self._refresh_once(topic)
                except NoNameServer as error:
                    self._failures.failed("route refresh", error)
                else:
                    self._failures.worked("route refresh")


async def update_name_servers(
    url: str, names: NameServers, calls: Calls, failures: FailureLog
) -> None:
    """Use the name servers that an address server lists now; keep the last list if it fails."""
    try:
        addresses = await fetch_addresses(url)
    except RemotingError as error:
        failures.failed(f"address server {url}", error)
        return
    failures.worked(f"address server {url}")
    for address in names.replace(addresses):
        logger.info("name server %s is not listed any more", address)
        calls.connector.close_address(address)
