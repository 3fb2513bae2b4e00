"""A slave that acts for its master while the master is down (``enableSlaveActingMaster``).

Some things every slave does without permission: it grants queue locks and takes commits of any
consumer; name servers show it as master only if they know that the group wants that. An acting
master begins and ends the *master tasks*: work that only one broker of a group may do, such as
delivering delayed messages. Source: broker/BrokerController.java#changeSpecialServiceStatus.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from triomq.broker.roles.acting_rules import ActingRules, SlaveRole
from triomq.broker.roles.broker_group import BrokerGroup

logger = logging.getLogger(__name__)

_TEXTS = {
    SlaveRole.ACTING: "no master and no smaller id is there: acting as master",
    SlaveRole.STANDBY: "not acting as master",
    SlaveRole.HANDING_OVER: "handing over to the master",
}


@attrs.define(eq=False)
class ActingMaster:
    """Asks for the members of the broker group every second; begins and ends the master tasks."""

    rules: ActingRules
    group: BrokerGroup
    following: Callable[[], bool]
    master_tasks: Sequence[Callable[[], Awaitable[None]]]
    period_seconds: float = 1.0
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _tasks_scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    """Set while the master tasks run."""
    _idle: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._idle.set()

    def check_now(self) -> None:
        """Decide again at once: something has changed. Checkpoint: never."""
        self._wake.set()

    async def run(self) -> None:
        """Run the task "acting-master"."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                views = await self.group.members()
                before = self.rules.role
                role = self.rules.decide(views, self.following(), trio.current_time())
                if role is not before:
                    name = self.group.registrar.settings.broker_name
                    logger.info("%s: %s, was %s", name, _TEXTS[role], before.value)
                if role is not SlaveRole.ACTING:
                    await self._end_tasks()
                elif self._tasks_scope is None:
                    self._tasks_scope, self._idle = trio.CancelScope(), trio.Event()
                    nursery.start_soon(self._run_tasks, self._tasks_scope, name="master-tasks")
                with trio.move_on_after(self.period_seconds):
                    await self._wake.wait()

    async def _run_tasks(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for task in self.master_tasks:
                        nursery.start_soon(task)
        finally:
            self._tasks_scope = None
            self._idle.set()

    async def _end_tasks(self) -> None:
        """Return when no master task runs any more. Checkpoint: maybe, if one did."""
        if self._tasks_scope is not None:
            self._tasks_scope.cancel()
            await self._idle.wait()

    async def hand_over(self) -> None:
        """End the master tasks, because the master starts; return when they have ended."""
        if self.rules.role is not SlaveRole.HANDING_OVER:
            logger.info("the master starts: handing over to it")
        self.rules.hand_over(trio.current_time())
        await self._end_tasks()
