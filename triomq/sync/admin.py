"""A blocking ``triomq.Admin``."""

# Written by `make docs` from the signatures in client/admin/admin.py: change them instead.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from triomq import client
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
from triomq.sync.lifetime import BlockingLifetime


class Admin(BlockingLifetime[client.Admin]):
    """A blocking ``triomq.Admin``.

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

    def limit_to(self, seconds: float) -> None:
        """End all requests from now on within ``seconds``, in total."""
        self._portal.call(None, in_loop, self._target.limit_to, seconds)

    def ask(
        self,
        address: str,
        code: RequestCode,
        header: object | None = None,
        body: bytes = b"",
        *accept: int,
        timeout: float | None = None,
    ) -> Command:
        """Send any request. Raises: BrokerError unless it answers success or one of ``accept``."""
        return self._portal.call(timeout, self._target.ask, address, code, header, body, *accept)

    def cluster(self, *, timeout: float | None = None) -> ClusterTable:
        """Return clusters, broker names and addresses, from the first name server that answers."""
        return self._portal.call(timeout, self._target.cluster)

    def brokers(
        self,
        cluster: str | None = None,
        *,
        masters_only: bool = False,
        timeout: float | None = None,
    ) -> list[BrokerAddress]:
        """Return the brokers of one cluster or of all."""
        return self._portal.call(timeout, self._target.brokers, cluster, masters_only=masters_only)

    def missing_brokers(
        self, cluster: str | None = None, *, timeout: float | None = None
    ) -> list[MissingBroker] | None:
        """Return the brokers that were registered in the last day and are not any more."""
        return self._portal.call(timeout, self._target.missing_brokers, cluster)

    def forget_broker(self, name: str, *, timeout: float | None = None) -> Answers[Command]:
        """Stop counting the brokers of a name as missing, at every name server."""
        return self._portal.call(timeout, self._target.forget_broker, name)

    def broker_status(self, address: str, *, timeout: float | None = None) -> dict[str, str]:
        """Return the runtime counters of one broker; all values are texts."""
        return self._portal.call(timeout, self._target.broker_status, address)

    def statuses(
        self, brokers: Iterable[BrokerAddress], *, timeout: float | None = None
    ) -> Answers[dict[str, str]]:
        """Return the runtime counters of many brokers, by address."""
        return self._portal.call(timeout, self._target.statuses, brokers)

    def clean(
        self, what: Cleaning, addresses: Iterable[str], *, timeout: float | None = None
    ) -> Answers[Command]:
        """Make brokers delete what is not needed any more; return the answers by address."""
        return self._portal.call(timeout, self._target.clean, what, addresses)

    def topics(self, *, timeout: float | None = None) -> list[str]:
        """Return all topic names, system topics included."""
        return self._portal.call(timeout, self._target.topics)

    def route(self, topic: str, *, timeout: float | None = None) -> TopicRoute:
        """Return the brokers and queues of a topic."""
        return self._portal.call(timeout, self._target.route, topic)

    def topic_brokers(self, topic: str, *, timeout: float | None = None) -> dict[str, str]:
        """Return broker name → address of a topic's brokers: the master's, otherwise a slave's."""
        return self._portal.call(timeout, self._target.topic_brokers, topic)

    def topic_config(
        self, topic: str, address: str, *, timeout: float | None = None
    ) -> TopicConfig | None:
        """Return a topic's settings at one broker, None if the broker does not have the topic."""
        return self._portal.call(timeout, self._target.topic_config, topic, address)

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        read_queues: int | None = None,
        write_queues: int | None = None,
        cluster: str | None = None,
        attributes: str = "",
        timeout: float | None = None,
    ) -> None:
        """Create a topic on all masters (of one cluster) and wait until its route is complete."""
        self._portal.call(
            timeout,
            self._target.create_topic,
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            cluster=cluster,
            attributes=attributes,
        )

    def update_topic(
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
        timeout: float | None = None,
    ) -> Answers[TopicConfig]:
        """Create or change a topic, and wait until the name servers show the change."""
        return self._portal.call(
            timeout,
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

    def wait_route(
        self, topic: str, configs: Mapping[str, TopicConfig], *, timeout: float | None = None
    ) -> None:
        """Wait until every name server that answers shows these settings, by broker address."""
        self._portal.call(timeout, self._target.wait_route, topic, configs)

    def set_order_config(self, topic: str, *, timeout: float | None = None) -> Answers[Command]:
        """Store the brokers and queues of a strictly ordered topic at every name server."""
        return self._portal.call(timeout, self._target.set_order_config, topic)

    def delete_topic(
        self, topic: str, cluster: str | None = None, *, timeout: float | None = None
    ) -> Answers[Command]:
        """Delete a topic at all brokers of a cluster (None: of all), then at every name server."""
        return self._portal.call(timeout, self._target.delete_topic, topic, cluster)

    def topic_stats(self, topic: str, *, timeout: float | None = None) -> Answers[TopicStats]:
        """Return the first and next offsets of a topic's queues, by broker name."""
        return self._portal.call(timeout, self._target.topic_stats, topic)

    def topic_groups(self, topic: str, *, timeout: float | None = None) -> list[str]:
        """Return the consumer groups of a topic, online or not, at all its brokers that answer."""
        return self._portal.call(timeout, self._target.topic_groups, topic)

    def topic_groups_by_broker(
        self, topic: str, *, timeout: float | None = None
    ) -> Answers[list[str]]:
        """Return the groups that consume a topic or have offsets in it, by broker name."""
        return self._portal.call(timeout, self._target.topic_groups_by_broker, topic)

    def leaders(
        self, cluster: str | None = None, *, timeout: float | None = None
    ) -> dict[str, str]:
        """Return broker name → address of all brokers: the master's, otherwise a slave's."""
        return self._portal.call(timeout, self._target.leaders, cluster)

    def update_group(
        self,
        group: str,
        change: Callable[[SubscriptionGroupConfig], SubscriptionGroupConfig],
        *,
        cluster: str | None = None,
        address: str | None = None,
        timeout: float | None = None,
    ) -> Answers[SubscriptionGroupConfig]:
        """Create or change a consumer group."""
        return self._portal.call(
            timeout, self._target.update_group, group, change, cluster=cluster, address=address
        )

    def group_config(
        self, group: str, address: str, *, timeout: float | None = None
    ) -> SubscriptionGroupConfig | None:
        """Return a group's settings at one broker, None if the broker does not know the group."""
        return self._portal.call(timeout, self._target.group_config, group, address)

    def groups(self, *, timeout: float | None = None) -> Answers[list[str]]:
        """Return the names of the groups that each broker has settings for, by broker name."""
        return self._portal.call(timeout, self._target.groups)

    def consume_stats(
        self, group: str, topic: str | None = None, *, timeout: float | None = None
    ) -> Answers[ConsumeStats]:
        """Return a group's offsets per queue, by broker name."""
        return self._portal.call(timeout, self._target.consume_stats, group, topic)

    def consumer_connections(
        self, group: str, address: str | None = None, *, timeout: float | None = None
    ) -> Answers[ConsumerConnection]:
        """Return the connected members of a group, by broker address; only brokers with members."""
        return self._portal.call(timeout, self._target.consumer_connections, group, address)

    def client_queues(
        self, address: str, group: str, client_id: str, *, timeout: float | None = None
    ) -> list[MessageQueue]:
        """Ask a consumer for its queues, through a broker that it is connected to."""
        return self._portal.call(timeout, self._target.client_queues, address, group, client_id)

    def producer_connections(
        self, group: str, topic: str, *, timeout: float | None = None
    ) -> Answers[ProducerConnection]:
        """Return a group's producers that are connected to the brokers of a topic, by address."""
        return self._portal.call(timeout, self._target.producer_connections, group, topic)

    def max_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset that the next message of a queue will get."""
        return self._portal.call(timeout, self._target.max_offset, queue)

    def min_offset(self, queue: MessageQueue, *, timeout: float | None = None) -> int:
        """Return the offset of the oldest message of a queue."""
        return self._portal.call(timeout, self._target.min_offset, queue)

    def offset_by_time(
        self, queue: MessageQueue, timestamp_ms: int, *, timeout: float | None = None
    ) -> int:
        """Return the offset of the first message stored at that time or later."""
        return self._portal.call(timeout, self._target.offset_by_time, queue, timestamp_ms)

    def address_of(self, queue: MessageQueue, *, timeout: float | None = None) -> str:
        """Return the address of the broker that has a queue."""
        return self._portal.call(timeout, self._target.address_of, queue)

    def queues(
        self, topic: str, broker_name: str | None = None, *, timeout: float | None = None
    ) -> list[MessageQueue]:
        """Return the readable queues of a topic, of one broker or of all."""
        return self._portal.call(timeout, self._target.queues, topic, broker_name)

    def read(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int,
        end_offset: int | None = None,
        group: str = messages.TOOLS_GROUP,
        timeout: float | None = None,
    ) -> list[StoredMessage]:
        """Read ``count`` messages at most, from ``offset`` on, before ``end_offset``."""
        return self._portal.call(
            timeout,
            self._target.read,
            queue,
            offset,
            count=count,
            end_offset=end_offset,
            group=group,
        )

    def query(
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
        timeout: float | None = None,
    ) -> Answers[list[StoredMessage]]:
        """Find messages by key, with ``unique`` by their producer's id, with ``tagged`` by tag."""
        return self._portal.call(
            timeout,
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

    def message_trace(
        self,
        key: str,
        *,
        trace_topic: str = TRACE_TOPIC,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = messages.FAR_FUTURE_MS,
        timeout: float | None = None,
    ) -> MessageHistory:
        """Tell what happened to messages with an id or business key. Raises: TraceTopicMissing."""
        return self._portal.call(
            timeout,
            self._target.message_trace,
            key,
            trace_topic=trace_topic,
            count=count,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    def message_at(
        self,
        address: str,
        log_offset: int,
        topic: str | None = None,
        *,
        timeout: float | None = None,
    ) -> StoredMessage | None:
        """Return the message at a position of a broker's commit log, None if there is none."""
        return self._portal.call(timeout, self._target.message_at, address, log_offset, topic)
