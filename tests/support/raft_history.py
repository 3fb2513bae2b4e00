"""One simulated history of a Raft group: faults from a seed, then calm, then the last checks."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
from raft_checks import RaftBroken
from raft_cluster import SETTINGS, RaftCluster, RaftProcess

from triomq.namesrv.controller.raft.configuration import ConfigurationChange
from triomq.namesrv.controller.raft.events import ChangeConfiguration, RaftRole, TransferLeadership

STORM_SECONDS = 8.0
CALM_SECONDS = 4.0
QUIET_EVERY = 8
"""One seed in this number only cuts off followers: the leader must keep its term."""
RIVALS_EVERY = 20
"""One seed in this number lets two leaders, one after the other, change the members."""


@attrs.frozen
class RaftHistory:
    """What a history did, for a report."""

    seed: int
    steps: int
    committed: int
    acknowledged: int
    reads: int
    terms: int


@attrs.define(eq=False)
class Storm:
    cluster: RaftCluster
    chance: random.Random
    busy: bool = True
    """Whether clients send requests."""
    over: bool = False
    wiped: set[str] = attrs.field(factory=set)
    """Nodes that have lost their disk once."""

    def client(self) -> None:
        """Send requests to all that take themselves for leaders, until the end."""
        cluster, chance = self.cluster, self.chance
        if self.busy:
            for target in self.leaders():
                for _ in range(chance.choice((1, 1, 1, 2, 10))):
                    cluster.propose(target)
                cluster.read(target)
            if chance.random() < 0.1:
                cluster.propose(self._any())
                cluster.read(self._any())
        cluster.at(cluster.now + chance.uniform(0.01, 0.12), self.client)

    def fault(self) -> None:
        """Do one thing that may happen to a group, and plan the next."""
        choose = self.chance.choice(
            (
                *(self._crash, self._crash, self._crash_several, self._cut_one_way),
                *(self._isolate, self._divide, self._bridge, self._pause, self._noise),
                *(self._slow_disk, self._transfer, self._change, self._change, self._change),
                *(self._transfer_and_cut, self._forgetful_voters, self._parted_leaders),
                *(self._crash_after_vote, self._heal, self._wipe, self._wipe),
            )
        )
        choose()
        self.cluster.at(self.cluster.now + self.chance.uniform(0.05, 0.7), self.fault)

    def _any(self) -> RaftProcess:
        return self.chance.choice(list(self.cluster.processes.values()))

    def _leader_or_any(self) -> RaftProcess:
        leader = self.cluster.leader()
        return leader if leader is not None and self.chance.random() < 0.5 else self._any()

    def _crash(self) -> None:
        process, cluster = self._leader_or_any(), self.cluster
        cluster.crash(process)
        back = cluster.now + self.chance.choice((0.01, 0.1, 0.5, 1.5))
        cluster.at(back, lambda: cluster.start(process))

    def _crash_several(self) -> None:
        for _ in range(self.chance.randint(2, self.cluster.count)):
            self._crash()

    def _cut_one_way(self) -> None:
        one, other = self._leader_or_any().node_id, self._any().node_id
        self.cluster.cut.add((one, other) if self.chance.random() < 0.5 else (other, one))

    def _isolate(self) -> None:
        """Cut one node off: in both directions, or what it sends, or what it should hear."""
        one = self._leader_or_any().node_id
        directions = self.chance.choice(((0, 1), (0,), (1,)))
        for other in self.cluster.processes:
            if other != one:
                self.cluster.cut |= {((one, other), (other, one))[way] for way in directions}

    def cut_follower(self, leader: RaftProcess) -> None:
        """Cut a follower off, or only what it should hear, or only what it hears of the leader."""
        names = list(self.cluster.processes)
        one = self.chance.choice([name for name in names if name != leader.node_id])
        hears_nothing = {(other, one) for other in names}
        says_nothing = {(one, other) for other in names}
        self.cluster.cut = self.chance.choice(
            (hears_nothing | says_nothing, hears_nothing, {(leader.node_id, one)})
        )

    def _divide(self, bridge: str = "") -> None:
        names = list(self.cluster.processes)
        self.chance.shuffle(names)
        half = self.chance.randint(1, len(names) - 1)
        self.cluster.cut |= {
            pair
            for left in names[:half]
            for right in names[half:]
            if bridge not in (left, right)
            for pair in ((left, right), (right, left))
        }

    def _bridge(self) -> None:
        """Two halves that only one node reaches both of."""
        self._divide(self._any().node_id)

    def _pause(self) -> None:
        self.cluster.pause(self._leader_or_any(), self.chance.uniform(0.05, 1.5))

    def _noise(self) -> None:
        cluster, choice = self.cluster, self.chance.choice
        cluster.loss = choice((0.0, 0.05, 0.3))
        cluster.duplicates = choice((0.0, 0.1, 0.5))
        cluster.late = choice((0.0, 0.0, 0.1))

    def _slow_disk(self) -> None:
        self.cluster.slow_disk = self.chance.choice(["", *self.cluster.processes])

    def _request_number(self) -> int:
        self.cluster.requests += 1
        return self.cluster.requests

    def _transfer(self) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            event = TransferLeadership(self._request_number(), self._any().node_id)
            self.cluster.deliver(leader, event)

    def leaders(self) -> list[RaftProcess]:
        """Return all that lead, as they think: one in the group, and those that do not know yet."""
        return [
            one
            for one in self.cluster.processes.values()
            if one.node is not None and one.node.role is RaftRole.LEADER
        ]

    def _change(self) -> None:
        """Let each leader try some changes, sometimes down to one voter."""
        few = 1 if self.chance.random() < 0.3 else self.cluster.count - 1
        for leader in self.leaders():
            for _ in range(self.chance.choice((1, 1, 4))):
                self._change_one(leader, few)

    def _wipe(self) -> None:
        """Take away the disk of a node that the others can do without, as an operator would say."""
        leader, lost = self.cluster.leader(), self._any()
        if leader is None or leader.node is None or not self._is_calm(leader):
            return
        voters = leader.node.log.configuration.voters
        if len(voters) < 3 or lost.node_id not in voters:
            return
        if len(voters) > 3 or lost is leader or self.chance.random() < 0.3:
            self._lose_disk(lost)
            return
        cluster = self.cluster
        (behind,) = set(voters) - {leader.node_id, lost.node_id}
        cluster.cut.clear()
        self._cut_off(behind)

        def lose() -> None:
            """The one that is behind lacks what the other two have acknowledged."""
            if not self.over and self._is_calm(leader):
                cluster.cut.clear()
                self._cut_off(leader.node_id)
                self._lose_disk(lost)
                cluster.at(cluster.now + self.chance.uniform(1.0, 3.0), cluster.cut.clear)

        cluster.at(cluster.now + self.chance.uniform(0.1, 0.3), lose)

    def _lose_disk(self, process: RaftProcess) -> None:
        self.cluster.wipe(process)
        self.wiped.add(process.node_id)
        self.replace_wiped()

    def _is_calm(self, leader: RaftProcess) -> bool:
        """Whether all members run with the same committed configuration and none lacks its disk."""
        if leader.node is None or leader.node.leadership is None:
            return False
        configuration, commit = leader.node.log.configuration, leader.node.state.commit_index
        nodes = [self.cluster.processes[name].node for name in configuration.voters]
        return all(
            node is not None
            and not self._has_lost_its_disk(node.node_id)
            and node.log.configurations[-1] == leader.node.log.configurations[-1]
            and node.log.configurations[-1][0] <= commit
            for node in nodes
        )

    def _has_lost_its_disk(self, name: str) -> bool:
        disk = self.cluster.processes[name].disk
        return not disk.hard_state.term and not disk.last_index

    def replace_wiped(self) -> None:
        """The operator's part: remove a voter that has lost its disk, then let it follow again."""
        leader = self.cluster.leader()
        lost = [name for name in self.cluster.processes if self._has_lost_its_disk(name)]
        if leader is not None and leader.node is not None:
            now = leader.node.log.configuration
            for name in lost:
                if name in now.voters:
                    self.change(leader, ConfigurationChange.REMOVE, name)
                elif name not in now.learners and name in self.wiped:
                    self.change(leader, ConfigurationChange.ADD_LEARNER, name)
        if self.wiped & set(lost):
            self.cluster.at(self.cluster.now + 0.1, self.replace_wiped)

    def _change_one(self, leader: RaftProcess, few: int) -> None:
        if leader.node is None:
            return
        now, node = leader.node.log.configuration, self._any().node_id
        if any(self._has_lost_its_disk(voter) for voter in now.voters):
            return  # an operator does nothing else until that one is removed
        if node in now.learners:
            change = ConfigurationChange.PROMOTE
        elif node not in now.voters:
            change = ConfigurationChange.ADD_LEARNER
        elif len(now.voters) > few:
            change = ConfigurationChange.REMOVE
        else:
            return
        self.change(leader, change, node)

    def change(self, leader: RaftProcess, change: ConfigurationChange, node: str) -> None:
        event = ChangeConfiguration(self._request_number(), change, node)
        self.cluster.deliver(leader, event)

    def part(self, *groups: set[str]) -> None:
        """Let each group of nodes hear only its own."""
        self.cluster.cut = {
            (one, other)
            for group in groups
            for one in group
            for other in self.cluster.processes.keys() - group
        }

    def _cut_off(self, name: str, other_than: str = "") -> None:
        """Cut a node off from all but one, if the storm is not over."""
        if self.over:
            return
        for other in self.cluster.processes:
            if other not in (name, other_than):
                self.cluster.cut |= {(name, other), (other, name)}

    def _transfer_and_cut(self) -> None:
        """Hand leadership over, and keep the old leader from hearing of the new one."""
        leader = self.cluster.leader()
        if leader is not None:
            self._transfer()
            self.cluster.at(
                self.cluster.now + self.chance.uniform(0.0, 0.02),
                lambda: self._cut_off(leader.node_id),
            )

    def _forgetful_voters(self) -> None:
        """A node that does not hear the leader campaigns all the time, and its log is as good; then
        the voters start again, and the leader is cut off while its lease holds.
        """
        cluster, leader, other = self.cluster, self.cluster.leader(), self._any()
        if leader is None or other is leader:
            return
        cluster.cut = {(leader.node_id, other.node_id)}
        self.busy = False

        def restart() -> None:
            self.busy = True
            self._cut_off(leader.node_id)
            for process in cluster.processes.values():
                if process not in (leader, other):
                    cluster.crash(process)
                    cluster.start(process)

        cluster.at(cluster.now + self.chance.uniform(0.5, 1.5), restart)

    def _parted_leaders(self) -> None:
        """Figure 8 of the paper: leaders one after the other reach few other nodes, and crash."""
        cluster, chance = self.cluster, self.chance
        until = cluster.now + chance.uniform(1.0, 4.0)
        parted: set[int] = set()

        def look() -> None:
            leader = cluster.leader()
            if self.over or cluster.now > until:
                return
            if leader is not None and leader.node is not None and leader.node.term not in parted:
                parted.add(leader.node.term)
                cluster.cut.clear()
                self._cut_off(leader.node_id, self._any().node_id)
                for _ in range(chance.choice((0, 0, 8))):
                    cluster.propose(leader)
                cluster.at(cluster.now + chance.uniform(0.0, 0.08), lambda: end(leader))
            cluster.at(cluster.now + 0.005, look)

        def end(leader: RaftProcess) -> None:
            cluster.crash(leader)
            cluster.cut.clear()
            back = cluster.now + chance.uniform(0.1, 1.2)
            cluster.at(back, lambda: cluster.start(leader))

        look()

    def _crash_after_vote(self) -> None:
        self.cluster.crash_after_vote = self.chance.choice((0.0, 0.5))

    def _heal(self) -> None:
        cluster = self.cluster
        cluster.cut.clear()
        cluster.loss = cluster.duplicates = cluster.late = 0.0
        cluster.slow_disk = ""
        cluster.crash_after_vote = 0.0
        self.busy = True
        for process in cluster.processes.values():
            cluster.start(process)


def play_raft(
    seed: int, *, seconds: float = STORM_SECONDS, trace: Callable[[str], object] | None = None
) -> RaftHistory:
    """Play one history. Raises: RaftBroken, RaftInvariantBroken."""
    if seed % QUIET_EVERY == QUIET_EVERY - 1:
        return play_quiet(seed, trace=trace)
    if seed % RIVALS_EVERY == RIVALS_EVERY - 1:
        return play_rivals(seed, trace=trace)
    count = 3 if seed % 2 else 5
    cluster = RaftCluster(seed, count, spares=1 + seed % 3 // 2, trace=trace)
    storm = Storm(cluster, cluster.chance)
    cluster.at(0.3, storm.client)
    cluster.at(0.8, storm.fault)
    cluster.run_until(seconds)
    cluster.stop(Storm.fault)
    storm.over = True
    storm._heal()
    _end(cluster)
    return _told(cluster)


def play_quiet(seed: int, *, trace: Callable[[str], object] | None = None) -> RaftHistory:
    """Cut followers off and let them come back: a leader with a majority goes on in its term."""
    cluster = RaftCluster(seed, 3 if seed % 16 == 7 else 5, trace=trace)
    storm = Storm(cluster, cluster.chance)
    cluster.at(0.3, storm.client)
    cluster.run_until(3.0)
    leader = cluster.leader()
    if leader is None or leader.node is None:
        raise RaftBroken("election: no leader after three quiet seconds")
    term = leader.node.term
    for _ in range(3):
        storm.busy = cluster.chance.random() < 0.5
        cluster.run_until(cluster.now + 0.3)  # an idle follower has the whole log, and may win
        storm.cut_follower(leader)
        cluster.run_until(cluster.now + cluster.chance.uniform(0.5, 2.0))
        cluster.cut.clear()
        cluster.run_until(cluster.now + 1.5)
        if leader.node.role is not RaftRole.LEADER or leader.node.term != term:
            raise RaftBroken("pre-vote: a follower that comes back deposes the leader")
    storm.busy = True
    _end(cluster)
    return _told(cluster)


def play_rivals(seed: int, *, trace: Callable[[str], object] | None = None) -> RaftHistory:
    """Let a leader of four voters make the spare node the fifth, and nobody hear of it; let the
    next one remove that leader, and one other voter hear of it; then only the others go on.

    The majorities of both configurations need not meet.
    Source: Ongaro on raft-dev, "bug in single-server membership changes" (2015).
    """
    cluster = RaftCluster(seed, 4, spares=1, trace=trace)
    storm, spare = Storm(cluster, cluster.chance), cluster.processes["n4"]
    cluster.at(0.3, storm.client)
    cluster.run_until(3.0)
    first = cluster.leader()
    if first is None:
        raise RaftBroken("election: no leader after quiet seconds")
    storm.change(first, ConfigurationChange.ADD_LEARNER, spare.node_id)
    cluster.run_until(4.0)
    storm.busy = False
    cluster.run_until(4.5)
    others = [one for one in cluster.processes.values() if one not in (first, spare)]
    storm.part({first.node_id}, {spare.node_id}, {one.node_id for one in others})
    storm.change(first, ConfigurationChange.PROMOTE, spare.node_id)
    second = None
    while second is None and cluster.now < 9.0:
        cluster.run_until(cluster.now + 0.0005)
        second = next((one for one in storm.leaders() if one in others), None)
    if second is not None:
        helper, third = cluster.chance.sample([one for one in others if one is not second], 2)
        storm.part(
            {second.node_id, helper.node_id}, {third.node_id}, {first.node_id}, {spare.node_id}
        )
        for _ in range(20):
            cluster.run_until(cluster.now + 0.005)
            storm.change(second, ConfigurationChange.REMOVE, first.node_id)
        storm.part(
            {second.node_id}, {helper.node_id}, {first.node_id, third.node_id, spare.node_id}
        )
        cluster.run_until(cluster.now + 4.0)
    storm.busy = True
    storm._heal()
    _end(cluster)
    return _told(cluster)


def _end(cluster: RaftCluster) -> None:
    """All is well again: what was acknowledged is everywhere, and new commands are taken."""
    calm_from = cluster.now
    before = len(cluster.acknowledged)
    cluster.run_until(calm_from + CALM_SECONDS * SETTINGS.election_seconds / 0.4)
    leader = cluster.leader()
    if leader is None or leader.node is None or len(cluster.acknowledged) == before:
        raise RaftBroken("liveness: no command is committed after all faults are over")
    cluster.stop(Storm.client)
    cluster.run_until(cluster.now + 2.0)
    entries = {entry.index: entry for entry, _ in cluster.checks.committed}
    for request, index in cluster.acknowledged.items():
        if entries[index].data != cluster.commands.get(request, entries[index].data):
            raise RaftBroken(f"acknowledged: command {request} is lost")
    for name in leader.node.log.configuration.members:
        process = cluster.processes[name]
        if process.applied != len(entries):
            raise RaftBroken(f"liveness: {name} has {process.applied} of {len(entries)} entries")


def _told(cluster: RaftCluster) -> RaftHistory:
    return RaftHistory(
        cluster.seed,
        cluster.steps,
        len(cluster.checks.committed),
        len(cluster.acknowledged),
        cluster.answered_reads,
        max(cluster.checks.leaders, default=0),
    )
