"""The tasks of a controller, and which request code has which handler.

::

    ControllerParts.run ─┬ raft ─┬ raft-clock
                         │       └ raft-disk ── a thread
                         ├ raft-peers ── × other controller
                         ├ controller-watch, role-notices
                         └ Server.run ── boss, selectors, codecs, pool workers, sweeper, idle scan
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import attrs
import trio

from triomq.namesrv.controller.broker_groups import BrokerGroups
from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.controller_files import ControllerFolder
from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.namesrv.controller.liveness import BrokerLiveness
from triomq.namesrv.controller.members import ControllerMembers
from triomq.namesrv.controller.peer_messages import PeerMessages
from triomq.namesrv.controller.requests import ControllerRequests, Handle
from triomq.namesrv.controller.role_notices import RoleNotices
from triomq.namesrv.controller.state import Group
from triomq.remoting.client.connector import ConnectorConfig
from triomq.remoting.core.open_files import Places
from triomq.remoting.monitor.metrics import Family, family
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ChangeControllersHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    NextBrokerIdHeader,
    RegisterToControllerHeader,
    ReplicaInfoHeader,
)
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader
from triomq.remoting.protocol.limits import Limits
from triomq.remoting.server.config import ServerConfig
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.requests import Call
from triomq.remoting.server.server import Server

_log = logging.getLogger(__name__)

PROMPT = "prompt"
"""name of the pool whose requests wait for nothing"""
ALONE_SECONDS = 5.0
"""for a controller without others to write its first vote"""


@attrs.define(eq=False)
class ControllerParts:
    """A controller before its tasks run. ``open`` reads its log."""

    groups: BrokerGroups
    requests: ControllerRequests
    notices: RoleNotices
    messages: PeerMessages

    @classmethod
    def open(
        cls, settings: Callable[[], ControllerSettings], connecting: ConnectorConfig
    ) -> ControllerParts:
        """*connecting*: to other controllers and to brokers. Raises: ConfigError."""
        started = settings()
        own, peers = started.own_peer(), started.all_peers()

        def current(name: str) -> tuple[Group | None, Mapping[int, object]]:
            group = groups.state.groups.get(name)
            return group, {} if group is None else groups.living(name)

        notices = RoleNotices(current, connecting)

        def role_changed(name: str) -> None:
            if settings().notify:
                notices.send(name)

        log = CommandLog(
            own_id=own.id,
            folder=ControllerFolder(started.store_path, [peer.id for peer in peers]),
            send=lambda target, message: messages.send(target, message),
            leads_now=lambda: groups.begin_to_lead(),
        )
        members = ControllerMembers(own, peers, log)
        messages = PeerMessages(
            group=started.group_name,
            own=own,
            current=members.current,
            receive=log.receive,
            connecting=connecting,
        )
        groups = BrokerGroups(
            log=log,
            liveness=BrokerLiveness(trio.current_time()),
            settings=settings,
            limits=Limits(started, "controller"),
            role_changed=role_changed,
        )
        requests = ControllerRequests(groups=groups, settings=started, members=members)
        return cls(groups, requests, notices, messages)

    def handler_table(self, get_config: Call, update_config: Call) -> HandlerTable:
        """Return the handler of every request code of the controller."""
        code, asked = RequestCode, self.requests

        def led(number: int, handle: Handle, header: type | None = None) -> Handler:
            return Handler(number, asked.leading(handle), header=header)

        return HandlerTable(
            [
                led(code.CONTROLLER_ALTER_SYNC_STATE_SET, asked.alter_set, AlterSyncStateSetHeader),
                led(code.CONTROLLER_ELECT_MASTER, asked.elect, ElectMasterHeader),
                led(code.CONTROLLER_REGISTER_BROKER, asked.register, RegisterToControllerHeader),
                led(code.CONTROLLER_GET_REPLICA_INFO, asked.replica_info, ReplicaInfoHeader),
                led(code.CONTROLLER_GET_SYNC_STATE_DATA, asked.sync_state_data),
                led(code.CLEAN_BROKER_DATA, asked.clean, CleanBrokerDataHeader),
                led(code.CONTROLLER_GET_NEXT_BROKER_ID, asked.next_id, NextBrokerIdHeader),
                led(code.CONTROLLER_APPLY_BROKER_ID, asked.apply_id, ApplyBrokerIdHeader),
                led(code.CHANGE_CONTROLLERS, asked.change_controllers, ChangeControllersHeader),
                Handler(code.UPDATE_CONTROLLER_CONFIG, update_config),
                Handler(code.GET_CONTROLLER_CONFIG, get_config),
                # Requests that wait for a majority must delay neither of these.
                Handler(code.CONTROLLER_GET_METADATA_INFO, asked.metadata, PROMPT),
                Handler(code.BROKER_HEARTBEAT, asked.heartbeat, PROMPT, BrokerHeartbeatHeader),
                Handler(code.RAFT_MESSAGE, self.messages.take, PROMPT),
            ]
        )

    def refused(self) -> Counter[str]:
        """Return how often each limit was reached: name of the setting -> refusals."""
        return self.groups.limits.refused

    def figures(self) -> Iterator[Family]:
        """Yield what the page of metrics shows."""
        yield family("triomq_controller_leads", int(self.groups.log.leads))
        yield family("triomq_controller_unreachable_peers", len(self.messages.unreachable()))
        yield family("triomq_controller_groups", len(self.groups.state.groups))
        yield family(
            "triomq_controller_groups_without_master",
            self.groups.without_master() if self.groups.log.leads else 0,
        )
        yield family(
            "triomq_controller_groups_incomplete",
            self.groups.incomplete() if self.groups.log.leads else 0,
        )
        yield family("triomq_controller_elections_total", self.groups.elections)
        yield family("triomq_controller_unknown_heartbeats_total", self.requests.unknown_heartbeats)

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
            config, table, on_close=self.groups.connection_lost, name="controller", places=places
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.groups.log.run, name="raft")
            nursery.start_soon(self.messages.run, name="raft-peers")
            nursery.start_soon(self.notices.run, name="role-notices")
            nursery.start_soon(self.groups.watch, name="controller-watch")
            members = self.requests.members
            if self.groups.log.lasting.node.is_new and len(members.named) > 1:
                _log.info("the controllers begin when all of controllerDLegerPeers run")
            if members.difference():
                _log.warning("%s", members.difference())
            if self.groups.log.configuration.voters == (members.own.id,):
                with trio.move_on_after(ALONE_SECONDS):
                    await self.groups.log.led.wait()
            await nursery.start(server.run, name="controller-server")
            _log.info("controller ready on %s", self.messages.own.address)
            task_status.started(server)
