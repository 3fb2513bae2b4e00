"""The administration API: what `mqadmin` does, for programs.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=8)
        for broker in await admin.brokers():
            print(broker.name, await admin.broker_status(broker.address))

Works with TrioMQ and RocketMQ clusters.  Questions go to the first name server that answers and to brokers directly; nothing is repeated at
the same server.  Methods that ask several brokers return `Answers`: values of those that answered, failures of the others.  All errors are
`TrioMQError`s.  Every method is a checkpoint and may be cancelled; whether a cancelled change took effect is then unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, TypeVar

import attrs
import trio

from triomq.client.admin import configs, messages
from triomq.client.admin.calls import Answers, Calls, read_body, read_header
from triomq.client.admin.cleaning import Cleaning
from triomq.client.admin.errors import BrokerNotFound, ClusterNotFound
from triomq.client.config import checked_access, namesrv_addresses
from triomq.client.errors import (
    GroupNotFound,
    GroupOffline,
    NotRunning,
    RouteNotFound,
    TopicNotFound,
    TrioMQError,
)
from triomq.client.session import listed_name_servers
from triomq.remoting.client.config import ConnectorConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.discovery import is_address_server
from triomq.remoting.protocol.bodies.cluster import ClusterTable, KvTable
from triomq.remoting.protocol.bodies.groups import (
    ConsumerConnection,
    GroupNames,
    ProducerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from triomq.remoting.protocol.bodies.offsets import ConsumeStats, TopicStats
from triomq.remoting.protocol.bodies.route import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    MessageQueue,
    QueueData,
    TopicRoute,
)
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicNames
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.admin import ConsumeStatsHeader
from triomq.remoting.protocol.headers.client import (
    ConsumerConnectionHeader,
    ConsumerRunningHeader,
    ProducerConnectionHeader,
)
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    SearchOffsetHeader,
)
from triomq.remoting.protocol.headers.route import GetRouteHeader, KvConfigHeader, PutKvConfigHeader
from triomq.remoting.protocol.headers.topic import CreateTopicHeader, DeleteTopicHeader, TopicHeader
from triomq.remoting.protocol.names import DEFAULT_TOPIC
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.tls.client import Tls

DEFAULT_QUEUES = 8
DEFAULT_PERM = PERM_READ | PERM_WRITE
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
ROUTE_POLL_SECONDS = 0.01
CLIENT_TIMEOUT_SECONDS = 15.0
"""a broker waits 10 s for a client before it gives up"""
T = TypeVar("T")


@attrs.frozen(order=True)
class BrokerAddress:
    """One broker process: `id` 0 is the master of its name."""

    cluster: str
    name: str
    id: int
    address: str


class Admin:
    """Administration of one cluster; use it as `async with Admin(…) as admin`.

    `namesrv` is `"host:9876;host2:9876"` or a list; None takes the environment variable NAMESRV_ADDR.  `timeout_seconds` is for each
    single request; put a `trio.fail_after` around a call to limit the whole.  `tls` and `credentials` are as in `ClientSettings`.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_seconds: float = 5.0,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.namesrv_addresses = namesrv_addresses(namesrv)
        self._access = checked_access(tls, credentials)
        self._timeout_seconds = timeout_seconds
        self._stack = AsyncExitStack()
        self._open_calls: Calls | None = None

    async def __aenter__(self) -> Admin:
        """Open the connector; the first connection is made by the first request."""
        if is_address_server(self.namesrv_addresses[0]):
            self.namesrv_addresses = await listed_name_servers(self.namesrv_addresses[0])
        connector = await self._stack.enter_async_context(Connector(ConnectorConfig(**self._access.options())))
        self._open_calls = Calls(connector, self.namesrv_addresses, self._timeout_seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self._open_calls = None
        await self._stack.__aexit__(kind, error, trace)

    @property
    def _calls(self) -> Calls:
        if self._open_calls is None:
            raise NotRunning(
                "Admin is used outside of its block: write `async with Admin(…) as admin:` around the calls"
            )
        return self._open_calls

    def limit_to(self, seconds: float) -> None:
        """Let all requests from now on end within some seconds, however many they are."""
        self._calls.limit_to(seconds)

    # --- cluster -----------------------------------------------------------------------------------------------------------------------

    async def ask(self, address: str, code: RequestCode, header: object | None = None, body: bytes = b"") -> Command:
        """Send any request to one server; for what has no method here.  An answer other than success is a `BrokerError`."""
        return await self._calls.server(address, code, header, body)

    async def for_each(self, names: Iterable[str], call: Callable[[str], Awaitable[T]]) -> Answers[T]:
        """Run `call(name)` for many names at the same time, with a bound; by name."""
        return await self._calls.fan_out({name: name for name in names}, call)

    async def cluster(self) -> ClusterTable:
        """Return clusters, broker names and addresses as the first answering name server knows them."""
        return read_body(ClusterTable, await self._calls.any_name_server(RequestCode.GET_BROKER_CLUSTER_INFO))

    async def brokers(self, cluster: str | None = None, *, masters_only: bool = False) -> list[BrokerAddress]:
        """Return the brokers of one cluster or of all; `ClusterNotFound` for an unknown name."""
        table = await self.cluster()
        if cluster is not None and cluster not in table.cluster_addr_table:
            raise ClusterNotFound(cluster, table.cluster_addr_table)
        found = [
            BrokerAddress(owner, name, broker_id, address)
            for owner, names in table.cluster_addr_table.items()
            if cluster in (None, owner)
            for name in names
            if name in table.broker_addr_table
            for broker_id, address in table.broker_addr_table[name].broker_addrs.items()
            if broker_id == MASTER_ID or not masters_only
        ]
        return sorted(found)

    async def broker_status(self, address: str) -> dict[str, str]:
        """Return the runtime counters of one broker; all values are texts."""
        return dict((await self._calls.body(KvTable, address, RequestCode.GET_BROKER_RUNTIME_INFO)).table)

    async def statuses(self, brokers: Iterable[BrokerAddress]) -> Answers[dict[str, str]]:
        """Return the runtime counters of many brokers, by address."""
        return await self._calls.fan_out({broker.address: broker.address for broker in brokers}, self.broker_status)

    async def clean(self, what: Cleaning, addresses: Iterable[str]) -> Answers[Command]:
        """Have brokers delete what is not needed any more; the answers, by address."""
        return await self._calls.fan_out({address: address for address in addresses}, lambda address: self._calls.server(address, what.value))

    # --- topics ------------------------------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return all topic names, system topics included."""
        return sorted(
            read_body(
                TopicNames, await self._calls.any_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            ).topic_list
        )

    async def route(self, topic: str) -> TopicRoute:
        """Return where a topic lives; `RouteNotFound` if nobody has it."""
        try:
            response = await self._calls.any_name_server(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic=topic)
            )
        except TopicNotFound:
            raise RouteNotFound(topic) from None
        return read_body(TopicRoute, response)

    async def topic_brokers(self, topic: str) -> dict[str, str]:
        """Return broker name → address of the brokers that have the topic: the master's, or a slave's where no master is known."""
        return {
            data.broker_name: _address_of(data) for data in (await self.route(topic)).broker_datas if data.broker_addrs
        }

    async def topic_config(self, topic: str, address: str) -> TopicConfig | None:
        """Return a topic's settings at one broker, None if it does not have the topic."""
        return await configs.topic_config(self._calls, topic, address)

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
        """Create a topic on all masters (of one cluster) with this many queues each; return when its route is complete.

        `read_queues` and `write_queues` differ from `queues` only while a topic is shrunk.  Raises if any master refuses or is silent.
        """
        answers = await self.update_topic(
            topic,
            cluster=cluster,
            read_queues=read_queues or queues,
            write_queues=write_queues or queues,
            attributes=attributes,
        )
        for error in answers.failures.values():
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
        """Create or change a topic at one address, or at all masters of a cluster (None: of all clusters), by address.

        What is None keeps its value; a new topic gets 8 queues each and permission 6.  `attributes` is `+key=value,-key`.  Returns when
        the name servers show the change (or after the time limit of one request; brokers also register by themselves).
        """
        masters = await self.brokers(cluster, masters_only=True) if address is None else []
        addresses = [address] if address is not None else [broker.address for broker in masters]
        if not addresses:
            raise BrokerNotFound(cluster or "any", ())

        async def change(target: str) -> TopicConfig:
            old = await self.topic_config(topic, target)
            if old is None:
                old = TopicConfig(
                    topic_name=topic,
                    read_queue_count=DEFAULT_QUEUES,
                    write_queue_count=DEFAULT_QUEUES,
                    perm=DEFAULT_PERM,
                )
            new = attrs.evolve(
                old,
                read_queue_count=old.read_queue_count if read_queues is None else read_queues,
                write_queue_count=old.write_queue_count if write_queues is None else write_queues,
                perm=old.perm if perm is None else perm,
                order=old.order if order is None else order,
                topic_sys_flag=old.topic_sys_flag if sys_flag is None else sys_flag,
                attributes=_altered(old.attributes, attributes),
            )
            header = CreateTopicHeader(
                topic=topic,
                default_topic=DEFAULT_TOPIC,
                read_queue_count=new.read_queue_count,
                write_queue_count=new.write_queue_count,
                perm=new.perm,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=new.topic_sys_flag,
                order=new.order,
                attributes=attributes,
            )
            await self._calls.server(target, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            return new

        answers = await self._calls.fan_out({target: target for target in addresses}, change)
        with trio.move_on_after(self._timeout_seconds):
            await self.wait_route(topic, answers.values)
        return answers

    async def wait_route(self, topic: str, configs: Mapping[str, TopicConfig]) -> None:
        """Return when every name server that answers shows these queue counts at these addresses."""
        for namesrv in self.namesrv_addresses:
            while not await self._route_shows(namesrv, topic, configs):  # noqa: ASYNC110  (the state is in another process)
                await trio.sleep(ROUTE_POLL_SECONDS)

    async def _route_shows(self, namesrv: str, topic: str, configs: Mapping[str, TopicConfig]) -> bool:
        try:
            route = await self._calls.body(
                TopicRoute, namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic=topic)
            )
        except TopicNotFound:
            return not configs
        except TrioMQError:
            return True  # a name server that is down shows nothing to anybody
        queues = {data.broker_name: data for data in route.queue_datas}
        shown = {
            address: queues.get(data.broker_name)
            for data in route.broker_datas
            for address in data.broker_addrs.values()
        }
        return all(_shows(shown.get(address), config) for address, config in configs.items())

    async def set_order_config(self, topic: str) -> Answers[Any]:
        """Store at every name server how many queues each broker of a strictly ordered topic has; by name server."""
        value = ";".join(
            f"{data.broker_name}:{data.write_queue_count}" for data in (await self.route(topic)).queue_datas
        )
        return await self._calls.every_name_server(
            RequestCode.PUT_KV_CONFIG, PutKvConfigHeader(namespace=ORDER_NAMESPACE, key=topic, value=value)
        )

    async def delete_topic(self, topic: str, cluster: str | None = None) -> Answers[Any]:
        """Delete a topic at all brokers of a cluster (None: all), then at every name server; by address.

        Messages stay in the commit log until it is cut; queues and offsets go.
        """
        brokers = await self.brokers(cluster)
        header = DeleteTopicHeader(topic=topic)
        at_brokers = await self._calls.fan_out(
            {broker.address: broker.address for broker in brokers},
            lambda address: self._calls.server(address, RequestCode.DELETE_TOPIC_IN_BROKER, header),
        )
        at_namesrvs = await self._calls.every_name_server(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicHeader(topic=topic, cluster_name=cluster)
        )
        await self._calls.every_name_server(
            RequestCode.DELETE_KV_CONFIG, KvConfigHeader(namespace=ORDER_NAMESPACE, key=topic)
        )
        return Answers({**at_brokers.values, **at_namesrvs.values}, {**at_brokers.failures, **at_namesrvs.failures})

    async def topic_stats(self, topic: str) -> Answers[TopicStats]:
        """Return the first and next offsets of a topic's queues, by broker name."""

        async def stats(address: str) -> TopicStats:
            return await self._calls.body(
                TopicStats, address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=topic)
            )

        return await self._calls.fan_out(await self.topic_brokers(topic), stats)

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the consumer groups that consume a topic or have offsets in it, at any of its brokers."""

        async def groups(address: str) -> list[str]:
            return (
                await self._calls.body(
                    GroupNames, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic=topic)
                )
            ).group_list

        answers = (await self._calls.fan_out(await self.topic_brokers(topic), groups)).some()
        return sorted({group for groups in answers.values() for group in groups})

    # --- groups ------------------------------------------------------------------------------------------------------------------------

    async def leaders(self, cluster: str | None = None) -> dict[str, str]:
        """Return broker name → address of all brokers: the master's, or a slave's where no master is known."""
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
        """Create or change a consumer group at one address, or at all masters of a cluster (None: of all), by address.

        `change` gets the present settings, or the defaults of a new group, and returns the new ones (`attrs.evolve`).  Only attributes travel
        as changes: they are empty in what `change` gets, and `{"+key": "value", "-other": ""}` in what it returns alters them.
        """
        addresses = (
            [address]
            if address is not None
            else [broker.address for broker in await self.brokers(cluster, masters_only=True)]
        )
        if not addresses:
            raise BrokerNotFound(cluster or "any", ())

        async def update(target: str) -> SubscriptionGroupConfig:
            old = await self.group_config(group, target) or SubscriptionGroupConfig(group_name=group)
            new = change(attrs.evolve(old, attributes={}))
            await self._calls.server(target, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=new.encode())
            return new

        return await self._calls.fan_out({target: target for target in addresses}, update)

    async def group_config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings at one broker, None if it does not know the group."""
        return await configs.group_config(self._calls, group, address)

    async def groups(self) -> Answers[list[str]]:
        """Return the names of the groups that each broker has settings for, by broker name."""

        async def names(address: str) -> list[str]:
            return sorted(
                (
                    await self._calls.body(
                        SubscriptionGroupTable, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
                    )
                ).subscription_group_table
            )

        return await self._calls.fan_out(await self.leaders(), names)

    async def consume_stats(self, group: str, topic: str | None = None) -> Answers[ConsumeStats]:
        """Return a group's offsets per queue, by broker name.  A broker that does not know group or topic has an empty table."""

        async def stats(address: str) -> ConsumeStats:
            try:
                return await self._calls.body(
                    ConsumeStats,
                    address,
                    RequestCode.GET_CONSUME_STATS,
                    ConsumeStatsHeader(consumer_group=group, topic=topic),
                )
            except (GroupNotFound, TopicNotFound):
                return ConsumeStats()

        return await self._calls.fan_out(await self.leaders(), stats)

    async def consumer_connections(self, group: str, address: str | None = None) -> Answers[ConsumerConnection]:
        """Return who consumes with a group, by address; brokers where nobody of it is connected are left out.

        `GroupOffline` if nobody is connected anywhere.
        """

        async def connections(target: str) -> ConsumerConnection:
            return await self._calls.body(
                ConsumerConnection,
                target,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                ConsumerConnectionHeader(consumer_group=group),
            )

        targets = [address] if address is not None else [broker.address for broker in await self.brokers()]
        answers = await self._calls.fan_out({target: target for target in targets}, connections)
        offline = [error for error in answers.failures.values() if isinstance(error, GroupOffline)]
        others = {target: error for target, error in answers.failures.items() if not isinstance(error, GroupOffline)}
        if offline and not answers.values:
            raise offline[0]
        return Answers(answers.values, others)

    async def client_queues(self, address: str, group: str, client_id: str) -> list[MessageQueue]:
        """Ask a consumer, through a broker that it is connected to, which queues it has."""
        header = ConsumerRunningHeader(consumer_group=group, client_id=client_id)
        running = await self._calls.body(
            ConsumerRunning,
            address,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            header,
            timeout_seconds=CLIENT_TIMEOUT_SECONDS,
        )
        return sorted(running.queues)

    async def producer_connections(self, group: str, topic: str) -> Answers[ProducerConnection]:
        """Return who sends with a producer group to the brokers of a topic, by address."""

        async def connections(target: str) -> ProducerConnection:
            return await self._calls.body(
                ProducerConnection,
                target,
                RequestCode.GET_PRODUCER_CONNECTION_LIST,
                ProducerConnectionHeader(producer_group=group),
            )

        return await self._calls.fan_out(
            {address: address for address in (await self.topic_brokers(topic)).values()}, connections
        )

    # --- offsets and messages ----------------------------------------------------------------------------------------------------------

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await self._offset(
            queue, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await self._offset(
            queue, RequestCode.GET_MIN_OFFSET, GetMinOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        )

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at that time or later."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: object) -> int:
        response = await self._calls.server(await self.address_of(queue), code, header)
        return read_header(OffsetResponseHeader, response).offset

    async def address_of(self, queue: MessageQueue) -> str:
        """Return the address of the broker that has a queue; `BrokerNotFound` if the topic is not on that broker."""
        brokers = await self.topic_brokers(queue.topic)
        if queue.broker_name not in brokers:
            raise BrokerNotFound(queue.broker_name, brokers, f"with topic {queue.topic!r}")
        return brokers[queue.broker_name]

    async def queues(self, topic: str, broker_name: str | None = None) -> list[MessageQueue]:
        """Return the queues that consumers of a topic read, of one broker or of all."""
        route = await self.route(topic)
        if broker_name is not None and broker_name not in (names := [data.broker_name for data in route.queue_datas]):
            raise BrokerNotFound(broker_name, names, f"with topic {topic!r}")
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
        """Read up to `count` messages of a queue from `offset` on, and none at `end_offset` or behind it.  Nothing is committed."""
        address = await self.address_of(queue)
        return await messages.read(self._calls, address, queue, offset, count=count, end_offset=end_offset, group=group)

    async def query(
        self,
        topic: str,
        key: str,
        *,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = messages.FAR_FUTURE_MS,
        unique: bool = False,
    ) -> Answers[list[StoredMessage]]:
        """Find messages by key, or with `unique` by the id that their producer gave them; by broker name, newest first."""

        async def find(address: str) -> list[StoredMessage]:
            return await messages.query(
                self._calls, address, topic, key, count=count, begin_ms=begin_ms, end_ms=end_ms, unique=unique
            )

        return await self._calls.fan_out(await self.topic_brokers(topic), find)

    async def message_at(self, address: str, log_offset: int, topic: str | None = None) -> StoredMessage | None:
        """Return the message at a position of a broker's commit log, None if there is none."""
        return await messages.view(self._calls, address, log_offset, topic)


def _shows(data: QueueData | None, config: TopicConfig) -> bool:
    """Tell whether a route's entry is that of these settings; a broker may announce fewer permissions than the topic has."""
    if data is None:
        return False
    same_queues = (data.read_queue_count, data.write_queue_count) == (config.read_queue_count, config.write_queue_count)
    return same_queues and not data.perm & ~config.perm


def _altered(old: Mapping[str, str], changes: str) -> dict[str, str]:
    """Apply `+key=value,-key` to attributes."""
    new = dict(old)
    for change in filter(None, (part.strip() for part in changes.split(","))):
        key, _, value = change[1:].partition("=")
        if change.startswith("+"):
            new[key] = value
        else:
            new.pop(key, None)
    return new


def _address_of(data: BrokerData) -> str:
    return data.broker_addrs[min(data.broker_addrs)]
