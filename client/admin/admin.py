"""The administration API: what ``mqadmin`` does, for programs.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=8)
        for broker in await admin.brokers():
            print(broker.name, await admin.broker_status(broker.address))

Works with TrioMQ and RocketMQ clusters. Requests go to brokers directly, and to the first name
server that answers; a request is never repeated at the same server. Methods that ask several
brokers return ``Answers``: values of those that answered, failures of the others. All errors are
``TrioMQError``s. Every method is a checkpoint and may be cancelled; whether a cancelled change took
effect is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TypeVar

import attrs
import trio

from triomq.client.admin import groups, messages, topics
from triomq.client.admin.answers import Answers, read_body, read_header
from triomq.client.admin.broker_address import BrokerAddress, registered
from triomq.client.admin.cleaning import Cleaning
from triomq.client.admin.errors import BrokerMissing, ClusterNotFound
from triomq.client.admin.missing_broker_search import MissingSearch
from triomq.client.admin.missing_brokers import BrokerLeft, MissingBroker
from triomq.client.admin.requests import AdminRequests
from triomq.client.admin.traces import MessageHistory, message_history
from triomq.client.core.errors import (
    BrokerFailed,
    GroupNotFound,
    NotRunning,
    RouteNotFound,
    TopicNotFound,
)
from triomq.client.core.lifetime import OnlyAsync
from triomq.client.core.servers import checked_access, listed_name_servers, namesrv_addresses
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.client.discovery import FETCH_SECONDS, is_address_server
from triomq.remoting.protocol.bodies.cluster import ClusterTable, KvTable
from triomq.remoting.protocol.bodies.groups import (
    ConsumerConnection,
    GroupNames,
    ProducerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from triomq.remoting.protocol.bodies.offsets import ConsumeStats, TopicStats
from triomq.remoting.protocol.bodies.route import PERM_READ, MessageQueue, TopicRoute
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicNames
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.admin import ConsumeStatsHeader
from triomq.remoting.protocol.headers.client import ConsumerRunningHeader, ProducerConnectionHeader
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    SearchOffsetHeader,
)
from triomq.remoting.protocol.headers.query import (
    INDEX_OF_TAGS,
    QueryMessageHeader,
    ViewMessageHeader,
)
from triomq.remoting.protocol.headers.registration import PutKvConfigHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import TopicHeader
from triomq.remoting.protocol.names import ORDER_TOPIC_CONFIG, TRACE_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.short_repr import short_text
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

DEFAULT_QUEUES = topics.DEFAULT_QUEUES
CLIENT_TIMEOUT_SECONDS = 15.0  # a broker waits 10 s for a client before it gives up
T = TypeVar("T")


class Admin(OnlyAsync):
    """Administration of one cluster: ``async with Admin(…) as admin``.

    ``namesrv`` is ``"host:9876;host2:9876"`` or a list; None takes the environment variable
    NAMESRV_ADDR, and an empty tuple asks servers by their addresses only. ``timeout_seconds``
    limits each single request; put ``trio.fail_after`` around a call to limit the whole call.
    ``tls`` and ``credentials`` are as in ``ClientSettings``.
    """

    namesrv_addresses: tuple[str, ...]
    """the name servers, each as ``host:port``; with an address server, its list at the start"""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_seconds: float = 5.0,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.namesrv_addresses = () if namesrv == () else namesrv_addresses(namesrv)
        self._access = checked_access(tls, credentials)
        self._timeout_seconds = timeout_seconds
        self._stack = AsyncExitStack()
        self._open_requests: AdminRequests | None = None

    def __repr__(self) -> str:
        return f"<Admin of {short_text(';'.join(self.namesrv_addresses))}>"

    async def __aenter__(self) -> Admin:
        """Open the connector; the first connection is made by the first request."""
        if self.namesrv_addresses and is_address_server(self.namesrv_addresses[0]):
            self.namesrv_addresses = await listed_name_servers(
                self.namesrv_addresses[0], min(self._timeout_seconds, FETCH_SECONDS)
            )
        connector = await self._stack.enter_async_context(
            Connector(ConnectorConfig(**self._access.options()))
        )
        self._open_requests = AdminRequests(
            connector, self.namesrv_addresses, self._timeout_seconds
        )
        self._missing = MissingSearch(self._open_requests)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self._open_requests = None
        await self._stack.__aexit__(kind, error, trace)

    @property
    def _requests(self) -> AdminRequests:
        if self._open_requests is None:
            raise NotRunning(
                "Admin is used outside of its block: write `async with Admin(…) as admin:` around"
                " the calls"
            )
        return self._open_requests

    def limit_to(self, seconds: float) -> None:
        """End all requests from now on within ``seconds``, in total."""
        self._requests.limit_to(seconds)

    # --- cluster

    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: object | None = None,
        body: bytes = b"",
        *accept: int,
    ) -> Command:
        """Send any request. Raises: BrokerError unless it answers success or one of ``accept``."""
        return await self._requests.server(address, code, header, body, accept=accept)

    async def for_each(
        self, names: Iterable[str], call: Callable[[str], Awaitable[T]]
    ) -> Answers[T]:
        """Run ``call(name)`` for many names at the same time; return the answers by name.

        The number of requests in flight is limited.
        """
        return await self._requests.fan_out({name: name for name in names}, call)

    async def cluster(self) -> ClusterTable:
        """Return clusters, broker names and addresses, from the first name server that answers."""
        answer = await self._requests.any_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return read_body(ClusterTable, answer)

    async def brokers(
        self, cluster: str | None = None, *, masters_only: bool = False
    ) -> list[BrokerAddress]:
        """Return the brokers of one cluster or of all.

        Raises: ClusterNotFound.
        """
        table = await self.cluster()
        known = table.cluster_addr_table
        if cluster is not None and cluster not in known and not await self.missing_brokers(cluster):
            raise ClusterNotFound(cluster, known)
        return registered(table, cluster, masters_only=masters_only)

    async def missing_brokers(self, cluster: str | None = None) -> list[MissingBroker] | None:
        """Return the brokers that were registered in the last day and are not any more.

        None: no name server remembers brokers; RocketMQ's do not.
        """
        return await self._missing.find(cluster)

    async def forget_broker(self, name: str) -> Answers[Command]:
        """Stop counting the brokers of a name as missing, at every name server.

        Raises: BrokerMissing if none of that name counts as missing.
        """
        await self.cluster()  # fails if no name server answers
        return await self._missing.forget(name)

    async def _masters(self, cluster: str | None, address: str | None) -> list[str]:
        """Return the given address, or those of all masters of a cluster (None: of all)."""
        if address is not None:
            return [address]
        masters = await self.brokers(cluster, masters_only=True)
        if not masters:
            await self._missing.fail_without_masters(cluster)
        return [broker.address for broker in masters]

    async def broker_status(self, address: str) -> dict[str, str]:
        """Return the runtime counters of one broker; all values are texts."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return dict((await self._requests.body(KvTable, address, code)).table)

    async def statuses(self, brokers: Iterable[BrokerAddress]) -> Answers[dict[str, str]]:
        """Return the runtime counters of many brokers, by address."""
        return await self._requests.fan_out((at.address for at in brokers), self.broker_status)

    async def clean(self, what: Cleaning, addresses: Iterable[str]) -> Answers[Command]:
        """Make brokers delete what is not needed any more; return the answers by address."""
        return await self._requests.servers(addresses, what.value)

    # --- topics

    async def topics(self) -> list[str]:
        """Return all topic names, system topics included."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = await self._requests.any_name_server(code)
        return sorted(read_body(TopicNames, answer).topic_list)

    async def route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of a topic.

        Raises: RouteNotFound if no broker has the topic.
        """
        try:
            response = await self._requests.any_name_server(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic=topic)
            )
        except TopicNotFound:
            raise RouteNotFound(topic) from None
        return read_body(TopicRoute, response)

    async def topic_brokers(self, topic: str) -> dict[str, str]:
        """Return broker name → address of a topic's brokers: the master's, otherwise a slave's."""
        return {
            data.broker_name: data.broker_addrs[min(data.broker_addrs)]
            for data in (await self.route(topic)).broker_datas
            if data.broker_addrs
        }

    async def topic_config(self, topic: str, address: str) -> TopicConfig | None:
        """Return a topic's settings at one broker, None if the broker does not have the topic."""
        return await topics.topic_config(self._requests, topic, address)

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
        """Create a topic on all masters (of one cluster) and wait until its route is complete.

        ``queues``: per master. ``read_queues`` and ``write_queues`` differ from it only while a
        topic is shrunk.

        Raises: TrioMQError if any registered master refuses or does not answer.
        """
        answers = await self.update_topic(
            topic,
            cluster=cluster,
            read_queues=read_queues or queues,
            write_queues=write_queues or queues,
            attributes=attributes,
        )
        for error in answers.failures.values():
            if not isinstance(error, BrokerLeft):
                raise error

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
        """Create or change a topic, and wait until the name servers show the change.

        It is done at one address, or at all masters of a cluster (None: of all clusters). A
        setting that is None keeps its value; a new topic gets 8 queues per broker and permission
        6. ``attributes`` is ``+key=value,-key``. The wait takes at most ``timeout_seconds``;
        brokers also register by themselves.

        Returns: the new settings by address.
        """
        settings = {
            "read_queue_count": read_queues,
            "write_queue_count": write_queues,
            "perm": perm,
            "order": order,
            "topic_sys_flag": sys_flag,
        }
        changes = {name: value for name, value in settings.items() if value is not None}
        addresses = await self._masters(cluster, address)
        answers = await self._requests.fan_out(
            addresses,
            lambda target: topics.update(self._requests, topic, target, changes, attributes),
        )
        complete = answers if address else await self._missing.masters_of(cluster, answers)
        with trio.move_on_after(self._timeout_seconds):
            await self.wait_route(topic, answers.values)
        return complete

    async def wait_route(self, topic: str, configs: Mapping[str, TopicConfig]) -> None:
        """Wait until every name server that answers shows these settings, by broker address."""
        await topics.wait_route(self._requests, topic, configs)

    async def set_order_config(self, topic: str) -> Answers[Command]:
        """Store the brokers and queues of a strictly ordered topic at every name server.

        Returns: the answers by name server.
        """
        value = ";".join(
            f"{data.broker_name}:{data.write_queue_count}"
            for data in (await self.route(topic)).queue_datas
        )
        header = PutKvConfigHeader(namespace=ORDER_TOPIC_CONFIG, key=topic, value=value)
        return await self._requests.servers(
            self.namesrv_addresses, RequestCode.PUT_KV_CONFIG, header
        )

    async def delete_topic(self, topic: str, cluster: str | None = None) -> Answers[Command]:
        """Delete a topic at all brokers of a cluster (None: of all), then at every name server.

        Queues and offsets are deleted; messages stay in the commit log until retention deletes
        them.

        Returns: the answers by address.
        """
        brokers = [broker.address for broker in await self.brokers(cluster)]
        answers = await topics.delete(self._requests, topic, brokers, cluster)
        return await self._missing.masters_of(cluster, answers)

    async def topic_stats(self, topic: str) -> Answers[TopicStats]:
        """Return the first and next offsets of a topic's queues, by broker name."""
        code, header = RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=topic)
        return await self._at(
            await self.topic_brokers(topic),
            lambda address: self._requests.body(TopicStats, address, code, header),
        )

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the consumer groups of a topic, online or not, at all its brokers that answer."""
        answers = (await self.topic_groups_by_broker(topic)).some()
        return sorted({group for groups in answers.values() for group in groups})

    async def topic_groups_by_broker(self, topic: str) -> Answers[list[str]]:
        """Return the groups that consume a topic or have offsets in it, by broker name."""
        code, header = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic=topic)

        async def names(address: str) -> list[str]:
            return (await self._requests.body(GroupNames, address, code, header)).group_list

        return await self._at(await self.topic_brokers(topic), names)

    # --- groups

    async def leaders(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name → address of all brokers: the master's, otherwise a slave's."""
        first: dict[str, str] = {}
        for broker in await self.brokers(cluster):  # sorted by id within a name
            first.setdefault(broker.name, broker.address)
        return first

    async def update_group(
        self,
        group: str,
        change: Callable[[SubscriptionGroupConfig], SubscriptionGroupConfig],
        *,
        cluster: str | None = None,
        address: str | None = None,
    ) -> Answers[SubscriptionGroupConfig]:
        """Create or change a consumer group.

        It is done at one address, or at all masters of a cluster (None: of all clusters).
        ``change`` gets the present settings, or the defaults of a new group, and returns the new
        settings (``attrs.evolve``). Attributes are sent as changes: ``change`` gets none, and
        returns for instance ``{"+key": "value", "-other": ""}``.

        Returns: the new settings by address.
        """

        async def update(target: str) -> SubscriptionGroupConfig:
            old = await self.group_config(group, target)
            old = old or SubscriptionGroupConfig(group_name=group)
            new = change(attrs.evolve(old, attributes={}))
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._requests.server(target, code, body=new.encode())
            return new

        answers = await self._requests.fan_out(await self._masters(cluster, address), update)
        return answers if address else await self._missing.masters_of(cluster, answers)

    async def group_config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings at one broker, None if the broker does not know the group."""
        return await groups.group_config(self._requests, group, address)

    async def groups(self) -> Answers[list[str]]:
        """Return the names of the groups that each broker has settings for, by broker name."""

        async def names(address: str) -> list[str]:
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            table = await self._requests.body(SubscriptionGroupTable, address, code)
            return sorted(table.subscription_group_table)

        return await self._at(await self.leaders(), names)

    async def consume_stats(self, group: str, topic: str | None = None) -> Answers[ConsumeStats]:
        """Return a group's offsets per queue, by broker name.

        A broker that does not know group or topic has an empty table.
        """
        code, header = RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(group, topic)

        async def stats(address: str) -> ConsumeStats:
            try:
                return await self._requests.body(ConsumeStats, address, code, header)
            except (GroupNotFound, TopicNotFound):
                return ConsumeStats()

        return await self._at(await self.leaders(), stats)

    async def _at(self, brokers: dict[str, str], ask: Callable[[str], Awaitable[T]]) -> Answers[T]:
        """Run ``ask(address)`` for each broker; one that left is a failure."""
        answers = await self._requests.fan_out(brokers, ask)
        return await self._missing.names_beside(brokers, answers)

    async def consumer_connections(
        self, group: str, address: str | None = None
    ) -> Answers[ConsumerConnection]:
        """Return the connected members of a group, by broker address; only brokers with members.

        Raises: GroupOffline if no broker has a member.
        """
        addresses = (
            [broker.address for broker in await self.brokers()] if address is None else [address]
        )
        return await groups.consumer_connections(self._requests, group, addresses)

    async def client_queues(self, address: str, group: str, client_id: str) -> list[MessageQueue]:
        """Ask a consumer for its queues, through a broker that it is connected to."""
        header = ConsumerRunningHeader(consumer_group=group, client_id=client_id)
        code, seconds = RequestCode.GET_CONSUMER_RUNNING_INFO, CLIENT_TIMEOUT_SECONDS
        running = await self._requests.body(
            ConsumerRunning, address, code, header, timeout_seconds=seconds
        )
        return sorted(running.queues)

    async def producer_connections(self, group: str, topic: str) -> Answers[ProducerConnection]:
        """Return a group's producers that are connected to the brokers of a topic, by address."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        header = ProducerConnectionHeader(producer_group=group)
        return await self._requests.fan_out(
            (await self.topic_brokers(topic)).values(),
            lambda address: self._requests.body(ProducerConnection, address, code, header),
        )

    # --- offsets and messages

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        header = GetMaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        header = GetMinOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at that time or later."""
        header = SearchOffsetHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: object) -> int:
        response = await self._requests.server(await self.address_of(queue), code, header)
        return read_header(OffsetResponseHeader, response).offset

    async def address_of(self, queue: MessageQueue) -> str:
        """Return the address of the broker that has a queue.

        Raises: BrokerMissing if that broker does not have the topic.
        """
        brokers = await self.topic_brokers(queue.topic)
        if queue.broker_name not in brokers:
            raise BrokerMissing(queue.broker_name, brokers, f"with topic {queue.topic!r}")
        return brokers[queue.broker_name]

    async def queues(self, topic: str, broker_name: str | None = None) -> list[MessageQueue]:
        """Return the readable queues of a topic, of one broker or of all.

        Raises: BrokerMissing if that broker does not have the topic.
        """
        route = await self.route(topic)
        if broker_name is not None and broker_name not in (
            names := [data.broker_name for data in route.queue_datas]
        ):
            raise BrokerMissing(broker_name, names, f"with topic {topic!r}")
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & PERM_READ and broker_name in (None, data.broker_name)
            for queue_id in range(data.read_queue_count)
        )

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
        address = await self.address_of(queue)
        return await messages.read_messages(
            self._requests, address, queue, offset, count=count, end_offset=end_offset, group=group
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
        """Find messages by key, with ``unique`` by their producer's id, with ``tagged`` by tag.

        ``last_key``: where to go on; only Java's index in RocksDB reads it.

        Returns: the messages by broker name, newest first.
        """
        kind = INDEX_OF_TAGS if tagged else None
        header = QueryMessageHeader(topic, key, count, begin_ms, end_ms, kind, last_key, unique)
        return await self._requests.fan_out(
            await self.topic_brokers(topic),
            lambda address: messages.query(self._requests, address, header),
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
        """Tell what happened to messages with an id or business key. Raises: TraceTopicMissing.

        ``count``: maximum number of trace messages of each broker, stored between the two times.
        """
        found = self.query(trace_topic, key, count=count, begin_ms=begin_ms, end_ms=end_ms)
        return await message_history(key, trace_topic, found)

    async def message_at(
        self, address: str, log_offset: int, topic: str | None = None
    ) -> StoredMessage | None:
        """Return the message at a position of a broker's commit log, None if there is none."""
        header = ViewMessageHeader(offset=log_offset, topic=topic)
        try:
            response = await self._requests.server(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except BrokerFailed:
            return None  # the broker's answer when no message begins there
        return next(iter(messages.records(response)), None)
