"""QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE (402).

The broker divides the queues of a topic, those of all brokers, among the members of a group that it
knows. Source: broker/processor/QueryAssignmentProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import trio

from triomq.broker.services.groups import GroupTable
from triomq.broker.services.pop.request_modes import POP, PULL, RequestModes
from triomq.broker.services.routes import Routes
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import PERM_READ, Topics
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.assignment import (
    MessageRequestMode,
    MessageRequestModeTable,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueueAssignment,
)
from triomq.remoting.protocol.bodies.heartbeat import BROADCASTING
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.consuming.allocation import allocate_average, allocate_circle
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import ROWS_AT_ONCE

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
STRATEGIES: Mapping[str, Allocate] = {"AVG": allocate_average, "AVG_BY_CIRCLE": allocate_circle}
ANY_QUEUE = -1


@attrs.define(eq=False)
class Assignments:
    """The handlers."""

    topics: Topics
    groups: SubscriptionGroups
    clients: GroupTable[Connection]
    modes: RequestModes
    routes: Routes

    async def query(self, request: Request, body: QueryAssignmentRequest) -> Response:
        """Return the queues of a member. Raises: Rejected. Checkpoint: maybe."""
        allocate = STRATEGIES.get(body.strategy_name)
        if allocate is None:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"strategy {body.strategy_name[:40]} is not known: use AVG or AVG_BY_CIRCLE",
            )
        route = await self.routes.find(body.topic)
        if route is None:
            return _answer(None)  # the member keeps what it has
        mode = self.modes.find(body.topic, body.consumer_group)
        if body.topic.startswith(names.RETRY_PREFIX):
            mode = attrs.evolve(mode, mode=PULL)
        group = self.clients.consumers.get(body.consumer_group)
        if group is None and body.message_model != BROADCASTING:
            return _answer(None)
        members = group.client_ids if group is not None else []
        work = partial(assigned, allocate, body, mode, route, members)
        count = len(members) + sum(queues.read_queue_count for queues in route.queue_datas)
        return work() if count <= ROWS_AT_ONCE else await trio.to_thread.run_sync(work)

    async def set_mode(self, request: Request, body: MessageRequestMode) -> Response:
        """Set how a group reads a topic. Raises: Rejected. Checkpoint: maybe."""
        if body.topic.startswith(names.RETRY_PREFIX):
            raise Rejected(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self.topics.find(body.topic) is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if self.groups.find_or_create(body.consumer_group) is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
            )
        if body.mode not in (PULL, POP):
            raise Rejected(
                ResponseCode.INVALID_PARAMETER, f"mode {body.mode[:40]} is not PULL or POP"
            )
        self.modes.put(body)
        self.modes.save_soon()
        await self.modes.copied()
        return Response()

    def all_modes(self, request: Request) -> Response:
        """Return all modes that were set. Checkpoint: never."""
        if not self.modes.modes:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "No message request mode in this broker")
        return Response(body=MessageRequestModeTable(self.modes.modes).encode())


def assigned(
    allocate: Allocate,
    body: QueryAssignmentRequest,
    mode: MessageRequestMode,
    route: TopicRoute,
    client_ids: Sequence[str],
) -> Response:
    """Answer with the queues of a member. Pure: a thread divides thousands of queues."""
    queues = readable_queues(body.topic, route)
    if body.message_model == BROADCASTING:
        return _answer([QueueAssignment(message_queue=queue, mode=PULL) for queue in queues])
    members = sorted(client_ids)
    if mode.mode != POP:
        mine = allocate(body.client_id, queues, members)
    elif body.client_id not in members:
        mine = []
    elif not 0 < mode.pop_share_queue_count < len(members) - 1:
        brokers = dict.fromkeys(queue.broker_name for queue in queues)
        mine = [MessageQueue(body.topic, name, ANY_QUEUE) for name in brokers]
    else:
        share = mode.pop_share_queue_count
        mine = shared_queues(allocate, body.client_id, queues, members, share)
    return _answer([QueueAssignment(message_queue=queue, mode=mode.mode) for queue in mine])


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues of a route that can be read, in the order of all clients."""
    return sorted(
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in route.queue_datas
        if queues.perm & PERM_READ
        for queue_id in range(queues.read_queue_count)
    )


def shared_queues(
    allocate: Allocate,
    member: str,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    share: int,
) -> list[MessageQueue]:
    """Return the queues of a member, and those of the next ``share`` members.

    Source: QueryAssignmentProcessor.java#allocate4Pop.
    """
    index = members.index(member)
    if len(members) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    found: list[MessageQueue] = []
    for number in range(share + 1):
        found += allocate(members[(index + number) % len(members)], queues, members)
    return found


def _answer(assignments: list[QueueAssignment] | None) -> Response:
    return Response(body=QueryAssignmentResponse(assignments).encode())
