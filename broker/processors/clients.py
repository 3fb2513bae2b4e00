"""Clients register, stay alive and leave.

Codes: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG
(46). Source: broker/processor/ClientManageProcessor.java, ConsumerManageProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence

import attrs
import trio

from triomq.broker.filters.tokens import FilterInvalid
from triomq.broker.services.filters import ConsumerFilters, compile_typed, is_filter
from triomq.broker.services.groups import ClientGroups, Member
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.subscriptions import SubscriptionGroups
from triomq.broker.services.topics import UNIT_SUBSCRIPTION_FLAG, Topics
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import ConsumerIds
from triomq.remoting.protocol.bodies.heartbeat import CheckClientBody, ConsumerData, HeartbeatData
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.client import (
    ConsumerGroupHeader,
    HeartbeatResponseHeader,
    UnregisterClientHeader,
)
from triomq.remoting.protocol.limits import LimitReached
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import ROWS_AT_ONCE, encoded

logger = logging.getLogger(__name__)
GROUPS_AT_ONCE = 64
"""Of a heartbeat: a few milliseconds, if the groups are new."""


@attrs.define(eq=False)
class Clients:
    """The four handlers."""

    clients: ClientGroups[Connection]
    groups: SubscriptionGroups
    topics: Topics
    filters: ConsumerFilters
    live: LiveSettings

    def heartbeat(self, request: Request, data: HeartbeatData) -> Response | Awaitable[Response]:
        """Record that a client is alive in its groups. Raises: LimitReached.

        Skips groups that may not be created, as Java does.
        """
        now = trio.current_time()
        producers = [
            producer.group
            for producer in data.producers
            if names.group_complaint(producer.group) is None
        ]
        self.clients.table.require_room(request.connection, data.consumers, producers)
        for group in producers:
            self.clients.table.producer_heartbeat(self._member(request, data.client_id, now), group)
        if len(data.consumers) > GROUPS_AT_ONCE:
            return self._consumers_in_turns(request, data, now)
        changed = self._consumers(request, data, data.consumers, now)
        return Response(header=HeartbeatResponseHeader(True, changed))

    def _consumers(
        self, request: Request, data: HeartbeatData, consumers: Sequence[ConsumerData], now: float
    ) -> bool:
        """Record some groups; return whether to request the subscriptions again.

        Raises: LimitReached. Checkpoint: never.
        """
        fingerprint_changed = data.fingerprint == 0
        full: LimitReached | None = None
        for consumer in consumers:
            try:
                outcome = self._consumer(request, data, consumer, now)
            except LimitReached as error:
                full = error  # raised at the end: the client's other groups stay alive
                continue
            fingerprint_changed = fingerprint_changed or outcome
        if full is not None:
            raise full
        return fingerprint_changed

    async def _consumers_in_turns(
        self, request: Request, data: HeartbeatData, now: float
    ) -> Response:
        """Record many groups. Raises: Rejected, LimitReached."""
        changed, full = False, None
        for first in range(0, len(data.consumers), GROUPS_AT_ONCE):
            if request.connection.closed:  # its groups were left already; new ones would stay
                raise Rejected(ResponseCode.SYSTEM_ERROR, "the connection is closed")
            some = data.consumers[first : first + GROUPS_AT_ONCE]
            try:
                changed = self._consumers(request, data, some, now) or changed
            except LimitReached as error:
                full = error
            await trio.lowlevel.checkpoint()
        if full is not None:
            raise full
        return Response(header=HeartbeatResponseHeader(True, changed))

    def _consumer(
        self, request: Request, data: HeartbeatData, consumer: ConsumerData, now: float
    ) -> bool:
        """Record one group of a heartbeat; return whether to request the subscriptions again."""
        config = self.groups.find_or_create(consumer.group)
        if config is None:
            return False
        ordered = any(
            (topic := self.topics.find(subscription.topic)) is not None and topic.order
            for subscription in consumer.subscriptions
        )
        flag = UNIT_SUBSCRIPTION_FLAG if consumer.unit_mode else 0
        if config.retry_queue_count > 0:
            self.topics.ensure(
                names.retry_topic(consumer.group),
                config.retry_queue_count,
                order=ordered,
                sys_flag=flag,
            )
        outcome = self.clients.table.consumer_heartbeat(
            self._member(request, data.client_id, now),
            consumer,
            fingerprint=data.fingerprint,
            without_subscriptions=data.without_subscriptions,
        )
        if not data.without_subscriptions and (self.live.property_filter or len(self.filters)):
            group = self.clients.table.consumers[consumer.group]
            self.filters.register(consumer.group, group.subscriptions.values())
        if outcome.agreement_changed:
            self._report_agreement(consumer.group)
        if outcome.notice_due:
            self.clients.announce_change([consumer.group])
        return outcome.fingerprint_changed

    def _report_agreement(self, name: str) -> None:
        mismatch = self.clients.table.consumers[name].mismatch
        if mismatch is None:
            logger.info("consumer group %s: all members have the same subscriptions again", name)
            return
        logger.warning(
            "consumer group %s: its members have different subscriptions, so some messages are"
            " skipped, and some queues belong to members that do not subscribe their topic (%s);"
            " give all members of a group the same subscriptions, or use several groups",
            name,
            mismatch,
        )

    def _member(self, request: Request, client_id: str, now: float) -> Member[Connection]:
        return Member(
            *(request.connection, client_id, request.language, request.version, now),
            user=request.user,
        )

    def unregister(self, request: Request) -> Response:
        """Remove a client from its groups, and tell the other members."""
        header: UnregisterClientHeader = request.header
        changed = self.clients.table.leave(
            request.connection,
            consumer_group=header.consumer_group,
            producer_group=header.producer_group,
        )
        self.clients.announce_change(changed)
        return Response(ext={})

    def consumer_list(self, request: Request) -> Response | Awaitable[Response]:
        """Return the client ids of a group's members. Raises: Rejected."""
        header: ConsumerGroupHeader = request.header
        group = self.clients.table.consumers.get(header.consumer_group)
        if group is None:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        if len(group.members) > ROWS_AT_ONCE:
            return self._long_list(group.client_ids)
        return Response(body=ConsumerIds(group.client_ids).encode(), ext={})

    async def _long_list(self, client_ids: list[str]) -> Response:
        return Response(body=await encoded(ConsumerIds(client_ids), len(client_ids)), ext={})

    def check(self, request: Request, body: CheckClientBody) -> Response:
        """Check whether this broker can filter by an expression. Raises: Rejected."""
        wanted = body.subscription
        if is_filter(wanted.expression_type):
            if not self.live.property_filter:
                remark = (
                    "The broker does not support consumer to filter message by"
                    f" {wanted.expression_type}"
                )
                raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
            try:
                compile_typed(wanted.expression_type, wanted.sub_string)
            except FilterInvalid as error:
                raise Rejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        return Response()


def notify_members_changed(connection: Connection, group: str) -> None:
    """Tell a member that its group has changed and the queues must be divided again.

    The request is one-way: it is lost if the connection is.
    """
    if connection.local:
        return
    header = ConsumerGroupHeader(group)
    connection.oneway(new_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True))
