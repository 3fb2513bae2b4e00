"""What a command does to the state, and when it is refused. Pure.

Refusals have Java's codes, and its wording where brokers or tools show it.
Source: controller/…/manager/ReplicasInfoManager.java.
"""

from __future__ import annotations

import attrs

from triomq.namesrv.controller.commands import AlterSet, ApplyId, Clean, Command, Elect, Register
from triomq.namesrv.controller.state import FIRST_ID, ControllerState, Group, KnownBroker
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode as Code


@attrs.frozen
class Applied:
    """The state after a command. A refused command, or a repeated one, has not changed it."""

    state: ControllerState
    refusal: Rejected | None = None


def apply(state: ControllerState, command: Command) -> Applied:
    """Return the state after a command, or the reason why it stays as it is."""
    try:
        return Applied(_changed(state, command))
    except Rejected as refusal:
        return Applied(state, refusal)


def _changed(state: ControllerState, command: Command) -> ControllerState:
    if isinstance(command, ApplyId):
        return _apply_id(state, command)
    if isinstance(command, Register):
        return _register(state, command)
    if isinstance(command, Elect):
        return _elect(state, command)
    if isinstance(command, AlterSet):
        return _alter_set(state, command)
    return _clean(state, command)


def _apply_id(state: ControllerState, wanted: ApplyId) -> ControllerState:
    name, broker_id = wanted.broker_name, wanted.broker_id
    replica = KnownBroker(
        address=wanted.check_code.partition(";")[0],  # as Java; registering corrects it
        check_code=wanted.check_code,
    )
    group = state.groups.get(name)
    if group is None:
        if broker_id != FIRST_ID:
            raise Rejected(
                Code.CONTROLLER_BROKER_ID_INVALID,
                f"Broker-set: {name} hasn't been registered in controller, but broker try to apply"
                f" brokerId: {broker_id}",
            )
        first = Group(cluster=wanted.cluster, replicas={FIRST_ID: replica}, next_id=FIRST_ID + 1)
        return state.with_group(name, first)
    held = group.replicas.get(broker_id)
    if held is not None and held.check_code == wanted.check_code:
        return state
    if group.cluster != wanted.cluster:
        raise Rejected(
            Code.CONTROLLER_BROKER_ID_INVALID,
            f"Broker-set: {name} belongs to cluster {group.cluster}, not {wanted.cluster}: give the"
            " broker another name, or the cluster another controller",
        )
    if held is not None or not FIRST_ID <= broker_id <= group.next_id:
        raise Rejected(
            Code.CONTROLLER_BROKER_ID_INVALID,
            f"Fail to apply brokerId: {broker_id} in broker-set: {name}",
        )
    return state.with_group(
        name,
        attrs.evolve(
            group,
            replicas={**group.replicas, broker_id: replica},
            next_id=max(group.next_id, broker_id + 1),
        ),
    )


def _register(state: ControllerState, started: Register) -> ControllerState:
    name, broker_id = started.broker_name, started.broker_id
    group = state.groups.get(name)
    if group is None:
        raise Rejected(
            Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker-set: {name} hasn't been registered in controller",
        )
    replica = group.replicas.get(broker_id)
    if replica is None:
        raise Rejected(
            Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}",
        )
    # A process that starts may have lost the end of its log. In its old epoch, it would write
    # other bytes at places that slaves have: only an election, with a new epoch, makes it master.
    master = None if group.master == broker_id else group.master
    if replica.address == started.address and master == group.master:
        return state
    moved = attrs.evolve(replica, address=started.address)
    return state.with_group(
        name, attrs.evolve(group, master=master, replicas={**group.replicas, broker_id: moved})
    )


def _elect(state: ControllerState, election: Elect) -> ControllerState:
    name, broker_id = election.broker_name, election.broker_id
    group = state.groups.get(name)
    if group is None or broker_id not in group.replicas:
        raise Rejected(
            Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
        )
    eligible = group.never_elected or broker_id in group.sync_set or election.unclean
    if group.master_epoch != election.master_epoch or not eligible:
        raise Rejected(Code.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master")
    return state.with_group(
        name,
        attrs.evolve(
            group,
            master=broker_id,
            master_epoch=group.master_epoch + 1,
            sync_set=frozenset({broker_id}),
            sync_set_epoch=group.sync_set_epoch + 1,
        ),
    )


def _alter_set(state: ControllerState, proposal: AlterSet) -> ControllerState:
    """Source: ReplicasInfoManager.java#alterSyncStateSet; the same order of checks."""
    name = proposal.broker_name
    group = state.groups.get(name)
    if group is None:
        raise Rejected(
            Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed"
        )
    if proposal.ids == group.sync_set:
        raise Rejected(
            Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        )
    rejecting = "Rejecting alter syncStateSet request because"
    if proposal.master != group.master:
        held = "none" if group.master is None else group.master
        raise Rejected(
            Code.CONTROLLER_INVALID_MASTER,
            f"{rejecting} the current leader is:{{{held}}}, not {{{proposal.master}}}",
        )
    if proposal.master_epoch != group.master_epoch:
        raise Rejected(
            Code.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{rejecting} the current master epoch is:{{{group.master_epoch}}}, not"
            f" {{{proposal.master_epoch}}}",
        )
    if proposal.sync_set_epoch != group.sync_set_epoch:
        raise Rejected(
            Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"{rejecting} the current syncStateSet epoch is:{{{group.sync_set_epoch}}}, not"
            f" {{{proposal.sync_set_epoch}}}",
        )
    unknown = sorted(proposal.ids - group.replicas.keys())
    if unknown:
        raise Rejected(
            Code.CONTROLLER_INVALID_REPLICAS,
            f"{rejecting} the replicas {{{unknown[0]}}} don't exist",
        )
    if group.master not in proposal.ids:
        raise Rejected(
            Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"{rejecting} the newSyncStateSet don't contains origin leader {{{group.master}}}",
        )
    return state.with_group(
        name, attrs.evolve(group, sync_set=proposal.ids, sync_set_epoch=group.sync_set_epoch + 1)
    )


def _clean(state: ControllerState, cleaning: Clean) -> ControllerState:
    name = cleaning.broker_name
    group = state.groups.get(name)
    if group is None:
        raise Rejected(
            Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"Broker {name} is not existed,clean broker data failure.",
        )
    gone = group.replicas.keys() if cleaning.ids is None else cleaning.ids
    left = {key: replica for key, replica in group.replicas.items() if key not in gone}
    if not left:
        return state.without_group(name)
    if len(left) == len(group.replicas):
        return state
    sync_set = group.sync_set - gone
    if group.sync_set and not sync_set:
        raise Rejected(
            Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"Broker {name}: no other broker has all messages of {sorted(group.sync_set)}; elect"
            " another master first, with enableElectUncleanMaster if messages may be lost",
        )
    return state.with_group(
        name,
        attrs.evolve(
            group,
            replicas=left,
            master=None if group.master in gone else group.master,
            sync_set=sync_set,
            sync_set_epoch=group.sync_set_epoch + (sync_set != group.sync_set),
        ),
    )
