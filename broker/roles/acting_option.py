"""What ``enableSlaveActingMaster`` adds to a broker.

In any role signs of life, on a slave the acting master, on a master the takeover.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from triomq.broker.config.replication_settings import ReplicationSettings
from triomq.broker.roles.acting_master import ActingMaster
from triomq.broker.roles.acting_rules import ActingRules
from triomq.broker.roles.broker_group import BrokerGroup
from triomq.broker.roles.role import Role
from triomq.broker.roles.takeover import SEARCH_SECONDS, MasterTakeover
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.delay_delivery import RemoteDelivery
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.pop.acting_reviver import ActingReviver
from triomq.broker.services.registration import Registrar
from triomq.broker.services.remote_sender import RemoteSender
from triomq.broker.services.routes import Routes
from triomq.broker.services.timers.timer_escape import RemoteTimerDelivery
from triomq.broker.services.timers.timers import Timers
from triomq.broker.services.transactions.checks import CheckRules
from triomq.broker.services.transactions.remote_halves import RemoteHalves
from triomq.broker.services.transactions.transactions import Transactions


@attrs.frozen(kw_only=True)
class ActingOption:
    """All fields are None while the option is off."""

    group: BrokerGroup | None = None
    acting_master: ActingMaster | None = None
    takeover: MasterTakeover | None = None

    async def before_registration(self) -> None:
        """Take over what slaves have done in place of a master; nothing on a slave."""
        if self.takeover is not None:
            await self.takeover.run()

    def start(self, tasks: trio.Nursery) -> None:
        """Start the tasks; the broker is registered."""
        if self.group is not None:
            tasks.start_soon(self.group.run_heartbeat, name="broker-heartbeat")
        if self.acting_master is not None:
            tasks.start_soon(self.acting_master.run, name="acting-master")


def open_acting_option(
    settings: ReplicationSettings,
    role: Role,
    registrar: Registrar,
    delayed: DelayedMessages,
    offsets: ConsumerOffsets,
    open_transactions: Callable[[], Transactions],
    check_rules: Callable[[], CheckRules],
    timers: Timers | None = None,
    open_acting_reviver: Callable[[RemoteSender | None], ActingReviver | None] = lambda _: None,
) -> ActingOption:
    """Return what the option adds by this broker's role."""
    if not settings.acting_master:
        return ActingOption()
    caller, broker = registrar.connector, registrar.settings
    group = BrokerGroup(registrar, settings.alive_ms / 1000, settings.alive_timeout_ms / 1000)
    slave = role.slave
    if slave is None:
        takeover = MasterTakeover(
            group, caller, delayed, offsets, lambda: role.store.appended.value, timers
        )
        return ActingOption(group=group, takeover=None if settings.skip_pre_online else takeover)
    sender = RemoteSender(broker.broker_name, Routes(registrar.servers, caller), caller)
    master_tasks = [
        RemoteDelivery(delayed, sender).run,
        RemoteHalves(open_transactions, sender, check_rules).run,
    ]
    if timers is not None:
        master_tasks.append(RemoteTimerDelivery(timers, sender).run)
    if not settings.remote_escape:
        master_tasks.clear()
    reviver = open_acting_reviver(sender if settings.remote_escape else None)
    if reviver is not None:
        master_tasks.append(reviver.run)
    acting_master = ActingMaster(
        ActingRules(broker.broker_id, SEARCH_SECONDS),
        group,
        lambda: slave.following or slave.parted.known(),
        master_tasks,
        settings.members_ms / 1000,
    )
    slave.on_lost.append(acting_master.check_now)
    return ActingOption(group=group, acting_master=acting_master)
