"""When the controller changes something: requests of brokers, lost connections, silence.

It joins the state (what may be) with liveness (what should be) and makes commands, at the
controller that leads. An election that finds nobody changes nothing; it is tried again at the next
sign of life, or check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.commands import AlterSet, ApplyId, Clean, Register
from triomq.namesrv.controller.controller_settings import ControllerSettings
from triomq.namesrv.controller.election import Question, choose
from triomq.namesrv.controller.liveness import BrokerLiveness, Sighting
from triomq.namesrv.controller.state import FIRST_ID, ControllerState, Group
from triomq.namesrv.controller.transitions import apply
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode as Code
from triomq.remoting.protocol.limits import Limits

_log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
"""between two checks for masters that are silent for too long"""
CHECK_GROUPS = 1000
"""groups between two checkpoints of a check: 2 ms"""


@attrs.define(eq=False, kw_only=True)
class BrokerGroups:
    """All groups, as one controller sees and changes them.

    ``settings``: those in force, since a request may change some of them. ``role_changed``: called
    with the broker name after an election.
    """

    log: CommandLog
    liveness: BrokerLiveness
    settings: Callable[[], ControllerSettings]
    limits: Limits
    role_changed: Callable[[str], None]
    elections: int = attrs.field(default=0, init=False)
    _check_now: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def state(self) -> ControllerState:
        """The state that committed commands have made."""
        return self.log.state

    def begin_to_lead(self) -> None:
        """Give every broker the time of a heartbeat to show up here. Checkpoint: never."""
        self.liveness.begin(trio.current_time())
        self._check_now.set()

    def living_master(self, broker_name: str) -> int | None:
        """Return the id of a group's master, None if it has none that is alive."""
        group = self.state.groups[broker_name]
        master = group.master
        if master is None or not self.is_living(broker_name, master):
            return None
        return master

    def is_living(self, broker_name: str, broker_id: int) -> bool:
        """Return whether a broker is alive."""
        return self.liveness.is_living(broker_name, broker_id, trio.current_time())

    def living(self, broker_name: str) -> dict[int, Sighting]:
        """Return the brokers of a group that were seen alive."""
        ids = self.state.groups[broker_name].replicas
        return self.liveness.living(broker_name, ids, trio.current_time())

    def require_group(self, broker_name: str, code: Code, remark: str) -> Group:
        """Return a group. Raises: Rejected with this code and remark if there is none."""
        group = self.state.groups.get(broker_name)
        if group is None:
            raise Rejected(code, remark)
        return group

    def next_id(self, broker_name: str) -> int:
        """Return the id that the next new broker of a group may apply for."""
        group = self.state.groups.get(broker_name)
        return FIRST_ID if group is None else group.next_id

    async def apply_id(self, command: ApplyId) -> None:
        """Give a broker its id. Raises: Rejected, LimitReached. Checkpoint: always."""
        name, groups = command.broker_name, self.state.groups
        if name not in groups:
            self.limits.require("groups_max", len(groups) + 1, f"broker {name[:100]} gets no id")
        elif command.broker_id not in groups[name].replicas:
            self.limits.require(
                "replicas_max",
                len(groups[name].replicas) + 1,
                f"another broker of {name[:100]} gets no id",
            )
        await self.log.commit(command)

    async def register(self, command: Register, connection: object) -> Group:
        """Note that a broker's process has started; if it was the master, elect another one.

        Returns: the group afterwards.
        Raises: Rejected.
        Checkpoint: always.
        """
        name = command.broker_name
        was_master = self._master_of(name) == command.broker_id
        await self.log.commit(command)
        if was_master:
            # Its process has ended, whether or not its connection has. Its new life comes last.
            self.liveness.forget(name, (command.broker_id,))
            await self._elect_if_due(name)
        self.hear(name, command.broker_id, Sighting(connection=connection, heard=_now()))
        return self.require_group(
            name,
            Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker-set: {name} hasn't been registered in controller",
        )

    def hear(self, broker_name: str, broker_id: int, sighting: Sighting) -> bool:
        """Note a sign of life of a broker with an id; return False if there is none.

        Checkpoint: never.
        """
        group = self.state.groups.get(broker_name)
        if group is None or broker_id not in group.replicas:
            return False
        self.liveness.heard(broker_name, broker_id, sighting)
        if self._may_elect(broker_name, group):
            self._check_now.set()
        return True

    def connection_lost(self, connection: object) -> None:
        """Count its brokers as dead, and search another master at once. Checkpoint: never."""
        if self.liveness.lost(connection):
            self._check_now.set()

    async def elect(
        self, broker_name: str, asker: int | None = None, *, designated: bool = False
    ) -> Group:
        """Elect a master, write that, and tell the brokers.

        Returns: the group afterwards.
        Raises: Rejected; with CONTROLLER_MASTER_STILL_EXIST the present master stays.
        Checkpoint: maybe, not before a refusal.
        """
        while True:
            group = self.require_group(
                broker_name,
                Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                "Broker hasn't been registered",
            )
            election = choose(self._question(broker_name, group, asker, designated))
            try:
                after = await self.log.commit(election)
                break
            except Rejected:
                # Another election was first; what it has done is the answer now.
                if self.state.groups.get(broker_name) == group:
                    raise
        self.elections += 1
        if election.unclean:
            _log.warning(
                "%s: broker %d is master without being in the sync state set: what only %s had is"
                " lost",
                broker_name,
                election.broker_id,
                sorted(group.sync_set),
            )
        self.role_changed(broker_name)
        return after.groups[broker_name]

    def _question(
        self, broker_name: str, group: Group, asker: int | None, designated: bool
    ) -> Question:
        if asker is not None and asker not in group.replicas:
            raise Rejected(
                Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
            )
        return Question(
            broker_name=broker_name,
            group=group,
            living=self.living(broker_name),
            master_lives=self.living_master(broker_name) is not None,
            asker=asker,
            designated=designated,
            unclean=self.settings().unclean,
        )

    async def alter_set(self, command: AlterSet) -> Group:
        """Change a group's sync state set as its master proposes; new members must be alive.

        Returns: the group afterwards.
        Raises: Rejected.
        Checkpoint: always.
        """
        name = command.broker_name
        refusal = apply(self.state, command).refusal
        if refusal is not None:
            raise refusal
        new = command.ids - self.state.groups[name].sync_set - self.living(name).keys()
        if new:
            raise Rejected(
                Code.CONTROLLER_BROKER_NOT_ALIVE,
                "Rejecting alter syncStateSet request because the replicas"
                f" {{{min(new)}}} don't alive",
            )
        return (await self.log.commit(command)).groups[name]

    async def clean(self, command: Clean, *, living_too: bool) -> None:
        """Forget brokers. Raises: Rejected. Checkpoint: always."""
        name = command.broker_name
        group = self.require_group(
            name,
            Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"Broker {name} is not existed,clean broker data failure.",
        )
        ids = frozenset(group.replicas) if command.ids is None else command.ids
        if not living_too:
            if command.ids is None and self.living_master(name) is not None:
                raise Rejected(
                    Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
                    f"Broker {name} is still alive, clean up failure",
                )
            for broker_id in sorted(ids & group.replicas.keys()):
                if self.is_living(name, broker_id):
                    raise Rejected(
                        Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
                        f"Broker [{name},  {broker_id}] is still alive, clean up failure",
                    )
        await self.log.commit(command)
        self.liveness.forget(name, ids)

    async def watch(self) -> None:
        """Replace masters that are gone, until cancelled: the task "controller-watch"."""
        while True:
            with trio.move_on_after(CHECK_SECONDS):
                await self._check_now.wait()
            self._check_now = trio.Event()
            for number, name in enumerate(list(self.state.groups) if self.log.leads else ()):
                if number % CHECK_GROUPS == 0:
                    await trio.lowlevel.checkpoint()
                await self._elect_if_due(name)

    def without_master(self) -> int:
        """Return how many groups have no living master."""
        return sum(self.living_master(name) is None for name in self.state.groups)

    def incomplete(self) -> int:
        """Return how many groups have brokers that are not in the sync state set."""
        return sum(group.sync_set < group.replicas.keys() for group in self.state.groups.values())

    def _may_elect(self, name: str, group: Group) -> bool:
        """Return whether a group has lost its master, and somebody could take its place."""
        if group.never_elected or self.living_master(name) is not None:
            return False
        ids = group.replicas if self.settings().unclean else group.sync_set
        return bool(self.liveness.living(name, ids, trio.current_time()))

    async def _elect_if_due(self, name: str) -> None:
        group = self.state.groups.get(name)
        if group is None or not self._may_elect(name, group):
            return
        try:
            after = await self.elect(name)
        except Rejected as error:
            _log.warning("%s: no new master: %s", name, error.remark)
            return
        _log.warning(
            "%s: broker %s is master now (epoch %d), in the place of %s",
            name,
            after.master,
            after.master_epoch,
            "one that started again" if group.master is None else group.master,
        )

    def _master_of(self, name: str) -> int | None:
        group = self.state.groups.get(name)
        return None if group is None else group.master


def _now() -> float:
    return trio.current_time()
