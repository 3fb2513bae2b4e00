"""The services of a broker: first their tables, then the parts that work on them."""

from __future__ import annotations

import logging
from pathlib import Path

import attrs
import trio

from triomq.broker.addresses import discovery_of
from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.processors.clients import notify_members_changed
from triomq.broker.roles.role import Role
from triomq.broker.services.access_table import AccessTable, open_access_table
from triomq.broker.services.clock_marks import ClockMarks, open_clock_marks
from triomq.broker.services.cold_pulls import ColdPulls
from triomq.broker.services.delay import DelayedMessages, open_delayed_messages
from triomq.broker.services.filters import ConsumerFilters, open_consumer_filters
from triomq.broker.services.groups import ClientGroups, GroupTable
from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.name_servers import NameServerTable
from triomq.broker.services.offsets import ConsumerOffsets, OwnCommits, open_consumer_offsets
from triomq.broker.services.persisted import PersistedTable, TableSaver, Version
from triomq.broker.services.plain_acl_files import PlainAclFiles, open_plain_acl
from triomq.broker.services.pop.acting_records import (
    ActingRecords,
    open_acting_records,
    records_path,
)
from triomq.broker.services.pop.acting_reviver import ActingReviver
from triomq.broker.services.pop.held_pops import HeldPops
from triomq.broker.services.pop.order_table import open_order_table
from triomq.broker.services.pop.pop_log import RevivePopLog
from triomq.broker.services.pop.pops import NOT_ACTING, Pops
from triomq.broker.services.pop.request_modes import RequestModes, open_request_modes
from triomq.broker.services.pop.restored_flights import restore_flights
from triomq.broker.services.pop.restoring import restore_positions, take_over_records, use_positions
from triomq.broker.services.pop.revive_records import revive_topic
from triomq.broker.services.pop.reviver import Reviver
from triomq.broker.services.pushed_replies import PushedReplies
from triomq.broker.services.queue_locks import QueueLocks
from triomq.broker.services.registration import Registrar, RegistrationSettings
from triomq.broker.services.remote_sender import RemoteSender
from triomq.broker.services.slow_consumers import SlowConsumers
from triomq.broker.services.statistics import Statistics
from triomq.broker.services.subscriptions import SubscriptionGroups, open_subscription_groups
from triomq.broker.services.table_limits import broker_limits
from triomq.broker.services.timers.timers import Timers
from triomq.broker.services.topics import Topics, TopicSettings, open_topics
from triomq.broker.services.transactions.checks import CheckRules, TransactionChecks
from triomq.broker.services.transactions.transactions import Transactions
from triomq.broker.store.opening import wall_clock_ms
from triomq.broker.store.store import MessageStore
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.quotas import Quotas
from triomq.remoting.audit.decision_log import DecisionLog
from triomq.remoting.audit.decision_notes import DecisionNotes
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.address import format_address
from triomq.remoting.core.periodic import every
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.access_check import AccessCheck
from triomq.remoting.server.connection import Connection
from triomq.remoting.tls.security_settings import ProxyMode

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ServiceSet:
    """Everything with state beside the store."""

    live: LiveSettings
    limits: Limits
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
    pushed: PushedReplies[Connection]
    locks: QueueLocks
    statistics: Statistics
    registrar: Registrar
    timers: Timers | None
    """None with timerWheelEnable=false."""
    transactions: TransactionChecks
    """Only a master runs them."""
    request_modes: RequestModes
    held_pops: HeldPops
    pops: Pops | None
    """None on a slave that never acts, and with timerWheelEnable=false."""
    reviver: Reviver | None
    """On a master with ``pops``."""
    clock_marks: ClockMarks
    acting_records: ActingRecords | None
    """On a slave, and on a master that was one; None with timerWheelEnable=false."""
    access: AccessTable
    plain_acl: PlainAclFiles | None
    """With aclEnable: the files whose accounts decide instead."""
    quotas: Quotas | None
    check: AccessCheck | None
    """What decides about requests and writes it; None where everybody may do everything unseen."""

    async def start(self, tasks: trio.Nursery) -> None:
        """Start the tasks that need no other server."""
        await tasks.start(self.saver.run, name="saver")
        tasks.start_soon(every, 10.0, self.clients.expire, name="groups-expire")
        tasks.start_soon(self.clients.run_notices, name="groups-notices")
        tasks.start_soon(every, 60.0, self.filters.expire, name="filters-expire")
        tasks.start_soon(self.held.run, name="held-pulls-expire")
        tasks.start_soon(self.held_pops.run, name="held-pops-expire")
        tasks.start_soon(self.cold.run, name="cold-pulls")
        tasks.start_soon(self.pushed.run, name="pushed-replies")
        tasks.start_soon(every, 30.0, self.locks.sweep, name="queue-locks-expire")
        tasks.start_soon(self.statistics.take_samples, name="statistics")
        tasks.start_soon(self.slow_consumers.run, name="slow-consumers")
        if self.plain_acl is not None:
            tasks.start_soon(self.plain_acl.run, name="plain-acl")

    def connection_closed(self, connection: Connection) -> None:
        """Remove what belongs to a client's connection. Checkpoint: never."""
        self.held.forget_connection(connection)
        self.held_pops.forget_connection(connection)
        self.cold.forget_client(connection)
        self.clients.connection_closed(connection)

    def open_acting_reviver(self, sender: RemoteSender | None) -> ActingReviver | None:
        """Make what a slave does about POP while it acts; None without POP."""
        if self.pops is None or self.acting_records is None:
            return None
        return ActingReviver(
            self.pops, self.acting_records, self.topics, self.groups, sender, self.clock_marks
        )

    async def restore_pops(self) -> None:
        """Move positions of POP to where check points say, before a task saves the offsets.

        A slave does it when it begins to act. Raises: StoreUnavailable, StoreIoError, OSError.
        """
        pops, records = self.pops, self.acting_records
        if pops is None:
            return
        if self.reviver is None:
            if records is not None:
                use_positions(pops, records)
            return
        await restore_positions(pops)
        await restore_flights(pops, self.clock_marks)
        pops.note_covered()
        if records is not None:
            await take_over_records(pops, records)
            await self.saver.save(records)

    def save_progress(self) -> None:
        """Take over progress that waited for the disk, after the last flush."""
        if self.pops is not None:
            self.pops.commit_covered(ending=True)
        if self.transactions.transactions.loaded.is_set():
            for _ in range(2):  # what waited, then the rest
                self.transactions.transactions.save_progress()

    def lower_progress(self, store: MessageStore) -> None:
        """Lower offsets and progress to the ends of their queues.

        They exceed an end if a power failure cut the tail of the log, or clients committed too far.
        """
        offsets, levels = (
            self.offsets.clamp(store.max_offset, store.appended.value),
            self.delayed.clamp(),
        )
        if not offsets and not levels:
            return
        example = ""
        if offsets:
            group, topic, queue_id, offset = offsets[0]
            example = f", such as {offset} of group {group} in {topic}-{queue_id}"
        logger.warning(
            "%d consumer offsets%s, and the progress of %d delay levels, were beyond the end of"
            " their queues and are set to that end: after a power failure the log lacks messages"
            " that were not on the disk; otherwise clients committed offsets that never existed",
            len(offsets),
            example,
            levels,
        )


def open_services(
    config: BrokerConfig,
    store: MessageStore,
    role: Role,
    name_servers: NameServerTable,
    connector: Connector,
    timers: Timers | None = None,
    audit: DecisionLog | None = None,
) -> ServiceSet:
    """Load the tables, then make the parts that work on them. Raises: DamagedTable."""
    slave = config.broker_role is BrokerRole.SLAVE
    directory = config.store.root / "config"
    light_queues = config.store.light_queues
    live = attrs.evolve(config.live)  # the configuration itself does not change
    limits = broker_limits(config.limits)
    topics = open_topics(
        directory,
        TopicSettings(
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            default_queue_count=config.default_topic_queue_count,
            cluster_topic_open=config.cluster_topic,
            broker_topic_open=config.broker_topic,
            trace_topic=config.trace_topic_name if config.trace_topic else None,
            light_queues=light_queues.enabled,
        ),
        live,
        Version(wall_clock_ms, on_bump=role.tables_changed),
        limits,
        name_servers.topics_changed,
    )
    if role.tenure is not None and role.tenure.is_master:
        topics.version.enter(role.tenure.mastership.epoch)
    # The store was opened with the topics that the file had.
    store.queue_table.has_batch_queues = topics.has_batch_queues
    store.compacted.topics = topics.compacted
    groups = open_subscription_groups(
        directory,
        live,
        Version(wall_clock_ms, on_bump=role.tables_changed),
        limits,
        light_groups=light_queues.lmq,
    )
    offsets = open_consumer_offsets(
        directory,
        Version(wall_clock_ms),
        save_seconds=config.offset_flush_ms / 1000,
        light=light_queues.lmq,
        limits=limits,
        own=OwnCommits() if slave else None,
    )
    clients: ClientGroups[Connection] = ClientGroups(
        notify_members_changed,
        Connection.close,
        groups.wants_notice,
        expiry_seconds=config.channel_expired_ms / 1000,
        pull_expiry_seconds=config.pull_expired_ms / 1000,
        table=GroupTable(limits=limits),
    )
    filters = open_consumer_filters(
        directory,
        wall_clock_ms,
        keep_dead_ms=config.keep_filters_ms,
        connected=clients.table.consumers.__contains__,
    )
    marks = open_clock_marks(directory, store.disk)
    marks.note(wall_clock_ms(), store.log.last_timestamp, store.appended.value)
    delayed = open_delayed_messages(
        directory,
        store,
        topics,
        Version(wall_clock_ms),
        wall_clock_ms,
        forward_only=slave and config.replication.acting_master,
        replicated=slave,
        marks=marks,
    )
    delayed.start_clock()
    held = HeldPulls()
    held_pops = HeldPops(config.pop.waiting_max, config.pop.waiting_per_queue_max)
    store.indexer.on_arrival += [delayed.arrived, held.arrived, held_pops.arrived]
    records = None
    if timers is not None and (slave or records_path(directory).exists()):
        records = open_acting_records(directory)
    pops, reviver = open_pops(config, store, role, timers, offsets, records, topics, groups)
    if reviver is not None:
        store.indexer.on_arrival.append(reviver.arrived)
    discover, discover_seconds = discovery_of(config)
    registrar = Registrar(
        registration_settings(config),
        topics,
        live,
        name_servers,
        connector,
        discover,
        discover_seconds,
        on_master=role.note_master,
        searching=role.has_lost_master,
    )
    modes = open_request_modes(directory, config.pop.default_mode, config.pop.default_share)
    offsets.on_forget.append(modes.forget)
    access = open_access_table(directory, config.access)
    plain_acl = None
    if config.plain_acl.enabled:
        named = Path(config.plain_acl.path).expanduser() if config.plain_acl.path else None
        plain_acl = open_plain_acl(
            named or directory / "plain_acl.yml",
            access.inner,
            claimed=config.security.proxy_protocol is ProxyMode.OPTIONAL,
        )
    notes = decision_notes(config, access, audit, plain_acl)
    check = AccessCheck(notes) if notes is not None else None
    transactions = open_transactions(
        config, store, role, topics, offsets, clients.table, live, check
    )
    tables: tuple[PersistedTable, ...] = topics, groups, offsets, delayed, filters, modes, access
    if timers is not None:
        tables += (timers.counts,)
    if pops is not None:
        tables += (pops.orders,)
    if records is not None:
        tables += (records,)
    for table in tables:
        table.copies = role.tables
    return ServiceSet(
        live=live,
        limits=limits,
        topics=topics,
        groups=groups,
        offsets=offsets,
        filters=filters,
        delayed=delayed,
        saver=TableSaver(tables, store.disk),
        clients=clients,
        slow_consumers=SlowConsumers(store, groups, offsets, live, clients.table.consumes_now),
        held=held,
        cold=ColdPulls(),
        pushed=PushedReplies(limits, config.pools.reply_queue),
        locks=QueueLocks(limits=limits),
        statistics=Statistics(wall_clock_ms, config.cluster_name, topics.is_system_topic),
        registrar=registrar,
        timers=timers,
        transactions=transactions,
        request_modes=modes,
        held_pops=held_pops,
        pops=pops,
        reviver=reviver,
        clock_marks=marks,
        acting_records=records,
        access=access,
        plain_acl=plain_acl,
        quotas=Quotas(config.live.quotas) if config.live.quotas else None,
        check=check,
    )


def decision_notes(
    config: BrokerConfig,
    table: AccessTable,
    audit: DecisionLog | None,
    plain_acl: PlainAclFiles | None = None,
) -> DecisionNotes | None:
    """Return the check of all requests; None if no setting asks for one."""
    settings = config.access
    if plain_acl is not None:
        control = AccessControl(
            plain_acl.table,
            config.cluster_name,
            admin_networks=settings.admin_networks,
            date_window_seconds=settings.date_window_seconds,
        )
    elif settings.authentication:
        control = AccessControl(
            table.users,
            config.cluster_name,
            settings.authorization,
            settings.unauthenticated_codes,
            settings.unauthorized_codes,
            admin_networks=settings.admin_networks,
            certificate_users=settings.certificate_users,
            date_window_seconds=settings.date_window_seconds,
        )
    elif audit is not None or settings.admin_networks:
        control = AccessControl.without_users(config.cluster_name, settings.admin_networks)
    else:
        return None
    return DecisionNotes(control, audit)


def open_pops(
    config: BrokerConfig,
    store: MessageStore,
    role: Role,
    timers: Timers | None,
    offsets: ConsumerOffsets,
    records: ActingRecords | None,
    topics: Topics,
    groups: SubscriptionGroups,
) -> tuple[Pops | None, Reviver | None]:
    """Make the state of POP, and on a master what brings messages again. Raises: DamagedTable."""
    slave = config.broker_role is BrokerRole.SLAVE
    if timers is None or (slave and not config.replication.acting_master):
        return None, None
    name = revive_topic(config.cluster_name)
    log = RevivePopLog(store, timers, role.durability, wall_clock_ms, name)
    pops = Pops(
        records if slave and records is not None else log,
        store,
        timers,
        offsets,
        open_order_table(config.store.root / "config", wall_clock_ms),
        config.pop,
        wall_clock_ms,
        config.broker_name,
        name,
        NOT_ACTING if slave else "",
    )
    return pops, None if slave else Reviver(pops, log, topics, groups)


def open_transactions(
    config: BrokerConfig,
    store: MessageStore,
    role: Role,
    topics: Topics,
    offsets: ConsumerOffsets,
    clients: GroupTable[Connection],
    live: LiveSettings,
    check: AccessCheck | None,
) -> TransactionChecks:
    """Make what prepares, ends and checks transactions."""
    transactions = Transactions(
        store, offsets, role.durability, wall_clock_ms, config.transaction_op_bytes
    )
    store.indexer.on_arrival.append(transactions.arrived)

    def rules() -> CheckRules:
        return CheckRules(
            live.transaction_timeout_ms / 1000,
            live.transaction_check_interval_ms / 1000,
            live.transaction_checks_max,
            store.config.retention.reserved_hours * 3600,
        )

    return TransactionChecks(
        transactions,
        clients,
        rules,
        lambda topic: topics.ensure(topic, 1),
        config.broker_name,
        check.may_send if check is not None else None,
    )


def registration_settings(config: BrokerConfig) -> RegistrationSettings:
    """Return the contents of registrations, their interval and their time limit."""
    acting_master = config.replication.acting_master
    return RegistrationSettings(
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
        acting_master=acting_master,
        not_active_ms=config.replication.not_active_ms if acting_master else None,
    )
