"""The calls about where things are: QueryRoute, QueryAssignment.

Source: proxy/…/grpc/v2/route/RouteActivity.java.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

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

R = TypeVar("R", QueryRouteResponse, QueryAssignmentResponse)


@attrs.define(eq=False)
class Routing:
    """The handlers."""

    cluster: Cluster
    clients: KnownClients

    async def query_route(
        self, request: QueryRouteRequest, call: CallContext
    ) -> QueryRouteResponse | bytes:
        """Return the queues of a topic. Raises: Refused."""
        self.clients.of_call(call)
        topic = topic_name(request.topic, system_allowed=True)
        route = await known_route(self.cluster, topic)
        accepted = accepted_types(message_type(await self.cluster.topic(topic)))
        endpoints_of = partial(self._endpoints, request.endpoints)
        make = partial(message_queues, request.topic, route, accepted, endpoints_of)
        return await _answer(route, QueryRouteResponse, "message_queues", make)

    async def query_assignment(
        self, request: QueryAssignmentRequest, call: CallContext
    ) -> QueryAssignmentResponse | bytes:
        """Return the queues that a push consumer polls. Raises: Refused."""
        self.clients.of_call(call)
        topic = topic_name(request.topic, system_allowed=True)
        group = await self.cluster.group(group_name(request.group))
        route = await known_route(self.cluster, topic)
        endpoints_of = partial(self._endpoints, request.endpoints)
        fifo = group is not None and group.consume_message_orderly
        make = partial(assignments, request.topic, route, endpoints_of, fifo=fifo)
        return await _answer(route, QueryAssignmentResponse, "assignments", make)

    def _endpoints(self, asked: pb.Endpoints, broker_name: str, broker_id: int) -> pb.Endpoints:
        return self.cluster.endpoints(broker_name, broker_id, asked)


async def _answer(
    route: TopicRoute, response: type[R], field: str, make: Callable[[], list[Any]]
) -> R | bytes:
    """Return an answer; one with many rows as bytes, made in a thread. Checkpoint: maybe.

    Each call of protobuf holds the interpreter until its end, whichever thread makes it: so the
    rows are encoded in parts, which together are the encoding of one message.
    """

    made: Any = response

    def encode() -> bytes:
        rows = make()
        parts = [made(status=status()).SerializeToString()]
        while rows:
            parts.append(made(**{field: rows[:ROWS_AT_ONCE]}).SerializeToString())
            del rows[:ROWS_AT_ONCE]
        return b"".join(parts)

    rows = sum(max(q.read_queue_count, q.write_queue_count) for q in route.queue_datas)
    if rows <= ROWS_AT_ONCE:
        answer: R = made(status=status(), **{field: make()})
        return answer
    return await trio.to_thread.run_sync(encode)


def message_type(config: TopicConfig | None) -> str | None:
    """Return the attribute ``message.type`` of a topic; requests give it with a sign."""
    attributes = config.attributes if config is not None else {}
    return attributes.get("message.type") or attributes.get("+message.type")
