"""The tasks of a broker: their nesting is the order of start, its reverse the order of stop.

::

    run_broker ─┬ audit-log
                ├ monitor
                ├ store ── store-flusher, store-flush-deadlines, store-indexer,
                │          store-index-syncer, store-cleaner, store-remover
                ├ saver, groups-expire, filters-expire, held-pulls-expire, cold-pulls,
                │ pushed-replies, queue-locks-expire, statistics, slow-consumers
                ├ Server.run ── boss, selectors, codecs, pool workers, sweeper, idle scan
                ├ replication-master ── one child per slave; on a slave: replication-slave
                ├ delayed-messages, transactions, timers ── timer-open, timer-enqueue,
                │ timer-save; timer-deliver (not on a slave)
                ├ grpc-endpoint ── messaging-service, grpc-server (a master)
                └ registration ── one child per name server; on a slave: table-copy;
                  with enableSlaveActingMaster: broker-heartbeat, group-changes, and on a slave
                  acting-master ── master-tasks

An orderly stop (``BrokerReady.stop``): unregister, stop accepting, drain the pools, close
connections, save the tables, let the indexer catch up, flush, write the checkpoint. Cancelling
``run_broker`` instead leaves everything as a crash would.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import attrs
import trio

from triomq.broker.addresses import encoded_host, reserved_ports, side_ports
from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.config.advertise import warn_if_unreachable
from triomq.broker.full_disk import refuse_without_room
from triomq.broker.replication.epoch_file import forget_epochs
from triomq.broker.roles.role import open_role
from triomq.broker.roles.second_master import require_only_master
from triomq.broker.roles.table_copy import TABLE_BYTES_MAX
from triomq.broker.roles.tenure import Tenure
from triomq.broker.services.delay_delivery import LocalDelivery
from triomq.broker.services.name_servers import NameServerTable
from triomq.broker.services.timers.opening import opened_timers
from triomq.broker.services.timers.timer_delivery import LocalTimerDelivery
from triomq.broker.services.topics import batch_topics, compaction_topics, saved_topics
from triomq.broker.store.core.errors import FlushFailed, FullAtStart, starting
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store, wall_clock_ms
from triomq.broker.store.store import MessageStore
from triomq.broker.succession import Succession
from triomq.broker.wiring import open_broker
from triomq.remoting.audit.decision_log import open_audit, writing
from triomq.remoting.client.access import Access
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.client.proxies import SocksProxies
from triomq.remoting.core.address import format_address
from triomq.remoting.core.open_files import ConnectionBudget
from triomq.remoting.monitor.http_server import monitoring
from triomq.remoting.server.request_hooks import RequestHook
from triomq.remoting.tls.security_settings import resolve


@attrs.frozen
class BrokerReady:
    """A broker that answers requests; ``address`` is the one that clients connect to."""

    host: str
    port: int
    address: str
    name: str
    stop: Callable[[], None] = attrs.field(eq=False, repr=False)
    """Begin an orderly stop; ``run_broker`` returns when it is done."""
    drop_connections: Callable[[], None] = attrs.field(eq=False, repr=False)
    """Abort every connection, as if the process had ended."""

    def banner(self) -> str:
        """Return what runs where, for people."""
        return (
            f"broker {self.name} ready on {format_address(self.host, self.port)}, clients connect"
            f" to {self.address}"
        )


async def run_broker(
    config: BrokerConfig,
    *,
    request_hooks: Sequence[RequestHook] = (),
    disk: Disk | None = None,
    budget: ConnectionBudget | None = None,
    task_status: trio.TaskStatus[BrokerReady] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until stopped or cancelled.

    Calls ``started(BrokerReady(...))`` when it answers requests and has attempted to register.

    ``request_hooks`` see every request first and may refuse it (``remoting/server/request_hooks``);
    ``disk``: where store and tables are; ``budget``: that of a process with several servers.

    Raises: StartError (store), DamagedTable, AddressInUse or ListenFailed, ConfigError,
    SecondMaster, if it cannot start.
    """
    with reserved_ports(config) as with_ports:
        if not config.replication.controller.enabled:
            await _run(with_ports, request_hooks, disk, budget, task_status=task_status)
            return
        announced = False

        async def run_tenure(in_role: BrokerConfig, tenure: Tenure) -> None:
            nonlocal announced
            try:
                async with trio.open_nursery() as nursery:
                    ready = await nursery.start(_run, in_role, request_hooks, disk, budget, tenure)
                    if not announced:
                        task_status.started(attrs.evolve(ready, stop=succession.stop))
                        announced = True
            except* FullAtStart as full:
                if not announced:
                    raise
                await refuse_without_room(with_ports, tenure, full)

        succession = Succession(with_ports, run_tenure, disk or Disk())
        await succession.run()


@contextlib.asynccontextmanager
async def begun(
    tenure: Tenure | None, store: MessageStore, root: Path, disk: Disk
) -> AsyncIterator[None]:
    """Take the role of a tenure as soon as the store is open, before anything reads it.

    Raises: FullAtStart and other errors of a start; FlushFailed.
    """
    with starting(root):
        if tenure is None:
            forget_epochs(root, disk)
        else:
            await tenure.begin(store)
    yield


async def _run(
    config: BrokerConfig,
    request_hooks: Sequence[RequestHook],
    disk: Disk | None,
    budget: ConnectionBudget | None,
    tenure: Tenure | None = None,
    *,
    task_status: trio.TaskStatus[BrokerReady],
) -> None:
    store_host = await encoded_host(config)
    security = resolve(config.security)
    sniffer = None
    if not security.plain_only:
        # Start-up time: only where it is needed.
        from triomq.remoting.server.connection_sniffer import open_sniffer

        sniffer = open_sniffer(security, (config.broker_ip,))
    ha_tls = None
    if config.replication.tls:
        from triomq.broker.roles.replication_tls import open_replication_tls  # likewise

        ha_tls = open_replication_tls(config)
    server_config = attrs.evolve(
        config.network.server_config(
            config.listen_host, config.listen_port, config.pools.by_name(), side_ports(config)
        ),
        filter_factory=sniffer.filter if sniffer is not None else None,
        request_hooks=tuple(request_hooks),
        checks_callers=bool(request_hooks),
    )
    name_servers = NameServerTable.of(config.namesrv_addresses)
    connecting = ConnectorConfig(
        tls=security.client,
        socks=SocksProxies.parse(config.security.socks_proxies),
        busy_poll=False,
        frame_max_bytes=TABLE_BYTES_MAX,
        hooks=Access(credentials=config.access.inner).hooks,
    )
    master = config.broker_role is not BrokerRole.SLAVE
    if master and tenure is None and not config.start_beside_master:
        await require_only_master(config, connecting)
    connector = Connector(connecting, on_lost=name_servers.connection_lost)
    budget = budget or ConnectionBudget.of_process()
    saved = functools.cache(lambda: saved_topics(config.store.root / "config"))
    audit = open_audit(config.audit, config.broker_name)
    stopping = trio.Event() if tenure is None else tenure.over
    async with (
        writing(audit),
        monitoring(config.monitor, "mqbroker", budget, config.exports, audit) as monitor,
        open_store(
            config.store.opened_at(store_host),
            disk=disk,
            batch_topics=lambda: batch_topics(saved()),
            compaction_topics=lambda: compaction_topics(saved()),
            holds_tail=tenure is not None,
            cut_at=None if tenure is None else tenure.cut_at,
        ) as store,
        begun(tenure, store, config.store.root, disk or Disk()),
        opened_timers(
            config.timers, store, wall_clock_ms, slave=config.broker_role is BrokerRole.SLAVE
        ) as timers,
    ):
        role = open_role(
            config, store, budget.slaves, [name_servers.announce_again], audit, tenure, ha_tls
        )
        with starting(config.store.root):
            broker = open_broker(
                config,
                store,
                role,
                name_servers,
                connector,
                server_config,
                security,
                budget.clients,
                timers,
                audit,
            )
            services, acting = broker.services, broker.acting
            await services.restore_pops()
        async with trio.open_nursery() as tasks:
            await services.start(tasks)
            if sniffer is not None:
                tasks.start_soon(sniffer.run, name="tls-files")
            async with trio.open_nursery() as serving:
                host, port = await serving.start(broker.server.run, name="server")
                role.start(tasks)
                serving.start_soon(
                    warn_if_unreachable, config.broker_ip, port, name="advertised-address"
                )
                async with connector:
                    await acting.before_registration()
                    if services.reviver is not None:
                        services.reviver.pops.closed = ""
                    services.lower_progress(store)
                    if role.slave is None:
                        tasks.start_soon(
                            LocalDelivery(services.delayed, services.statistics).run,
                            name="delayed-messages",
                        )
                        tasks.start_soon(services.transactions.run, name="transactions")
                        if services.reviver is not None:
                            tasks.start_soon(services.reviver.run, name="pop-revive")
                        if timers is not None:
                            tasks.start_soon(timers.run, name="timers")
                            tasks.start_soon(
                                LocalTimerDelivery(
                                    timers, services.topics, services.statistics
                                ).run,
                                name="timer-deliver",
                            )
                    elif timers is not None:
                        tasks.start_soon(timers.run_slave, name="timers")
                    async with trio.open_nursery() as announcing:
                        if broker.table_copy is not None:
                            announcing.start_soon(broker.table_copy.run, name="table-copy")
                        await announcing.start(
                            services.registrar.keep_registered, name="registration"
                        )
                        acting.start(announcing)
                        if acting.group is not None:
                            announcing.start_soon(broker.group_changes.run, name="group-changes")
                        monitor.serve(broker.source)
                        task_status.started(
                            BrokerReady(
                                host,
                                port,
                                services.registrar.settings.broker_address,
                                config.broker_name,
                                stopping.set,
                                broker.server.drop_connections,
                            )
                        )
                        if broker.endpoint is not None:
                            announcing.start_soon(broker.endpoint.run, name="grpc-endpoint")
                        await stopping.wait()
                        monitor.leave()
                        if broker.endpoint is not None:
                            await broker.endpoint.drain()
                        announcing.cancel_scope.cancel()
                    # After a role switch it registers again at once, in the other role.
                    if tenure is None or tenure.stopping:
                        await services.registrar.unregister()
                serving.cancel_scope.cancel()
            if tenure is None or tenure.stopping:
                await role.drain()
            tasks.cancel_scope.cancel()
        store.prepare_to_close()
        # So that the whole progress of delayed messages can be saved. A failed fsync is reported
        # when the store is closed.
        with contextlib.suppress(FlushFailed):
            await store.flusher.flush()
        services.save_progress()
        if timers is not None:
            await timers.close()
        await services.saver.save_all()
