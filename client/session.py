"""What a producer and a consumer have in common: connections, routes, heartbeats, a name, and a clean farewell.

    open_session ─┬ connector (shielded: it outlives a cancelled body for the farewell)
                  ├ route refresh    every 30 s, topics that nobody knows yet more often
                  └ heartbeat        every 30 s, to every broker of the routes

Each producer and consumer has a session of its own; nothing is shared behind the application's back.  Everything here runs in one Trio
loop, and state changes only between checkpoints.

Source for the schedule: client/…/impl/factory/MQClientInstance.java#startScheduledTask.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import TypeVar

import attrs
import trio

from triomq.client.background import open_background
from triomq.client.config import ClientSettings
from triomq.client.errors import (
    NoNameServer,
    ProtocolBroken,
    RouteNotFound,
    TopicNotFound,
    TrioMQError,
    broker_error,
    from_remoting,
    request_name,
)
from triomq.client.retry import Backoff
from triomq.client.routes import NameServers, RouteTable, TopicQueues, as_template
from triomq.client.trouble import TroubleLog
from triomq.remoting.address import parse_address
from triomq.remoting.client.config import ConnectorConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.discovery import fetch_addresses, is_address_server
from triomq.remoting.errors import ProtocolError, RemotingError
from triomq.remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, Outgoing, request
from triomq.remoting.protocol.headers.client import UnregisterClientHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader

logger = logging.getLogger(__name__)

ServerRequestHandler = Callable[[str, Command], Awaitable[Command | None]]
"""(address, request of a broker) → response, or None for a one-way request"""

_MISSING_TOPIC_FIRST = 1.0
"""seconds until a topic that no name server knew is asked for again; doubles up to the refresh interval"""

H = TypeVar("H")

PROBE_TOPIC = "TBW102"
"""asked for at start only to see whether a name server answers; that it is not known is an answer, too"""

_object_numbers = itertools.count(1)


def _nobody() -> None:
    """Whom a session tells as long as nobody wants to be told."""


@attrs.frozen(kw_only=True)
class Member:
    """In which groups this client takes part; at most one of each kind."""

    producer_group: str | None = None
    consumer_group: str | None = None
    consumer_data: Callable[[], ConsumerData] | None = None
    """the present subscriptions, asked for at every heartbeat"""

    @property
    def masters_only(self) -> bool:
        """Producers do not concern slaves."""
        return self.consumer_group is None


@attrs.define(eq=False)
class Watched:
    """A topic whose route is kept fresh."""

    due: float
    """trio time of the next look-up"""
    backoff: Backoff
    missing: bool = False
    """whether the name servers did not know it the last time"""


@attrs.frozen
class _Found:
    """What a name server that answers says; None: it does not know the topic."""

    route: TopicRoute | None


@attrs.define(eq=False)
class Session:
    """A running client.  Made by `open_session`."""

    settings: ClientSettings
    client_id: str
    routes: RouteTable
    _names: NameServers
    _member: Member
    _connector: Connector
    _trouble: TroubleLog
    _handlers: dict[int, ServerRequestHandler]
    on_routes_changed: Callable[[], None] = attrs.field(default=_nobody)
    """called after a route has changed"""
    on_group_changed: Callable[[], None] = attrs.field(default=_nobody)
    """called when a broker says that a member came or went"""
    on_broker_joined: Callable[[], None] = attrs.field(default=_nobody)
    """called after the first heartbeat on a new connection"""
    _watched: dict[str, Watched] = attrs.field(factory=dict, init=False)
    _greeted: set[str] = attrs.field(factory=set, init=False)
    """broker addresses whose present connection has seen a heartbeat"""
    _locks: dict[str, trio.Lock] = attrs.field(factory=dict, init=False)
    """one look-up (or greeting) at a time for each name; whoever waited finds the answer already there"""
    _failures: dict[str, tuple[float, NoNameServer | RouteNotFound]] = attrs.field(factory=dict, init=False)
    """when and why the publish list of a topic could not be found the last time"""
    _new_brokers: trio.Event = attrs.field(factory=trio.Event, init=False)
    _routes_changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    # -- requests ---------------------------------------------------------------------------------------------------------------

    @property
    def connector(self) -> Connector:
        """The connections, for who wants their errors as they are (`from_remoting` translates them)."""
        return self._connector

    async def invoke(self, address: str, command: Outgoing, timeout: float) -> Command:
        """Send a request and return the response, whatever its code.  Errors: the transport's, as `TrioMQError`."""
        try:
            return await self._connector.invoke(address, command, timeout=timeout)
        except RemotingError as error:
            raise from_remoting(error) from error

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request and return the response; any other code than SUCCESS is raised as `BrokerError`."""
        response = await self.invoke(address, command, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark, address, request_name(command.code))
        return response

    async def ask(self, address: str, command: Command, timeout: float, answer: type[H]) -> H:
        """Send a request and return the header of its successful response.  Errors: as `call`, and `ProtocolBroken`."""
        return read_header(await self.call(address, command, timeout), answer, address)

    def reconnect(self, address: str) -> None:
        """Drop a connection whose server asked for that; the next request makes a new one."""
        self._connector.close_address(address)

    async def oneway(self, address: str, command: Outgoing, timeout: float) -> None:
        """Send a request that is not answered; returns when its bytes are written."""
        try:
            await self._connector.oneway(address, command, timeout=timeout)
        except RemotingError as error:
            raise from_remoting(error) from error

    def forget_callbacks(self) -> None:
        """Tell nobody any more: who was told is ending.  Who waits for a route looks once more, and finds that out."""
        self.on_routes_changed = self.on_group_changed = self.on_broker_joined = _nobody
        self._routes_changed.set()

    def answer_requests(self, handlers: Mapping[int, ServerRequestHandler]) -> None:
        """Answer these request codes of brokers from now on."""
        self._handlers.update(handlers)

    @property
    def name_servers(self) -> str:
        """The configured name servers, as `"a:9876;b:9876"`."""
        return ";".join(self._names.addresses)

    # -- routes -----------------------------------------------------------------------------------------------------------------

    async def look_up(self, topic: str) -> TopicRoute | None:
        """Ask the name servers for a topic's route; None if those that answer do not know it.

        The present name server is asked first and, if it does not answer or does not know the topic, all others, within
        `route_timeout` in all.  (The official client asks only one of them in a call.)  Errors: `NoNameServer`.
        """
        deadline = trio.current_time() + self.settings.route_timeout
        reasons: dict[str, str] = {}
        while True:
            addresses = self._names.order()
            found = await self._ask_route(topic, addresses, deadline, reasons)
            if found is not None:
                return found.route
            # The list may have changed meanwhile, and then the connections to those that left it were closed under the question.
            if set(self._names.addresses) <= set(addresses) or trio.current_time() >= deadline:
                raise NoNameServer(reasons)

    async def _ask_route(self, topic: str, addresses: Sequence[str], deadline: float, reasons: dict[str, str]) -> _Found | None:
        """Ask these name servers, one after the other; None if none of them answers, which `reasons` tells of each."""
        unknown = False
        for index, address in enumerate(addresses):
            seconds = (deadline - trio.current_time()) / (len(addresses) - index)
            if seconds <= 0:
                reasons[address] = "no time was left to ask it"
                continue
            try:
                response = await self.call(
                    address, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic)), seconds
                )
                route = TopicRoute.decode(bytes(response.body))
            except TopicNotFound:
                if not unknown and not reasons:
                    self._names.answered(address)
                unknown = True
            except (TrioMQError, RemotingError) as error:
                reasons[address] = str(error)
                self._trouble.failed(f"name server {address}", error)
            else:
                self._names.answered(address)
                self._trouble.worked(f"name server {address}")
                return _Found(route)
        return _Found(None) if unknown else None

    async def check_name_server(self) -> None:
        """Make sure that some name server answers at all; used at start, to fail early.  Errors: `NoNameServer`."""
        await self.look_up(PROBE_TOPIC)

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
        async with self._lock(topic):
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
        async with self._lock(topic):
            queues = self.routes.publish(topic)
            if queues:
                return queues
            failed_at, failure = self._failures.get(topic, (-inf, None))
            if (
                failure is not None and failed_at >= began
            ):  # asked while this task waited for the lock: the answer holds for it, too
                raise copy.copy(failure)
            try:
                await self._find_publish_queues(topic, template, queues_max)
            except (NoNameServer, RouteNotFound) as error:
                self._failures[topic] = trio.current_time(), error
                raise
            self._failures.pop(topic, None)
            return self.routes.publish(topic)

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
                "its route has no writable queue on a master",
                f"see with `mqadmin topicRoute -t {topic}` whether its perm has the write bit (2), and whether a master runs",
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
        before = set(self.routes.addresses(masters_only=False))
        if not self.routes.update(topic, route, template=template):
            return
        after = set(self.routes.addresses(masters_only=False))
        for address in before - after:
            self._greeted.discard(address)
            self._trouble.forget(f"broker {address}")
            self._connector.close_address(address)
        if after - before:
            self._new_brokers.set()
        self._routes_changed.set()
        self._routes_changed = trio.Event()
        self.on_routes_changed()

    async def wait_routes_changed(self) -> None:
        """Wait for the next change of any route."""
        await self._routes_changed.wait()

    def doubt(self, topic: str) -> None:
        """Have a topic's route asked for soon, because a request went wrong.  Atomic: no checkpoint."""
        watched = self._watched.get(topic)
        if watched is not None:
            watched.due = min(watched.due, trio.current_time())

    async def _refresh_routes(self) -> None:
        """Ask for all watched topics every `route_interval`; for those that are unknown, or without answer, in growing steps."""
        while True:
            due = min((watched.due for watched in self._watched.values()), default=inf)
            await trio.sleep_until(min(due, trio.current_time() + _MISSING_TOPIC_FIRST))
            for topic in [topic for topic, watched in self._watched.items() if watched.due <= trio.current_time()]:
                try:
                    await self.refresh(topic)
                except NoNameServer as error:
                    self._trouble.failed("route refresh", error)
                else:
                    self._trouble.worked("route refresh")

    def _lock(self, name: str) -> trio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = trio.Lock()
        return lock

    # -- heartbeats -------------------------------------------------------------------------------------------------------------

    async def greet(self, address: str) -> None:
        """Make sure that the present connection to a broker has seen a heartbeat; before it, a broker refuses pulls."""
        if address in self._greeted:
            return
        async with self._lock(f"heartbeat to {address}"):
            if address not in self._greeted:
                await self._beat(address)

    def ungreeted(self, address: str) -> None:
        """Note that the broker does not know us (any more); called when its connection is lost, too."""
        self._greeted.discard(address)

    async def _beat(self, address: str) -> None:
        command = request(RequestCode.HEART_BEAT, None, self._heartbeat().encode())
        await self.call(address, command, self.settings.request_timeout)
        self._trouble.worked(f"broker {address}")
        if address not in self._greeted:
            self._greeted.add(address)
            self.on_broker_joined()

    def _heartbeat(self) -> HeartbeatData:
        member = self._member
        producers = [ProducerData(member.producer_group)] if member.producer_group is not None else []
        consumers = [member.consumer_data()] if member.consumer_data is not None else []
        return HeartbeatData(client_id=self.client_id, producers=producers, consumers=consumers)

    async def greet_all(self) -> None:
        """Send a heartbeat to every broker that has not seen one on its present connection; failures are logged."""
        async with trio.open_nursery() as nursery:
            for address in self._brokers() - self._greeted:
                nursery.start_soon(self._fenced, self.greet, address)

    async def beat_all(self) -> None:
        """Send every broker a heartbeat now: it is time, or our subscriptions changed; failures are logged."""
        async with trio.open_nursery() as nursery:
            for address in self._brokers():
                nursery.start_soon(self._fenced, self._beat, address)

    async def _heartbeats(self) -> None:
        """Beat every `heartbeat_interval`, and at once for brokers that a new route brings."""
        due = trio.current_time() + self.settings.heartbeat_interval
        while True:
            with trio.move_on_at(due):
                await self._new_brokers.wait()
                self._new_brokers = trio.Event()
                await self.greet_all()
                continue
            await self.beat_all()
            due = trio.current_time() + self.settings.heartbeat_interval

    def _brokers(self) -> set[str]:
        return set(self.routes.addresses(masters_only=self._member.masters_only))

    async def _fenced(self, send: Callable[[str], Awaitable[None]], address: str) -> None:
        try:
            await send(address)
        except TrioMQError as error:
            self._trouble.failed(f"broker {address}", error)

    # -- the end ----------------------------------------------------------------------------------------------------------------

    async def _unregister(self) -> None:
        header = UnregisterClientHeader(
            client_id=self.client_id,
            producer_group=self._member.producer_group,
            consumer_group=self._member.consumer_group,
        )
        async with trio.open_nursery() as nursery:
            for address in self._greeted:
                nursery.start_soon(self._unregister_fenced, address, header)

    async def _follow_address_server(self, url: str) -> None:
        """Take over what the address server lists; while it does not answer, the last list holds."""
        while True:
            await trio.sleep(self.settings.name_server_refresh)
            try:
                addresses = await fetch_addresses(url)
            except RemotingError as error:
                self._trouble.failed(f"address server {url}", error)
                continue
            self._trouble.worked(f"address server {url}")
            for address in self._names.replace(addresses):
                logger.info("name server %s is not listed any more", address)
                self._connector.close_address(address)

    async def _unregister_fenced(self, address: str, header: UnregisterClientHeader) -> None:
        try:
            await self.call(address, request(RequestCode.UNREGISTER_CLIENT, header), self.settings.request_timeout)
        except TrioMQError as error:
            logger.debug("no farewell to %s: %s", address, error)


async def listed_name_servers(url: str) -> tuple[str, ...]:
    """What an address server lists.  Errors: `NoNameServer`."""
    try:
        return await fetch_addresses(url)
    except RemotingError as error:
        raise NoNameServer({url: str(error)}) from error


def read_header(response: Command, answer: type[H], address: str) -> H:
    """Return a response's header as an object.  Errors: `ProtocolBroken`."""
    try:
        return response.header(answer)
    except ProtocolError as error:
        raise ProtocolBroken(f"{address} answered with an unreadable header: {error}") from error


async def _run_connector(
    config: ConnectorConfig,
    handlers: Mapping[int, ServerRequestHandler],
    on_lost: Callable[[str, str], None],
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[Connector] = trio.TASK_STATUS_IGNORED,
) -> None:
    with scope:
        async with Connector(config, handlers=handlers, on_lost=on_lost) as connector:
            task_status.started(connector)
            await trio.sleep_forever()


@asynccontextmanager
async def open_session(namesrv: Sequence[str], settings: ClientSettings, member: Member) -> AsyncIterator[Session]:
    """Start a client.  At the end, also a cancelled one, it unregisters within `farewell_timeout` and closes its connections."""
    options = settings.access().options()
    options["hooks"] = (*settings.rpc_hooks, *options.get("hooks", ()))  # signing last: it covers what the others add
    config = ConnectorConfig(**options)
    address_server = namesrv[0] if is_address_server(namesrv[0]) else None
    if address_server is not None:
        namesrv = await listed_name_servers(address_server)
    client_id = await _make_client_id(settings, namesrv[0])
    trouble = TroubleLog(logger)
    async with open_background() as outer:
        connector_scope = trio.CancelScope(shield=True)
        sessions: list[Session] = []

        def lost(address: str, reason: str) -> None:
            for session in sessions:
                session.ungreeted(address)

        async def members_changed(address: str, command: Command) -> Command | None:
            group = (command.ext or {}).get("consumerGroup")
            for session in sessions:
                if group == member.consumer_group:
                    session.on_group_changed()
            return None

        handlers: dict[int, ServerRequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: members_changed}
        connector = await outer.start(_run_connector, config, handlers, lost, connector_scope)
        names = NameServers(list(namesrv), random.randrange(len(namesrv)))
        session = Session(settings, client_id, RouteTable(), names, member, connector, trouble, handlers)
        sessions.append(session)
        try:
            async with open_background() as nursery:
                nursery.start_soon(session._refresh_routes, name="route refresh")
                nursery.start_soon(session._heartbeats, name="heartbeat")
                if address_server is not None:
                    nursery.start_soon(session._follow_address_server, address_server, name="name servers")
                yield session
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + settings.farewell_timeout):
                await session._unregister()
            connector_scope.cancel()


async def _make_client_id(settings: ClientSettings, address: str) -> str:
    """Return `ip@pid#nanoseconds-number[@unit]`: unique for each process and each object, made anew after a fork.

    With a chosen instance name it is `ip@name[@unit]`.
    """
    ip = settings.client_ip or await _own_address(address)
    host = f"[{ip}]" if ":" in ip else ip
    unit = f"@{settings.unit_name}" if settings.unit_name else ""
    instance = settings.instance_name or f"{os.getpid()}#{time.time_ns()}-{next(_object_numbers)}"
    return f"{host}@{instance}{unit}"


async def _own_address(towards: str) -> str:
    """Return this machine's address on the way to a server, without sending anything; 127.0.0.1 if there is no way."""
    try:
        host, port = parse_address(towards)
        family, *_, target = (await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM))[0]
        with trio.socket.socket(family, trio.socket.SOCK_DGRAM) as probe:
            await probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
