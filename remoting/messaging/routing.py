"""The calls about where things are: QueryRoute, QueryAssignment.

Source: proxy/…/grpc/v2/route/RouteActivity.java.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import attrs
import trio

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.grpc.apache_rocketmq.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from triomq.remoting.grpc.methods import CallContext
from triomq.remoting.messaging.checks import group_name, topic_name
from triomq.remoting.messaging.cluster import Cluster, known_route
from triomq.remoting.messaging.known_clients import KnownClients
from triomq.remoting.messaging.route_answers import accepted_types, assignments, message_queues
from triomq.remoting.messaging.status_codes import status
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.server.turns import ROWS_AT_ONCE

T = TypeVar("T")


@attrs.define(eq=False)
class Routing:
    """The handlers."""

    cluster: Cluster
    clients: KnownClients

    async def query_route(
        self, request: QueryRouteRequest, call: CallContext
    ) -> QueryRouteResponse:
        """Return the queues of a topic. Raises: Refused."""
        self.clients.of_call(call)
        topic = topic_name(request.topic, system_allowed=True)
        route = await known_route(self.cluster, topic)
        accepted = accepted_types(message_type(await self.cluster.topic(topic)))
        queues = await self._made(
            route,
            partial(
                message_queues,
                request.topic,
                route,
                accepted,
                partial(self._endpoints, request.endpoints),
            ),
        )
        return QueryRouteResponse(status=status(), message_queues=queues)

    async def _made(self, route: TopicRoute, make: Callable[[], list[T]]) -> list[T]:
        """Make the rows of an answer, in a thread if they are many. Checkpoint: maybe."""
        rows = sum(max(q.read_queue_count, q.write_queue_count) for q in route.queue_datas)
        return make() if rows <= ROWS_AT_ONCE else await trio.to_thread.run_sync(make)

    async def query_assignment(
        self, request: QueryAssignmentRequest, call: CallContext
    ) -> QueryAssignmentResponse:
        """Return the queues that a push consumer polls. Raises: Refused."""
        self.clients.of_call(call)
        topic = topic_name(request.topic, system_allowed=True)
        group = await self.cluster.group(group_name(request.group))
        route = await known_route(self.cluster, topic)
        made = await self._made(
            route,
            partial(
                assignments,
                request.topic,
                route,
                partial(self._endpoints, request.endpoints),
                fifo=group is not None and group.consume_message_orderly,
            ),
        )
        return QueryAssignmentResponse(status=status(), assignments=made)

    def _endpoints(self, asked: pb.Endpoints, broker_name: str, broker_id: int) -> pb.Endpoints:
        return self.cluster.endpoints(broker_name, broker_id, asked)


def message_type(config: TopicConfig | None) -> str | None:
    """Return the attribute ``message.type`` of a topic; requests give it with a sign."""
    attributes = config.attributes if config is not None else {}
    return attributes.get("message.type") or attributes.get("+message.type")
