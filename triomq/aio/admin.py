"""A ``triomq.Admin`` for asyncio."""

# Written by `make docs` from the signatures in client/admin/admin.py: change them instead.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from triomq import client
from triomq.aio.calls import AsyncioLifetime, call_in_loop
from triomq.client.admin import messages
from triomq.client.admin.admin import DEFAULT_QUEUES
from triomq.client.admin.answers import Answers
from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.admin.cleaning import Cleaning
from triomq.client.admin.missing_brokers import MissingBroker
from triomq.client.admin.traces import MessageHistory
from triomq.client.core.portal import in_loop
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.groups import (
    ConsumerConnection,
    ProducerConnection,
    SubscriptionGroupConfig,
)
from triomq.remoting.protocol.bodies.offsets import ConsumeStats, TopicStats
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.names import TRACE_TOPIC
from triomq.remoting.protocol.record import StoredMessage
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

    async def limit_to(self, seconds: float) -> None:
        """End all requests from now on within ``seconds``, in total."""
        await call_in_loop(self._portal, in_loop, self._target.limit_to, seconds)

    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: object | None = None,
        body: bytes = b"",
        *accept: int,
    ) -> Command:
        """Send any request. Raises: BrokerError unless it answers success or one of ``accept``."""
        return await call_in_loop(
            self._portal, self._target.ask, address, code, header, body, *accept
        )

    async def cluster(self) -> ClusterTable:
        """Return clusters, broker names and addresses, from the first name server that answers."""
        return await call_in_loop(self._portal, self._target.cluster)

    async def brokers(
        self, cluster: str | None = None, *, masters_only: bool = False
    ) -> list[BrokerAddress]:
        """Return the brokers of one cluster or of all."""
        return await call_in_loop(
            self._portal, self._target.brokers, cluster, masters_only=masters_only
        )

    async def missing_brokers(self, cluster: str | None = None) -> list[MissingBroker] | None:
        """Return the brokers that were registered in the last day and are not any more."""
        return await call_in_loop(self._portal, self._target.missing_brokers, cluster)

    async def forget_broker(self, name: str) -> Answers[Command]:
        """Stop counting the brokers of a name as missing, at every name server."""
        return await call_in_loop(self._portal, self._target.forget_broker, name)

    async def broker_status(self, address: str) -> dict[str, str]:
        """Return the runtime counters of one broker; all values are texts."""
        return await call_in_loop(self._portal, self._target.broker_status, address)

    async def statuses(self, brokers: Iterable[BrokerAddress]) -> Answers[dict[str, str]]:
        """Return the runtime counters of many brokers, by address."""
        return await call_in_loop(self._portal, self._target.statuses, brokers)

    async def clean(self, what: Cleaning, addresses: Iterable[str]) -> Answers[Command]:
        """Make brokers delete what is not needed any more; return the answers by address."""
        return await call_in_loop(self._portal, self._target.clean, what, addresses)

    async def topics(self) -> list[str]:
        """Return all topic names, system topics included."""
        return await call_in_loop(self._portal, self._target.topics)

    async def route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of a topic."""
        return await call_in_loop(self._portal, self._target.route, topic)

    async def topic_brokers(self, topic: str) -> dict[str, str]:
        """Return broker name → address of a topic's brokers: the master's, otherwise a slave's."""
        return await call_in_loop(self._portal, self._target.topic_brokers, topic)

    async def topic_config(self, topic: str, address: str) -> TopicConfig | None:
        """Return a topic's settings at one broker, None if the broker does not have the topic."""
        return await call_in_loop(self._portal, self._target.topic_config, topic, address)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        read_queues: int | None = None,
        write_queues: int | None = None,
        cluster: str | None = None,
        attributes: str = "",
    ) -> None:
        """Create a topic on all masters (of one cluster) and wait until its route is complete."""
        await call_in_loop(
            self._portal,
            self._target.create_topic,
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            cluster=cluster,
            attributes=attributes,
        )

    async def update_topic(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        address: str | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        sys_flag: int | None = None,
        attributes: str = "",
    ) -> Answers[TopicConfig]:
        """Create or change a topic, and wait until the name servers show the change."""
        return await call_in_loop(
            self._portal,
            self._target.update_topic,
            topic,
            cluster=cluster,
            address=address,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=perm,
            order=order,
            sys_flag=sys_flag,
            attributes=attributes,
        )

    async def wait_route(self, topic: str, configs: Mapping[str, TopicConfig]) -> None:
        """Wait until every name server that answers shows these settings, by broker address."""
        await call_in_loop(self._portal, self._target.wait_route, topic, configs)

    async def set_order_config(self, topic: str) -> Answers[Command]:
        """Store the brokers and queues of a strictly ordered topic at every name server."""
        return await call_in_loop(self._portal, self._target.set_order_config, topic)

    async def delete_topic(self, topic: str, cluster: str | None = None) -> Answers[Command]:
        """Delete a topic at all brokers of a cluster (None: of all), then at every name server."""
        return await call_in_loop(self._portal, self._target.delete_topic, topic, cluster)

    async def topic_stats(self, topic: str) -> Answers[TopicStats]:
        """Return the first and next offsets of a topic's queues, by broker name."""
        return await call_in_loop(self._portal, self._target.topic_stats, topic)

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the consumer groups of a topic, online or not, at all its brokers that answer."""
        return await call_in_loop(self._portal, self._target.topic_groups, topic)

    async def topic_groups_by_broker(self, topic: str) -> Answers[list[str]]:
        """Return the groups that consume a topic or have offsets in it, by broker name."""
        return await call_in_loop(self._portal, self._target.topic_groups_by_broker, topic)

    async def leaders(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name → address of all brokers: the master's, otherwise a slave's."""
        return await call_in_loop(self._portal, self._target.leaders, cluster)

    async def update_group(
        self,
        group: str,
        change: Callable[[SubscriptionGroupConfig], SubscriptionGroupConfig],
        *,
        cluster: str | None = None,
        address: str | None = None,
    ) -> Answers[SubscriptionGroupConfig]:
        """Create or change a consumer group."""
        return await call_in_loop(
            self._portal, self._target.update_group, group, change, cluster=cluster, address=address
        )

    async def group_config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings at one broker, None if the broker does not know the group."""
        return await call_in_loop(self._portal, self._target.group_config, group, address)

    async def groups(self) -> Answers[list[str]]:
        """Return the names of the groups that each broker has settings for, by broker name."""
        return await call_in_loop(self._portal, self._target.groups)

    async def consume_stats(self, group: str, topic: str | None = None) -> Answers[ConsumeStats]:
        """Return a group's offsets per queue, by broker name."""
        return await call_in_loop(self._portal, self._target.consume_stats, group, topic)

    async def consumer_connections(
        self, group: str, address: str | None = None
    ) -> Answers[ConsumerConnection]:
        """Return the connected members of a group, by broker address; only brokers with members."""
        return await call_in_loop(self._portal, self._target.consumer_connections, group, address)

    async def client_queues(self, address: str, group: str, client_id: str) -> list[MessageQueue]:
        """Ask a consumer for its queues, through a broker that it is connected to."""
        return await call_in_loop(
            self._portal, self._target.client_queues, address, group, client_id
        )

    async def producer_connections(self, group: str, topic: str) -> Answers[ProducerConnection]:
        """Return a group's producers that are connected to the brokers of a topic, by address."""
        return await call_in_loop(self._portal, self._target.producer_connections, group, topic)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await call_in_loop(self._portal, self._target.max_offset, queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await call_in_loop(self._portal, self._target.min_offset, queue)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at that time or later."""
        return await call_in_loop(self._portal, self._target.offset_by_time, queue, timestamp_ms)

    async def address_of(self, queue: MessageQueue) -> str:
        """Return the address of the broker that has a queue."""
        return await call_in_loop(self._portal, self._target.address_of, queue)

    async def queues(self, topic: str, broker_name: str | None = None) -> list[MessageQueue]:
        """Return the readable queues of a topic, of one broker or of all."""
        return await call_in_loop(self._portal, self._target.queues, topic, broker_name)

    async def read(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int,
        end_offset: int | None = None,
        group: str = messages.TOOLS_GROUP,
    ) -> list[StoredMessage]:
        """Read ``count`` messages at most, from ``offset`` on, before ``end_offset``."""
        return await call_in_loop(
            self._portal,
            self._target.read,
            queue,
            offset,
            count=count,
            end_offset=end_offset,
            group=group,
        )

    async def query(
        self,
        topic: str,
        key: str,
        *,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = messages.FAR_FUTURE_MS,
        unique: bool = False,
        tagged: bool = False,
        last_key: str | None = None,
    ) -> Answers[list[StoredMessage]]:
        """Find messages by key, with ``unique`` by their producer's id, with ``tagged`` by tag."""
        return await call_in_loop(
            self._portal,
            self._target.query,
            topic,
            key,
            count=count,
            begin_ms=begin_ms,
            end_ms=end_ms,
            unique=unique,
            tagged=tagged,
            last_key=last_key,
        )

    async def message_trace(
        self,
        key: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = messages.FAR_FUTURE_MS,
    ) -> MessageHistory:
        """Tell what happened to messages with an id or business key. Raises: TraceTopicMissing."""
        return await call_in_loop(
            self._portal,
            self._target.message_trace,
            key,
            trace_topic=trace_topic,
            count=count,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    async def message_at(
        self, address: str, log_offset: int, topic: str | None = None
    ) -> StoredMessage | None:
        """Return the message at a position of a broker's commit log, None if there is none."""
        return await call_in_loop(self._portal, self._target.message_at, address, log_offset, topic)
