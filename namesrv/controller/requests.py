"""Handlers of requests to a controller: 1001 to 1006, 1011 to 1013, 19002, and heartbeats (904).

A handler answers after the change is on the disks of a majority. Remarks that tools compare have
Java's wording.
Source: controller/…/processor/ControllerRequestProcessor.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias, TypeVar

import attrs
import trio

from triomq.namesrv.controller.broker_groups import BrokerGroups
from triomq.namesrv.controller.commands import AlterSet, ApplyId, Clean, Register
from triomq.namesrv.controller.controller_settings import ControllerSettings, Peer, read_peer
from triomq.namesrv.controller.liveness import TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX, Sighting
from triomq.namesrv.controller.members import ControllerMembers
from triomq.namesrv.controller.state import Group
from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.bodies.cluster import BrokerMembers
from triomq.remoting.protocol.bodies.controller import (
    ElectMasterBody,
    GroupReplicas,
    ReplicaState,
    SyncStateData,
    SyncStateSet,
)
from triomq.remoting.protocol.codes import ResponseCode as Code
from triomq.remoting.protocol.fastjson import loads
from triomq.remoting.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdHeader,
    ApplyBrokerIdResponseHeader,
    ChangeControllersHeader,
    CleanBrokerDataHeader,
    ControllerMetadataHeader,
    ElectMasterHeader,
    ElectMasterResponseHeader,
    NextBrokerIdHeader,
    NextBrokerIdResponseHeader,
    RegisterToControllerHeader,
    RegisterToControllerResponseHeader,
    ReplicaInfoHeader,
    ReplicaInfoResponseHeader,
)
from triomq.remoting.protocol.headers.registration import BrokerHeartbeatHeader
from triomq.remoting.protocol.limits import require_size
from triomq.remoting.server.requests import Request, Response

T = TypeVar("T")
Handle: TypeAlias = Callable[[Request], Response | Awaitable[Response]]

BODY_BYTES_MAX = 32 * 1024
"""of a set of ids, or a list of broker names"""


@attrs.define(eq=False, kw_only=True)
class ControllerRequests:
    """The handlers, one for each request code."""

    groups: BrokerGroups
    settings: ControllerSettings
    members: ControllerMembers
    unknown_heartbeats: int = attrs.field(default=0, init=False)
    """heartbeats of brokers that have no id here"""

    def metadata(self, _request: Request) -> Response:
        """Return who leads the controllers: CONTROLLER_GET_METADATA_INFO (1005)."""
        peers = self.members.current()
        log = self.groups.log
        leader = next((peer for peer in peers if peer.id == log.leader), None)
        learners = log.configuration.learners
        return Response(
            header=ControllerMetadataHeader(
                group=self.settings.group_name,
                controller_leader_id=None if leader is None else leader.id,
                controller_leader_address=None if leader is None else leader.address,
                is_leader=log.leads,
                peers="".join(f"{peer.id}:{peer.address};" for peer in peers),
                followers=";".join(
                    f"{member}:{count}:learner" if member in learners else f"{member}:{count}"
                    for member, count in log.lacking().items()
                )
                or None,
            )
        )

    async def change_controllers(self, request: Request) -> Response:
        """Add or remove a controller: CHANGE_CONTROLLERS. The answer is that of 1005.

        Raises: Rejected.
        """
        asked: ChangeControllersHeader = request.header
        if asked.change == "remove":
            await self.members.remove(asked.controller_id)
        elif asked.change == "add":
            await self.members.add(_read_peer(f"{asked.controller_id}-{asked.address or ''}"))
        else:
            raise Rejected(
                Code.CONTROLLER_INVALID_REQUEST, f"change={asked.change[:100]}: write add or remove"
            )
        return self.metadata(request)

    def leading(self, handle: Handle) -> Handle:
        """Return a handler that asks first whether this controller surely leads.

        Another one could have answered something newer, so a follower refuses: 2007.
        """

        async def checked(request: Request) -> Response:
            await self.groups.log.confirm_lead()
            answer = handle(request)
            return await answer if isinstance(answer, Awaitable) else answer

        return checked

    def next_id(self, request: Request) -> Response:
        """Return the id that a new broker may apply for: CONTROLLER_GET_NEXT_BROKER_ID (1012)."""
        asked: NextBrokerIdHeader = request.header
        header = NextBrokerIdResponseHeader(
            cluster_name=asked.cluster_name,
            broker_name=asked.broker_name,
            next_broker_id=self.groups.next_id(asked.broker_name),
        )
        return Response(header=header)

    async def apply_id(self, request: Request) -> Response:
        """Give a broker an id for ever: CONTROLLER_APPLY_BROKER_ID (1013).

        Raises: Rejected, LimitReached.
        """
        asked: ApplyBrokerIdHeader = request.header
        command = ApplyId(
            cluster=asked.cluster_name,
            broker_name=asked.broker_name,
            broker_id=asked.applied_broker_id,
            check_code=asked.register_check_code,
        )
        await self.groups.apply_id(command)
        return Response(header=ApplyBrokerIdResponseHeader(asked.cluster_name, asked.broker_name))

    async def register(self, request: Request) -> Response:
        """Register a process that has started: CONTROLLER_REGISTER_BROKER (1003).

        Raises: Rejected.
        """
        asked: RegisterToControllerHeader = request.header
        name = asked.broker_name
        command = Register(
            broker_name=name, broker_id=asked.broker_id, address=asked.broker_address
        )
        group = await self.groups.register(command, request.connection)
        header = RegisterToControllerResponseHeader(asked.cluster_name, name)
        master = self.groups.living_master(name)
        if master is not None:
            header.master_broker_id = master
            header.master_address = group.replicas[master].address
            header.master_epoch = group.master_epoch
            header.sync_state_set_epoch = group.sync_set_epoch
        return Response(header=header, body=_set_of(group))

    async def elect(self, request: Request) -> Response:
        """Elect a master: CONTROLLER_ELECT_MASTER (1002).

        Raises: Rejected.
        """
        asked: ElectMasterHeader = request.header
        code, remark = Code.SUCCESS, None
        try:
            group = await self.groups.elect(
                asked.broker_name, asked.broker_id, designated=asked.designate_elect
            )
        except Rejected as refusal:
            if refusal.code != Code.CONTROLLER_MASTER_STILL_EXIST:
                raise
            code, remark = Code.CONTROLLER_MASTER_STILL_EXIST, refusal.remark
            group = self.groups.state.groups[asked.broker_name]
        members = None
        if code is Code.SUCCESS:
            addresses = {key: replica.address for key, replica in group.replicas.items()}
            members = BrokerMembers(group.cluster, asked.broker_name, addresses)
        header = ElectMasterResponseHeader(
            master_broker_id=group.master,
            master_address=_address(group, group.master),
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_set_epoch,
        )
        return Response(
            code, header, ElectMasterBody(members, group.sync_set).encode(), remark=remark
        )

    def replica_info(self, request: Request) -> Response:
        """Return the master and the set of a group: CONTROLLER_GET_REPLICA_INFO (1004).

        Raises: Rejected.
        """
        asked: ReplicaInfoHeader = request.header
        group = self.groups.require_group(
            asked.broker_name,
            Code.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            "Broker metadata is not existed",
        )
        master = self.groups.living_master(asked.broker_name)
        header = ReplicaInfoResponseHeader(master, _address(group, master), group.master_epoch)
        return Response(header=header, body=_set_of(group))

    def sync_state_data(self, request: Request) -> Response:
        """Return the replicas of groups: CONTROLLER_GET_SYNC_STATE_DATA (1006).

        Raises: Rejected, LimitReached.
        """
        names = _read(request, loads) if request.body else []
        if not isinstance(names, list):
            raise Rejected(
                Code.CONTROLLER_INVALID_REQUEST, "send a JSON array of broker names as the body"
            )
        table = {
            name: self._replicas(name, self.groups.state.groups[name])
            for name in dict.fromkeys(filter(_is_text, names))
            if name in self.groups.state.groups
        }
        return Response(body=SyncStateData(table).encode())

    async def alter_set(self, request: Request) -> Response:
        """Change a sync state set: CONTROLLER_ALTER_SYNC_STATE_SET (1001).

        Raises: Rejected, LimitReached.
        """
        asked: AlterSyncStateSetHeader = request.header
        proposed = _read(request, SyncStateSet.decode)
        command = AlterSet(
            broker_name=asked.broker_name,
            master=asked.master_broker_id,
            master_epoch=asked.master_epoch,
            ids=proposed.ids,
            sync_set_epoch=proposed.epoch,
        )
        group = await self.groups.alter_set(command)
        return Response(
            header=AlterSyncStateSetResponseHeader(group.sync_set_epoch), body=_set_of(group)
        )

    async def clean(self, request: Request) -> Response:
        """Forget brokers: CLEAN_BROKER_DATA (1011).

        Raises: Rejected.
        """
        asked: CleanBrokerDataHeader = request.header
        ids = _read_ids(asked.broker_ids) if asked.broker_ids else None
        await self.groups.clean(
            Clean(broker_name=asked.broker_name, ids=ids), living_too=asked.clean_living_broker
        )
        return Response()

    def heartbeat(self, request: Request) -> Response:
        """Note that a broker is alive: BROKER_HEARTBEAT (904).

        Raises: Rejected.
        """
        asked: BrokerHeartbeatHeader = request.header
        if asked.broker_id is None:
            raise Rejected(Code.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        if request.connection.closed:
            # It waited behind the end of its connection: the broker may be dead.
            return Response(remark="Heart beat success")
        seconds = (asked.heartbeat_timeout_ms or 0) / 1000
        sighting = Sighting(
            connection=request.connection,
            heard=trio.current_time(),
            timeout=min(seconds, TIMEOUT_SECONDS_MAX) if seconds > 0 else TIMEOUT_SECONDS,
            epoch=-1 if asked.epoch is None else asked.epoch,
            max_offset=-1 if asked.max_offset is None else asked.max_offset,
            priority=2**31 - 1 if asked.election_priority is None else asked.election_priority,
        )
        if not self.groups.hear(asked.broker_name, asked.broker_id, sighting):
            self.unknown_heartbeats += 1
        return Response(remark="Heart beat success")

    def _replicas(self, name: str, group: Group) -> GroupReplicas:
        master = self.groups.living_master(name)
        return GroupReplicas(
            master_broker_id=master,
            master_address=_address(group, master),
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_set_epoch,
            in_sync_replicas=self._states(name, group, group.sync_set),
            not_in_sync_replicas=self._states(name, group, group.replicas.keys() - group.sync_set),
        )

    def _states(self, name: str, group: Group, ids: Collection[int]) -> list[ReplicaState]:
        return [
            ReplicaState(
                broker_name=name,
                broker_id=broker_id,
                broker_address=group.replicas[broker_id].address,
                alive=self.groups.is_living(name, broker_id),
            )
            for broker_id in sorted(ids)
        ]


def _read(request: Request, decode: Callable[[bytes], T]) -> T:
    """Return what a body says. Raises: Rejected, LimitReached."""
    require_size(request.body, BODY_BYTES_MAX)
    try:
        return decode(request.body)
    except RemoteProtocolError as error:
        raise Rejected(Code.CONTROLLER_INVALID_REQUEST, str(error)) from None


def _set_of(group: Group) -> bytes:
    return SyncStateSet(group.sync_set, group.sync_set_epoch).encode()


def _address(group: Group, broker_id: int | None) -> str | None:
    return None if broker_id is None else group.replicas[broker_id].address


def _read_peer(text: str) -> Peer:
    try:
        return read_peer(text[:300])
    except ConfigError as error:
        raise Rejected(Code.CONTROLLER_INVALID_REQUEST, f"{error.problem}: {error.fix}") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _read_ids(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(";") if part.strip())
    except ValueError:
        raise Rejected(
            Code.CONTROLLER_INVALID_REQUEST,
            f"brokerControllerIdsToClean={text[:100]}: write ids separated by ;, like 1;2",
        ) from None
