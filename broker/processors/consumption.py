"""Connected clients and the lag of groups.

Codes: GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204), GET_ALL_PRODUCER_INFO
(328), GET_CONSUME_STATS (208), GET_BROKER_CONSUME_STATS (317). Source:
broker/processor/AdminBrokerProcessor.java.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import trio

from triomq.broker.services.groups import Member
from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.statistics import CONSUMED
from triomq.broker.services.topics_and_groups import TopicsAndGroups
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.groups import (
    ConnectionData,
    ConsumerConnection,
    ProducerConnection,
    ProducerEntry,
    ProducerTable,
)
from triomq.remoting.protocol.bodies.offsets import BrokerConsumeStats, ConsumeOffset, ConsumeStats
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import LanguageCode, ResponseCode
from triomq.remoting.protocol.headers.admin import BrokerConsumeStatsHeader, ConsumeStatsHeader
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader, ProducerConnectionHeader
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import ROWS_AT_ONCE, Turns, encoded, in_turns

LAG_ROWS_MAX = 100_000
"""Queues in the lag of all groups: more do not fit into a frame of 16 MiB."""


@attrs.define(eq=False)
class Consumption:
    """The handlers."""

    store: MessageStore
    known: TopicsAndGroups
    broker_name: str
    broker_address: str
    pops: Pops | None = None

    async def consumer_connections(self, request: Request) -> Response:
        """Return the members of a consumer group and their subscriptions. Raises: Rejected."""
        header: ConsumerGroupHeader = request.header
        group = self.known.clients.consumers.get(header.consumer_group)
        if group is None:
            remark = f"the consumer group[{header.consumer_group}] not online"
            raise Rejected(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        body = ConsumerConnection(
            connections=await connection_list(group.members.values()),
            subscriptions=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return Response(body=await encoded(body, len(body.connections)))

    async def producer_connections(self, request: Request) -> Response:
        """Return the members of a producer group. Raises: Rejected."""
        header: ProducerConnectionHeader = request.header
        members = self.known.clients.producers.get(header.producer_group)
        if members is None:
            remark = f"the producer group[{header.producer_group}] not exist"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        connections = await connection_list(members.values())
        return Response(body=await encoded(ProducerConnection(connections), len(connections)))

    async def producers(self, request: Request) -> Response:
        """Return all producers by group, with the time (ms) of each one's last heartbeat."""
        now, now_ms = trio.current_time(), self.known.statistics.clock_ms()
        rows = [
            (group, member)
            for group, members in sorted(self.known.clients.producers.items())
            for member in members.values()
        ]
        table: dict[str, list[ProducerEntry]] = {}
        async for group, member in in_turns(rows):
            entry = ProducerEntry(
                client_id=member.client_id,
                remote_address=f"/{member.connection.peer_text}",
                language=language_name(member.language),
                version=member.version,
                last_update_timestamp=now_ms - int((now - member.last_seen) * 1000),
            )
            table.setdefault(group, []).append(entry)
        return Response(body=await encoded(ProducerTable(table), len(rows)))

    async def group_lag(self, request: Request) -> Response:
        """Return a group's lag in the named topics, or in all topics that it has offsets for."""
        header: ConsumeStatsHeader = request.header
        group = header.consumer_group
        if header.topic_list:
            topics = [topic for topic in header.topic_list.split(";") if topic]
        elif header.topic:
            topics = [header.topic]
        else:
            topics = self.known.offsets.topics_of(group)
        stats = await self._lag(group, topics, Turns(), with_pulls=True)
        return Response(body=await encoded(stats, len(stats.offset_table)))

    async def broker_lag(self, request: Request) -> Response:
        """Return the lag of every group that has settings here."""
        header: BrokerConsumeStatsHeader = request.header
        rows: list[dict[str, list[ConsumeStats]]] = []
        total = count = 0
        turns, sums = Turns(), Turns(8 * ROWS_AT_ONCE)
        async for group in in_turns(list(self.known.groups.configs), turns):
            per_topic: list[ConsumeStats] = []
            rows.append({group: per_topic})
            async for topic in in_turns(self.known.offsets.topics_of(group), turns):
                config = self.known.topics.find(topic)
                if config is None or (header.order and not config.order):
                    continue
                stats = await self._lag(group, [topic], turns, with_pulls=False)
                async for row in in_turns(stats.offset_table.values(), sums):
                    total += row.broker_offset - row.consumer_offset
                count += len(stats.offset_table)
                if count > LAG_ROWS_MAX:
                    raise Rejected(
                        ResponseCode.INVALID_PARAMETER,
                        f"the groups have offsets of more than {LAG_ROWS_MAX} queues, and no client"
                        " reads so long an answer: ask for the lag of each group (208)",
                    )
                per_topic.append(stats)
        body = BrokerConsumeStats(self.broker_address, rows, total)
        return Response(body=await encoded(body, count))

    async def _lag(
        self, group: str, topics: Iterable[str], turns: Turns, *, with_pulls: bool
    ) -> ConsumeStats:
        """Return the lag in every queue; skip topics that a connected group does not subscribe."""
        online = self.known.clients.consumers.get(group)
        table: dict[MessageQueue, ConsumeOffset] = {}
        rate = 0.0
        async for topic in in_turns(topics, turns):
            config = self.known.topics.find(topic)
            if config is None or (
                online is not None and online.subscriptions and topic not in online.subscriptions
            ):
                continue
            async for queue_id in in_turns(range(config.read_queue_count), turns):
                end = self.store.max_offset(topic, queue_id)
                consumed = max(0, self._position(group, topic, queue_id) or 0)
                # The pulled offset may be behind: no pull since the start of this broker, or an
                # offset that an operator set.
                pulled = (
                    max(consumed, self.known.offsets.pulled_offset(group, topic, queue_id))
                    if with_pulls
                    else 0
                )
                if with_pulls and self.pops is not None:
                    pulled = max(pulled, consumed + self.pops.waiting((group, topic, queue_id)))
                last = (
                    await store_time(self.store, topic, queue_id, consumed - 1)
                    if consumed > 0
                    else 0
                )
                queue = MessageQueue(topic, self.broker_name, queue_id)
                table[queue] = ConsumeOffset(end, consumed, last, pulled)
            rate += self.known.statistics.rate(CONSUMED, f"{topic}@{group}")
        return ConsumeStats(table, rate)

    def _position(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset of a queue; of POP before the disk has it."""
        if self.pops is not None:
            return self.pops.position((group, topic, queue_id))
        return self.known.offsets.committed_offset(group, topic, queue_id)


async def store_time(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """Return when a message was stored (ms), 0 if deleted. Checkpoint: maybe, to read the disk."""
    return max(0, await store.store_time_at(topic, queue_id, offset))


async def connection_list(members: Iterable[Member[Connection]]) -> list[ConnectionData]:
    """Return the members as the bodies list them. Checkpoint: maybe, if they are many."""
    return [
        ConnectionData(
            member.client_id,
            member.connection.peer_text,
            language_name(member.language),
            member.version,
        )
        async for member in in_turns(list(members))
    ]


def language_name(number: int) -> str:
    """Return the name of a client's language; OTHER for an unknown number."""
    try:
        return LanguageCode(number).name
    except ValueError:
        return LanguageCode.OTHER.name
