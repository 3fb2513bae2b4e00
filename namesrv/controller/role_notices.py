"""Tell brokers who their master is: NOTIFY_BROKER_ROLE_CHANGED (1008), one-way.

Brokers also ask every five seconds (1004), so a lost notice costs time only.
Source: controller/…/ControllerManager.java#notifyBrokerRoleChanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import attrs
import trio

from triomq.namesrv.controller.state import Group
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.controller import SyncStateSet
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.controller import RoleChangedHeader

_log = logging.getLogger(__name__)

NOTIFY_SECONDS = 3.0


def notice(group: Group) -> Command:
    """Return the request that tells the brokers of a group about its master."""
    return request(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RoleChangedHeader(
            master_address=None if group.master is None else group.replicas[group.master].address,
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_set_epoch,
            master_broker_id=group.master,
        ),
        SyncStateSet(group.sync_set, group.sync_set_epoch).encode(),
    )


@attrs.define(eq=False)
class RoleNotices:
    """The names of groups whose brokers must hear of a change, and the task that tells them.

    ``current`` returns the group of a name, None if it is gone, and the ids of its living brokers.
    """

    current: Callable[[str], tuple[Group | None, Mapping[int, object]]]
    connecting: ConnectorConfig
    _names: dict[str, None] = attrs.field(factory=dict, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def send(self, broker_name: str) -> None:
        """Tell the living brokers of a group soon. Checkpoint: never."""
        self._names[broker_name] = None
        self._wake.set()

    async def run(self) -> None:
        """Send notices until cancelled: the task "role-notices".

        A broker that hangs delays nobody: each notice has its task, and a limit.
        """
        async with Connector(self.connecting) as connector, trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                self._wake, names, self._names = trio.Event(), self._names, {}
                for name in names:
                    group, living = self.current(name)
                    if group is None:
                        continue
                    for broker_id in sorted(living.keys() & group.replicas.keys()):
                        address = group.replicas[broker_id].address
                        nursery.start_soon(_notify, connector, address, notice(group))


async def _notify(connector: Connector, address: str, command: Command) -> None:
    try:
        await connector.oneway(address, command, timeout=NOTIFY_SECONDS)
    except (RemotingError, ValueError) as error:
        _log.info("cannot tell %s its new role (%s); it asks by itself", address, error)
