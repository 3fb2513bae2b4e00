"""What the doctor says of controllers and of the groups that they know."""

from __future__ import annotations

from triomq.client.admin.answers import Answers
from triomq.client.admin.doctor.controller_checks import group_finding, members
from triomq.client.core.errors import ConnectionFailed
from triomq.remoting.core.findings import Level
from triomq.remoting.protocol.bodies.controller import GroupReplicas, ReplicaState
from triomq.remoting.protocol.headers.controller import ControllerMetadataHeader


def replica(number: int, *, alive: bool = True) -> ReplicaState:
    return ReplicaState(
        broker_name="b", broker_id=number, broker_address=f"h:{number}", alive=alive
    )


def test_controllers_that_lead_follow_look_for_a_leader_or_are_dead() -> None:
    answers = Answers(
        {
            "h:1": ControllerMetadataHeader(controller_leader_address="h:1", is_leader=True),
            "h:2": ControllerMetadataHeader(controller_leader_address="h:1", is_leader=False),
            "h:3": ControllerMetadataHeader(controller_leader_address="", is_leader=False),
        },
        {"h:4": ConnectionFailed("h:4", "refused")},
    )
    found = {one.check: (one.level, one.text) for one in members(answers)}
    assert found["h:1"] == (Level.OK, "leads")
    assert found["h:2"] == (Level.OK, "follows h:1")
    assert found["h:3"] == (Level.PROBLEM, "knows no leader")
    assert found["h:4"][0] is Level.PROBLEM


def test_groups_without_master_or_with_a_small_set() -> None:
    whole = GroupReplicas(
        master_broker_id=1, master_epoch=7, in_sync_replicas=[replica(1), replica(2)]
    )
    small = GroupReplicas(
        master_broker_id=2,
        in_sync_replicas=[replica(2), replica(3, alive=False)],
        not_in_sync_replicas=[replica(1)],
    )
    dead = GroupReplicas(master_broker_id=1, in_sync_replicas=[replica(1, alive=False)])
    nobody = GroupReplicas(in_sync_replicas=[replica(1, alive=False)])
    assert group_finding("b", whole).level is Level.OK
    assert group_finding("b", small).text == "master 2; not alive or not in the set: 1, 3"
    for group in (dead, nobody):
        found = group_finding("b", group)
        assert found.level is Level.PROBLEM
        assert found.text == "no living master; not alive or not in the set: 1"
