"""MasterSet: the sync state set as its master sees it. Pure.

It says whose copies count, when to ask for another set, and what is confirmed.

::

    agreed {1, 2} ── propose ──▶ {1, 2} and {1, 2, 3} both count ── the answer ──▶ agreed
                                    │
                                    └─ no answer: both go on counting, until a newer set is known

Law: the controllers elect only members of the set that they know. So a byte is confirmed when each
member of every set that they *may* know has it: of the agreed set, and of all proposals whose fate
is open. A member whose connection is lost stays until the controllers have the smaller set.
(RocketMQ 5.5.0 drops it at once, and then confirms alone.)

The master also has a lease. Nobody may be elected while the controllers or a member heard from it
lately; without either it takes no messages. Times are those of one steady clock, in seconds, and
count from before a question was sent, not from its answer.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class SetRules:
    """``copies_min``: members without which no message is taken, the master among them."""

    copies_min: int = 1
    catch_up_seconds: float = 15.0
    """A member that has not been at the end of the log for this time leaves the set."""
    lease_seconds: float = 8.0
    """Less than the time without heartbeats after which the controllers elect another master."""


@attrs.define(eq=False)
class Follower:
    """A slave that is, or was, connected in this epoch."""

    end: int
    """It has everything before this offset."""
    caught_up_at: float
    """When it last had everything that the log had at an earlier report."""
    connected: bool = True
    _goal: int = 0
    _goal_at: float = 0.0

    def note(self, end: int, log_end: int, now: float) -> None:
        """Take in a report."""
        self.end, self.connected = max(self.end, end), True
        if self.end >= self._goal:
            self.caught_up_at = max(self.caught_up_at, self._goal_at)
            self._goal, self._goal_at = log_end, now
        if self.end >= log_end:
            self.caught_up_at = now


@attrs.define(eq=False, kw_only=True)
class MasterSet:
    """The set of a master, from the beginning of its epoch to the end of it."""

    own_id: int
    epoch_start: int
    """Where the log ended when the epoch began."""
    members: frozenset[int]
    """The newest set that the controllers are known to have."""
    set_epoch: int
    rules: SetRules
    since: float
    """When the epoch began; the lease begins with it."""
    copies_min: int = attrs.field(init=False)
    """As the rules say, until the size of the group is known."""
    confirmed: int = attrs.field(init=False)
    """Each broker that could be elected has the log up to here."""
    log_end: int = attrs.field(init=False)
    """What this master itself has, by its own rule: on the disk with SYNC_FLUSH."""
    pending: frozenset[int] = attrs.field(init=False, factory=frozenset)
    """Members of proposals that the controllers may have, or may get; empty: none is open."""
    asking: bool = attrs.field(init=False, default=False)
    """Whether a proposal waits for its answer."""
    _lost: bool = attrs.field(init=False, default=False)
    """Whether the fate of an earlier proposal is open."""
    _followers: dict[int, Follower] = attrs.field(init=False, factory=dict)
    _heard: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.log_end = self.epoch_start
        self.copies_min = self.rules.copies_min
        self.confirmed = 0
        self._heard = self.since
        self._confirm()

    @property
    def counting(self) -> frozenset[int]:
        """Everybody whose copy counts: who can be elected, as far as this master knows."""
        return self.members | self.pending

    # What happens

    def note_log(self, end: int) -> None:
        """This master has its log up to ``end``."""
        self.log_end = max(self.log_end, end)
        self._confirm()

    def note_report(self, broker_id: int, end: int, now: float) -> None:
        """A slave, whose log continues in this epoch, has everything before ``end``."""
        follower = self._followers.get(broker_id)
        if follower is None:
            follower = self._followers[broker_id] = Follower(end, now)
        follower.note(end, self.log_end, now)
        if broker_id in self.members:
            self._heard = max(self._heard, now)
        self._confirm()

    def note_gone(self, broker_id: int) -> None:
        """The connection of a slave has ended. It goes on counting."""
        follower = self._followers.get(broker_id)
        if follower is not None:
            follower.connected = False

    def note_controller(self, asked_at: float) -> None:
        """The controllers have answered a heartbeat that was sent at ``asked_at``."""
        self._heard = max(self._heard, asked_at)

    def note_agreed(self, members: frozenset[int], set_epoch: int) -> None:
        """The controllers have this set. With it every earlier proposal is void."""
        if set_epoch > self.set_epoch:
            self.members, self.set_epoch = members, set_epoch
            self.pending, self._lost = frozenset(), False
            self._confirm()

    # Proposals

    def proposal(self, now: float) -> frozenset[int] | None:
        """Return the set to ask the controllers for, which counts from now on; None: no change.

        The caller then says how it ended: ``note_agreed``, ``note_refused`` or ``note_unknown``.
        """
        wanted = self._wanted(now)
        if self.asking or wanted == self.members:
            return None
        self.pending |= wanted
        self.asking = True
        return wanted

    def note_refused(self) -> None:
        """The controllers have answered that they do not take the proposal."""
        self.asking = False
        if not self._lost:
            self.pending = frozenset()
            self._confirm()

    def note_unknown(self) -> None:
        """No answer came: the controllers may have the proposal, or may still get it."""
        self.asking, self._lost = False, True

    def note_answered(self, members: frozenset[int], set_epoch: int) -> None:
        """The controllers have taken the proposal."""
        self.asking = False
        self.note_agreed(members, set_epoch)

    def _wanted(self, now: float) -> frozenset[int]:
        staying = {
            broker_id
            for broker_id in self.members
            if broker_id == self.own_id or self._keeps_up(broker_id, now)
        }
        joining = {
            broker_id
            for broker_id, follower in self._followers.items()
            if follower.connected
            and follower.end >= max(self.confirmed, self.epoch_start)
            and self._keeps_up(broker_id, now)
        }
        return frozenset(staying | joining)

    def _keeps_up(self, broker_id: int, now: float) -> bool:
        follower = self._followers.get(broker_id)
        if follower is None:  # a member that has not connected in this epoch yet
            return now < self.since + self.rules.catch_up_seconds
        late = now > follower.caught_up_at + self.rules.catch_up_seconds
        return follower.connected and (follower.end >= self.log_end or not late)

    # What senders may know

    def refusal(self, now: float) -> str:
        """Return why no message is taken now; an empty string: messages are taken."""
        if not self.holds_lease(now):
            return (
                f"neither a controller nor a member of the set was heard for"
                f" {self.rules.lease_seconds:g} s: another broker may be the master"
            )
        if self.too_few:
            return (
                f"{len(self.members)} in the sync state set, the master included,"
                f" minInSyncReplicas={self.copies_min}"
            )
        return ""

    @property
    def too_few(self) -> bool:
        """Whether fewer members have what is confirmed than the settings want."""
        return len(self.members) < self.copies_min

    def holds_lease(self, now: float) -> bool:
        """Return whether no other broker can have been elected."""
        return now < self.lease_end

    @property
    def lease_end(self) -> float:
        return self._heard + self.rules.lease_seconds

    def _confirm(self) -> None:
        ends = [self.log_end]
        for broker_id in self.counting - {self.own_id}:
            follower = self._followers.get(broker_id)
            if follower is None:
                return
            ends.append(follower.end)
        self.confirmed = max(self.confirmed, min(ends))
