"""Replication by role: what a master offers its slaves, or what a slave does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.replication.confirmed_durability import ConfirmedDurability
from triomq.broker.replication.epoch_master_link import EpochMasterLink
from triomq.broker.replication.login import ReplicationLogin
from triomq.broker.replication.master import ReplicationMaster, open_ha_port
from triomq.broker.replication.master_set import MasterSet, SetRules
from triomq.broker.replication.parted import PartedLogs
from triomq.broker.replication.replicas import ReplicaSet
from triomq.broker.replication.replicated_durability import ReplicatedDurability
from triomq.broker.replication.set_keeper import SetKeeper
from triomq.broker.replication.slave import MasterAddress, ReplicationSlave
from triomq.broker.roles.set_tables import SetTables
from triomq.broker.roles.slave_reads import SlaveReads
from triomq.broker.roles.tenure import Tenure
from triomq.broker.store.log.durability import Durability
from triomq.broker.store.store import MessageStore
from triomq.remoting.audit.audit_entry import AuditEntry
from triomq.remoting.audit.decision_log import DecisionLog
from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.core.open_files import Places
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.server.listen import warn_if_open

if TYPE_CHECKING:
    from triomq.broker.roles.replication_tls import ReplicationTls  # ssl, only with TLS

COPIES_MIN_DEFAULT = 2
"""``minInSyncReplicas`` in controller mode, unless set: of a group with two or more brokers."""
FIND_SECONDS, FIND_AGAIN_SECONDS = 1.0, 0.05
"""Of a slave in controller mode that asks its master, which may still be starting."""
DRAIN_SECONDS = 1.0
"""The last step of an orderly stop gives connected slaves this time to catch up."""


@attrs.frozen(kw_only=True)
class Role:
    """Either ``master`` or ``slave`` is set."""

    config: BrokerConfig
    store: MessageStore
    slave_reads: SlaveReads
    master: ReplicationMaster | None = None
    slave: ReplicationSlave | None = None
    replicated: ReplicatedDurability | ConfirmedDurability | None = None
    """Set on a SYNC_MASTER: senders wait for slaves."""
    keeper: SetKeeper | None = None
    """On a master in controller mode."""
    tables: SetTables | None = None
    """On a master in controller mode."""
    tenure: Tenure | None = None
    """In controller mode."""

    @property
    def durability(self) -> Durability:
        """What decides when the messages of senders are safe."""
        return self.replicated or self.store.flusher

    def tables_changed(self) -> None:
        """Tell slaves of TrioMQ that a table has changed. Checkpoint: never."""
        if self.tables is not None:
            self.tables.note_change()
        elif self.master is not None:
            self.master.tables_changed()

    def note_master(self, ha_address: str | None, address: str | None) -> None:
        """Take over what a name server says of the master. Checkpoint: never.

        In controller mode it may still have the last one.
        """
        slave = self.slave
        if slave is not None and (self.tenure is None or address == slave.master.remoting):
            slave.master.update(ha_address, address)

    async def _find_ha_port(self, slave: ReplicationSlave, tenure: Tenure) -> None:
        """Run the task "replication-find": ask the master, before name servers know it."""
        caller = tenure.membership.controllers.caller
        command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaAddressHeader())
        while slave.master.ha is None:
            with suppress(RemotingError, ValueError):
                answer = await caller.invoke(
                    tenure.mastership.address, command, timeout=FIND_SECONDS
                )
                found = answer.header(ExchangeHaAddressHeader)
                slave.master.update(found.master_ha_address, None)
            await trio.sleep(FIND_AGAIN_SECONDS)

    def has_lost_master(self) -> bool:
        """Return whether this is a slave that does not hear from its master."""
        return self.slave is not None and not self.slave.following

    def parted(self) -> str:
        """Return why this slave's log is another one than its master's; an empty text otherwise."""
        return "" if self.slave is None else self.slave.parted.reason

    def start(self, tasks: trio.Nursery) -> None:
        """Open the HA port, or follow the master. Raises: AddressInUse, ListenFailed."""
        if self.slave is not None:
            tasks.start_soon(self.slave.run, name="replication-slave")
            if self.tenure is not None:
                tasks.start_soon(
                    self._find_ha_port, self.slave, self.tenure, name="replication-find"
                )
        if self.master is not None:
            listener = open_ha_port(self.config.ha_listen_host, self.config.ha_port)
            settings = self.config.replication
            if not settings.asks_slaves:
                warn_if_open(
                    listener,
                    "copy every message and count as a slave",
                    "write haAuthentication=true, or name the slaves in haSlaveAddresses or"
                    " haCertificateNames",
                )
            tasks.start_soon(self.master.run, listener, name="replication-master")
        if self.replicated is not None:
            tasks.start_soon(self.replicated.run_deadlines, name="replication-deadlines")
        if self.keeper is not None:
            tasks.start_soon(self.keeper.run, name="replication-set")
        if self.tables is not None:
            tasks.start_soon(self.tables.run, name="replication-tables")

    async def drain(self) -> None:
        """Give connected slaves up to ``DRAIN_SECONDS`` to get the last messages."""
        if self.master is not None:
            with trio.move_on_after(DRAIN_SECONDS):
                await self.master.wait_copied()


def open_role(
    config: BrokerConfig,
    store: MessageStore,
    places: Places,
    on_lost_master: Sequence[Callable[[], None]],
    audit: DecisionLog | None = None,
    tenure: Tenure | None = None,
    tls: ReplicationTls | None = None,
) -> Role:
    """Make what the role needs. From now on a slave's store takes only messages of its master.

    ``places``: connections that slaves of this broker may take. ``on_lost_master``: called on a
    slave when a connection to its master has ended.
    """
    settings = config.replication
    rules = settings.link_rules(config.store.segment_size_bytes)
    busy_poll = config.network.busy_poll_micros > 0
    inner = config.access.inner
    login = ReplicationLogin(inner) if settings.authentication and inner is not None else None
    if config.broker_role is BrokerRole.SLAVE:
        address = MasterAddress(
            ha=settings.master_address or None, ha_fixed=bool(settings.master_address)
        )
        if tenure is not None:
            address = MasterAddress(remoting=tenure.mastership.address)
        slave = ReplicationSlave(
            store,
            store.follow(),
            rules,
            address,
            PartedLogs(config.saved_settings_path().parent / "logsParted", store.disk),
            settings.last_segment_only,
            busy_poll,
            list(on_lost_master),
            login=login,
            tls=None if tls is None else tls.slave,
        )
        if tenure is not None:
            slave.broker_id, slave.epochs = tenure.membership.broker_id, tenure.epochs
            slave.epoch, slave.on_cut = tenure.mastership.epoch, tenure.cut
        return Role(
            config=config,
            store=store,
            slave_reads=SlaveReads(
                settings.slave_reads, lambda: slave.following, slave.parted.known
            ),
            slave=slave,
            tenure=tenure,
        )
    awaited = config.broker_role is BrokerRole.SYNC_MASTER
    master = ReplicationMaster(
        store,
        rules,
        ReplicaSet(settings.replicas),
        settings.bytes_per_second if settings.limit_rate else 0,
        awaited=awaited,
        busy_poll=busy_poll,
        connection_limits=settings.connection_limits(),
        places=places,
        login=login,
        tls=None if tls is None else tls.master,
        on_connection=None if audit is None else partial(_note_slave, audit, config),
    )
    timeout_seconds = settings.slave_timeout_ms / 1000
    if tenure is not None:
        return _open_leading_role(config, store, master, timeout_seconds, tenure)
    return Role(
        config=config,
        store=store,
        slave_reads=SlaveReads(settings.slave_reads),
        master=master,
        replicated=ReplicatedDurability(store, master, timeout_seconds) if awaited else None,
    )


def _open_leading_role(
    config: BrokerConfig,
    store: MessageStore,
    master: ReplicationMaster,
    timeout_seconds: float,
    tenure: Tenure,
) -> Role:
    """Make a master in controller mode: the same stream, with epochs, and a set."""
    settings, membership = config.replication, tenure.membership
    wanted = settings.replicas.min_in_sync_replicas
    leads = MasterSet(
        own_id=membership.broker_id,
        epoch_start=store.appended.value,
        members=tenure.mastership.members,
        set_epoch=tenure.mastership.set_epoch,
        rules=SetRules(
            copies_min=wanted or COPIES_MIN_DEFAULT,  # until the size of the group is known
            catch_up_seconds=settings.replicas.catch_up_ms / 1000,
            lease_seconds=settings.controller.lease_seconds,
        ),
        since=trio.current_time(),
    )

    def note_size(brokers: int) -> None:
        if not wanted:
            leads.copies_min = min(brokers, COPIES_MIN_DEFAULT)

    master.new_link = partial(
        EpochMasterLink, history=tenure.epochs.history, confirmed=lambda: store.confirmed.value
    )
    durability = ConfirmedDurability(store, leads, timeout_seconds)
    tables = SetTables(
        leads,
        membership,
        ExchangeHaAddressHeader(
            format_address(config.ha_ip, config.ha_port), None, membership.address
        ),
        timeout_seconds,
    )
    keeper = SetKeeper(store, master, leads, durability, tables.propose)
    membership.on_set, membership.on_heard = keeper.note_agreed, leads.note_controller
    membership.on_size = note_size
    tenure.held = durability.held
    tenure.on_deposed += [durability.depose, tables.depose]
    if tenure.deposed:  # while the store was opened
        tenure.depose()
    membership.ask_now()
    return Role(
        config=config,
        store=store,
        slave_reads=SlaveReads(settings.slave_reads),
        master=master,
        replicated=durability,
        keeper=keeper,
        tables=tables,
        tenure=tenure,
    )


def _note_slave(audit: DecisionLog, config: BrokerConfig, peer: str, refusal: str) -> None:
    """Write a connection to the HA port into the audit log. Checkpoint: never."""
    why = refusal or config.replication.asks_slaves or "haSlaveAddresses is empty"
    audit.note(AuditEntry(door="ha", what="copy the log", peer=peer, allowed=not refusal, why=why))
