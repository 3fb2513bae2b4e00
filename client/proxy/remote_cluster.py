"""The cluster behind a proxy: Java's cluster mode. Routes come from name servers.

::

    RemoteCluster.run ─┬ broker-list         all brokers, every 10 s
                       ├ registrations       heartbeats
                       └ × look up           routes and settings that are no longer fresh

Source: proxy/…/service/route/ClusterTopicRouteService.java, service/metadata/
ClusterMetadataService.java, service/message/ClusterMessageService.java.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import attrs
import trio

from triomq.client.core.errors import NoNameServer
from triomq.client.core.route_finder import RouteFinder
from triomq.client.proxy.broker_calls import BrokerCalls
from triomq.client.proxy.cached_look_ups import CachedLookUps
from triomq.client.proxy.group_places import GroupPlaces
from triomq.client.proxy.heartbeat_connections import HeartbeatConnections
from triomq.client.proxy.joined_clients import JoinedClients
from triomq.client.proxy.proxy_config import ProxyConfig
from triomq.client.proxy.registrations import Registrations
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.cluster import Spawn, TakeRequest, refused_by_network
from triomq.remoting.messaging.known_clients import CALL_CREDENTIALS
from triomq.remoting.messaging.route_answers import endpoints
from triomq.remoting.messaging.status_codes import Refused, refused_by_broker
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.topic import GroupHeader, TopicHeader
from triomq.remoting.protocol.signing import ACCESS_KEY, PROXIED_USER

ROUTE_ABSENCE_SECONDS = 30.0
"""For how long a known route is used although no name server has it: brokers register with a name
server that was restarted within this time.
"""
FAILURE_SECONDS = 1.0
"""Failures of an address within this time count as one: each looks at all routes."""
SETTINGS_SECONDS = 3.0
MASTERS_ASKED_MAX = 3
"""Brokers that are asked for settings, until one has them."""
ADDRESSES_MAX = 64
"""Addresses in a client's question for a route; each comes back with every queue."""

S = TypeVar("S", TopicConfig, SubscriptionGroupConfig)


@attrs.frozen
class ProxyEndpoint:
    """Where clients reach the proxy, if they do not say how they came."""

    host: str
    port: int
    keeps_ports: bool
    """Whether routes keep the ports that a client named (``useEndpointPortFromRequest``)."""


@attrs.define(eq=False)
class RemoteLink:
    """The way of a client: the connections of the proxy, which all clients share."""

    calls: BrokerCalls
    registrations: Registrations
    peer: tuple[str, int]
    """Not used: brokers see the proxy's address."""
    verified: bool = False
    """Whether credentials of calls are verified here; brokers then count quotas of their users."""
    credentials: Mapping[str, str] = attrs.field(factory=dict, init=False)
    """Those of the last call; the proxy signs with its own."""
    _client_id: str | None = attrs.field(default=None, init=False)

    async def invoke(self, broker_name: str, command: Command, timeout: float) -> Command:
        """Send a request to a broker's master. Raises: Refused, RemotingError."""
        user = CALL_CREDENTIALS.get(self.credentials).get(ACCESS_KEY)
        if self.verified and user:
            command.ext = {**(command.ext or {}), PROXIED_USER: user}
        return await self.calls.invoke(broker_name, command, timeout)

    async def register(self, data: HeartbeatData, language: int) -> None:
        """Let brokers know the client's groups."""
        self._client_id = data.client_id
        await self.registrations.register(data)

    async def unregister(self, client_id: str, producers: list[str], consumers: list[str]) -> None:
        """Let brokers forget groups that have no client any more."""
        await self.registrations.unregister(client_id, producers, consumers)

    def close(self) -> None:
        """Forget the client. Checkpoint: never."""
        if self._client_id is not None:
            self.registrations.forget(self._client_id)


@attrs.define(eq=False)
class RemoteCluster:
    """The brokers that name servers know.

    ``client_id``: that of the proxy at brokers. ``more``: connections for heartbeats, beside those
    of the connector.
    """

    connector: Connector
    more: HeartbeatConnections
    finder: RouteFinder
    client_id: str
    config: ProxyConfig
    endpoint: ProxyEndpoint
    nursery: trio.Nursery
    verifies_signatures: bool = attrs.field(default=False, init=False)
    """Whether the proxy checks calls; brokers see its own user."""
    calls: BrokerCalls = attrs.field(init=False)
    registrations: Registrations = attrs.field(init=False)
    _failed_at: dict[str, float] = attrs.field(factory=dict, init=False)
    """By address."""
    _routes: CachedLookUps[TopicRoute] = attrs.field(init=False)
    _topics: CachedLookUps[TopicConfig] = attrs.field(init=False)
    _groups: CachedLookUps[SubscriptionGroupConfig] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        caches, spawn = self.config.caches, self.nursery.start_soon
        self.calls = BrokerCalls(self.connector, self.finder, self._failed)
        heartbeats = self.config.heartbeats
        most = heartbeats.groups_per_connection
        self.registrations = Registrations(
            self.client_id,
            self.route,
            self._call,
            JoinedClients(most * heartbeats.connections_max),
            GroupPlaces(most),
        )
        self._routes = CachedLookUps(
            "routes",
            self._ask_route,
            caches.routes_seconds,
            caches.routes_max,
            spawn,
            ROUTE_ABSENCE_SECONDS,
        )
        self._topics = CachedLookUps(
            "settings of topics", self._ask_topic, caches.topics_seconds, caches.topics_max, spawn
        )
        self._groups = CachedLookUps(
            "settings of groups", self._ask_group, caches.groups_seconds, caches.groups_max, spawn
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run what is behind the calls; ``started`` after the name servers were asked once."""
        await self.calls.list_brokers()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.calls.run, name="broker-list")
            nursery.start_soon(self.registrations.run, name="registrations")
            task_status.started()

    def connection_lost(self, address: str, number: int = 0) -> None:
        """Note that a server closed its connection. Checkpoint: never."""
        self.registrations.connection_lost(address, number)
        self._failed(address)

    async def _call(self, number: int, address: str, command: Command, timeout: float) -> Command:
        """Send a heartbeat over a connection; that of number 0 is also for calls."""
        if number:
            return await self.more.call(number, address, command, timeout)
        return await self.calls.call(address, command, timeout)

    def _failed(self, address: str) -> None:
        """Look up the routes again that lead to a broker that may be gone."""
        now = trio.current_time()
        if now - self._failed_at.get(address, -math.inf) < FAILURE_SECONDS:
            return
        self._failed_at[address] = now
        self._routes.expire(
            lambda route: any(
                address in broker.broker_addrs.values() for broker in route.broker_datas
            )
        )

    # The seam

    def link(self, peer: tuple[str, int], take_request: TakeRequest, spawn: Spawn) -> RemoteLink:
        """Return the way of a client; requests of brokers come to all clients of a group."""
        return RemoteLink(self.calls, self.registrations, peer, self.verifies_signatures)

    async def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic's queues are. Raises: Refused if no name server answers."""
        return await self._routes.get(topic)

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic. Raises: Refused if no broker answers."""
        return await self._topics.get(topic)

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the settings of a group. Raises: Refused if no broker answers."""
        return await self._groups.get(group)

    def endpoints(self, broker_name: str, broker_id: int, asked: pb.Endpoints) -> pb.Endpoints:
        """Return this proxy's endpoint, by the addresses that the client knows.

        Raises: Refused.
        """
        own = self.endpoint
        if not asked.addresses:
            return endpoints(own.host, own.port)
        if len(asked.addresses) > ADDRESSES_MAX or not all(one.host for one in asked.addresses):
            raise Refused(
                pb.Code.ILLEGAL_ACCESS_POINT,
                f"the endpoints of the request have {len(asked.addresses)} addresses; send 1 to"
                f" {ADDRESSES_MAX}, each with a host",
            )
        scheme = asked.scheme or endpoints(asked.addresses[0].host, own.port).scheme
        return pb.Endpoints(
            scheme=scheme,
            addresses=[
                pb.Address(host=one.host, port=one.port if own.keeps_ports else own.port)
                for one in asked.addresses
            ],
        )

    # Questions to name servers and brokers

    async def _ask_route(self, topic: str) -> TopicRoute | None:
        try:
            route = await self.finder.look_up(topic)
        except NoNameServer as error:
            raise Refused(pb.Code.INTERNAL_SERVER_ERROR, str(error)) from None
        if route is not None:
            self.calls.directory.note_route(route.broker_datas)
        return route

    async def _ask_topic(self, topic: str) -> TopicConfig | None:
        route = await self.route(topic)
        if route is None:
            return None
        addresses = [
            broker.broker_addrs[min(broker.broker_addrs)]
            for broker in route.broker_datas
            if broker.broker_addrs
        ]
        random.shuffle(addresses)
        return await self._ask_brokers(
            addresses,
            lambda: new_request(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic)),
            TopicConfig,
            ResponseCode.TOPIC_NOT_EXIST,
        )

    async def _ask_group(self, group: str) -> SubscriptionGroupConfig | None:
        addresses = self.calls.directory.masters(self.config.cluster_name)
        if not addresses:
            await self.calls.list_brokers()
            addresses = self.calls.directory.masters(self.config.cluster_name)
        return await self._ask_brokers(
            addresses,
            lambda: new_request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(group)),
            SubscriptionGroupConfig,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )

    async def _ask_brokers(
        self,
        addresses: Sequence[str],
        make: Callable[[], Command],
        kind: type[S],
        absent: ResponseCode,
    ) -> S | None:
        """Return what the first broker says that has the settings, None if none has them.

        Raises: Refused if a broker could not say it: the defaults would be wrong then.
        """
        failure: RemotingError | None = None
        if not addresses:
            failure = Refused(
                pb.Code.INTERNAL_SERVER_ERROR, self.calls.unreached or "no broker runs; start one"
            )
        for address in addresses[:MASTERS_ASKED_MAX]:
            try:
                answer = await self.calls.call(address, make(), SETTINGS_SECONDS)
                if answer.code == ResponseCode.SUCCESS:
                    return kind.decode(bytes(answer.body))
                if answer.code != absent:
                    failure = refused_by_broker(answer.code, answer.remark)
            except RemotingError as error:
                failure = error
        if failure is not None:
            raise refused_by_network(failure)
        return None
