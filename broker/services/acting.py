"""A slave that acts for its master while that is down, and the master's return (``enableSlaveActingMaster``).

What any slave does anyway needs no permission: it grants queue locks and takes commits of whoever asks; name servers show it as master only where they know that
the group wants that.  What begins and ends here are the *duties*: work that only one broker of a group may do, such as delivering delayed messages.

The return, between two of ours, in this order, so that nothing is done twice: the master's port answers, but it does not register and does no duty yet; it tells each slave
where it is (906); the slave ends its duties, lets deliveries that are under way come to their end, tells the master which offsets consumers have committed,
and then answers; the master takes over how far delayed messages have come (45), registers, and begins its own duties.  A slave that does not answer 906 in time has ended its
duties long before, so it is asked for its progress all the same.
Source: broker/BrokerController.java#changeSpecialServiceStatus, BrokerPreOnlineService.java.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from triomq.broker.replication.acting import ActingRules, Duty, Sight
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.members import GroupMembers
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.registration import Caller
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.route import MASTER_ID
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader

logger = logging.getLogger(__name__)

RETURN_SECONDS = 10.0
"""So long a master that starts waits for a name server that answers."""
HAND_OVER_SECONDS = 18.0
"""A slave has 5 s to end its duties and 10 s to tell what it knows (`delay_delivery.SEND_SECONDS`, `group_changes.TELL_SECONDS`)."""
TABLE_SECONDS = 5.0
"""For each of the two tables.  All in all less than the time (`ActingRules`) after which slaves take a master that says nothing more for dead."""
ASK_AGAIN_SECONDS = 0.5


@attrs.define(eq=False)
class ActingMaster:
    """The slave's side: looks around every second, begins the duties and ends them."""

    rules: ActingRules
    members: GroupMembers
    following: Callable[[], bool]
    duties: Sequence[Callable[[], Awaitable[None]]]
    period_seconds: float = 1.0
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _working: trio.CancelScope | None = attrs.field(default=None, init=False)
    _idle: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._idle.set()

    @property
    def acting(self) -> bool:
        return self.rules.acting

    def look_again(self) -> None:
        """Something has changed: do not wait for the next second.  atomic: no checkpoint."""
        self._wake.set()

    async def run(self) -> None:
        """The task "acting-master"."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                views = await self.members.views()
                before = self.rules.duty
                duty = self.rules.look(Sight(views=views, following=self.following()), trio.current_time())
                if duty is not before:
                    logger.info("%s: %s, was %s", self.members.registration.settings.broker_name, _SAID[duty], before.value)
                if duty is not Duty.ACTING:
                    await self._end_duties()
                elif self._working is None:
                    self._working, self._idle = trio.CancelScope(), trio.Event()
                    nursery.start_soon(self._work, self._working, name="acting-duties")
                with trio.move_on_after(self.period_seconds):
                    await self._wake.wait()

    async def _work(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    for duty in self.duties:
                        nursery.start_soon(duty)
        finally:
            self._working = None
            self._idle.set()

    async def _end_duties(self) -> None:
        """Return when no duty is at work any more.  Checkpoint: only if one was."""
        if self._working is not None:
            self._working.cancel()
            await self._idle.wait()

    async def hand_over(self) -> None:
        """The master starts: end what is done in its place.  Returns when it has ended."""
        if self.rules.duty is not Duty.HANDING_OVER:
            logger.info("the master starts: handing over to it")
        self.rules.hand_over(trio.current_time())
        await self._end_duties()


_SAID = {
    Duty.ACTING: "no master and no smaller id is there: acting as master",
    Duty.STANDBY: "not acting as master",
    Duty.HANDING_OVER: "handing over to the master",
}


@attrs.define(eq=False)
class Return:
    """The master's side: before it registers it takes over what slaves have done in its place."""

    members: GroupMembers
    caller: Callable[[], Caller]
    delayed: DelayedMessages
    offsets: ConsumerOffsets
    end: Callable[[], int]
    """Where the log ends."""

    async def run(self) -> None:
        """Returns when every slave that lives has handed over, or cannot be reached.  Java waits for ever for a slave that does not answer."""
        slaves: dict[int, str] = {}
        if not self.members.askable:
            return
        with trio.move_on_after(RETURN_SECONDS) as asking:
            while not (views := await self.members.views()):  # noqa: ASYNC110  (asked over the wire)
                await trio.sleep(ASK_AGAIN_SECONDS)
            for view in views:
                slaves |= {broker_id: address for broker_id, address in view.items() if broker_id != MASTER_ID}
        if asking.cancelled_caught:
            logger.warning("no name server says within %g s whether a slave acts for this master; delayed messages that it has delivered may come twice", RETURN_SECONDS)
        async with trio.open_nursery() as nursery:
            for broker_id, address in sorted(slaves.items()):
                nursery.start_soon(self._take_over, broker_id, address)

    async def _take_over(self, broker_id: int, address: str) -> None:
        try:
            told = await self._hand_over(broker_id, address)
            if told is None:
                return
            delays = await self._ask(address, request(RequestCode.GET_ALL_DELAY_OFFSET))
            levels = self.delayed.take_back(DelayOffsetTable.decode(bytes(delays.body))) if delays.code == ResponseCode.SUCCESS and delays.body else 0
            commits = "its own" if told else await self._take_offsets(address)
        except (RemotingError, ValueError) as error:
            logger.warning("slave %d (%s) does not hand over: %s; delayed messages that it has delivered may come twice", broker_id, address, error)
            return
        logger.info("slave %d (%s) handed over: progress of %s delay levels, %s consumer offsets", broker_id, address, levels, commits)

    async def _hand_over(self, broker_id: int, address: str) -> bool | None:
        """End a slave's duties.  Whether it has told its consumers' commits itself, as ours do and Java's do not; None if it never acts.  Raises ValueError."""
        settings = self.members.registration.settings
        header = ExchangeHaAddressHeader(settings.ha_address, self.end(), settings.broker_address)
        try:
            answer = await self._ask(address, request(RequestCode.EXCHANGE_BROKER_HA_INFO, header), HAND_OVER_SECONDS)
        except RemotingError as error:
            logger.warning("slave %d (%s) does not say that it has handed over (%s): asking how far it has come all the same", broker_id, address, error)
            return False
        if answer.code != ResponseCode.SUCCESS:
            logger.info("slave %d (%s) does not act for its master: it answered %s %s", broker_id, address, answer.code, answer.remark)
            return None
        return answer.header(ExchangeHaAddressHeader).master_address == settings.broker_address

    async def _take_offsets(self, address: str) -> int:
        """Java's rule: the slave's table counts if its version is not older; but nothing goes back."""
        answer = await self._ask(address, request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return 0
        return self.offsets.take_back(ConsumerOffsetTable.decode(bytes(answer.body)))

    async def _ask(self, address: str, command: Command, seconds: float = TABLE_SECONDS) -> Command:
        return await self.caller().invoke(address, command, timeout=seconds)
