"""Replication put together for one broker: what a master offers its slaves, or what a slave does, by its role."""

from __future__ import annotations

import attrs
import trio

from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.replication.ports import open_ha_port
from triomq.broker.replication.replicas import ReplicaSet
from triomq.broker.replication.slave import MasterAddress, ReplicationSlave
from triomq.broker.replication.waiting import ReplicatedDurability
from triomq.broker.services.registration import Registration
from triomq.broker.services.slave_reads import SlaveReads
from triomq.broker.services.versions import Version
from triomq.broker.store.durability import Durability
from triomq.broker.store.store import MessageStore
from triomq.remoting.address import format_address

DRAIN_SECONDS = 1.0


@attrs.define(eq=False)
class Replication:
    """One of ``master`` and ``slave`` is set."""

    config: BrokerConfig
    store: MessageStore
    master: ReplicationMaster | None = None
    slave: ReplicationSlave | None = None
    _replicated: ReplicatedDurability | None = attrs.field(default=None, init=False)
    """If senders wait for slaves."""

    def __attrs_post_init__(self) -> None:
        if self.config.broker_role is BrokerRole.SYNC_MASTER and self.master is not None:
            self._replicated = ReplicatedDurability(self.store, self.master, self.config.replication.slave_timeout_ms / 1000)

    @property
    def durability(self) -> Durability:
        """What senders ask whether their messages are safe."""
        return self._replicated or self.store

    @property
    def slave_reads(self) -> SlaveReads:
        slave = self.slave
        return SlaveReads(self.config.replication.slave_reads, None if slave is None else lambda: slave.following)

    def watch(self, *versions: Version) -> None:
        """Tell slaves of ours when one of these tables changes."""
        if self.master is not None:
            for version in versions:
                version.on_bump = self.master.tables_changed

    async def start(self, tasks: trio.Nursery, registration: Registration) -> None:
        """Open the HA port, or follow the master.  Raises AddressInUse, ListenFailed."""
        if self.slave is not None:
            slave = self.slave
            registration.on_master = slave.master.update
            registration.searching = lambda: not slave.following
            slave.on_lost.append(registration.announce_again)
            tasks.start_soon(self.slave.run, name="replication-slave")
        elif self.master is not None:
            config = self.config
            listener, port = open_ha_port(config.listen_host, config.ha_port)
            registration.settings = attrs.evolve(registration.settings, ha_address=format_address(config.ha_ip, port))
            tasks.start_soon(self.master.run, listener, name="replication-master")
            if self._replicated is not None:
                tasks.start_soon(self._replicated.run_deadlines, name="replication-deadlines")

    async def drain(self) -> None:
        """The last step of an orderly stop: slaves that are here get the last messages, but nobody waits long for them."""
        if self.master is not None:
            with trio.move_on_after(DRAIN_SECONDS):
                await self.master.wait_copied()


def open_replication(config: BrokerConfig, store: MessageStore) -> Replication:
    """What belongs to the role; from here on the store of a slave takes no messages but its master's."""
    settings = config.replication
    rules = settings.link_rules(config.store.segment_size_bytes)
    look = config.network.busy_poll_micros > 0
    if config.broker_role is BrokerRole.SLAVE:
        address = MasterAddress(ha=settings.master_address or None, ha_fixed=bool(settings.master_address))
        slave = ReplicationSlave(store, store.follow(), rules, address, settings.last_segment_only, look)
        return Replication(config, store, slave=slave)
    replicas = ReplicaSet(settings.replica_rules())
    master = ReplicationMaster(
        store,
        rules,
        replicas,
        settings.bytes_per_second if settings.limit_rate else 0,
        awaited=config.broker_role is BrokerRole.SYNC_MASTER,
        look=look,
        admission=settings.admission(),
    )
    store.cleaner.needed_from = master.needed_from
    return Replication(config, store, master=master)
