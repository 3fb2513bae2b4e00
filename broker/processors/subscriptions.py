"""Requests about the settings of consumer groups, which ``services/subscriptions.py`` keeps.

Codes: UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225),
GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), GET_SUBSCRIPTIONGROUP_CONFIG (352), DELETE_SUBSCRIPTIONGROUP
(207), UPDATE_AND_GET_GROUP_FORBIDDEN (353). Source: broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable

import attrs

from triomq.broker.processors.topics import TOPICS_AT_ONCE
from triomq.broker.services.topics_and_groups import TopicsAndGroups
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from triomq.remoting.protocol.bodies.route import QUEUES_MAX
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.topic import (
    AllGroupsHeader,
    AllGroupsResponseHeader,
    DeleteGroupHeader,
    GroupForbiddenHeader,
    GroupHeader,
)
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import Turns, encoded, in_turns


@attrs.define(eq=False)
class GroupRequests:
    """The handlers."""

    known: TopicsAndGroups

    def put(self, request: Request, config: SubscriptionGroupConfig) -> Awaitable[Response]:
        self._put(config)
        return self._settled()

    async def put_list(self, request: Request, body: SubscriptionGroupList) -> Response:
        """Create or change groups. If one is refused, the groups before it keep their change."""
        async for config in in_turns(body.group_config_list, Turns(TOPICS_AT_ONCE)):
            self._put(config)
        return await self._settled()

    def _put(self, config: SubscriptionGroupConfig) -> None:
        complaint = names.group_complaint(config.group_name)
        if complaint is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, complaint)
        if config.retry_queue_count > QUEUES_MAX:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"{config.retry_queue_count} retry queues are more than {QUEUES_MAX}, the most that"
                " a topic has on one broker: ask for fewer",
            )
        try:
            self.known.groups.put(config)
        except ValueError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
        # Java creates the retry topic at the first heartbeat. Its tools find a group's brokers by
        # the route of that topic, so here it exists from the beginning.
        if config.retry_queue_count > 0:
            self.known.topics.ensure(names.retry_topic(config.group_name), config.retry_queue_count)

    def forbid(self, request: Request) -> Response | Awaitable[Response]:
        """Allow or forbid a group to read a topic; without ``readable`` only return the state."""
        header: GroupForbiddenHeader = request.header
        if header.readable is not None:
            self.known.groups.allow_reading(header.group, header.topic, header.readable)
        body = GroupForbidden(
            header.group, header.topic, self.known.groups.may_read(header.group, header.topic)
        ).encode()
        return self._settled(Response(body=body))

    def delete(self, request: Request) -> Awaitable[Response]:
        header: DeleteGroupHeader = request.header
        self.known.groups.delete(header.group)
        self.known.statistics.forget_group(header.group)
        self.known.topics.generation += (
            1  # handlers keep items of groups as long as no topic changes
        )
        if header.clean_offset or header.remove_offset:
            self.known.offsets.forget_group(header.group)
            return self._forgotten()
        return self._settled()

    async def _forgotten(self) -> Response:
        """Wait for the offsets, too: after a kill they would count in a new group of this name."""
        self.known.offsets.save_soon()
        await self.known.offsets.settled()
        return await self._settled()

    async def _settled(self, response: Response | None = None) -> Response:
        await self.known.groups.settled()
        return response or Response()

    def describe(self, request: Request) -> Response:
        header: GroupHeader = request.header
        config = self.known.groups.find_or_create(header.group)
        if config is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return Response(body=config.encode())

    async def all(self, request: Request) -> Response:
        """Return all groups, with the total only for clients that request pages."""
        header: AllGroupsHeader = request.header
        paged = (header.first, header.data_version, header.count_max) != (None, None, None)
        table = SubscriptionGroupTable(
            dict(self.known.groups.configs),
            self.known.groups.version.current,
            dict(self.known.groups.forbidden),
        )
        total = len(self.known.groups.configs) if paged else None
        body = await encoded(table, len(table.subscription_group_table))
        return Response(header=AllGroupsResponseHeader(total), body=body)
