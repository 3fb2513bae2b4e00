"""Tenure: the time of a broker in one role, under one master, in controller mode.

Each role switch is the end of one tenure and the begin of the next: an orderly stop of everything
but the process, then a start in the other role. The steps of a begin, each of which may be repeated
after a crash:

1. the store opens; if the last master's handshake said so, it cuts the log first
   (``open_store(cut_at=…)``), then the epoch file loses what the log has lost;
2. a master shows its whole log (it is alone in its set), and numbers on behind it;
3. it writes its epoch into the epoch file, and only then takes messages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

import attrs
import trio

from triomq.broker.replication.epoch_file import EpochFile
from triomq.broker.roles.membership import ControllerMembership, LogProgress, Mastership
from triomq.broker.store.store import MessageStore


@attrs.define(eq=False, kw_only=True)
class Tenure:
    """What this broker is until ``over``."""

    membership: ControllerMembership
    mastership: Mastership
    epochs: EpochFile
    cut_at: int | None
    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    stopping: bool = attrs.field(default=False, init=False)
    """Whether the process ends with it."""
    next_cut: int | None = attrs.field(default=None, init=False)
    """Where the log must be cut before the next tenure."""
    deposed: bool = attrs.field(default=False, init=False)
    """Whether another epoch has begun."""
    held: Callable[[], AbstractAsyncContextManager[None]] = attrs.field(
        default=nullcontext, init=False
    )
    """On a master: no message is taken inside of the block."""
    on_deposed: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    """On a master: called then, since slaves follow it no more and nothing else is confirmed."""

    @property
    def is_master(self) -> bool:
        return self.mastership.master_id == self.membership.broker_id

    def end(self) -> None:
        """End it, since the process stops. Checkpoint: never."""
        self.over.set()

    async def hand_over(self, successor: int | None = None) -> None:
        """Have another member of the set elected, if this broker is the master and one lives.

        The caller sets the deadline. Raises: RemotingError, ValueError. Checkpoint: always.
        """
        async with self.held():
            await self.membership.hand_over(successor)

    def depose(self) -> None:
        """End it, since another epoch has begun. Checkpoint: never."""
        self.deposed = True
        for callback in self.on_deposed:
            callback()
        self.over.set()

    def cut(self, end: int) -> None:
        """End it, and cut the log before the next one. Checkpoint: never."""
        self.next_cut = end
        self.over.set()

    async def begin(self, store: MessageStore) -> None:
        """Take the role; the store is open. Raises: FlushFailed, OSError. Checkpoint: always."""
        end = store.appended.value
        history = self.epochs.history
        self.epochs.save(history.within(end) if self.cut_at is None else history.cut(end))
        self.membership.progress = lambda: LogProgress(
            self.epochs.history.last_number, store.copyable.value, store.confirmed.value
        )
        if self.is_master:
            await store.begin_writing()
            self.epochs.begin(self.mastership.epoch, store.appended.value)
        else:
            await trio.lowlevel.checkpoint()
