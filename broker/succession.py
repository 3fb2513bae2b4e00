"""A broker in controller mode: one tenure after the other, in one process.

::

    join ─▶ who is master? ─▶ tenure as master, or as slave ─▶ over: another epoch, or a cut ─┐
                  ▲                                                                          │
                  └──────────────────────────────────────────────────────────────────────────┘

A master that shall stop first has another member of the set elected, so that clients wait for the
next master only, and not for the end of this process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.replication.epoch_file import NAME, EpochFile
from triomq.broker.roles.controllers import Controllers
from triomq.broker.roles.identity import IdentityFile
from triomq.broker.roles.membership import ControllerMembership
from triomq.broker.roles.tenure import Tenure
from triomq.broker.store.io.disk import Disk
from triomq.remoting.client.access import Access
from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.tls.security_settings import resolve

logger = logging.getLogger(__name__)

HAND_OVER_SECONDS = 3.0
"""Longest wait of a stop for the election of another master."""

RunTenure = Callable[[BrokerConfig, Tenure], Awaitable[None]]
"""Runs a broker in one role until the tenure is over."""


@attrs.define(eq=False)
class Succession:
    """The tenures of one broker. ``config`` has its ports."""

    config: BrokerConfig
    run_tenure: RunTenure
    disk: Disk
    tenure: Tenure | None = attrs.field(default=None, init=False)
    _stopped: trio.Event = attrs.field(factory=trio.Event, init=False)

    def stop(self) -> None:
        """Begin an orderly stop. Checkpoint: never."""
        self._stopped.set()

    async def run(self) -> None:
        """Serve until stopped or cancelled. Raises: what a start raises; StoreDamaged."""
        config = self.config
        root = config.store.root
        tls = resolve(config.security).client
        hooks = Access(credentials=config.access.inner).hooks
        async with Connector(ConnectorConfig(tls=tls, busy_poll=False, hooks=hooks)) as connector:
            membership = ControllerMembership(
                config,
                format_address(config.broker_ip, config.listen_port),
                Controllers(config.replication.controller.addresses, connector),
                IdentityFile(root, config.cluster_name, config.broker_name, self.disk),
            )
            epochs = EpochFile(root / NAME, self.disk)
            await membership.join()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(membership.run, name="controller-membership")
                nursery.start_soon(self._leave, membership, name="controller-leave")
                cut_at = None
                while not self._stopped.is_set():
                    cut_at = await self._next(membership, epochs, cut_at)
                nursery.cancel_scope.cancel()

    async def _leave(self, membership: ControllerMembership) -> None:
        await self._stopped.wait()
        tenure = self.tenure
        if tenure is None:
            return
        tenure.stopping = True
        if tenure.is_master:
            try:
                with trio.move_on_after(HAND_OVER_SECONDS):
                    await tenure.hand_over()
            except (RemotingError, ValueError) as error:
                logger.warning("no other broker is the master before this one stops: %s", error)
        tenure.end()

    async def _next(
        self, membership: ControllerMembership, epochs: EpochFile, cut_at: int | None
    ) -> int | None:
        """Run one tenure; return where to cut the log before the next one."""
        while membership.mastership is None:
            await membership.changed.wait()
        tenure = self.tenure = Tenure(
            membership=membership, mastership=membership.mastership, epochs=epochs, cut_at=cut_at
        )
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while membership.mastership is None or (
                    membership.mastership.epoch == tenure.mastership.epoch
                ):
                    await membership.changed.wait()
                tenure.depose()

            nursery.start_soon(watch, name="controller-watch")
            await self.run_tenure(in_role(self.config, tenure), tenure)
            nursery.cancel_scope.cancel()
        membership.on_set = membership.on_heard = membership.on_size = None
        logger.info(
            "the time as %s in epoch %d is over",
            "master" if tenure.is_master else "slave",
            tenure.mastership.epoch,
        )
        return tenure.next_cut


def in_role(config: BrokerConfig, tenure: Tenure) -> BrokerConfig:
    """Return the settings of this broker in the role that a controller gives it.

    At name servers a slave has the id of the controller, and a master has 0.
    """
    role = BrokerRole.SYNC_MASTER if tenure.is_master else BrokerRole.SLAVE
    broker_id = 0 if tenure.is_master else tenure.membership.broker_id
    return attrs.evolve(config, broker_role=role, broker_id=broker_id)
