"""SetKeeper: brings reports, the log and the controllers' answers to a master's ``MasterSet``.

What it confirms goes to readers (``Confirmations``) and to senders (``ConfirmedDurability``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.broker.replication.confirmed_durability import ConfirmedDurability
from triomq.broker.replication.epoch_master_link import EpochMasterLink
from triomq.broker.replication.master import ReplicationMaster
from triomq.broker.replication.master_link import MasterLink
from triomq.broker.replication.master_set import MasterSet
from triomq.broker.store.store import MessageStore
from triomq.remoting.core.errors import Rejected, RemotingError
from triomq.remoting.core.log_limit import LogLimit

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
"""How often to look whether a member is late."""

Propose = Callable[[frozenset[int], int], Awaitable[tuple[frozenset[int], int]]]
"""(members, epoch of the present set) -> the new set and its epoch.

Raises: Rejected, if the controllers have refused it; RemotingError: they may have it."""


@attrs.define(eq=False)
class SetKeeper:
    """Keeps the set of one master in one epoch."""

    store: MessageStore
    master: ReplicationMaster
    leads: MasterSet
    durability: ConfirmedDurability
    propose: Propose
    _check: trio.Event = attrs.field(factory=trio.Event, init=False)
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self.store.copyable.callbacks.append(self._log_grew)
        self.master.on_report = self._note_report
        self.master.on_gone = self._note_gone

    def note_agreed(self, members: frozenset[int], set_epoch: int) -> None:
        """Take over the set that the controllers have. Checkpoint: never."""
        self.leads.note_agreed(members, set_epoch)
        self._settle()

    def check_now(self) -> None:
        """Look soon whether the set should be another one. Checkpoint: never."""
        self._check.set()

    def _log_grew(self) -> None:
        self.leads.note_log(self.store.copyable.value)
        self._settle()

    def _note_report(self, link: MasterLink, now: float) -> None:
        if not isinstance(link, EpochMasterLink) or link.broker_id is None:
            return
        self.leads.note_report(link.broker_id, link.copied, now)
        self._settle()
        if link.broker_id not in self.leads.members and link.copied >= self.leads.confirmed:
            self.check_now()

    def _note_gone(self, link: MasterLink) -> None:
        others = (connection.link for connection in self.master.connections)
        if isinstance(link, EpochMasterLink) and link.broker_id is not None:
            if all(link.name != other.name or not other.counts for other in others):
                self.leads.note_gone(link.broker_id)
            self.check_now()

    def _settle(self) -> None:
        """Tell senders and readers what is confirmed. Checkpoint: never."""
        confirmations = self.store.confirmations
        assert confirmations is not None
        confirmations.confirm(self.leads.confirmed)
        self.durability.settle()

    async def run(self) -> None:
        """Run the task "replication-set": propose another set when the members are others."""
        while True:
            wanted = self.leads.proposal(trio.current_time())
            if wanted is not None:
                await self._ask(wanted)
            self._check = trio.Event()
            with trio.move_on_after(CHECK_SECONDS):
                await self._check.wait()

    async def _ask(self, wanted: frozenset[int]) -> None:
        before, known = sorted(self.leads.members), self.leads.set_epoch
        try:
            members, set_epoch = await self.propose(wanted, known)
        except Rejected as error:
            self.leads.note_refused()
            self._limit.warning(logger, "the set does not become %s: %s", sorted(wanted), error)
        except RemotingError as error:
            self.leads.note_unknown()
            self._limit.warning(
                logger,
                "no controller says whether it took the set %s (%s): %s goes on to count",
                sorted(wanted),
                error,
                sorted(self.leads.counting),
            )
        else:
            self.leads.note_answered(members, set_epoch)
            self._settle()
            logger.info("the sync state set is %s, was %s", sorted(members), before)
            return
        await trio.sleep(CHECK_SECONDS)
