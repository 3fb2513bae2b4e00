"""The log of commands: the Raft node of this process with its clock and its disk.

::

    CommandLog.run ─┬ raft-clock   steps the node at its ``next_tick``
                    └ raft-disk    writes what steps ask for, in a thread, several with one fsync

The node is stepped where an event comes: in these tasks, in the handlers of requests, and where a
message of another controller arrives. A step has no checkpoint.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import attrs
import trio

from triomq.namesrv.controller.commands import Command
from triomq.namesrv.controller.raft.configuration import Configuration, ConfigurationChange
from triomq.namesrv.controller.raft.events import (
    ChangeConfiguration,
    MessageReceived,
    Persist,
    Persisted,
    Propose,
    RaftEvent,
    ReadIndex,
    RefusalReason,
    Tick,
)
from triomq.namesrv.controller.raft.messages import AnyRaftMessage
from triomq.namesrv.controller.raft.node import RaftNode
from triomq.namesrv.controller.raft.settings import RaftSettings
from triomq.namesrv.controller.raft_storage import RaftStorage
from triomq.namesrv.controller.replicated_state import (
    Answer,
    ReplicatedState,
    StepResult,
    encode_command,
)
from triomq.namesrv.controller.state import ControllerState
from triomq.namesrv.controller.transitions import Applied
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""for a command or a read. A leader without a majority knows it after ``election_seconds``"""
REOPEN_SECONDS = 1.0
"""between two attempts to go on with a disk that failed"""

_NOT_LEADER = "The controller is not in leader state"
_REFUSALS: dict[RefusalReason, tuple[ResponseCode, str]] = {
    RefusalReason.NOT_LEADER: (ResponseCode.CONTROLLER_NOT_LEADER, _NOT_LEADER),
    RefusalReason.LOST_LEADERSHIP: (ResponseCode.CONTROLLER_NOT_LEADER, _NOT_LEADER),
    RefusalReason.TRANSFERRING: (ResponseCode.CONTROLLER_NOT_LEADER, _NOT_LEADER),
    RefusalReason.TOO_LARGE: (
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        RefusalReason.TOO_LARGE.value,
    ),
}
"""Others are SYSTEM_BUSY. Source of the remark: ControllerRequestProcessor.java."""


def _rejected(reason: RefusalReason) -> Rejected:
    return Rejected(*_REFUSALS.get(reason, (ResponseCode.SYSTEM_BUSY, reason.value)))


class LogFolder(Protocol):
    """Where the log is. ``open`` raises ConfigError."""

    def open(self) -> RaftStorage: ...
    def close(self) -> None: ...


@attrs.define(eq=False)
class _PendingAnswer:
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Answer = None


@attrs.define(eq=False, kw_only=True)
class CommandLog:
    """The state as this controller has it, and the only way to change it.

    ``send``: hands a message to another controller, and may lose it.
    ``in_thread`` runs what blocks. ``leads_now`` is called when this controller begins to lead.
    """

    own_id: str
    folder: LogFolder
    send: Callable[[str, AnyRaftMessage], None]
    leads_now: Callable[[], None] = lambda: None
    settings: RaftSettings = attrs.field(factory=RaftSettings)
    in_thread: Callable[..., Awaitable[Any]] = attrs.field(factory=lambda: trio.to_thread.run_sync)
    jitter: Callable[[], float] = random.random
    lasting: ReplicatedState = attrs.field(init=False)
    led: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when this controller has led for the first time."""
    _storage: RaftStorage = attrs.field(init=False)
    _failed: str = attrs.field(default="", init=False)
    """Why the disk cannot be used now."""
    _led: bool = attrs.field(default=False, init=False)
    _left_out: bool = attrs.field(default=False, init=False)
    _requests: int = attrs.field(default=0, init=False)
    _waiting: dict[int, _PendingAnswer] = attrs.field(factory=dict, init=False)
    _writes: list[Persist] = attrs.field(factory=list, init=False)
    _written: trio.Event = attrs.field(factory=trio.Event, init=False)
    _broken: Exception | None = attrs.field(default=None, init=False)
    """What must end the process: the node contradicts what is committed."""
    _timer: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self._begin(self.folder.open())

    def _begin(self, storage: RaftStorage) -> None:
        now = trio.current_time()
        self._storage, self._failed, self._writes = storage, "", []
        node = RaftNode(self.own_id, self.settings, storage.stored(), now, self.jitter)
        self.lasting = ReplicatedState(node)

    @property
    def state(self) -> ControllerState:
        """The state that committed commands have made; a follower's may be older than others'."""
        return self.lasting.state

    @property
    def configuration(self) -> Configuration:
        """The newest one in this controller's log: it is valid from its entry on."""
        return self.lasting.node.log.configuration

    @property
    def leads(self) -> bool:
        """Whether this controller believes that it leads, and has what earlier leaders did."""
        return not self._failed and self.lasting.node.is_ready

    @property
    def leader(self) -> str:
        """The id of the leader, empty if none is known that answers."""
        if self._failed or (self.lasting.node.leader == self.own_id and not self.leads):
            return ""
        return self.lasting.node.leader

    def lacking(self) -> dict[str, int]:
        """Return how many entries each other controller lacks; empty if this one does not lead."""
        node = self.lasting.node
        if node.leadership is None:
            return {}
        last = node.log.last_index
        return {
            member: last - progress.match_index
            for member, progress in node.leadership.progress.items()
        }

    async def commit(self, command: Command) -> ControllerState:
        """Do a command: it is on the disks of a majority before anybody sees its effect.

        Returns: the state after the command.
        Raises: Rejected. With CONTROLLER_NOT_LEADER or SYSTEM_BUSY it may still be done later.
        Checkpoint: always.
        """
        data = encode_command(command)
        before = self.state
        applied = await self._ask(lambda request: Propose(request, data))
        assert isinstance(applied, Applied)
        await trio.lowlevel.checkpoint_if_cancelled()
        if applied.refusal is not None:
            raise applied.refusal
        if applied.state is not before:
            _log.info("%s", command)
        return applied.state

    async def confirm_lead(self) -> None:
        """Wait until it is sure that the state has all that was ever answered.

        Raises: Rejected, with CONTROLLER_NOT_LEADER if another one may have more.
        Checkpoint: maybe.
        """
        await self._ask(ReadIndex)

    async def change_configuration(
        self, change: ConfigurationChange, node_id: str, addresses: Mapping[str, str]
    ) -> RefusalReason | None:
        """Change the members; None when a majority of the new ones has it, or why it is not done.

        Raises: Rejected. Its outcome is then unknown, or another controller leads.
        Checkpoint: maybe.
        """
        answer = await self._outcome(
            lambda request: ChangeConfiguration(request, change, node_id, addresses)
        )
        if isinstance(answer, RefusalReason) and answer in _REFUSALS:
            raise _rejected(answer)
        assert not isinstance(answer, Applied)
        if answer is None:
            members = ", ".join(self.configuration.members)
            _log.info("%s %s: the controllers are %s", change.value, node_id, members)
        return answer

    async def _ask(self, event_of: Callable[[int], RaftEvent]) -> Answer:
        answer = await self._outcome(event_of)
        if isinstance(answer, RefusalReason):
            raise _rejected(answer)
        return answer

    async def _outcome(self, event_of: Callable[[int], RaftEvent]) -> Answer:
        self._requests += 1
        number, waiting = self._requests, _PendingAnswer()
        self._waiting[number] = waiting
        try:
            self.step(event_of(number))
            if self._failed:
                raise Rejected(ResponseCode.SYSTEM_ERROR, self._failed)
            with trio.move_on_after(ANSWER_SECONDS):
                if not waiting.done.is_set():
                    await waiting.done.wait()
        finally:
            del self._waiting[number]
        if not waiting.done.is_set():
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"the controllers have not agreed within {ANSWER_SECONDS:g} s: a majority of them"
                " must run and reach each other; ask again, it may be done by then",
            )
        return waiting.answer

    def receive(self, sender: str, message: AnyRaftMessage) -> None:
        """Take a message of another controller. Checkpoint: never."""
        self.step(MessageReceived(sender, message))

    def step(self, event: RaftEvent) -> None:
        """Let the node take an event, and do what follows. Checkpoint: never."""
        if self._failed:
            return
        try:
            outcome = self.lasting.step(event, trio.current_time())
        except Exception as error:  # raised in a handler, it would end the request only
            self._broken, self._failed = error, "the log of this controller is broken"
            self._timer.cancel()
            return
        self._do(outcome)
        self._timer.deadline = self.lasting.node.next_tick
        self._say_if_left_out()
        led, self._led = self._led, self.lasting.node.is_ready
        if self._led and not led:
            _log.info("controller %s leads, term %d", self.own_id, self.lasting.node.term)
            self.led.set()
            self.leads_now()

    def _say_if_left_out(self) -> None:
        left_out, self._left_out = self._left_out, self.lasting.node.waits_to_be_added
        if self._left_out and not left_out:
            _log.error(
                "%s is empty, and the controllers have begun: this one may have lost votes and"
                " commands, so it keeps out. `mqadmin controller remove %s`, if `controller status`"
                " names it, and then `mqadmin controller add` let it follow again",
                self._storage.path,
                self.own_id,
            )

    def _do(self, outcome: StepResult) -> None:
        for one in outcome.sends:
            self.send(one.target, one.message)
        if outcome.writes:
            self._writes += outcome.writes
            self._written.set()
        for number, answer in outcome.answers.items():
            waiting = self._waiting.get(number)
            if waiting is not None:
                waiting.answer = answer
                waiting.done.set()

    # Tasks

    async def run(self) -> None:
        """Keep clock and disk until cancelled: the task "raft".

        A disk that fails ends this life of the node, and nothing is answered. The next life begins
        as after a start of the process: with all that can be read, written anew.

        Raises: RaftInvariantBroken, ValueError (msgspec.ValidationError): the log is broken.
        """
        try:
            while True:
                error = await self._live()
                self._failed = (
                    f"the controller cannot write {self._storage.path}: {explained(error)}; make"
                    " room or give it the right to write there, then it goes on"
                )
                _log.error("%s", self._failed)
                self._led = False
                self._refuse_waiting()
                self._storage.close()
                await self._reopen()
                _log.info("the controller writes %s again", self._storage.path)
        finally:
            self._failed = "this controller stops: ask another one"
            self._refuse_waiting()
            self._storage.close()
            self.folder.close()

    async def _live(self) -> OSError:
        """Run a life of the node; return the error that ends it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_time, name="raft-clock")
            try:
                await self._write()
            except OSError as error:
                nursery.cancel_scope.cancel()
                return error
        raise AssertionError("only an error ends it")

    async def _keep_time(self) -> None:
        while True:
            self.step(Tick())
            with trio.CancelScope(deadline=self.lasting.node.next_tick) as self._timer:
                await trio.sleep_forever()
            if self._broken is not None:
                raise self._broken

    async def _write(self) -> None:
        while True:
            await self._written.wait()
            self._written = trio.Event()
            writes, self._writes = self._writes, []
            if writes:
                self.step(Persisted(await self.in_thread(self._storage.persist, writes)))

    def _refuse_waiting(self) -> None:
        for waiting in self._waiting.values():
            waiting.answer = RefusalReason.LOST_LEADERSHIP
            waiting.done.set()

    async def _reopen(self) -> None:
        said = ""
        while True:
            await trio.sleep(REOPEN_SECONDS)
            try:
                storage = await self.in_thread(self.folder.open)
            except ConfigError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("%s", said)
            else:
                self._begin(storage)
                return
