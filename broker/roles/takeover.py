"""Master takeover: what a starting master does before it registers (``enableSlaveActingMaster``).

Between two brokers of TrioMQ it goes in this order, so that no work is done twice:

1. The master's port answers, but the master does not register and does no work of a master yet.
   It waits until it knows a slave: from a name server, or from the slave itself (906), since no
   broker has registered yet with a name server that has just started.
2. It tells each slave where it is (906).
3. The slave ends its master tasks, waits for deliveries in flight, tells the master which offsets
   consumers have committed, and answers.
4. The master takes over the progress of delayed messages (45), registers, and begins its own.

A slave that does not answer 906 in time has ended its master tasks long before, so the master asks
for its progress all the same. Source: broker/BrokerPreOnlineService.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from triomq.broker.roles.broker_group import BrokerGroup
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.registration import Caller
from triomq.broker.services.timers.timers import Timers
from triomq.remoting.core.errors import ConnectionLost, RemotingError
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.route import MASTER_ID
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader

logger = logging.getLogger(__name__)

SEARCH_SECONDS = 10.0
"""Longest wait of a master that starts for a slave. One that knows the master's address tells it
within ``table_copy.PERIOD_SECONDS`` and a connect time-out that it is there.
"""
HAND_OVER_SECONDS = 18.0
"""A slave has 5 s to end its master tasks and 10 s to report commits
(``remote_sender.SEND_SECONDS``, ``group_changes.REPORT_SECONDS``).
"""
TABLE_SECONDS = 5.0
"""For each of the two tables. All in all less than ``acting_rules.HANDOVER_SECONDS``, after which
slaves take a silent master for dead.
"""
ASK_AGAIN_SECONDS = 0.5
HEARD_MAX = 16
"""Any peer can pose as a slave."""


@attrs.define(eq=False)
class MasterTakeover:
    """Takes over what slaves have done in place of this master."""

    group: BrokerGroup
    caller: Caller
    delayed: DelayedMessages
    offsets: ConsumerOffsets
    log_end: Callable[[], int]
    timers: Timers | None = None
    _heard: set[str] = attrs.field(factory=set, init=False)
    """Slaves that said where they are."""

    def hear(self, slave: str) -> None:
        """Note where a slave is. Checkpoint: never."""
        if len(self._heard) < HEARD_MAX:
            self._heard.add(slave)

    async def run(self) -> None:
        """Return when every slave that is alive has handed over, or cannot be reached.

        Java waits without end for a slave that does not answer.
        """
        if not self.group.askable:
            return
        slaves: set[str] = set()
        with trio.move_on_after(SEARCH_SECONDS) as search:
            while True:
                views = await self.group.members()
                for members in views:
                    slaves |= {each for key, each in members.items() if key != MASTER_ID}
                slaves |= self._heard
                if slaves or (views and not self.log_end()):
                    break  # with an empty log there was nothing to act for
                await trio.sleep(ASK_AGAIN_SECONDS)
        slaves |= self._heard
        if search.cancelled_caught and not slaves:
            logger.warning(
                "no name server knows a slave, and none says within %g s that it is there: what one"
                " has done in place of this master may come twice",
                SEARCH_SECONDS,
            )
        async with trio.open_nursery() as nursery:
            for address in sorted(slaves):
                nursery.start_soon(self._take_over, address)

    async def _take_over(self, address: str) -> None:
        try:
            reported = await self._hand_over(address)
            if reported is None:
                return
            delays = await self._ask(address, request(RequestCode.GET_ALL_DELAY_OFFSET))
            levels = (
                self.delayed.take_back(DelayOffsetTable.decode(bytes(delays.body)))
                if delays.code == ResponseCode.SUCCESS and delays.body
                else 0
            )
            await self._take_timers(address)
            commits = "its own" if reported else await self._take_offsets(address)
        except (RemotingError, ValueError) as error:
            logger.warning(
                "slave %s does not hand over: %s; delayed messages that it has delivered may come"
                " twice",
                address,
                error,
            )
            return
        logger.info(
            "slave %s handed over: progress of %s delay levels, %s consumer offsets",
            address,
            levels,
            commits,
        )

    async def _hand_over(self, address: str) -> bool | None:
        """End a slave's master tasks.

        Returns: whether the slave has reported the commits of consumers, as TrioMQ's slaves do and
        Java's do not; None if it never acts.
        Raises: ValueError.
        """
        settings = self.group.registrar.settings
        header = ExchangeHaAddressHeader(
            settings.ha_address, self.log_end(), settings.broker_address
        )
        try:
            answer = await self._ask(
                address, request(RequestCode.EXCHANGE_BROKER_HA_INFO, header), HAND_OVER_SECONDS
            )
        except RemotingError as error:
            logger.warning(
                "slave %s does not say that it has handed over (%s): asking for its progress all"
                " the same",
                address,
                error,
            )
            return False
        if answer.code != ResponseCode.SUCCESS:
            logger.info(
                "slave %s does not act for its master: it answered %s %s",
                address,
                answer.code,
                answer.remark,
            )
            return None
        return answer.header(ExchangeHaAddressHeader).master_address == settings.broker_address

    async def _take_timers(self, address: str) -> None:
        """Take over how far the slave has delivered timed messages. Raises: RemotingError."""
        if self.timers is None:
            return
        answer = await self._ask(address, request(RequestCode.GET_TIMER_CHECK_POINT))
        if answer.code == ResponseCode.SUCCESS and answer.body:
            self.timers.take_back(TimerCheckPoint.decode(bytes(answer.body)))

    async def _take_offsets(self, address: str) -> int:
        """Take over the slave's offsets; return the number of offsets that changed.

        As in Java, a table that is older does not count. No offset goes back.
        """
        answer = await self._ask(address, request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return 0
        return self.offsets.take_back(ConsumerOffsetTable.decode(bytes(answer.body)))

    async def _ask(self, address: str, command: Command, seconds: float = TABLE_SECONDS) -> Command:
        """Raises: RemotingError."""
        begun = trio.current_time()
        try:
            return await self.caller.invoke(address, command, timeout=seconds)
        except ConnectionLost:  # what the slave has done is worth a second try
            left = max(1.0, begun + seconds - trio.current_time())
            return await self.caller.invoke(address, command, timeout=left)
