"""What a producer and a consumer have in common: connections, routes, heartbeats, a name, and a clean farewell.

    open_session ─┬ connector (shielded: it outlives a cancelled body for the farewell)
                  ├ route refresh    every 30 s, topics that nobody knows yet more often
                  └ heartbeat        every 30 s, to every broker of the routes

Each producer and consumer has a session of its own; nothing is shared behind the application's back.  Everything here runs in one Trio
loop, and state changes only between checkpoints.

Source for the schedule: client/…/impl/factory/MQClientInstance.java#startScheduledTask.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.background import open_background
from triomq.client.calls import Calls
from triomq.client.client_id import make_client_id
from triomq.client.config import ClientSettings
from triomq.client.errors import NoNameServer
from triomq.client.heartbeats import Heartbeats, Member
from triomq.client.namespace import Namespace
from triomq.client.route_finder import RouteFinder
from triomq.client.routes import NameServers, RouteTable, TopicQueues
from triomq.client.trouble import TroubleLog
from triomq.remoting.client.config import ConnectorConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.discovery import fetch_addresses, is_address_server
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command

logger = logging.getLogger(__name__)

ServerRequestHandler = Callable[[str, Command], Awaitable[Command | None]]
"""(address, request of a broker) → response, or None for a one-way request"""


def _nobody() -> None:
    """Whom a session tells as long as nobody wants to be told."""


@attrs.define(eq=False)
class Session(Calls):
    """A running client.  Made by `open_session`."""

    settings: ClientSettings
    client_id: str
    _names: NameServers
    _member: Member
    _trouble: TroubleLog
    _handlers: dict[int, ServerRequestHandler]
    namespace: Namespace | None = None
    """whose names the application uses; the wire has the full ones"""
    on_routes_changed: Callable[[], None] = attrs.field(default=_nobody)
    """called after a route has changed"""
    on_group_changed: Callable[[], None] = attrs.field(default=_nobody)
    """called when a broker says that a member came or went"""
    on_broker_joined: Callable[[], None] = attrs.field(default=_nobody)
    """called after the first heartbeat on a new connection"""
    routes: RouteTable = attrs.field(init=False)
    _finder: RouteFinder = attrs.field(init=False)
    _heartbeats: Heartbeats = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._finder = RouteFinder(self.settings, self._names, self._routes_taken, self, self._trouble)
        self.routes = self._finder.routes
        self._heartbeats = Heartbeats(
            self.settings, self.client_id, self._member, self.routes, self._broker_joined, self, self._trouble
        )

    # -- who is told ------------------------------------------------------------------------------------------------------------

    def forget_callbacks(self) -> None:
        """Tell nobody any more: who was told is ending.  Who waits for a route looks once more, and finds that out."""
        self.on_routes_changed = self.on_group_changed = self.on_broker_joined = _nobody
        self._finder.wake_waiting()

    def answer_requests(self, handlers: Mapping[int, ServerRequestHandler]) -> None:
        """Answer these request codes of brokers from now on."""
        space = self.namespace
        self._handlers.update(
            handlers if space is None else {code: space.answering(code, handler) for code, handler in handlers.items()}
        )

    def _routes_taken(self, gone: set[str], come: set[str]) -> None:
        self._heartbeats.brokers_changed(gone, come)
        for address in gone:
            self._connector.close_address(address)
        self.on_routes_changed()

    def _broker_joined(self) -> None:
        self.on_broker_joined()

    # -- routes; see `route_finder` -----------------------------------------------------------------------------------------------

    @property
    def name_servers(self) -> str:
        """The configured name servers, as `"a:9876;b:9876"`."""
        return ";".join(self._names.addresses)

    async def look_up(self, topic: str) -> TopicRoute | None:
        """Ask the name servers for a topic's route; None if those that answer do not know it.  Errors: `NoNameServer`."""
        return await self._finder.look_up(topic)

    async def check_name_server(self) -> None:
        """Make sure that some name server answers at all; used at start, to fail early.  Errors: `NoNameServer`."""
        await self._finder.check_name_server()

    def watch(self, topics: Iterable[str]) -> None:
        """Keep the routes of these topics fresh from now on."""
        self._finder.watch(topics)

    def forget_unused(self, in_use: Callable[[str], bool]) -> None:
        """Let topics go that were not used for long; `in_use` says whether one was since it was asked the last time."""
        self._finder.in_use = in_use

    async def refresh(self, topic: str) -> TopicQueues | None:
        """Ask for one topic's route now; returns what is known afterwards (an unknown topic keeps its old route)."""
        return await self._finder.refresh(topic)

    async def publish_queues(self, topic: str, template: str, queues_max: int) -> tuple[MessageQueue, ...]:
        """Return the queues to send a topic to, asking the name servers if they are not known yet.  Errors: `RouteNotFound`, `NoNameServer`."""
        return await self._finder.publish_queues(topic, template, queues_max)

    async def subscribe_queues(self, topic: str) -> TopicQueues | None:
        """Return the queues to consume a topic from; None while nobody knows the topic.  Errors: `NoNameServer`."""
        return await self._finder.subscribe_queues(topic)

    async def wait_routes_changed(self) -> None:
        """Wait for the next change of any route."""
        await self._finder.wait_routes_changed()

    def doubt(self, topic: str) -> None:
        """Have a topic's route asked for soon, because a request went wrong.  Atomic: no checkpoint."""
        self._finder.doubt(topic)

    # -- heartbeats; see `heartbeats` ---------------------------------------------------------------------------------------------

    async def greet(self, address: str) -> None:
        """Make sure that the present connection to a broker has seen a heartbeat; before it, a broker refuses pulls."""
        await self._heartbeats.greet(address)

    def ungreeted(self, address: str) -> None:
        """Note that the broker does not know us (any more); called when its connection is lost, too."""
        self._heartbeats.ungreeted(address)

    async def greet_all(self) -> None:
        """Send a heartbeat to every broker that has not seen one on its present connection; failures are logged."""
        await self._heartbeats.greet_all()

    async def beat_all(self) -> None:
        """Send every broker a heartbeat now: it is time, or our subscriptions changed; failures are logged."""
        await self._heartbeats.beat_all()

    # -- background ---------------------------------------------------------------------------------------------------------------

    def start_background(self, nursery: trio.Nursery, address_server: str | None) -> None:
        """Start what every client does all the time."""
        nursery.start_soon(self._finder.run, name="route refresh")
        nursery.start_soon(self._heartbeats.run, name="heartbeat")
        if address_server is not None:
            nursery.start_soon(self._follow_address_server, address_server, name="name servers")

    async def unregister(self) -> None:
        """Say goodbye to every broker that knows us; failures are logged."""
        await self._heartbeats.unregister()

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


async def listed_name_servers(url: str) -> tuple[str, ...]:
    """What an address server lists.  Errors: `NoNameServer`."""
    try:
        return await fetch_addresses(url)
    except RemotingError as error:
        raise NoNameServer({url: str(error)}) from error


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
    space = Namespace(settings.namespace) if settings.namespace is not None else None
    options["hooks"] = (*([space] if space is not None else []), *settings.rpc_hooks, *options.get("hooks", ()))  # signing last: it covers what the others add
    config = ConnectorConfig(busy_poll=settings.busy_poll, **options)
    address_server = namesrv[0] if is_address_server(namesrv[0]) else None
    if address_server is not None:
        namesrv = await listed_name_servers(address_server)
    client_id = await make_client_id(settings, namesrv[0])
    trouble = TroubleLog(logger)
    async with open_background() as outer:
        connector_scope = trio.CancelScope()
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

        notified: ServerRequestHandler = members_changed
        if space is not None:
            notified = space.answering(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, members_changed)
        handlers: dict[int, ServerRequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified}
        connector = await outer.start(_run_connector, config, handlers, lost, connector_scope)
        connector_scope.shield = True  # not before: a start that is cancelled would wait for a shielded task for ever
        names = NameServers(list(namesrv), random.randrange(len(namesrv)))
        session = Session(connector, settings, client_id, names, member, trouble, handlers, space)
        sessions.append(session)
        try:
            async with open_background() as nursery:
                session.start_background(nursery, address_server)
                yield session
        finally:
            try:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + settings.farewell_timeout):
                    await session.unregister()
            finally:  # whatever happens: nobody else can end a shielded task
                connector_scope.cancel()
