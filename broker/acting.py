"""``enableSlaveActingMaster`` put together for one broker, by its role: signs of life in any, the acting slave, the return of the master."""

from __future__ import annotations

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.processors.group_changes import GroupChanges
from triomq.broker.replicating import Replication
from triomq.broker.replication.acting import ActingRules
from triomq.broker.services.acting import ActingMaster, Return
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.delay_delivery import RemoteDelivery
from triomq.broker.services.members import GroupMembers
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.registration import Registration
from triomq.broker.services.remote_sender import RemoteSender
from triomq.broker.services.table_copy import TableCopy
from triomq.broker.store.store import MessageStore


@attrs.define(eq=False)
class Acting:
    """What the option adds; nothing at all when it is off."""

    requests: GroupChanges
    members: GroupMembers | None = None
    slave: ActingMaster | None = None
    returning: Return | None = None

    async def before_registration(self) -> None:
        """A master learns what was done in its place."""
        if self.returning is not None:
            await self.returning.run()

    def start(self, tasks: trio.Nursery) -> None:
        """Once the broker is registered."""
        if self.members is not None:
            tasks.start_soon(self.members.run_heartbeat, name="broker-heartbeat")
            tasks.start_soon(self.requests.run, name="group-changes")
        if self.slave is not None:
            tasks.start_soon(self.slave.run, name="acting-master")


def open_acting(
    config: BrokerConfig,
    store: MessageStore,
    replication: Replication,
    registration: Registration,
    delayed: DelayedMessages,
    offsets: ConsumerOffsets,
    copy: TableCopy | None,
) -> Acting:
    """What belongs to the role."""
    settings, slave = config.replication, replication.slave
    requests = GroupChanges(settings.acting_master, registration, lambda: store.appended.value, slave, copy=copy)
    if not settings.acting_master:
        return Acting(requests)
    members = GroupMembers(registration, settings.alive_ms / 1000, settings.alive_timeout_ms / 1000)
    if slave is None:
        returning = None if settings.skip_pre_online else Return(members, lambda: registration.connector, delayed, offsets, lambda: store.appended.value)
        return Acting(requests, members, returning=returning)
    sender = RemoteSender(config.broker_name, lambda: list(registration.servers), lambda: registration.connector)
    duties = [RemoteDelivery(delayed, sender).run] if settings.remote_escape else []
    acting = requests.acting = ActingMaster(ActingRules(config.broker_id), members, lambda: slave.following, duties, settings.members_ms / 1000)
    slave.on_lost.append(acting.look_again)
    return Acting(requests, members, slave=acting)
