"""A slave that acts for its master while the master is down (``enableSlaveActingMaster``).

Some things every slave does without permission: it grants queue locks and takes commits of any
consumer; name servers show it as master only if they know that the group wants that. An acting
master begins and ends the *duties*: work that only one broker of a group may do, such as delivering
delayed messages. Source: broker/BrokerController.java#changeSpecialServiceStatus.
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
    """Asks for the members of the broker group every second; begins the duties, and ends them."""

    rules: ActingRules
    group: BrokerGroup
    following: Callable[[], bool]
    duties: Sequence[Callable[[], Awaitable[None]]]
    period_seconds: float = 1.0
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _duties_scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    """Set while the duties run."""
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
                    await self._end_duties()
                elif self._duties_scope is None:
                    self._duties_scope, self._idle = trio.CancelScope(), trio.Event()
                    nursery.start_soon(self._run_duties, self._duties_scope, name="acting-duties")
                with trio.move_on_after(self.period_seconds):
                    await self._wake.wait()

    async def _run_duties(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for duty in self.duties:
                        nursery.start_soon(duty)
        finally:
            self._duties_scope = None
            self._idle.set()

    async def _end_duties(self) -> None:
        """Return when no duty runs any more. Checkpoint: maybe, if one did."""
        if self._duties_scope is not None:
            self._duties_scope.cancel()
            await self._idle.wait()

    async def hand_over(self) -> None:
        """End the duties, because the master starts; return when they have ended."""
        if self.rules.role is not SlaveRole.HANDING_OVER:
            logger.info("the master starts: handing over to it")
        self.rules.hand_over(trio.current_time())
        await self._end_duties()
