"""Who becomes master: the living members of the set, the best of them, nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from triomq.namesrv.controller.election import Question, choose
from triomq.namesrv.controller.liveness import BrokerLiveness, Sighting
from triomq.namesrv.controller.state import Group, KnownBroker
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode as Code

NAME = "broker-a"


def seen(epoch: int = 1, max_offset: int = 0, priority: int = 5) -> Sighting:
    return Sighting(connection="c", heard=0, epoch=epoch, max_offset=max_offset, priority=priority)


def asked(living: dict[int, Sighting], **more: Any) -> Question:
    group = Group(
        cluster="C",
        replicas={key: KnownBroker(address=f"a{key}:1", check_code="") for key in (1, 2, 3, 4)},
        next_id=5,
        master=more.pop("master", 1),
        master_epoch=more.pop("epoch", 3),
        sync_set=more.pop("sync_set", frozenset({1, 2, 3})),
        sync_set_epoch=7,
    )
    return Question(broker_name=NAME, group=group, living=living, master_lives=1 in living, **more)


def refused(question: Question) -> Code:
    with pytest.raises(Rejected) as caught:
        choose(question)
    return Code(caught.value.code)


@pytest.mark.parametrize(
    ("living", "best"),
    [
        ({2: seen(), 3: seen(epoch=2)}, 3),
        ({2: seen(max_offset=9), 3: seen(epoch=2)}, 3),
        ({2: seen(max_offset=5), 3: seen(max_offset=4)}, 2),
        # The difference does not fit 32 bits, which misleads Java's comparator.
        ({2: seen(max_offset=5), 3: seen(max_offset=5 + (3 << 31))}, 3),
        ({2: seen(priority=7), 3: seen(priority=6)}, 3),
        ({2: seen(), 3: seen()}, 2),
        ({3: seen(), 4: seen(epoch=9, max_offset=9)}, 3),
    ],
)
def test_the_best_living_member_of_the_set(living: dict[int, Sighting], best: int) -> None:
    election = choose(asked(living))
    assert (election.broker_id, election.master_epoch, election.unclean) == (best, 3, False)


def test_nobody_outside_the_set_unless_that_is_allowed() -> None:
    only = {4: seen()}
    assert refused(asked(only)) == Code.CONTROLLER_ELECT_MASTER_FAILED
    election = choose(asked(only, unclean=True))
    assert (election.broker_id, election.unclean) == (4, True)
    assert choose(asked({2: seen(), 4: seen(9)}, unclean=True)).broker_id == 2


def test_a_living_master_stays() -> None:
    living = {1: seen(), 2: seen(9)}
    assert refused(asked(living)) == Code.CONTROLLER_MASTER_STILL_EXIST
    assert refused(asked(living, asker=2)) == Code.CONTROLLER_MASTER_STILL_EXIST
    assert refused(asked(living, asker=1, designated=True)) == Code.CONTROLLER_MASTER_STILL_EXIST
    assert choose(asked(living, asker=2, designated=True)).broker_id == 2


def test_who_is_named_is_elected_or_nobody() -> None:
    living = {2: seen(), 3: seen(), 4: seen()}
    assert choose(asked(living, asker=3, designated=True)).broker_id == 3
    for dead_or_outside in (1, 4):
        question = asked(living, asker=dead_or_outside, designated=True)
        assert refused(question) == Code.CONTROLLER_ELECT_MASTER_FAILED


def test_the_first_to_ask_is_the_first_master() -> None:
    empty: frozenset[int] = frozenset()
    new = asked({}, master=None, epoch=0, sync_set=empty, asker=2)
    assert choose(new).broker_id == 2
    nobody = asked({2: seen()}, master=None, epoch=0, sync_set=empty)
    assert refused(nobody) == Code.CONTROLLER_ELECT_MASTER_FAILED


def test_silence_and_a_lost_connection_end_a_life() -> None:
    liveness = BrokerLiveness(100.0)
    liveness.heard(NAME, 1, Sighting(connection="x", heard=100.0, timeout=3))
    liveness.heard(NAME, 2, Sighting(connection="y", heard=100.0))
    assert liveness.living(NAME, (1, 2, 3), 102.9).keys() == {1, 2}
    assert liveness.living(NAME, (1, 2, 3), 103.0).keys() == {2}
    assert liveness.lost("y")
    assert not liveness.lost("of a tool")
    assert liveness.living(NAME, (1, 2, 3), 101.0).keys() == {1}
    assert not liveness.is_living(NAME, 2, 101.0)


def test_a_broker_that_was_never_heard_lives_in_the_controller_s_first_seconds() -> None:
    liveness = BrokerLiveness(100.0)
    assert liveness.is_living(NAME, 1, 109.9)
    assert not liveness.is_living(NAME, 1, 110.0)
    assert liveness.living(NAME, (1,), 101.0) == {}
    liveness.heard(NAME, 1, Sighting(connection="x", heard=100.0))
    liveness.lost("x")
    assert not liveness.is_living(NAME, 1, 101.0)


def test_a_controller_that_leads_again_gives_brokers_time_for_a_heartbeat() -> None:
    """They have talked to another leader meanwhile."""
    liveness = BrokerLiveness(100.0)
    liveness.heard(NAME, 1, Sighting(connection="x", heard=100.0))
    liveness.heard(NAME, 2, Sighting(connection="y", heard=195.0))
    assert not liveness.is_living(NAME, 1, 150.0)
    liveness.begin(200.0)
    assert liveness.is_living(NAME, 1, 209.9)
    assert not liveness.is_living(NAME, 1, 210.0)
    assert not liveness.is_living(NAME, 2, 205.0), "it was heard here, and is silent"


def test_a_broker_whose_id_is_given_again_is_not_known() -> None:
    liveness = BrokerLiveness(100.0)
    liveness.heard(NAME, 1, Sighting(connection="x", heard=100.0))
    liveness.forget(NAME, (1,))
    assert liveness.living(NAME, (1,), 101.0) == {}
    assert liveness.is_living(NAME, 1, 101.0), "as one that was never heard"
