"""A ``triomq.Admin`` for asyncio."""

# Written by `make docs` from the signatures in client/admin/admin.py: change them instead.

from __future__ import annotations

from collections.abc import Sequence

from triomq import client
from triomq.aio.calls import AsyncioLifetime, awaited, called
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls


class Admin(AsyncioLifetime[client.Admin]):
    """A ``triomq.Admin`` for asyncio.

    Methods have the names and parameters of ``triomq.Admin``; see there.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_seconds: float = 5.0,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(
            client.Admin(namesrv, timeout_seconds=timeout_seconds, tls=tls, credentials=credentials)
        )

    @property
    def namesrv_addresses(self) -> tuple[str, ...]:
        """the name servers, each as ``host:port``; with an address server, its list at the start"""
        return self._target.namesrv_addresses

    limit_to = called(client.Admin.limit_to)
    ask = awaited(client.Admin.ask)
    cluster = awaited(client.Admin.cluster)
    brokers = awaited(client.Admin.brokers)
    missing_brokers = awaited(client.Admin.missing_brokers)
    forget_broker = awaited(client.Admin.forget_broker)
    broker_status = awaited(client.Admin.broker_status)
    statuses = awaited(client.Admin.statuses)
    clean = awaited(client.Admin.clean)
    topics = awaited(client.Admin.topics)
    route = awaited(client.Admin.route)
    topic_brokers = awaited(client.Admin.topic_brokers)
    topic_config = awaited(client.Admin.topic_config)
    create_topic = awaited(client.Admin.create_topic)
    update_topic = awaited(client.Admin.update_topic)
    wait_route = awaited(client.Admin.wait_route)
    set_order_config = awaited(client.Admin.set_order_config)
    delete_topic = awaited(client.Admin.delete_topic)
    topic_stats = awaited(client.Admin.topic_stats)
    topic_groups = awaited(client.Admin.topic_groups)
    topic_groups_by_broker = awaited(client.Admin.topic_groups_by_broker)
    leaders = awaited(client.Admin.leaders)
    update_group = awaited(client.Admin.update_group)
    group_config = awaited(client.Admin.group_config)
    groups = awaited(client.Admin.groups)
    consume_stats = awaited(client.Admin.consume_stats)
    consumer_connections = awaited(client.Admin.consumer_connections)
    client_queues = awaited(client.Admin.client_queues)
    producer_connections = awaited(client.Admin.producer_connections)
    max_offset = awaited(client.Admin.max_offset)
    min_offset = awaited(client.Admin.min_offset)
    offset_by_time = awaited(client.Admin.offset_by_time)
    address_of = awaited(client.Admin.address_of)
    queues = awaited(client.Admin.queues)
    read = awaited(client.Admin.read)
    query = awaited(client.Admin.query)
    message_trace = awaited(client.Admin.message_trace)
    message_at = awaited(client.Admin.message_at)
