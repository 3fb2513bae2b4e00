"""The parts of a broker, and what each of them needs: the only file that imports all of them.

The order is: store, role, tables, services, processors, server. Each part gets what it needs when
it is made. The store comes first; parts that it calls back join its lists of callbacks.
"""

from __future__ import annotations

import os
import random

import attrs

from triomq.broker.config import BrokerConfig
from triomq.broker.grpc_endpoint import GrpcEndpoint, grpc_port
from triomq.broker.java_keys import BROKER_KEYS
from triomq.broker.monitor_source import BrokerSource
from triomq.broker.processors.access import AccessRequests
from triomq.broker.processors.broker_config import BrokerConfigRequests
from triomq.broker.processors.clients import Clients
from triomq.broker.processors.consumption import Consumption
from triomq.broker.processors.controller_notices import ControllerNotices
from triomq.broker.processors.group_changes import GroupChanges
from triomq.broker.processors.group_progress import GroupProgress
from triomq.broker.processors.ha_status import HaStatusRequests
from triomq.broker.processors.handler_table import (
    AccessHandlers,
    AdminHandlers,
    GroupHandlers,
    PopHandlers,
    Processors,
    ReadHandlers,
    ReplicaHandlers,
    SendHandlers,
    handler_table,
)
from triomq.broker.processors.housekeeping import Housekeeping
from triomq.broker.processors.offsets import GroupOffsetRequests, QueueOffsetRequests
from triomq.broker.processors.plain_acl import PlainAclRequests
from triomq.broker.processors.pop.acknowledgements import Acknowledgements
from triomq.broker.processors.pop.assignments import Assignments
from triomq.broker.processors.pop.polls import Polls
from triomq.broker.processors.pop.pop_checks import PopChecks
from triomq.broker.processors.pop.pop_messages import PopMessages
from triomq.broker.processors.pop.rollbacks import PopRollbacks
from triomq.broker.processors.pull import PullMessages
from triomq.broker.processors.query import QueryMessages
from triomq.broker.processors.queue_locks import QueueLockRequests
from triomq.broker.processors.quota_check import QuotaCheck
from triomq.broker.processors.recall import Recalls
from triomq.broker.processors.relays import Relays
from triomq.broker.processors.replies import Replies
from triomq.broker.processors.resets import Resets
from triomq.broker.processors.runtime import RuntimeFigures
from triomq.broker.processors.send.admission import Admission
from triomq.broker.processors.send.pipeline import SendPipeline
from triomq.broker.processors.send.send_back import SendBack
from triomq.broker.processors.subscriptions import GroupRequests
from triomq.broker.processors.topics import TopicRequests
from triomq.broker.processors.transactions import TransactionRequests
from triomq.broker.roles.acting_option import ActingOption, open_acting_option
from triomq.broker.roles.older_copies import OlderCopiesOfMaster
from triomq.broker.roles.pop_handover import PopHandover
from triomq.broker.roles.role import Role
from triomq.broker.roles.table_copy import TableCopy
from triomq.broker.service_set import ServiceSet, open_services
from triomq.broker.services.name_servers import NameServerTable
from triomq.broker.services.pop.group_moves import GroupMoves
from triomq.broker.services.pop.pops import TAKING_OVER
from triomq.broker.services.routes import Routes
from triomq.broker.services.timers.timers import Timers
from triomq.broker.services.topics_and_groups import TopicsAndGroups
from triomq.broker.services.transactions.transactions import Transactions
from triomq.broker.store.core.stall import ECHO_SECONDS
from triomq.broker.store.opening import wall_clock_ms
from triomq.broker.store.store import MessageStore
from triomq.remoting.audit.decision_log import DecisionLog
from triomq.remoting.client.connector import Connector
from triomq.remoting.core.open_files import Places
from triomq.remoting.core.saved_settings import SavedSettings
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.server.config import ServerConfig
from triomq.remoting.server.request_hooks import RequestHook
from triomq.remoting.server.server import Server
from triomq.remoting.tls.security_settings import Security


@attrs.frozen(kw_only=True)
class Broker:
    """The parts that are built on a store, for one role."""

    services: ServiceSet
    table_copy: TableCopy | None
    """On a slave."""
    acting: ActingOption
    group_changes: GroupChanges
    server: Server
    endpoint: GrpcEndpoint | None
    """On a master, unless the settings want none."""
    source: BrokerSource
    """What probes and Prometheus may read."""


def open_broker(
    config: BrokerConfig,
    store: MessageStore,
    role: Role,
    name_servers: NameServerTable,
    connector: Connector,
    server_config: ServerConfig,
    security: Security,
    places: Places,
    timers: Timers | None = None,
    audit: DecisionLog | None = None,
) -> Broker:
    """Load the tables, and make everything that has no file.

    ``places``: connections that clients may take.

    Raises: DamagedTable.
    """
    services = open_services(config, store, role, name_servers, connector, timers, audit)
    table_copy = None
    if role.slave is None:
        store.compactor.begin()
    else:
        store.compactor.begin(OlderCopiesOfMaster(connector, role.slave.master, store))
        table_copy = TableCopy(
            connector,
            role.slave.master,
            role.slave.tables_changed,
            services.topics,
            services.groups,
            services.offsets,
            services.delayed,
            store,
            timers,
            PopHandover(
                connector,
                services.acting_records,
                config.cluster_name,
                lambda: store.flushed.value,
                services.pops,
            )
            if services.acting_records is not None
            else None,
            services.access if config.access.authentication else None,
            services.request_modes,
            services.registrar.settings.broker_address
            if config.replication.acting_master
            else None,
            compare_ends=role.slave.compare_ends,
        )
    acting = open_acting_option(
        config.replication,
        role,
        services.registrar,
        services.delayed,
        services.offsets,
        lambda: Transactions(store, services.offsets, role.durability, wall_clock_ms),
        services.transactions.rules,
        timers,
        services.open_acting_reviver,
    )
    if acting.takeover is not None and services.pops is not None:
        services.pops.closed = TAKING_OVER
    group_changes = GroupChanges(
        config.replication.acting_master,
        services.registrar,
        lambda: store.appended.value,
        role.slave,
        acting.acting_master,
        table_copy,
        timers,
    )
    if acting.takeover is not None:
        group_changes.hear = acting.takeover.hear
    server = open_server(
        config, server_config, store, role, services, group_changes, places, connector, timers
    )
    endpoint = None
    if role.slave is None and grpc_port(config):
        endpoint = GrpcEndpoint(config, grpc_port(config), server, services, security, places)
    drain = config.pools.fast_failure
    store.stall.on_stall.append(
        lambda seconds: server.pools["send"].hold_off(ECHO_SECONDS, drain=drain)
    )
    return Broker(
        services=services,
        table_copy=table_copy,
        acting=acting,
        group_changes=group_changes,
        server=server,
        endpoint=endpoint,
        source=BrokerSource(config, store, role, services, acting.acting_master, server, endpoint),
    )


def open_server(
    config: BrokerConfig,
    server_config: ServerConfig,
    store: MessageStore,
    role: Role,
    services: ServiceSet,
    group_changes: GroupChanges,
    places: Places,
    connector: Connector,
    timers: Timers | None = None,
) -> Server:
    """Make the processors, and the server with the table of their handlers."""
    live, topics, groups = services.live, services.topics, services.groups
    offsets, delayed, held = services.offsets, services.delayed, services.held
    clients, statistics = services.clients.table, services.statistics
    known = TopicsAndGroups(topics, groups, clients, offsets, statistics)
    send = SendPipeline(
        store,
        topics,
        Admission(topics, groups, statistics, live, config.broker_ip),
        delayed,
        services.locks,
        statistics,
        UniqueIds(store.config.store_host[:-4], os.getpid(), random.getrandbits(32)),
        wall_clock_ms,
        config,
        role.durability,
        timers,
    )
    pull = PullMessages(
        store,
        known,
        held,
        live,
        config.broker_ip,
        role.slave_reads,
        services.cold,
        services.filters,
    )
    pop_checks = PopChecks(topics, groups, live, config.broker_ip, services.pops, services.limits)
    check = services.check
    relays = Relays(store, clients, config.broker_name, check)
    require = check.require_for_body if check is not None else None
    settings = BrokerConfigRequests(
        config,
        BROKER_KEYS,
        live,
        topics,
        SavedSettings.open(config.saved_settings_path()),
        store,
        services.quotas,
    )
    processors = Processors(
        sends=SendHandlers(
            send=send,
            send_back=SendBack(send, groups, live, config.broker_ip, check),
            recalls=Recalls(send, live, config.broker_name, role.slave is not None),
            transactions=TransactionRequests(
                send, services.transactions.transactions if role.slave is None else None, check
            ),
            replies=Replies(
                send,
                clients,
                services.pushed,
                services.registrar.settings.broker_address,
                config.store_replies,
            ),
            reject=always if role.slave is not None else None,
        ),
        reads=ReadHandlers(
            pull=pull,
            query=QueryMessages(store, check),
            queues=QueueOffsetRequests(store),
            reject=role.slave_reads.refuses if role.slave is not None else None,
        ),
        pops=PopHandlers(
            pop=PopMessages(
                store,
                pop_checks,
                clients,
                statistics,
                config.broker_name,
                services.cold,
                services.held_pops,
            ),
            polls=Polls(store, pop_checks, services.held_pops),
            acknowledgements=Acknowledgements(
                store, pop_checks, config.broker_name, services.held_pops, statistics
            ),
            assignments=Assignments(
                topics,
                groups,
                clients,
                services.request_modes,
                Routes(services.registrar.servers, connector),
            ),
            rollbacks=PopRollbacks(config.store.root),
        ),
        consumers=GroupHandlers(
            offsets=GroupOffsetRequests(
                store, topics, groups, offsets, delayed, statistics, role.tables
            ),
            clients=Clients(services.clients, groups, topics, services.filters, live),
            locks=QueueLockRequests(services.locks),
            consumption=Consumption(
                store,
                known,
                config.broker_name,
                services.registrar.settings.broker_address,
                services.pops,
            ),
            progress=GroupProgress(store, known, wall_clock_ms, config.broker_name),
            resets=Resets(
                store,
                known,
                GroupMoves(
                    store, offsets, services.pops, held, services.held_pops, relays.tell_moved
                ),
                live,
                relays,
            ),
            relays=relays,
            reject_commits=role.slave.parted.known if role.slave is not None else None,
        ),
        administration=AdminHandlers(
            topics=TopicRequests(store, known, held, services.registrar, live, config.broker_name),
            groups=GroupRequests(known),
            config=settings,
            # A handler that shows figures of the server that calls it.
            runtime=RuntimeFigures(
                config,
                store,
                statistics,
                delayed,
                live,
                clients,
                lambda: server,
                timers,
                role.parted,
                services.quotas,
                settings.changed,
            ),
            housekeeping=Housekeeping(store, topics, held, slave=role.slave is not None),
        ),
        replicas=ReplicaHandlers(
            ha_status=HaStatusRequests(store, role.master, role.slave),
            group_changes=group_changes,
            notices=ControllerNotices(config, store, role.tenure, group_changes.copy),
        ),
        users=AccessHandlers(
            access=AccessRequests(
                services.access,
                config.access.authentication,
                role.tables_changed,
                None if services.plain_acl is None else services.plain_acl.table,
            ),
            plain_acl=PlainAclRequests(
                services.plain_acl,
                config.cluster_name,
                config.broker_name,
                lambda: services.registrar.settings.broker_address,
            ),
        ),
        require_for_body=require,
    )
    if check is not None:
        hooks: tuple[RequestHook, ...] = (*server_config.request_hooks, check)
        server_config = attrs.evolve(
            server_config,
            request_hooks=hooks,
            checks_callers=server_config.checks_callers or config.checks_users,
        )
    if services.quotas is not None:
        server_config = attrs.evolve(
            server_config, request_hooks=(*server_config.request_hooks, QuotaCheck(services.quotas))
        )
    server = Server(
        server_config,
        handler_table(processors),
        on_close=services.connection_closed,
        name="broker",
        places=places,
    )
    return server


def always() -> bool:
    """Reject every request of this kind: the broker's role does not change."""
    return True
