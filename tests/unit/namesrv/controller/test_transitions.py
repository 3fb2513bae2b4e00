"""What each command does to the state of a controller, and which ones are refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.namesrv.controller.commands import AlterSet, ApplyId, Clean, Command, Elect, Register
from triomq.namesrv.controller.state import ControllerState, Group, restore
from triomq.namesrv.controller.transitions import apply
from triomq.remoting.protocol.codes import ResponseCode as Code

NAME = "broker-a"


def run(*commands: Command) -> ControllerState:
    """The state after commands that all are taken."""
    state = ControllerState()
    for command in commands:
        applied = apply(state, command)
        assert applied.refusal is None, applied.refusal
        state = applied.state
    return state


def refused(state: ControllerState, command: Command) -> Code:
    applied = apply(state, command)
    assert applied.state is state
    assert applied.refusal is not None, command
    return Code(applied.refusal.code)


def applied_id(broker_id: int, *, code: str | None = None, cluster: str = "C") -> ApplyId:
    return ApplyId(
        cluster=cluster,
        broker_name=NAME,
        broker_id=broker_id,
        check_code=code or f"a{broker_id}:1;7",
    )


def elected(broker_id: int, epoch: int, *, unclean: bool = False) -> Elect:
    return Elect(broker_name=NAME, broker_id=broker_id, master_epoch=epoch, unclean=unclean)


def altered(ids: set[int], *, master: int = 1, epoch: int = 1, set_epoch: int = 1) -> AlterSet:
    return AlterSet(
        broker_name=NAME,
        master=master,
        master_epoch=epoch,
        ids=frozenset(ids),
        sync_set_epoch=set_epoch,
    )


def registered(broker_id: int, address: str = "new:1") -> Register:
    return Register(broker_name=NAME, broker_id=broker_id, address=address)


IDS = (applied_id(1), applied_id(2), applied_id(3))
PAIR = (*IDS, elected(1, 0), altered({1, 2}))


def group(*commands: Command) -> Group:
    return run(*commands).groups[NAME]


def test_ids_are_given_once_and_for_ever() -> None:
    state = run(*IDS)
    assert state.groups[NAME].next_id == 4
    assert {key: known.address for key, known in state.groups[NAME].replicas.items()} == {
        1: "a1:1",
        2: "a2:1",
        3: "a3:1",
    }
    assert apply(state, applied_id(2)).state is state  # the answer was lost: again
    assert refused(state, applied_id(2, code="other:1;8")) == Code.CONTROLLER_BROKER_ID_INVALID
    assert refused(state, applied_id(5)) == Code.CONTROLLER_BROKER_ID_INVALID
    assert refused(state, applied_id(0)) == Code.CONTROLLER_BROKER_ID_INVALID
    assert refused(state, applied_id(4, cluster="D")) == Code.CONTROLLER_BROKER_ID_INVALID
    assert refused(ControllerState(), applied_id(2)) == Code.CONTROLLER_BROKER_ID_INVALID


def test_an_id_that_was_cleaned_is_not_given_to_the_next_broker() -> None:
    state = run(*IDS, Clean(broker_name=NAME, ids=frozenset({3})))
    assert state.groups[NAME].next_id == 4


def test_a_process_that_starts_is_nobody_s_master() -> None:
    """The same epoch is never written by two lives of a process."""
    before = group(*PAIR)
    after = group(*PAIR, registered(1, "a1:1"))
    assert (before.master, after.master) == (1, None)
    assert (after.master_epoch, after.sync_set) == (before.master_epoch, before.sync_set)
    other = group(*PAIR, registered(2))
    assert (other.master, other.replicas[2].address) == (1, "new:1")
    state = run(*PAIR, registered(2))
    assert apply(state, registered(2)).state is state
    assert refused(state, registered(9)) == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    unknown = Register(broker_name="x", broker_id=1, address="a:1")
    assert refused(state, unknown) == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_an_election_makes_new_epochs_and_a_set_of_one() -> None:
    found = group(*PAIR, elected(2, 1))
    assert (found.master, found.master_epoch) == (2, 2)
    assert (found.sync_set, found.sync_set_epoch) == ({2}, 3)


def test_nobody_outside_the_set_is_elected() -> None:
    state = run(*PAIR)
    assert refused(state, elected(3, 1)) == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert group(*PAIR, elected(3, 1, unclean=True)).sync_set == {3}
    assert refused(run(*IDS), elected(9, 0)) == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_an_election_of_yesterday_is_refused() -> None:
    """Its maker saw another epoch than the group has when the command comes."""
    state = run(*PAIR, elected(2, 1))
    assert refused(state, elected(2, 1)) == Code.CONTROLLER_ELECT_MASTER_FAILED


@pytest.mark.parametrize(
    ("proposal", "code"),
    [
        (altered({1, 2}, set_epoch=2), Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (altered({2}, master=2, set_epoch=2), Code.CONTROLLER_INVALID_MASTER),
        (altered({1}, epoch=0, set_epoch=2), Code.CONTROLLER_FENCED_MASTER_EPOCH),
        (altered({1}, set_epoch=1), Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (altered({1, 9}, set_epoch=2), Code.CONTROLLER_INVALID_REPLICAS),
        (altered({2}, set_epoch=2), Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (altered(set(), set_epoch=2), Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
    ],
)
def test_a_set_is_changed_only_by_its_master_in_its_epoch(proposal: AlterSet, code: Code) -> None:
    assert refused(run(*PAIR), proposal) == code


def test_a_set_of_a_group_without_master_stays() -> None:
    state = run(*PAIR, registered(1))
    assert refused(state, altered({1}, set_epoch=2)) == Code.CONTROLLER_INVALID_MASTER


def test_the_last_of_a_set_is_not_cleaned_while_others_remain() -> None:
    state = run(*IDS, elected(1, 0))
    cleaning = Clean(broker_name=NAME, ids=frozenset({1}))
    assert refused(state, cleaning) == Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    found = group(*PAIR, Clean(broker_name=NAME, ids=frozenset({1})))
    assert (found.master, found.sync_set, found.sync_set_epoch) == (None, {2}, 3)
    assert run(*PAIR, Clean(broker_name=NAME)).groups == {}
    assert refused(ControllerState(), cleaning) == Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(applied_id, st.integers(1, 4)),
    st.builds(registered, st.integers(1, 4), st.sampled_from(["x:1", "y:1"])),
    st.builds(elected, st.integers(1, 4), st.integers(0, 6), unclean=st.booleans()),
    st.builds(
        altered,
        st.sets(st.integers(1, 4)),
        master=st.integers(1, 4),
        epoch=st.integers(0, 6),
        set_epoch=st.integers(0, 9),
    ),
    st.builds(
        Clean, broker_name=st.just(NAME), ids=st.one_of(st.none(), st.frozensets(st.integers(1, 4)))
    ),
)


@given(st.lists(COMMANDS, max_size=60))
def test_rules_that_every_history_keeps(commands: list[Command]) -> None:
    """Epochs grow; a master is in its set; a set is of known brokers; only an election without
    ``unclean`` keeps the promise, and it takes one of the set; states and commands survive bytes.
    """
    state = ControllerState()
    for command in commands:
        read = msgspec.json.decode(msgspec.json.encode(command), type=Command)
        before, state = state, apply(state, read).state
        assert restore(state.snapshot()) == state
        old, new = before.groups.get(NAME), state.groups.get(NAME)
        if new is None:
            continue
        assert new.sync_set <= new.replicas.keys()
        assert new.master is None or new.master in new.sync_set
        assert new.never_elected or new.sync_set
        if old is None:
            continue
        assert new.master_epoch >= old.master_epoch
        assert new.sync_set_epoch >= old.sync_set_epoch
        assert new.next_id >= old.next_id
        if new.sync_set != old.sync_set:
            assert new.sync_set_epoch > old.sync_set_epoch
        if new.master not in {None, old.master}:
            assert new.master_epoch > old.master_epoch
            assert isinstance(command, Elect)
            assert old.never_elected or new.master in old.sync_set or command.unclean
