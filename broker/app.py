"""A broker put together: the only file that knows all parts.  Nesting is start order, its reverse is stop order.

::

    run_broker ─┬ monitor
                ├ store ── store-flusher, store-flush-deadlines, store-indexer, store-checkpointer, store-cleaner, store-remover
                ├ saver, delayed-messages, groups-expire, filters-expire, held-pulls-expire, cold-pulls, queue-locks-expire, statistics, slow-consumers
                ├ replication-master ── one child per slave          or, on a slave, replication-slave, table-copy
                ├ Server.run ── boss, selectors, codecs, pool workers, sweeper, idle scan
                ├ registration ── one child per name server
                └ with enableSlaveActingMaster: broker-heartbeat, on a slave acting-master ── acting-duties

An orderly stop (``BrokerReady.stop``): unregister, stop accepting, drain the pools, close connections, save the tables, let the indexer
catch up, flush, write the checkpoint.  Cancelling ``run_broker`` instead leaves everything as a crash would.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.broker.acting import Acting, open_acting
from triomq.broker.advertise import warn_if_unreachable
from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.java_keys import BROKER_KEYS
from triomq.broker.monitor import BrokerSource
from triomq.broker.processors.admission import Admission
from triomq.broker.processors.broker_config import LIVE_KEYS, BrokerConfigRequests
from triomq.broker.processors.clients import Clients, notify_members_changed
from triomq.broker.processors.consumption import Consumption
from triomq.broker.processors.ha_status import HaStatusRequests
from triomq.broker.processors.housekeeping import Housekeeping
from triomq.broker.processors.locks import Locks
from triomq.broker.processors.offsets import GroupOffsets, QueueOffsets
from triomq.broker.processors.progress import Progress
from triomq.broker.processors.pull import PullMessages
from triomq.broker.processors.query import QueryMessages
from triomq.broker.processors.relays import Relays
from triomq.broker.processors.resets import Resets
from triomq.broker.processors.runtime import RuntimeFigures
from triomq.broker.processors.send import SendMessages, SendSettings
from triomq.broker.processors.send_back import SendBack
from triomq.broker.processors.subscriptions import GroupRequests
from triomq.broker.processors.table import NOT_ON_THE_FAST_PORT, Processors, handler_table
from triomq.broker.processors.topics import TopicRequests
from triomq.broker.replicating import Replication, open_replication
from triomq.broker.replication.slave import ReplicationSlave
from triomq.broker.services.cold_pulls import ColdPulls
from triomq.broker.services.delay import DelayedMessages, open_delayed_messages
from triomq.broker.services.delay_delivery import LocalDelivery
from triomq.broker.services.filters import ConsumerFilters, open_consumer_filters
from triomq.broker.services.groups import ClientGroups, GroupTable
from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.limits import broker_limits
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.offsets import ConsumerOffsets, open_consumer_offsets
from triomq.broker.services.persisted import TableSaver
from triomq.broker.services.queue_locks import QueueLocks
from triomq.broker.services.registration import NameServer, Registration, RegistrationSettings
from triomq.broker.services.slow_consumers import SlowConsumers
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups, open_subscription_groups
from triomq.broker.services.table_copy import TABLE_BYTES_MAX, TableCopy
from triomq.broker.services.topics import Topics, TopicSettings, batch_topics, open_topics
from triomq.broker.services.versions import Version
from triomq.broker.store.disk import Disk
from triomq.broker.store.errors import FlushFailed
from triomq.broker.store.stall import ECHO_SECONDS
from triomq.broker.store.store import MessageStore, open_store
from triomq.remoting.address import bare_host, format_address
from triomq.remoting.client.config import ConnectorConfig
from triomq.remoting.client.connector import Connector
from triomq.remoting.client.discovery import address_server_url, all_addresses, fetch_addresses
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.limits import Limits
from triomq.remoting.monitor.server import monitoring
from triomq.remoting.protocol.message import UniqueIds
from triomq.remoting.saved_settings import SavedSettings
from triomq.remoting.server.config import SidePort
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.hooks import RequestHook
from triomq.remoting.server.server import Server
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.settings import resolve

if TYPE_CHECKING:
    from triomq.remoting.server.entrance import Entrance


logger = logging.getLogger(__name__)


@attrs.frozen
class BrokerReady:
    """A broker that answers requests; ``address`` is what clients are told."""

    host: str
    port: int
    address: str
    name: str
    _stop: Callable[[], None] = attrs.field(eq=False, repr=False)
    _drop: Callable[[], None] = attrs.field(eq=False, repr=False)

    def stop(self) -> None:
        """Begin an orderly stop; ``run_broker`` returns when it is done."""
        self._stop()

    def drop_connections(self) -> None:
        """Tell nobody anything any more, as if the process had ended here. No checkpoint."""
        self._drop()

    def banner(self) -> str:
        """What runs where."""
        return f"broker {self.name} ready on {format_address(self.host, self.port)}, clients connect to {self.address}"


@attrs.frozen(kw_only=True)
class Services:
    """Everything with state beside the store."""

    live: LiveSettings
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    filters: ConsumerFilters
    delayed: DelayedMessages
    saver: TableSaver
    clients: ClientGroups[Connection]
    slow_consumers: SlowConsumers
    held: HeldPulls
    cold: ColdPulls
    locks: QueueLocks
    limits: Limits
    statistics: Statistics
    registration: Registration

    def connection_closed(self, connection: Connection) -> None:
        self.held.forget_connection(connection)
        self.cold.forget_client(connection)
        self.clients.connection_closed(connection)


async def run_broker(
    config: BrokerConfig,
    *,
    request_hooks: Sequence[RequestHook] = (),
    disk: Disk | None = None,
    task_status: trio.TaskStatus[BrokerReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until stopped or cancelled; ``started(BrokerReady(...))`` when requests are answered and registration was tried.

    `request_hooks` see every request first and may refuse it (`remoting/server/hooks.py`); `disk` is the one that store and tables lie on.

    Raises StartError (store), DamagedTable, AddressInUse or ListenFailed, ConfigError if it cannot start.
    """
    config = with_port(config)
    store_host = await encoded_host(config)
    security = resolve(config.security)
    entrance = None
    if not security.open_door:
        from triomq.remoting.server.entrance import open_entrance  # start-up time: only where it is needed

        entrance = open_entrance(security, (config.broker_ip,))
    socks = SocksProxies.parse(config.security.socks_proxies)
    stopping = trio.Event()
    async with monitoring(config.monitor, "mqbroker") as monitor, open_store(
        config.store.store_config(store_host), now_ms, disk=disk, batch_topics=lambda: batch_topics(config.store.root / "config")
    ) as store:
        services = open_services(config, store)
        replication = open_replication(config, store)
        replication.watch(services.topics.version, services.groups.version)
        registration = services.registration
        copy = None if replication.slave is None else table_copy(store, services, replication.slave)
        acting = open_acting(config, store, replication, registration, services.delayed, services.offsets, copy)
        server = open_server(config, store, services, replication, acting, store_host, entrance, request_hooks)
        async with trio.open_nursery() as tasks:
            await tasks.start(services.saver.run, name="saver")
            tasks.start_soon(services.clients.run, name="groups-expire")
            tasks.start_soon(services.filters.run, name="filters-expire")
            tasks.start_soon(services.held.run, name="held-pulls-expire")
            tasks.start_soon(services.cold.run, name="cold-pulls")
            tasks.start_soon(services.locks.run, name="queue-locks-expire")
            tasks.start_soon(services.statistics.run, name="statistics")
            tasks.start_soon(services.slow_consumers.run, name="slow-consumers")
            if entrance is not None:
                tasks.start_soon(entrance.run, name="tls-files")
            async with trio.open_nursery() as serving:
                host, port = await serving.start(server.run, name="server")
                await replication.start(tasks, registration)
                serving.start_soon(warn_if_unreachable, config.broker_ip, port, name="advertised-address")
                async with Connector(ConnectorConfig(tls=security.client, socks=socks, busy_poll=False, frame_max_bytes=TABLE_BYTES_MAX), on_lost=registration.connection_lost) as connector:
                    registration.connector = connector
                    await acting.before_registration()
                    forget_progress_beyond(store, services)
                    if replication.slave is None:
                        tasks.start_soon(LocalDelivery(services.delayed).run, name="delayed-messages")
                    async with trio.open_nursery() as announcing:
                        await announcing.start(registration.run, name="registration")
                        if copy is not None:
                            announcing.start_soon(copy.run, connector, name="table-copy")
                        acting.start(announcing)
                        monitor.serve(broker_source(config, store, services, replication, acting, server))
                        address = registration.settings.broker_address
                        task_status.started(BrokerReady(host, port, address, config.broker_name, stopping.set, server.drop_connections))
                        await stopping.wait()
                        monitor.leave()
                        announcing.cancel_scope.cancel()
                    await registration.unregister()
                serving.cancel_scope.cancel()
            await replication.drain()
            tasks.cancel_scope.cancel()
        with contextlib.suppress(FlushFailed):  # the store says so when it is closed
            await store.flusher.flush()  # so that the whole progress of delayed messages can be saved
        await services.saver.save_all()


def open_services(config: BrokerConfig, store: MessageStore) -> Services:
    """Load the tables and make what has no file.  Raises DamagedTable."""
    live = LiveSettings(**{name: getattr(config, name) for name in LIVE_KEYS.values()})
    directory = config.store.root / "config"
    limits = broker_limits(config.limits)
    topic_settings = TopicSettings(
        cluster_name=config.cluster_name,
        broker_name=config.broker_name,
        default_queue_count=config.default_topic_queue_count,
        cluster_topic_open=config.cluster_topic,
        broker_topic_open=config.broker_topic,
        trace_topic=config.trace_topic_name if config.trace_topic else None,
        light_queues=config.store.light_queues.enabled,
    )
    topics = open_topics(directory, topic_settings, live, Version(now_ms), limits)
    store.queue_table.has_batch_queues = topics.has_batch_queues
    groups = open_subscription_groups(directory, live, Version(now_ms), limits)
    groups.light_groups = config.store.light_queues.lmq
    offsets = open_consumer_offsets(
        directory, Version(now_ms), save_seconds=config.offset_flush_ms / 1000, light=config.store.light_queues.lmq, limits=limits
    )
    filters = open_consumer_filters(directory, now_ms)
    filters.keep_dead_ms = config.keep_filters_ms
    slave = config.broker_role is BrokerRole.SLAVE
    delayed = open_delayed_messages(
        directory, store, topics, Version(now_ms), now_ms, forward_only=slave and config.replication.acting_master, replicated=slave
    )
    delayed.start_clock()
    registration = Registration(
        RegistrationSettings(
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            broker_address=format_address(config.broker_ip, config.listen_port),
            ha_address=format_address(config.ha_ip, config.ha_port),
            period_seconds=config.register_period_ms / 1000,
            timeout_seconds=config.register_timeout_ms / 1000,
            send_always=config.force_register,
            deflated=config.deflated_registration,
            split_count=config.split_registration_count if config.split_registration else 0,
            acting_master=config.replication.acting_master,
            not_active_ms=config.replication.not_active_ms if config.replication.acting_master else None,
        ),
        topics,
        live,
        {address: NameServer(address) for address in config.namesrv_addresses},
        *discovery_of(config),
    )
    topics.on_change = registration.topics_changed
    clients: ClientGroups[Connection] = ClientGroups(
        notify_members_changed,
        Connection.close,
        groups.wants_notice,
        expiry_seconds=config.channel_expired_ms / 1000,
        pull_expiry_seconds=config.pull_expired_ms / 1000,
        table=GroupTable(limits=limits),
    )
    filters.connected = clients.table.consumers.__contains__
    return Services(
        live=live,
        topics=topics,
        groups=groups,
        offsets=offsets,
        filters=filters,
        delayed=delayed,
        saver=TableSaver((topics.table, groups.table, offsets.table, delayed.table, filters.table), store.disk),
        clients=clients,
        slow_consumers=SlowConsumers(store, groups, offsets, live, clients.table.consumes_now),
        held=HeldPulls(),
        cold=ColdPulls(),
        locks=QueueLocks(limits=limits),
        limits=limits,
        statistics=Statistics(now_ms, config.cluster_name, topics.is_system_topic),
        registration=registration,
    )


def table_copy(store: MessageStore, services: Services, slave: ReplicationSlave) -> TableCopy:
    """What a slave copies beside the log."""
    return TableCopy(slave.master, slave, services.topics, services.groups, services.offsets, services.delayed, store)


def open_server(
    config: BrokerConfig,
    store: MessageStore,
    services: Services,
    replication: Replication,
    acting: Acting,
    store_host: bytes,
    entrance: Entrance | None = None,
    request_hooks: Sequence[RequestHook] = (),
) -> Server:
    """Give every processor what it needs, and the server its table."""
    live, topics, groups, offsets = services.live, services.topics, services.groups, services.offsets
    clients, statistics, held, delayed = services.clients.table, services.statistics, services.held, services.delayed
    reads = replication.slave_reads
    admission = Admission(topics, groups, services.locks, statistics, live, config.broker_ip)
    send_settings = SendSettings(
        cluster_name=config.cluster_name,
        region_id=config.region_id,
        trace_on=config.trace_on,
        message_size_bytes_max=config.store.message_size_bytes_max,
        store_host=store_host,
    )
    unique_ids = UniqueIds(store_host[:-4], os.getpid(), random.getrandbits(32))
    pull = PullMessages(store, topics, groups, clients, offsets, held, statistics, live, config.broker_ip, reads, services.cold, services.filters)
    relays = Relays(store, clients, config.broker_name)
    runtime = RuntimeFigures(config, store, statistics, delayed, live, clients)
    processors = Processors(
        send=SendMessages(store, topics, admission, delayed, statistics, unique_ids, now_ms, send_settings, replication.durability),
        send_back=SendBack(store, topics, groups, admission, delayed, statistics, live, config.broker_ip),
        pull=pull,
        query=QueryMessages(store),
        queues=QueueOffsets(store),
        offsets=GroupOffsets(store, topics, groups, offsets, delayed),
        clients=Clients(services.clients, groups, topics, services.filters, live),
        locks=Locks(services.locks),
        topics=TopicRequests(
            store, topics, offsets, clients, held, services.registration, statistics, live, config.broker_name
        ),
        groups=GroupRequests(groups, offsets, topics),
        consumption=Consumption(
            store, topics, groups, offsets, clients, statistics, config.broker_name, services.registration.settings.broker_address
        ),
        progress=Progress(store, topics, offsets, clients, now_ms, config.broker_name),
        resets=Resets(store, topics, groups, offsets, clients, held, live, relays, config.broker_name),
        relays=relays,
        config=BrokerConfigRequests(config, BROKER_KEYS, live, topics, SavedSettings.open(config.saved_settings_path()), store),
        runtime=runtime,
        housekeeping=Housekeeping(store, topics, held, slave=replication.slave is not None),
        ha_status=HaStatusRequests(store, replication.master, replication.slave),
        group_changes=acting.requests,
        reject_sends=always if replication.slave is not None else None,
        reject_pulls=always if reads.refused else None,
    )
    server = Server(
        attrs.evolve(
            config.network.server_config(config.listen_host, config.listen_port, config.pools.by_name(), side_ports(config)),
            filter_factory=entrance.filter if entrance is not None else None,
            request_hooks=tuple(request_hooks),
        ),
        handler_table(processors),
        on_close=services.connection_closed,
        name="broker",
    )
    store.on_arrival = partial(report_arrivals, delayed, held)
    store.stall.on_stall = lambda seconds: server.pools["send"].hold_off(ECHO_SECONDS, drain=config.pools.fast_failure)
    held.resume = lambda request: server.submit([pull.resumable(request)])
    runtime.server = server
    return server


def broker_source(
    config: BrokerConfig, store: MessageStore, services: Services, replication: Replication, acting: Acting, server: Server
) -> BrokerSource:
    """What probes and Prometheus may look at."""
    return BrokerSource(
        config=config,
        store=store,
        live=services.live,
        topics=services.topics,
        groups=services.groups,
        offsets=services.offsets,
        clients=services.clients,
        limits=services.limits,
        statistics=services.statistics,
        registration=services.registration,
        replication=replication,
        acting=acting.slave,
        server=server,
    )


def forget_progress_beyond(store: MessageStore, services: Services) -> None:
    """Lower offsets and progress beyond the ends of the queues: a power failure cut the log's tail, or clients committed too far."""
    offsets, levels = services.offsets.clamp(store.max_offset), services.delayed.clamp()
    if offsets or levels:
        group, topic, queue_id, offset = offsets[0] if offsets else ("", "", 0, 0)
        example = f", such as {offset} of group {group} in {topic}-{queue_id}" if offsets else ""
        logger.warning(
            "%d consumer offsets%s, and the progress of %d delay levels, were beyond the end of their queues and are set to that end: after a power failure the log lacks messages that were not on the disk; otherwise clients committed offsets that never existed",
            len(offsets),
            example,
            levels,
        )


def report_arrivals(delayed: DelayedMessages, held: HeldPulls, arrivals: list[tuple[str, int, int, int]]) -> None:
    """Wake delay levels and held pulls.  Checkpoint: never."""
    delayed.arrived(arrivals)
    held.arrived(arrivals)


def always() -> bool:
    """A reason to reject that does not go away: the role."""
    return True


def with_port(config: BrokerConfig) -> BrokerConfig:
    """A free port in place of 0: every record and every registration names the port, so it must be known before the store opens."""
    if config.listen_port:
        return config
    host = bare_host(config.listen_host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as held:  # held until all are found, so that none is found twice
        while True:
            probe, beside = (held.enter_context(socket.socket(family, socket.SOCK_STREAM)) for _ in range(2))
            probe.bind((host, 0))
            found = attrs.evolve(config, listen_port=probe.getsockname()[1], ha_port=0 if config.ha_port == 1 else config.ha_port)  # 1: 0 + 1, the default
            if config.fast_port >= 0:
                return found
            with contextlib.suppress(OSError):  # the fast port belongs to somebody else: try another pair
                beside.bind((host, found.fast_listen_port()))
                return found


def discovery_of(config: BrokerConfig) -> tuple[Callable[[], Awaitable[Sequence[str]]] | None, float]:
    """How to find out where the name servers are, and how often (seconds); None when they are where the configuration says."""
    if config.namesrv_addresses and config.namesrv_dns:
        return partial(all_addresses, config.namesrv_addresses), config.namesrv_follow_ms / 1000
    if not config.namesrv_addresses and config.namesrv_address_server:
        url = address_server_url(config.namesrv_domain, config.namesrv_subgroup)
        return partial(fetch_addresses, url), config.namesrv_fetch_ms / 1000
    return None, config.namesrv_follow_ms / 1000


def side_ports(config: BrokerConfig) -> list[SidePort]:
    """The fast port, if there is one.  Source: broker/BrokerController.java#registerProcessor (fastRemotingServer)."""
    port = config.fast_listen_port()
    return [SidePort(name="fast", port=port, exclude_codes=NOT_ON_THE_FAST_PORT, setting="fastListenPort")] if port else []


async def encoded_host(config: BrokerConfig) -> bytes:
    """The advertised address as records carry it: 4 or 16 bytes, then the port.  A name is looked up."""
    host = bare_host(config.broker_ip)
    try:
        found = await trio.socket.getaddrinfo(host, config.listen_port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError("", f"brokerIP1={config.broker_ip}: {error}", "name an address of this machine, or a name that it can look up") from None
    family, _, _, _, where = found[0]
    return socket.inet_pton(family, str(where[0]).partition("%")[0]) + struct.pack(">i", config.listen_port)


def now_ms() -> int:
    """The wall clock that goes into records and tables."""
    return time.time_ns() // 1_000_000
