"""What the service asks of the brokers behind it: the seam between a broker and mqproxy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Protocol

import attrs

from triomq.remoting.core.errors import RemotingError, RequestTimeout
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.status_codes import Refused, unknown_topic
from triomq.remoting.messaging.writable_queues import WritableQueues
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.command import Command
from triomq.remoting.server.requests import Response


class BrokerLink(Protocol):
    """The way of one client's requests to the brokers.

    ``credentials``: of its newest call, as fields of requests. ``peer``: the address that it
    belongs to. Both are for requests of the service itself; a request of a call has the call's.
    """

    credentials: Mapping[str, str]
    peer: tuple[str, int]

    async def invoke(self, broker_name: str, command: Command, timeout: float) -> Command:
        """Send a request to the master of a broker name, and wait *timeout* seconds at most.

        Raises: Refused if there is no such broker; RemotingError.
        Checkpoint: maybe.
        """

    async def register(self, data: HeartbeatData, language: int) -> None:
        """Let brokers know the client's groups and subscriptions. Raises: RemotingError."""

    async def unregister(self, client_id: str, producers: list[str], consumers: list[str]) -> None:
        """Let brokers forget a client in these groups. Raises: RemotingError."""

    def close(self) -> None:
        """End it: the client is gone. Checkpoint: never."""


TakeRequest = Callable[[Command], Coroutine[object, object, Command] | None]
"""Takes a request of a broker; None: it needs no answer, otherwise a coroutine returns it."""


class Spawn(Protocol):
    """Starts a task of the service, which outlives calls; the task must not raise.

    Raises: Refused when the service stops.
    """

    def __call__(
        self, run: Callable[..., Awaitable[None]], *arguments: object, name: str
    ) -> None: ...


class Cluster(Protocol):
    """The brokers behind the service.

    ``verifies_signatures``: whether requests with wrong credentials are refused.
    """

    @property
    def verifies_signatures(self) -> bool: ...

    def link(self, peer: tuple[str, int], take_request: TakeRequest, spawn: Spawn) -> BrokerLink:
        """Return the way for a client at this address. Checkpoint: never."""

    async def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic's queues are; None if no broker has the topic.

        Raises: RemotingError.
        Checkpoint: maybe.
        """

    async def topic(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic, None if there is none. Checkpoint: maybe."""

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the settings of a consumer group, None if there is none. Checkpoint: maybe."""

    def endpoints(self, broker_name: str, broker_id: int, asked: pb.Endpoints) -> pb.Endpoints:
        """Return where clients reach the service of a broker.

        *asked*: the addresses by which the client came. Checkpoint: never.
        """


@attrs.frozen
class DirectRequest:
    """A request of a call for the broker of this process, as an object.

    ``answered`` takes the broker's response, now or later; it must not raise.
    """

    link: BrokerLink
    peer: tuple[str, int]
    language: int
    code: int
    header: object
    body: bytes
    answered: Callable[[Response], None]


class DirectRequests(Protocol):
    """The broker of this process, for calls that are served in batches."""

    @property
    def usable(self) -> bool:
        """Whether requests may be objects: not where a hook reads them as text."""

    def sendable(self, topic: str) -> Sendable | None:
        """Return what a topic takes, None if it takes nothing. Checkpoint: never."""

    def submit(self, requests: Sequence[DirectRequest]) -> None:
        """Hand over requests of one step, in their order. Checkpoint: never."""


@attrs.frozen
class Sendable:
    """The writable queues of a topic, and the types of messages that it takes."""

    queues: WritableQueues
    accepted: Sequence[int]


async def known_route(cluster: Cluster, topic: str) -> TopicRoute:
    """Return where a topic's queues are. Raises: Refused. Checkpoint: maybe."""
    try:
        route = await cluster.route(topic)
    except RemotingError as error:
        raise refused_by_network(error) from None
    if route is None:
        raise unknown_topic(topic)
    return route


def refused_by_network(error: RemotingError) -> Refused:
    """Return the refusal of a call whose request to a broker got no answer."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, RequestTimeout):
        return Refused(pb.Code.PROXY_TIMEOUT, str(error))
    return Refused(pb.Code.INTERNAL_SERVER_ERROR, str(error))
