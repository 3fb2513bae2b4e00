"""Follow a topic with plain pulls: no member of a group, no committed offset.

Each broker has a task of its own, so one that does not answer does not delay the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from triomq.client.admin.answers import read_body, read_header
from triomq.client.admin.errors import FilterRefused, NoBrokerAnswered
from triomq.client.admin.messages import (
    PULL_ANSWERS,
    PULL_MESSAGES_MAX,
    TOOLS_GROUP,
    pull_header,
    records,
)
from triomq.client.admin.tail.tail_position import Bounds, BrokerReports, TailPositions
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.remoting.protocol.bodies.offsets import TopicStats
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.pull import PullMessageResponseHeader
from triomq.remoting.protocol.headers.topic import TopicHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.resend.selection import MessageSelection
    from triomq.remoting.protocol.record import StoredMessage

POLL_SECONDS = 0.5
"""pause of a broker without new messages; a broker then gets one request for the bounds"""
ROUTE_SECONDS = 5.0
"""pause between two looks for brokers that are new in the route"""

ROUTE = "name server"
"""its name in reports"""


@attrs.define(eq=False, kw_only=True)
class TopicTail:
    """Shows the wanted messages of a topic as they come."""

    admin: Admin
    topic: str
    selection: MessageSelection
    """``begin_ms``: the messages since then are shown first; None: only new ones"""
    sql: str = ""
    """a condition that brokers check; empty: none"""
    started_ms: int
    """a broker that is not reached at once is read from here on"""
    step_seconds: int
    """time limit of each step: a look at the route, the bounds of a broker, a pull"""
    show: Callable[[str, StoredMessage], None]
    """gets the name of the broker"""
    say: Callable[[str], None]
    """gets a line about a broker"""
    reports: BrokerReports = attrs.field(factory=BrokerReports, init=False)
    _addresses: dict[str, str] = attrs.field(factory=dict, init=False)
    _tasks: set[str] = attrs.field(factory=set, init=False)
    _left: int = attrs.field(init=False, default=0)
    _nursery: trio.Nursery = attrs.field(init=False)

    async def follow(self) -> None:
        """Follow the topic until the wanted number of messages was shown.

        Raises: RouteNotFound, NoNameServer; NoBrokerAnswered if no broker answers at first;
        FilterRefused.
        Checkpoint: always.
        """
        self._left = self.selection.limit
        await self._read_route()
        async with trio.open_nursery() as self._nursery:
            self._start_new()
            while True:
                await trio.sleep(ROUTE_SECONDS)
                try:
                    await self._read_route()
                except TrioMQError as error:
                    # The brokers are still read at the addresses that were known.
                    self._report(ROUTE, error)
                else:
                    self._answers(ROUTE)
                    self._start_new()

    async def _read_route(self) -> None:
        self.admin.limit_to(self.step_seconds)
        self._addresses.update(await self.admin.topic_brokers(self.topic))

    def _start_new(self) -> None:
        for broker in sorted(self._addresses.keys() - self._tasks):
            self._tasks.add(broker)
            self._nursery.start_soon(self._follow, broker)

    async def _follow(self, broker: str) -> None:
        positions = TailPositions()
        first_try, begun, more = True, False, False
        while True:
            try:
                self.admin.limit_to(self.step_seconds)
                bounds = await self._bounds(broker)
                if not begun:
                    await self._begin(positions, bounds, at_end=first_try)
                    begun = True
                more = await self._pull_new(broker, positions, bounds)
                self._answers(broker)
            except FilterRefused:
                raise
            except TrioMQError as error:
                more = False
                self._report(broker, error)
            first_try = False
            if not more:
                await trio.sleep(POLL_SECONDS)

    async def _begin(self, positions: TailPositions, bounds: Bounds, *, at_end: bool) -> None:
        """Set the first offsets: at the wanted time, otherwise at the ends of the queues.

        A broker that did not answer at first goes on where the tail began.
        """
        if self.sql:
            await self._check_filter(bounds)
        begin_ms = self.selection.begin_ms
        if begin_ms is None and not at_end:
            begin_ms = self.started_ms
        for queue, (_, stop) in bounds.items():
            offset = stop if begin_ms is None else await self.admin.offset_by_time(queue, begin_ms)
            positions.advance(queue, offset)

    async def _check_filter(self, bounds: Bounds) -> None:
        """Ask for the message behind the last: the broker reads the condition first.

        Raises: FilterRefused.
        """
        for queue, (_, stop) in list(bounds.items())[:1]:
            address = self._addresses[queue.broker_name]
            try:
                await pull(self.admin, address, queue, stop, sql=self.sql)
            except BrokerError as error:
                raise FilterRefused(self.sql, str(error)) from error

    async def _pull_new(self, broker: str, positions: TailPositions, bounds: Bounds) -> bool:
        """Pull once from each queue with new messages; return whether there are more."""
        more = False
        for queue, start, stop in positions.pending(bounds):
            self.admin.limit_to(self.step_seconds)
            address = self._addresses[broker]
            found, go_on = await pull(self.admin, address, queue, start, sql=self.sql)
            for message in found:
                self._show(broker, message)
            if go_on > start:
                positions.advance(queue, go_on)
                more |= go_on < stop
        return more

    def _show(self, broker: str, message: StoredMessage) -> None:
        if self._left <= 0 or not self.selection.wants(message):
            return
        self.show(broker, message)
        self._left -= 1
        if self._left == 0:
            self._nursery.cancel_scope.cancel()

    def _report(self, name: str, error: TrioMQError) -> None:
        line = self.reports.failed(name, str(error))
        if self.reports.hopeless(self._addresses):
            raise NoBrokerAnswered(dict(self.reports.failing)) from error
        if line is not None:
            self.say(line)

    def _answers(self, name: str) -> None:
        if (line := self.reports.works(name)) is not None:
            self.say(line)

    async def _bounds(self, broker: str) -> Bounds:
        code, header = RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=self.topic)
        answer = await self.admin.ask(self._addresses[broker], code, header)
        return {
            MessageQueue(self.topic, broker, queue.queue_id): (
                offsets.min_offset,
                offsets.max_offset,
            )
            for queue, offsets in read_body(TopicStats, answer).offset_table.items()
        }


async def pull(
    admin: Admin, address: str, queue: MessageQueue, offset: int, *, sql: str = ""
) -> tuple[list[StoredMessage], int]:
    """Return what one plain pull gets, and the offset to go on at: not a later one at the end.

    ``sql``: a condition that the broker checks; empty: none.

    Raises: BrokerError, for instance for a condition without ``enablePropertyFilter=true``.
    """
    header = pull_header(queue, offset, PULL_MESSAGES_MAX, TOOLS_GROUP, sql)
    response = await admin.ask(address, RequestCode.PULL_MESSAGE, header, b"", *PULL_ANSWERS)
    answer = read_header(PullMessageResponseHeader, response)
    found = records(response) if response.code == ResponseCode.SUCCESS else []
    return found, answer.next_begin_offset
