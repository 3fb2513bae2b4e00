"""This broker as the cluster behind its own gRPC endpoint: Java's local mode.

Each client has a connection to this broker's server that needs no socket. Routes name this broker
only: a client of several brokers reads the routes of each. Source:
proxy/…/service/route/LocalTopicRouteService.java, service/message/LocalMessageService.java.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence

import attrs

from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import Topics
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.cluster import DirectRequest, Sendable, Spawn, TakeRequest
from triomq.remoting.messaging.known_clients import CALL_CREDENTIALS, CALL_PEER
from triomq.remoting.messaging.route_answers import accepted_types, endpoints
from triomq.remoting.messaging.routing import message_type
from triomq.remoting.messaging.service import answer_to_broker
from triomq.remoting.messaging.status_codes import Refused, refused_by_broker
from triomq.remoting.messaging.writable_queues import WritableQueues
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.route import (
    MASTER_ID,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
)
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.client import UnregisterClientHeader
from triomq.remoting.server.access_check import AccessCheck
from triomq.remoting.server.local_connection import LocalConnection
from triomq.remoting.server.server import Server

HEARTBEAT_SECONDS = 3.0
SENDABLE_KEPT = 4096
"""topics"""
CONNECTIONS_KEPT = 4
"""of one client, beyond those with requests. Idle ones end by themselves, two minutes later."""


@attrs.define(eq=False)
class LocalLink:
    """A client's connections to this broker: one for each address that its calls come from.

    Usually that is one. The server sees each request with the address of its call, since hooks and
    logs read it; what the service asks by itself comes from ``peer``. A connection that was closed
    as idle is made anew.
    """

    server: Server
    peer: tuple[str, int]
    take_request: TakeRequest
    spawn: Spawn
    credentials: Mapping[str, str] = attrs.field(factory=dict, init=False)
    _connections: dict[tuple[str, int], LocalConnection] = attrs.field(factory=dict, init=False)
    _registered: LocalConnection | None = attrs.field(default=None, init=False)
    """The one that the broker knows as a member of the client's groups."""

    async def invoke(self, broker_name: str, command: Command, timeout: float) -> Command:
        """Send a request to this broker, the only one there is. Raises: RemotingError."""
        return await self._open().invoke(self._signed(command), timeout)

    async def register(self, data: HeartbeatData, language: int) -> None:
        """Note the client's groups. Raises: RemotingError."""
        command = new_request(RequestCode.HEART_BEAT, body=data.encode())
        command.language = language
        connection = self._open()
        answer = await connection.invoke(self._signed(command), HEARTBEAT_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        before, self._registered = self._registered, connection
        if before is not None and before is not connection and not before.closed:
            producers = [producer.group for producer in data.producers]
            consumers = [consumer.group for consumer in data.consumers]
            await self._leave(before, data.client_id, producers, consumers)

    async def unregister(self, client_id: str, producers: list[str], consumers: list[str]) -> None:
        """Forget the client in these groups. Raises: RemotingError."""
        connection = self._registered
        if connection is None or connection.closed:
            connection = self._open()
        await self._leave(connection, client_id, producers, consumers)

    async def _leave(
        self,
        connection: LocalConnection,
        client_id: str,
        producers: list[str],
        consumers: list[str],
    ) -> None:
        for header in (
            *(UnregisterClientHeader(client_id, producer_group=group) for group in producers),
            *(UnregisterClientHeader(client_id, consumer_group=group) for group in consumers),
        ):
            command = new_request(RequestCode.UNREGISTER_CLIENT, header)
            answer = await connection.invoke(self._signed(command), HEARTBEAT_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                raise refused_by_broker(answer.code, answer.remark)

    def close(self) -> None:
        """Close the connections. Checkpoint: never."""
        for connection in self._connections.values():
            connection.close("the client is gone")
        self._connections.clear()

    def _signed(self, command: Command) -> Command:
        """Add the client's credentials: hooks of the server may verify them."""
        credentials = CALL_CREDENTIALS.get(self.credentials)
        if credentials:
            command.ext = {**(command.ext or {}), **credentials}
        return command

    def _open(self) -> LocalConnection:
        """Return the connection of the address of this task's call."""
        return self.connection(CALL_PEER.get(self.peer))

    def connection(self, peer: tuple[str, int]) -> LocalConnection:
        """Return the connection for calls from an address. Checkpoint: never."""
        found = self._connections.get(peer)
        if found is None or found.closed:

            def requested(command: Command) -> None:
                self._requested(opened, command)

            if len(self._connections) >= CONNECTIONS_KEPT:
                self._close_unused()
            opened = found = self._connections[peer] = self.server.open_local(peer, requested)
        return found

    def _close_unused(self) -> None:
        """Close the connections without requests; those with some are bounded by calls."""
        for peer, connection in list(self._connections.items()):
            if connection is not self._registered and not connection.pending:
                connection.close("the client calls from other addresses")
                del self._connections[peer]

    def _requested(self, connection: LocalConnection, command: Command) -> None:
        """Pass a request of the broker to the client; called in the stack of a handler."""
        answering = self.take_request(command)
        if answering is None:
            return
        try:
            self.spawn(self._answer, connection, command, answering, name="answer-broker")
        except Refused:  # the service stops, and its connections are about to close
            answering.close()

    async def _answer(
        self,
        connection: LocalConnection,
        command: Command,
        answering: Coroutine[object, object, Command],
    ) -> None:
        await connection.answer(await answer_to_broker(command, answering))


@attrs.define(eq=False)
class LocalCluster:
    """The cluster. ``address``: this broker's for clients of the remoting protocol.

    ``endpoint``: host and port of the gRPC endpoint for clients.
    """

    server: Server
    topics: Topics
    groups: SubscriptionGroups
    cluster_name: str
    broker_name: str
    address: str
    endpoint: tuple[str, int]
    _sendable: dict[str, Sendable] = attrs.field(factory=dict, init=False)
    """of topics as they were at ``_generation``"""
    _generation: int = attrs.field(default=-1, init=False)

    @property
    def verifies_signatures(self) -> bool:
        """Whether hooks refuse strangers; those of this project verify signatures."""
        return self.server.config.checks_callers

    def link(self, peer: tuple[str, int], take_request: TakeRequest, spawn: Spawn) -> LocalLink:
        """Return the way of a client. Checkpoint: never."""
        return LocalLink(self.server, peer, take_request, spawn)

    async def route(self, topic: str) -> TopicRoute | None:
        """Return this broker's queues of a topic."""
        config = self.topics.find(topic)
        if config is None:
            return None
        queues = QueueData(
            self.broker_name,
            config.read_queue_count,
            config.write_queue_count,
            config.perm,
            config.topic_sys_flag,
        )
        broker = BrokerData(self.cluster_name, self.broker_name, {MASTER_ID: self.address})
        return TopicRoute([queues], [broker])

    async def topic(self, topic: str) -> TopicConfig | None:
        return self.topics.find(topic)

    # Requests as objects

    @property
    def usable(self) -> bool:
        """Whether no hook reads local requests; access is checked at the call."""
        return all(isinstance(hook, AccessCheck) for hook in self.server.config.request_hooks)

    def sendable(self, topic: str) -> Sendable | None:
        """Return what a topic takes, None if it takes nothing. Checkpoint: never."""
        if self._generation != self.topics.generation:
            self._generation = self.topics.generation
            self._sendable.clear()
        found = self._sendable.get(topic)
        if found is not None:
            return found
        config = self.topics.find(topic)
        if config is None or not config.perm & PERM_WRITE or config.write_queue_count <= 0:
            return None
        if len(self._sendable) >= SENDABLE_KEPT:
            self._sendable.clear()
        queues = WritableQueues([(self.broker_name, config.write_queue_count)])
        found = self._sendable[topic] = Sendable(queues, accepted_types(message_type(config)))
        return found

    def submit(self, requests: Sequence[DirectRequest]) -> None:
        """Hand the requests of one step to the handlers. Checkpoint: never."""
        made = []
        for request in requests:
            assert isinstance(request.link, LocalLink)
            connection = request.link.connection(request.peer)
            made.append(
                connection.request(
                    request.code, request.header, request.body, request.language, request.answered
                )
            )
        if made:
            connection.codec.submit(made)

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        return self.groups.find(group)

    def endpoints(self, broker_name: str, broker_id: int, asked: pb.Endpoints) -> pb.Endpoints:
        """Return this broker's endpoint."""
        return endpoints(*self.endpoint)
