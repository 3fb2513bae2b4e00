"""``Session``: what producers and consumers share: connections, routes, heartbeats, a client id.

    open_session ─┬ connector       shielded: it outlives a cancelled body, to unregister
                  ├ route refresh   every 30 s; topics that no name server knows more often
                  └ heartbeat       every 30 s, to every broker of the routes

Each producer and consumer has a session of its own: nothing is shared between objects. Everything
here runs in one Trio loop, and state changes only between checkpoints.

Source for the schedule: client/…/impl/factory/MQClientInstance.java#startScheduledTask.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.calls import Calls
from triomq.client.core.client_id import make_client_id
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import RouteNotFound
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.heartbeats import Heartbeats, JoinedGroups
from triomq.client.core.namespace import Namespace
from triomq.client.core.route_finder import RouteFinder, update_name_servers
from triomq.client.core.routes import KnownRoutes
from triomq.client.core.servers import checked_access, listed_name_servers
from triomq.remoting.client.connector import Connector, ConnectorConfig, PeerHandler
from triomq.remoting.client.discovery import is_address_server
from triomq.remoting.client.name_servers import NameServers
from triomq.remoting.core.periodic import every
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command

logger = logging.getLogger(__name__)


class SessionObserver:
    """What a session reports to its owner. Methods must not block; these do nothing."""

    def routes_changed(self) -> None:
        """Note that a route has changed."""

    def group_changed(self) -> None:
        """Note that a member joined or left the group, as a broker reports."""

    def broker_joined(self) -> None:
        """Note the first heartbeat on a new connection."""

    def was_used(self, topic: str) -> bool:
        """Return whether the topic was used since the last call for it."""
        return True


@attrs.define(eq=False)
class Session(Calls):
    """A running client, made by ``open_session``."""

    settings: ClientSettings
    client_id: str
    _names: NameServers
    _groups: JoinedGroups
    _failures: FailureLog
    _handlers: dict[int, PeerHandler]
    namespace: Namespace | None = None
    """the tenant whose short names the application uses; requests carry the full names"""
    _observer: SessionObserver = attrs.field(factory=SessionObserver, init=False)
    finder: RouteFinder = attrs.field(init=False)
    heartbeats: Heartbeats = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.finder = RouteFinder(
            self.settings,
            self._names,
            self._routes_changed,
            lambda topic: self._observer.was_used(topic),
            self,
            self._failures,
        )
        self.heartbeats = Heartbeats(
            self.settings,
            self.client_id,
            self._groups,
            self.routes,
            lambda: self._observer.broker_joined(),
            self,
            self._failures,
        )

    @property
    def routes(self) -> KnownRoutes:
        """The routes that are known now."""
        return self.finder.routes

    def master_address(self, queue: MessageQueue) -> str:
        """Return the address of the queue's master. Raises: ``RouteNotFound``."""
        address = self.routes.master(queue.broker_name)
        if address is None:
            raise RouteNotFound(
                queue.topic,
                f"broker {queue.broker_name} has no master now",
                offered=self.routes.topic(queue.topic) is not None,
            )
        return address

    def hears(self, broker_name: str) -> bool:
        """Return whether a broker has answered a heartbeat; one that hangs has not."""
        return self.routes.any_address(broker_name) in self.heartbeats.registered

    @property
    def name_servers(self) -> str:
        """The configured name servers, as ``"a:9876;b:9876"``."""
        return ";".join(self._names.addresses)

    def answer_requests(self, handlers: Mapping[int, PeerHandler]) -> None:
        """Answer these request codes of brokers from now on."""
        space = self.namespace
        self._handlers.update(
            handlers
            if space is None
            else {code: space.answering(code, handler) for code, handler in handlers.items()}
        )

    def observe(self, observer: SessionObserver) -> None:
        """Report to this object from now on."""
        self._observer = observer

    def end_observation(self) -> None:
        """Report no longer: the owner is ending. Tasks that wait for a route wake."""
        self._observer = SessionObserver()
        self.finder.wake_waiting()

    def start_background(self, nursery: trio.Nursery, address_server: str | None) -> None:
        """Start what every client does."""
        self.answer_requests({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed})
        nursery.start_soon(self.finder.refresh_watched, name="route refresh")
        nursery.start_soon(self.heartbeats.send_heartbeats, name="heartbeat")
        if address_server is not None:
            update = partial(update_name_servers, address_server, self._names, self, self._failures)
            nursery.start_soon(
                every, self.settings.name_server_refresh, update, name="name servers"
            )

    def _routes_changed(self, gone: set[str], added: set[str]) -> None:
        self.heartbeats.brokers_changed(gone, added)
        for address in gone:
            self.connector.close_address(address)
        self._observer.routes_changed()

    async def _members_changed(self, address: str, command: Command) -> None:
        if (command.ext or {}).get("consumerGroup") == self._groups.consumer_group:
            self._observer.group_changed()


async def _run_connector(
    config: ConnectorConfig,
    handlers: Mapping[int, PeerHandler],
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
async def open_session(
    namesrv: Sequence[str], settings: ClientSettings, groups: JoinedGroups
) -> AsyncIterator[Session]:
    """Run a client for the length of the block.

    At its end, even if cancelled, the client unregisters within ``farewell_timeout`` and closes its
    connections.

    Raises: ``SettingsError``, ``NoNameServer``.
    """
    options = checked_access(
        settings.tls, settings.credentials, settings.serialize, settings.socks_proxies
    ).options()
    space = Namespace(settings.namespace) if settings.namespace is not None else None
    # Signing comes last: the signature covers what the other hooks add.
    options["hooks"] = (
        *([space] if space is not None else []),
        *settings.rpc_hooks,
        *options.get("hooks", ()),
    )
    config = ConnectorConfig(busy_poll=settings.busy_poll, **options)
    address_server = namesrv[0] if is_address_server(namesrv[0]) else None
    if address_server is not None:
        namesrv = await listed_name_servers(address_server)
    client_id = await make_client_id(settings, namesrv[0])
    failures = FailureLog(logger)
    async with open_background() as outer:
        connector_scope = trio.CancelScope()
        handlers: dict[int, PeerHandler] = {}

        def lost(address: str, reason: str) -> None:  # `session` is made before any connection
            session.heartbeats.unregistered(address)

        connector = await outer.start(_run_connector, config, handlers, lost, connector_scope)
        # Shielded only now: a start that is cancelled would wait for a shielded task for ever.
        connector_scope.shield = True
        names = NameServers(list(namesrv), random.randrange(len(namesrv)))
        session = Session(connector, settings, client_id, names, groups, failures, handlers, space)
        try:
            async with open_background() as nursery:
                session.start_background(nursery, address_server)
                yield session
        finally:
            try:
                with trio.CancelScope(
                    shield=True, deadline=trio.current_time() + settings.farewell_timeout
                ):
                    await session.heartbeats.unregister()
            finally:  # nothing else can end a shielded task
                connector_scope.cancel()
