"""The tasks of a controller, and which request code has which handler.

::

    run_controller ─┬ controller-watch, role-notices
                    └ Server.run ── boss, selectors, codecs, pool workers, sweeper, idle scan
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import attrs
import trio

from triomq.namesrv.controller.broker_groups import BrokerGroups
from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.namesrv.controller.liveness import BrokerLiveness
from triomq.namesrv.controller.requests import ControllerRequests
from triomq.namesrv.controller.role_notices import RoleNotices
from triomq.namesrv.controller.state import Group
from triomq.namesrv.controller.state_file import StateFile
from triomq.remoting.core.open_files import Places
from triomq.remoting.monitor.metrics import Family, counter, gauge
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    NextBrokerIdHeader,
    RegisterToControllerHeader,
    ReplicaInfoHeader,
)
from triomq.remoting.protocol.headers.route import BrokerHeartbeatHeader
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.config import ServerConfig
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.requests import Call
from triomq.remoting.server.server import Server
from triomq.remoting.tls.client import Tls

_log = logging.getLogger(__name__)


@attrs.define(eq=False)
class ControllerParts:
    """A controller before its tasks run. ``open`` reads its state."""

    groups: BrokerGroups
    requests: ControllerRequests
    notices: RoleNotices

    @classmethod
    def open(
        cls, settings: Callable[[], ControllerSettings], tls: Tls | None = None
    ) -> ControllerParts:
        """Raises: ConfigError."""
        started = settings()
        peer = started.own_peer()

        def current(name: str) -> tuple[Group | None, Mapping[int, object]]:
            group = groups.state.groups.get(name)
            return group, {} if group is None else groups.living(name)

        notices = RoleNotices(current, tls)

        def role_changed(name: str) -> None:
            if settings().notify:
                notices.send(name)

        groups = BrokerGroups(
            file=StateFile.open(started.store_path),
            liveness=BrokerLiveness(trio.current_time()),
            settings=settings,
            limits=Limits(started, "controller"),
            role_changed=role_changed,
        )
        requests = ControllerRequests(groups=groups, settings=started, peer=peer)
        return cls(groups, requests, notices)

    def handler_table(self, get_config: Call, update_config: Call) -> HandlerTable:
        """Return the handler of every request code of the controller."""
        code, asked = RequestCode, self.requests
        return HandlerTable(
            [
                Handler(
                    code.CONTROLLER_ALTER_SYNC_STATE_SET,
                    asked.alter_set,
                    header=AlterSyncStateSetHeader,
                ),
                Handler(code.CONTROLLER_ELECT_MASTER, asked.elect, header=ElectMasterHeader),
                Handler(
                    code.CONTROLLER_REGISTER_BROKER,
                    asked.register,
                    header=RegisterToControllerHeader,
                ),
                Handler(
                    code.CONTROLLER_GET_REPLICA_INFO, asked.replica_info, header=ReplicaInfoHeader
                ),
                Handler(code.CONTROLLER_GET_METADATA_INFO, asked.metadata),
                Handler(code.CONTROLLER_GET_SYNC_STATE_DATA, asked.sync_state_data),
                Handler(code.UPDATE_CONTROLLER_CONFIG, update_config),
                Handler(code.GET_CONTROLLER_CONFIG, get_config),
                Handler(code.CLEAN_BROKER_DATA, asked.clean, header=CleanBrokerDataHeader),
                Handler(
                    code.CONTROLLER_GET_NEXT_BROKER_ID, asked.next_id, header=NextBrokerIdHeader
                ),
                Handler(
                    code.CONTROLLER_APPLY_BROKER_ID, asked.apply_id, header=ApplyBrokerIdHeader
                ),
                Handler(code.BROKER_HEARTBEAT, asked.heartbeat, header=BrokerHeartbeatHeader),
            ]
        )

    def refused(self) -> Counter[str]:
        """Return how often each limit was reached: name of the setting -> refusals."""
        return self.groups.limits.refused

    def figures(self) -> Iterator[Family]:
        """Yield what the page of metrics shows."""
        yield gauge(
            "triomq_controller_groups", "Broker groups with ids.", len(self.groups.state.groups)
        )
        yield gauge(
            "triomq_controller_groups_without_master",
            "Broker groups that have no living master: they take no messages.",
            self.groups.without_master(),
        )
        yield counter(
            "triomq_controller_elections_total",
            "Elections since the start that made a broker master.",
            self.groups.elections,
        )
        yield counter(
            "triomq_controller_unknown_heartbeats_total",
            "Heartbeats of brokers that have no id here.",
            self.requests.unknown_heartbeats,
        )

    async def run(
        self,
        config: ServerConfig,
        table: HandlerTable,
        places: Places,
        *,
        task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; ``started`` when requests are answered.

        Raises: AddressInUse, ListenFailed.
        Checkpoint: always.
        """
        server = Server(
            config,
            table,
            on_close=self.groups.connection_lost,
            name="controller",
            places=places,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.notices.run, name="role-notices")
            nursery.start_soon(self.groups.watch, name="controller-watch")
            await nursery.start(server.run, name="controller-server")
            _log.info("controller ready on %s", self.requests.peer.address)
            task_status.started(server)
