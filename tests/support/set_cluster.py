"""A group in controller mode without bytes and sockets: random steps on the pure parts.

Each log is a list of distinct items, so an offset is an index. Messages may come late, twice or not
at all; the controller elects any member of the set that it has, as it may. Used by
tests/property/test_master_set.py.
"""

from __future__ import annotations

import random
from itertools import count

import attrs

from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.replication.master_set import MasterSet, SetRules

RULES = SetRules(catch_up_seconds=3.0, lease_seconds=2.0)


@attrs.define(eq=False)
class Node:
    number: int
    log: list[int] = attrs.field(factory=list)
    history: EpochHistory = attrs.field(factory=EpochHistory)
    epoch: int = 0
    """The newest epoch that it knows."""
    leads: MasterSet | None = None
    follows: int | None = None
    """The connected master."""
    life: int = 0
    """Grows with each connection: reports of an older one are void."""


@attrs.define(eq=False)
class SetCluster:
    """Three brokers, and the group as the controllers have it."""

    seed: int
    size: int = 3
    nodes: dict[int, Node] = attrs.field(init=False)
    master: int = 1
    epoch: int = 1
    members: frozenset[int] = frozenset({1})
    set_epoch: int = 1
    now: float = 0.0
    confirmed: list[int] = attrs.field(factory=list)
    """The longest prefix of a log that any master has confirmed."""
    proposals: list[tuple[int, int, int, frozenset[int]]] = attrs.field(factory=list)
    """On their way: (master, its epoch, epoch of the set, the set)."""
    reports: list[tuple[int, int, int, int]] = attrs.field(factory=list)
    """On their way: (slave, its connection, its master, end)."""
    grown: int = 0
    """How often a set grew, and how often a log was cut: a run without them proves nothing."""
    cuts: int = 0
    _random: random.Random = attrs.field(init=False)
    _items: count[int] = attrs.field(factory=count, init=False)

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.nodes = {number: Node(number) for number in range(1, self.size + 1)}
        self._lead(self.nodes[1])

    def run(self, steps: int) -> None:
        """Raise AssertionError when a promise is broken."""
        actions = [self._append] * 3 + [self._copy] * 12 + [self._report] * 12
        actions += [self._propose] * 4 + [self._decide] * 4 + [self._learn] * 2
        actions += [self._disconnect, self._elect, self._lose, self._wait]
        for _ in range(steps):
            self._random.choice(actions)()
            self._check()

    # Steps

    def _any(self) -> Node:
        return self._random.choice(list(self.nodes.values()))

    def _append(self) -> None:
        node = self._any()
        if node.leads is not None and not node.leads.refusal(self.now):
            node.log += [next(self._items) for _ in range(self._random.randint(1, 3))]
            node.leads.note_log(len(node.log))

    def _copy(self) -> None:
        """A slave gets some of its master's log, or connects."""
        node = self._any()
        master = self.nodes.get(node.follows or 0)
        if node.leads is not None or master is None or master.leads is None:
            return
        if master.epoch < node.epoch:
            return  # it knows that this master was replaced
        if node.life % 2 == 0:
            self._join(node, master)
            return
        start = len(node.log)
        more = master.log[start : start + self._random.randint(0, 3)]
        found = master.history.at(start)
        if more and found is not None:
            if found.number != node.history.last_number:
                node.history = node.history.begin(found.number, found.start)
            follow = [one.start for one in master.history.entries if one.start > start]
            node.log += more[: follow[0] - start] if follow else more
        self.reports.append((node.number, node.life, master.number, len(node.log)))

    def _join(self, node: Node, master: Node) -> None:
        end = node.history.common_end(len(node.log), master.history, len(master.log))
        assert end is not None or not node.log, "two logs of one group have nothing in common"
        end = end or 0
        self.cuts += end < len(node.log)
        del node.log[end:]
        node.history = node.history.cut(end)
        node.life += 1

    def _report(self) -> None:
        if not self.reports:
            return
        slave, life, number, end = self.reports.pop(self._random.randrange(len(self.reports)))
        master = self.nodes[number]
        if master.leads is not None and self.nodes[slave].life == life:
            master.leads.note_report(slave, end, self.now)

    def _disconnect(self) -> None:
        node = self._any()
        master = self.nodes.get(node.follows or 0)
        if node.life % 2:
            node.life += 1
            if master is not None and master.leads is not None:
                master.leads.note_gone(node.number)

    def _propose(self) -> None:
        node = self._any()
        if node.leads is None:
            return
        wanted = node.leads.proposal(self.now)
        if wanted is not None:
            self.proposals.append((node.number, node.epoch, node.leads.set_epoch, wanted))

    def _lose(self) -> None:
        """No answer comes; the proposal may still arrive."""
        node = self._any()
        if node.leads is not None and node.leads.asking:
            node.leads.note_unknown()
        if self.proposals and self._random.random() < 0.3:
            self.proposals.pop(0)

    def _decide(self) -> None:
        """The controller gets a proposal; the answer may be lost."""
        if not self.proposals:
            return
        number, epoch, set_epoch, wanted = self.proposals.pop(
            self._random.randrange(len(self.proposals))
        )
        leads = self.nodes[number].leads
        taken = (number, epoch, set_epoch) == (self.master, self.epoch, self.set_epoch)
        if taken:
            self.grown += len(wanted) > len(self.members)
            self.members, self.set_epoch = wanted, self.set_epoch + 1
        if leads is None or not leads.asking or self._random.random() < 0.4:
            return
        if leads.set_epoch != set_epoch or self.nodes[number].epoch != epoch:
            return
        if not taken:
            leads.note_refused()
        elif self.master == number:
            leads.note_answered(self.members, self.set_epoch)

    def _elect(self) -> None:
        if self._random.random() < 0.6:
            return
        self.master = self._random.choice(sorted(self.members))
        self.epoch += 1
        self.set_epoch += 1
        self.members = frozenset({self.master})
        chosen = self.nodes[self.master]
        # The others hear of it some time; the chosen one begins when it does.
        if self._random.random() < 0.5:
            self._tell(chosen)

    def _learn(self) -> None:
        self._tell(self._any())

    def _tell(self, node: Node) -> None:
        if self.epoch == node.epoch:
            if node.leads is not None:
                node.leads.note_controller(self.now)
                if self.master == node.number:
                    node.leads.note_agreed(self.members, self.set_epoch)
            return
        node.epoch = self.epoch
        node.life += node.life % 2
        node.leads = None
        node.follows = None if self.master == node.number else self.master
        if self.master == node.number:
            self._lead(node)

    def _lead(self, node: Node) -> None:
        node.epoch, node.follows = self.epoch, None
        assert node.log[: len(self.confirmed)] == self.confirmed, (
            f"seed {self.seed}: master {node.number} of epoch {self.epoch} lacks what was confirmed"
        )
        node.history = node.history.begin(self.epoch, len(node.log))
        node.leads = MasterSet(
            own_id=node.number,
            epoch_start=len(node.log),
            members=self.members,
            set_epoch=self.set_epoch,
            rules=RULES,
            since=self.now,
        )

    def _wait(self) -> None:
        self.now += self._random.random()

    # Promises

    def _check(self) -> None:
        for node in self.nodes.values():
            if node.leads is None:
                continue
            shown = node.log[: node.leads.confirmed]
            both = min(len(shown), len(self.confirmed))
            assert shown[:both] == self.confirmed[:both], (
                f"seed {self.seed}: confirmed bytes differ"
            )
            if len(shown) > len(self.confirmed):
                self.confirmed = shown
        for number in self.members:
            assert self.nodes[number].log[: len(self.confirmed)] == self.confirmed, (
                f"seed {self.seed}: member {number} of the set lacks what was confirmed"
            )
