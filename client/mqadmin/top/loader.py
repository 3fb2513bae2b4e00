"""The one task that reads what ``mqadmin top`` shows.

Brokers, name servers, topics and groups come from ``ClusterPoller``, as for the pages of
``mqconsole``: a few bulk requests to each broker. Details come after them, within a budget of
requests for each round. The loader replaces ``frame``, a frozen value, so that a reader in another
thread sees either the old frame or the new one.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import read_body
from triomq.client.admin.broker_rates import summed_item
from triomq.client.admin.cluster_poller import FOREVER_SECONDS, ClusterPoller
from triomq.client.core.background import open_background
from triomq.client.core.errors import GroupOffline
from triomq.client.mqadmin.core.lag_alert import oldest_seconds
from triomq.client.mqadmin.top.details import (
    REQUESTS_PER_ROUND,
    GroupDetail,
    TopicDetail,
    names_to_read,
)
from triomq.client.mqadmin.top.frame import TopFrame
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader

TABLES_EVERY_SECONDS = 10.0
"""between two reads of all topics, groups and offsets; brokers walk all their offsets for it"""
FORGET_SECONDS = 60.0
"""after which servers that only details found slow are asked again"""


@attrs.define(eq=False)
class TopLoader:
    """Reads a cluster round by round; see the module's docstring."""

    poller: ClusterPoller
    details: Admin
    """asks for details; it does not ask a server again after a time-out"""
    interval_seconds: float
    deadline_seconds: float
    """limit of each step of a round"""
    frame: TopFrame = attrs.field(factory=TopFrame)
    rounds: int = 0
    """rounds that have ended"""
    crash: Exception | None = None
    """the unexpected error that ended ``run``"""
    requests_per_round: int = REQUESTS_PER_ROUND
    shown_topics: tuple[str, ...] = ()
    """on the screen, so that their details come first"""
    shown_groups: tuple[str, ...] = ()
    _tables_read_at: float = -math.inf
    _forgot_at: float = -math.inf
    _topics: dict[str, TopicDetail] = attrs.field(factory=dict)
    _groups: dict[str, GroupDetail] = attrs.field(factory=dict)

    def show_first(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Read the details of these rows first. Checkpoint: never."""
        self.shown_topics, self.shown_groups = tuple(topics), tuple(groups)

    async def read_rounds(self) -> None:
        """Read round after round until cancelled."""
        try:
            self.details.limit_to(FOREVER_SECONDS)
            while True:
                begin = trio.current_time()
                await self.round()
                await trio.sleep_until(max(begin + self.interval_seconds, trio.current_time()))
        except Exception as error:
            self.crash = error
            raise

    async def round(self) -> None:
        """Read once; the frame is new after each step."""
        await self.poller.poll()
        self._publish()
        now = trio.current_time()
        if now - self._tables_read_at >= TABLES_EVERY_SECONDS:
            self._tables_read_at = now
            await self.poller.read_tables()
            self._publish()
            forget = now - self._forgot_at >= FORGET_SECONDS
            if forget:
                self._forgot_at = now
            await self.poller.warn_pages(forget=forget)
        with trio.move_on_after(self.deadline_seconds):
            await self._read_details()
        self._publish()
        self.rounds += 1

    def _publish(self) -> None:
        view = self.poller.view
        for details, present in ((self._topics, view.topics), (self._groups, view.groups)):
            for name in details.keys() - present.keys():
                del details[name]
        self.frame = TopFrame(view=view, topics=dict(self._topics), groups=dict(self._groups))

    async def _read_details(self) -> None:
        view, share = self.poller.view, self.requests_per_round // 2
        leaders = view.leaders()

        def group_cost(name: str) -> int:
            group = view.groups[name]
            return len(group.brokers) + len(group.waiting)

        groups, rest = names_to_read(
            (name for name in self.shown_groups if name in view.groups),
            (name for name, group in view.groups.items() if not group.system),
            {name: detail.taken_at for name, detail in self._groups.items()},
            group_cost,
            share,
        )
        topics, _ = names_to_read(
            (name for name in self.shown_topics if name in view.topics),
            (name for name, topic in view.topics.items() if topic.kind == "normal"),
            {name: detail.taken_at for name, detail in self._topics.items()},
            lambda name: len(view.topics[name].brokers),
            self.requests_per_round - share + rest,
        )
        async with trio.open_nursery() as nursery:
            for name in groups:
                nursery.start_soon(self._read_group, name, leaders)
            for name in topics:
                nursery.start_soon(self._read_topic, name, leaders)

    async def _read_topic(self, name: str, leaders: Mapping[str, str]) -> None:
        brokers = self.poller.view.topics[name].brokers
        asked = {broker: leaders[broker] for broker in brokers if broker in leaders}
        silent: dict[str, str] = {}
        rate, count = await summed_item(self.details, asked, "TOPIC_PUT_NUMS", name, silent)
        if len(silent) < len(asked):
            whole = len(asked) == len(brokers) and not silent
            self._topics[name] = TopicDetail(
                put_rate=rate, day_count=count, whole=whole, taken_at=time.time()
            )

    async def _read_group(self, name: str, leaders: Mapping[str, str]) -> None:
        group = self.poller.view.groups[name]
        asked = {broker: leaders[broker] for broker in group.brokers if broker in leaders}
        members: set[str] = set()
        whole = len(asked) == len(group.brokers) and not self.poller.view.tables_missing

        async def members_at(broker: str) -> ConsumerConnection:
            code, header = RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(name)
            try:
                answer = await self.details.ask(asked[broker], code, header)
            except GroupOffline:
                return ConsumerConnection()
            return read_body(ConsumerConnection, answer)

        answers = await self.details.for_each(asked, members_at)
        for connection in answers.values.values():
            members |= {client.client_id for client in connection.connections}
        whole = whole and not answers.failures
        silent: dict[str, str] = {}
        waiting = [place for place in group.waiting if place[0] in answers.values]
        oldest = await oldest_seconds(self.details, name, waiting, leaders, silent)
        self._groups[name] = GroupDetail(
            members=len(members) if members or whole else None,
            oldest_seconds=oldest,
            taken_at=time.time(),
        )


async def load_once(admin: Admin, deadline_seconds: float, requests: int) -> TopFrame:
    """Return one frame, read within the limits of ``admin``.

    ``requests``: budget for details. Raises: TrioMQError if no name server answers.
    """
    poller = ClusterPoller(
        admin,
        None,
        deadline_seconds,
        poll_deadline_seconds=deadline_seconds,
        tables_deadline_seconds=deadline_seconds,
    )
    loader = TopLoader(
        poller, admin, deadline_seconds, deadline_seconds, requests_per_round=requests
    )
    await admin.cluster()
    await loader.round()
    return loader.frame


@asynccontextmanager
async def open_loader(
    polling: Admin, details: Admin, interval_seconds: float, deadline_seconds: float
) -> AsyncIterator[TopLoader]:
    """Connect, and read in a task of its own for the length of the block.

    A poll is given up after the interval, so that a broker that hangs does not make the others
    look old.
    """
    async with polling, details, open_background() as nursery:
        poller = ClusterPoller(
            polling,
            details,
            interval_seconds,
            poll_deadline_seconds=min(interval_seconds, deadline_seconds),
            tables_deadline_seconds=deadline_seconds,
        )
        loader = TopLoader(poller, details, interval_seconds, deadline_seconds)
        nursery.start_soon(loader.read_rounds, name="top loader")
        yield loader
