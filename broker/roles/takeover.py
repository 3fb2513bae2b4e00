"""Master takeover: what a starting master does before it registers (``enableSlaveActingMaster``).

Between two brokers of TrioMQ it goes in this order, so that no work is done twice:

1. The master's port answers, but the master does not register and does no work of a master yet.
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
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.route import MASTER_ID
from triomq.remoting.protocol.bodies.timer import TimerCheckPoint
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader

logger = logging.getLogger(__name__)

NAME_SERVER_SECONDS = 10.0
"""Longest wait of a master that starts for a name server that answers."""
HAND_OVER_SECONDS = 18.0
"""A slave has 5 s to end its master tasks and 10 s to report commits
(``remote_sender.SEND_SECONDS``, ``group_changes.REPORT_SECONDS``).
"""
TABLE_SECONDS = 5.0
"""For each of the two tables. All in all less than ``acting_rules.HANDOVER_SECONDS``, after which
slaves take a silent master for dead.
"""
ASK_AGAIN_SECONDS = 0.5


@attrs.define(eq=False)
class MasterTakeover:
    """Takes over what slaves have done in place of this master."""

    group: BrokerGroup
    caller: Caller
    delayed: DelayedMessages
    offsets: ConsumerOffsets
    log_end: Callable[[], int]
    timers: Timers | None = None

    async def run(self) -> None:
        """Return when every slave that is alive has handed over, or cannot be reached.

        Java waits without end for a slave that does not answer.
        """
        slaves: dict[int, str] = {}
        if not self.group.askable:
            return
        with trio.move_on_after(NAME_SERVER_SECONDS) as asking:
            while not (views := await self.group.members()):  # noqa: ASYNC110  (a remote answer)
                await trio.sleep(ASK_AGAIN_SECONDS)
            for members in views:
                slaves |= {
                    broker_id: address
                    for broker_id, address in members.items()
                    if broker_id != MASTER_ID
                }
        if asking.cancelled_caught:
            logger.warning(
                "no name server says within %g s whether a slave acts for this master; delayed"
                " messages that it has delivered may come twice",
                NAME_SERVER_SECONDS,
            )
        async with trio.open_nursery() as nursery:
            for broker_id, address in sorted(slaves.items()):
                nursery.start_soon(self._take_over, broker_id, address)

    async def _take_over(self, broker_id: int, address: str) -> None:
        try:
            reported = await self._hand_over(broker_id, address)
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
                "slave %d (%s) does not hand over: %s; delayed messages that it has delivered may"
                " come twice",
                broker_id,
                address,
                error,
            )
            return
        logger.info(
            "slave %d (%s) handed over: progress of %s delay levels, %s consumer offsets",
            broker_id,
            address,
            levels,
            commits,
        )

    async def _hand_over(self, broker_id: int, address: str) -> bool | None:
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
                "slave %d (%s) does not say that it has handed over (%s): asking for its progress"
                " all the same",
                broker_id,
                address,
                error,
            )
            return False
        if answer.code != ResponseCode.SUCCESS:
            logger.info(
                "slave %d (%s) does not act for its master: it answered %s %s",
                broker_id,
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
        return await self.caller.invoke(address, command, timeout=seconds)
