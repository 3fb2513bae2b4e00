"""A Raft group in virtual time: nodes, disks, clocks and the network between them, from one seed.

Nothing here knows what is right: ``raft_checks`` looks at every step.
"""

from __future__ import annotations

import heapq
import random
import struct
import zlib
from collections.abc import Callable

import attrs
from raft_checks import RaftBroken, RaftChecks
from raft_disk import RaftDisk

from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.events import (
    Apply,
    MessageReceived,
    Persist,
    Persisted,
    ProposalAppended,
    Propose,
    RaftEvent,
    RaftRole,
    ReadIndex,
    ReadReady,
    RequestRefused,
    Restore,
    RoleChanged,
    Send,
    SnapshotTaken,
    Tick,
)
from triomq.namesrv.controller.raft.messages import AnyRaftMessage, RaftSnapshot
from triomq.namesrv.controller.raft.node import RaftNode
from triomq.namesrv.controller.raft.settings import RaftSettings

SETTINGS = RaftSettings(
    heartbeat_seconds=0.1,
    election_seconds=0.4,
    batch_entries_max=4,
    batch_bytes_max=64,
    uncommitted_entries_max=50,
    command_bytes_max=64,
)
SNAPSHOT_ENTRIES = 15
SNAPSHOT = struct.Struct(">QI140x")
"""Index and checksum of the applied entries; padded, so that it is sent in three parts."""
SLACK = 0.1
"""Seconds that a leader may take to notice what the checker sees at once."""


@attrs.define(eq=False)
class RaftProcess:
    """A node while it runs, and what is left of it while it does not."""

    node_id: str
    disk: RaftDisk
    clock_rate: float
    clock_start: float
    node: RaftNode | None = None
    life: int = 0
    paused_until: float = 0.0
    waiting: list[RaftEvent] = attrs.field(factory=list)
    syncing: bool = False
    tick_at: float = 0.0
    checksum: int = 0
    applied: int = 0
    proposals: dict[tuple[int, int], int] = attrs.field(factory=dict)
    quorum_at: float = 0.0
    """When this node could last exchange messages with a majority."""


@attrs.define(eq=False, slots=False)
class RaftCluster:
    seed: int
    count: int
    spares: int = 0
    trace: Callable[[str], object] | None = None
    now: float = 0.0
    loss: float = 0.0
    duplicates: float = 0.0
    late: float = 0.0
    """Parts of the messages that are lost, come twice, or come up to a second late."""
    slow_disk: str = ""
    crash_after_vote: float = 0.0
    """Part of the votes and terms in whose writing a node crashes, and starts again at once."""
    steps: int = 0

    def __attrs_post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        names = [f"n{number}" for number in range(self.count + self.spares)]
        self.first = {
            name: RaftSnapshot(
                0, 0, Configuration(tuple(names[: self.count] if number < self.count else names))
            )
            for number, name in enumerate(names)
        }
        """What an empty disk begins with: the settings of a spare node name it, too."""
        self.processes = {
            name: RaftProcess(
                name,
                RaftDisk(self.first[name]),
                clock_rate=self.chance.uniform(0.955, 1.045),
                clock_start=self.chance.uniform(0, 1000),
            )
            for name in names
        }
        self.checks = RaftChecks({name: one.disk for name, one in self.processes.items()})
        self.cut: set[tuple[str, str]] = set()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self.requests = 0
        self.commands: dict[int, bytes] = {}
        self.acknowledged: dict[int, int] = {}
        """Proposals that a client was told of as committed, and their indexes."""
        self.acknowledged_index = 0
        self.reads: dict[int, int] = {}
        """Reads under way, and the newest index acknowledged before they began."""
        self.answered_reads = 0
        self.sums = {0: 0}
        for process in self.processes.values():
            self.start(process)

    # Time

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self.events, (when, self._numbers, call))

    def stop(self, method: Callable[..., None]) -> None:
        """Forget the planned calls of a method."""
        self.events = [
            event for event in self.events if getattr(event[2], "__func__", None) is not method
        ]
        heapq.heapify(self.events)

    def run_until(self, end: float) -> None:
        events = self.events
        while events and events[0][0] <= end:
            self.now, _, call = heapq.heappop(events)
            call()
        self.now = end

    # Processes

    def clock(self, process: RaftProcess) -> float:
        return process.clock_start + self.now * process.clock_rate

    def start(self, process: RaftProcess) -> None:
        if process.node is not None:
            return
        process.life += 1
        process.node = RaftNode(
            process.node_id,
            SETTINGS,
            process.disk.stored(),
            self.clock(process),
            self.chance.random,
        )
        process.checksum = process.applied = 0
        process.quorum_at = self.now
        process.tick_at = 0.0
        self.deliver(process, Tick())

    def crash(self, process: RaftProcess) -> None:
        if process.node is None:
            return
        self._tell(f"{process.node_id} crashes")
        process.node = None
        process.life += 1
        process.syncing = False
        process.paused_until = 0.0
        process.waiting.clear()
        process.proposals.clear()
        process.disk.crash(self.chance)
        self.checks.forget(process.node_id)

    def wipe(self, process: RaftProcess) -> None:
        """Take a node's disk away, and start it with an empty one."""
        self.crash(process)
        self._tell(f"{process.node_id} has lost its disk")
        process.disk = RaftDisk(self.first[process.node_id], replaced=True)
        self.checks.disks[process.node_id] = process.disk
        self.start(process)

    def _crash_in_writing(self, process: RaftProcess, write: Persist) -> None:
        """Sometimes crash while the disk is about to have something that matters; start at once. A
        candidate that was just voted for is cut off, so that others ask for the same vote.
        """
        vote = write.hard_state is not None and self.chance.random() < self.crash_after_vote
        if not vote and not (write.reset and self.chance.random() < 0.2):
            return

        def again() -> None:
            self.crash(process)
            self.start(process)

        self.at(self.now + self.chance.uniform(0.0, 0.006), again)
        if vote and write.hard_state is not None and write.hard_state.voted_for:
            candidate = write.hard_state.voted_for
            for other in self.processes:
                self.cut |= {(candidate, other), (other, candidate)}

    def pause(self, process: RaftProcess, seconds: float) -> None:
        if process.node is not None:
            process.paused_until = self.now + seconds
            life = process.life
            self.at(process.paused_until, lambda: self._resume(process, life))

    def _resume(self, process: RaftProcess, life: int) -> None:
        if process.life == life and self.now >= process.paused_until:
            waiting, process.waiting = process.waiting, []
            for event in waiting:
                self.deliver(process, event)
            self.deliver(process, Tick())

    def deliver(self, process: RaftProcess, event: RaftEvent) -> None:
        node = process.node
        if node is None:
            return
        if process.paused_until > self.now:
            if not isinstance(event, Tick):
                process.waiting.append(event)
            return
        self.steps += 1
        effects = node.step(event, self.clock(process))
        self.checks.after_step(node, effects)
        for effect in effects:
            match effect:
                case Send():
                    self._transmit(process.node_id, effect.target, effect.message)
                case Persist():
                    process.disk.pending.append(effect)
                    self._crash_in_writing(process, effect)
                    self._begin_sync(process)
                case Apply():
                    self._apply(process, effect)
                case Restore():
                    self._restore(process, effect.snapshot)
                case ProposalAppended():
                    process.proposals[effect.index, effect.term] = effect.request
                case ReadReady():
                    self._read(process, effect.request)
                case RoleChanged(RaftRole.LEADER):
                    process.quorum_at = self.now
                case RequestRefused():
                    self.reads.pop(effect.request, None)
        self._check_quorum(process, node)
        self._plan_tick(process, node)
        if process.applied >= node.log.snapshot.index + SNAPSHOT_ENTRIES:
            data = SNAPSHOT.pack(process.applied, process.checksum)
            self.deliver(process, SnapshotTaken(process.applied, data))

    def _plan_tick(self, process: RaftProcess, node: RaftNode) -> None:
        when = (node.next_tick - process.clock_start) / process.clock_rate
        if process.tick_at <= self.now or when < process.tick_at:
            process.tick_at = when = max(when, self.now + 1e-4)
            life = process.life
            self.at(when, lambda: self._tick(process, life, when))

    def _tick(self, process: RaftProcess, life: int, when: float) -> None:
        if process.life == life and process.tick_at == when:
            process.tick_at = 0.0
            self.deliver(process, Tick())

    # Disk

    def _begin_sync(self, process: RaftProcess) -> None:
        if process.syncing:
            return
        process.syncing = True
        slow = process.node_id == self.slow_disk
        took = self.chance.uniform(0.1, 0.8) if slow else self.chance.uniform(0.0005, 0.01)
        count, life = len(process.disk.pending), process.life
        self.at(self.now + took, lambda: self._end_sync(process, life, count))

    def _end_sync(self, process: RaftProcess, life: int, count: int) -> None:
        if process.life != life:
            return
        sequence = process.disk.sync(count)
        process.syncing = False
        if process.disk.pending:
            self._begin_sync(process)
        self.deliver(process, Persisted(sequence))

    # Network

    def _transmit(self, sender: str, target: str, message: AnyRaftMessage) -> None:
        chance = self.chance.random
        if (sender, target) in self.cut or chance() < self.loss:
            return
        for _ in range(2 if chance() < self.duplicates else 1):
            took = 0.001 + 0.01 * chance() + (chance() if chance() < self.late else 0.0)
            self.at(self.now + took, lambda: self._arrive(sender, target, message))

    def _arrive(self, sender: str, target: str, message: AnyRaftMessage) -> None:
        if (sender, target) not in self.cut:  # a cut also loses what is under way
            self.deliver(self.processes[target], MessageReceived(sender, message))

    # The application

    def _apply(self, process: RaftProcess, effect: Apply) -> None:
        for entry in effect.entries:
            process.checksum = zlib.crc32(entry.data, process.checksum)
            process.applied = entry.index
            if self.sums.setdefault(entry.index, process.checksum) != process.checksum:
                raise RaftBroken(f"state machines differ at {entry.index}")
            request = process.proposals.pop((entry.index, entry.term), None)
            if request is not None:
                self.acknowledged[request] = entry.index
                self.acknowledged_index = max(self.acknowledged_index, entry.index)

    def _restore(self, process: RaftProcess, snapshot: RaftSnapshot) -> None:
        index, checksum = SNAPSHOT.unpack(snapshot.data)
        if index != snapshot.index or self.sums.get(index) != checksum:
            raise RaftBroken(f"{process.node_id} restores another state at {snapshot.index}")
        process.applied, process.checksum = index, checksum

    def propose(self, process: RaftProcess) -> int:
        self.requests += 1
        command = self.commands[self.requests] = b"command %d" % self.requests
        self.deliver(process, Propose(self.requests, command))
        return self.requests

    def read(self, process: RaftProcess) -> None:
        self.requests += 1
        self.reads[self.requests] = self.acknowledged_index
        self.deliver(process, ReadIndex(self.requests))

    def _read(self, process: RaftProcess, request: int) -> None:
        needed = self.reads.pop(request)
        self.answered_reads += 1
        if process.applied < needed:
            raise RaftBroken(f"stale read: {process.node_id} has {process.applied}, not {needed}")

    # What the checker sees of the network

    def leader(self) -> RaftProcess | None:
        """Return the leader of the newest term."""
        leading = [
            one
            for one in self.processes.values()
            if one.node is not None and one.node.role is RaftRole.LEADER
        ]
        return max(leading, key=lambda one: one.node.term if one.node else 0, default=None)

    def _check_quorum(self, process: RaftProcess, node: RaftNode) -> None:
        voters = node.log.configuration.voters
        own = process.node_id
        reached = sum(
            voter == own
            or (
                self.processes[voter].node is not None
                and self.processes[voter].paused_until <= self.now
                and (own, voter) not in self.cut
                and (voter, own) not in self.cut
            )
            for voter in voters
        )
        if reached * 2 > len(voters):
            process.quorum_at = self.now
        elif (
            node.role is RaftRole.LEADER
            and self.now - process.quorum_at > SETTINGS.election_seconds / 0.955 + SLACK
            and not self.late
        ):
            raise RaftBroken(f"check quorum: {own} leads without a majority")

    def _tell(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:8.3f} {text}")
