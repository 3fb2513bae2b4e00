"""The poller: one task per cluster that owns what ``mqconsole`` and ``mqadmin top`` show.

Pages read ``view`` and never wait for a poll. Each poll has one deadline; what did not answer by
then keeps its last values, with their time and the reason. Rates, brokers and name servers are read
at every poll, the tables of topics and groups less often.

A broker that hangs must not make pages wait either: pages ask through an ``Admin`` that does not
ask a server again after a time-out. The poller tells it about silent brokers (one request that runs
into the time limit), and makes it forget them when one of them answers again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import attrs
import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.answers import read_body
from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.admin.cluster_view import (
    TABLE_ROWS_MAX,
    BrokerRow,
    BrokerTables,
    ClusterView,
    NameServerRow,
    group_rows,
    topic_rows,
)
from triomq.client.admin.controllers import groups_at, leader_of, named_controllers
from triomq.client.admin.missing_broker_search import KNOWN_SECONDS
from triomq.client.admin.missing_brokers import MissingBroker
from triomq.client.admin.server_settings import read_settings
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.remoting.protocol.bodies.controller import GroupReplicas
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupTable
from triomq.remoting.protocol.bodies.offsets import BrokerConsumeStats
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import BrokerConsumeStatsHeader
from triomq.remoting.protocol.names import reply_topic

logger = logging.getLogger(__name__)

POLL_DEADLINE_SECONDS = 4.0
TABLES_DEADLINE_SECONDS = 20.0
TABLES_EVERY = 6
"""polls between two reads of the tables"""
FORGET_EVERY = 10 * TABLES_EVERY
"""polls after which pages may ask again what only they found slow; they may wait for it, once"""
SAMPLES_MAX = 120
GONE_SECONDS = 3600.0
"""how long a broker stays on the pages that is not registered any more"""
JUST_NOW_SECONDS = 2 * KNOWN_SECONDS
BROKERS_MAX = 2000
"""brokers that are polled"""
FOREVER_SECONDS = 1e9


@attrs.frozen
class RateSample:
    """Messages per second of the whole cluster at one time; None if a broker is unknown."""

    at: float
    put: float | None
    get: float | None


def _gone(before: Iterable[BrokerRow], present: Sequence[BrokerRow], now: float) -> list[BrokerRow]:
    """Return the brokers that are not registered any more, at name servers that do not remember.

    Name servers drop a broker that dies; its absence must be seen. One that came back at another
    address is not gone.
    """
    addresses = {row.address for row in present}
    places = {(row.cluster, row.name, row.id) for row in present}
    missing = [
        attrs.evolve(row, failure=row.failure or "", gone_since=row.gone_since or now)
        for row in before
        if row.address not in addresses and (row.cluster, row.name, row.id) not in places
    ]
    return [row for row in missing if now - (row.gone_since or now) < GONE_SECONDS][:BROKERS_MAX]


def _remembered(
    missing: Iterable[MissingBroker],
    present: Sequence[BrokerRow],
    gone: Iterable[BrokerRow],
    before: Mapping[str, BrokerRow],
    now: float,
) -> list[BrokerRow]:
    """Return the brokers that the name servers remember, with their last known state.

    ``gone``: those missing in the list of brokers. One that left just now may be younger than the
    answer about missing brokers.
    """
    addresses = {row.address for row in present}
    remembered = [
        BrokerRow(
            cluster=one.cluster,
            name=one.name,
            id=one.id,
            address=one.address,
            status=None if (old := before.get(one.address)) is None else old.status,
            seen_at=None if old is None else old.seen_at,
            failure=one.since,
            gone_since=now - one.seconds,
        )
        for one in missing
        if one.address not in addresses
    ]
    addresses.update(row.address for row in remembered)
    just_now = [
        row
        for row in gone
        if row.address not in addresses and now - (row.gone_since or now) < JUST_NOW_SECONDS
    ]
    return [*remembered, *just_now][:BROKERS_MAX]


@attrs.define(eq=False)
class ClusterPoller:
    """Polls one cluster.

    ``polling`` has connections of its own; ``reading`` is that of pages, None if there are none.
    """

    polling: Admin
    reading: Admin | None
    poll_seconds: float
    poll_deadline_seconds: float = POLL_DEADLINE_SECONDS
    tables_deadline_seconds: float = TABLES_DEADLINE_SECONDS
    view: ClusterView = attrs.field(factory=ClusterView)
    samples: deque[RateSample] = attrs.field(factory=lambda: deque(maxlen=SAMPLES_MAX))
    _tables: dict[str, BrokerTables] = attrs.field(factory=dict)
    """by broker name"""
    _missing: Mapping[str, str] = attrs.field(factory=dict)
    _silent: frozenset[str] = frozenset()
    """addresses that ``reading`` does not ask"""
    _wanted: trio.Event = attrs.field(factory=trio.Event)
    _failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger))

    async def poll_forever(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Poll until cancelled; ``started()`` after the first poll, whatever it found."""
        if self.reading is not None:
            self.reading.limit_to(FOREVER_SECONDS)
        await self.poll()
        task_status.started()
        count = 0
        while True:
            if count % TABLES_EVERY == 0 or self._wanted.is_set():
                self._wanted = trio.Event()
                await self.read_tables()
                await self.warn_pages(forget=count % FORGET_EVERY == 0 and count > 0)
            with trio.move_on_after(self.poll_seconds):
                await self._wanted.wait()
            await self.poll()
            count += 1

    def refresh_soon(self) -> None:
        """Read everything again now, because something was changed. Checkpoint: never."""
        self._wanted.set()

    async def poll(self) -> None:
        """Read brokers, name servers and rates."""
        before = {broker.address: broker for broker in self.view.brokers}
        addresses: list[BrokerAddress] | None = None
        failure: str | None = None
        statuses: dict[str, Mapping[str, str]] = {}
        reasons: dict[str, str] = {}
        servers: dict[str, str | None] = {}
        missing: list[MissingBroker] | None = None
        late = f"no answer within {self.poll_deadline_seconds:g} s"

        async def status_of(address: str) -> None:
            try:
                statuses[address] = await self.polling.broker_status(address)
            except TrioMQError as error:
                reasons[address] = str(error)

        async def ask_server(address: str) -> None:
            servers[address] = late
            try:
                await self.polling.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
                servers[address] = None
            except TrioMQError as error:
                servers[address] = str(error)

        async def find_missing() -> None:
            nonlocal missing
            with suppress(TrioMQError):
                missing = await self.polling.missing_brokers()

        with trio.move_on_after(self.poll_deadline_seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(find_missing)
                for server in self.polling.namesrv_addresses:
                    nursery.start_soon(ask_server, server)
                try:
                    addresses = (await self.polling.brokers())[:BROKERS_MAX]
                except TrioMQError as error:
                    failure = str(error)
                for address in [row.address for row in addresses or before.values()]:
                    nursery.start_soon(status_of, address)
        now = time.time()
        known: Sequence[BrokerAddress | BrokerRow] = (
            list(before.values()) if addresses is None else addresses
        )
        rows = []
        for at in known:
            old = before.get(at.address)
            status = statuses.get(at.address)
            rows.append(
                BrokerRow(
                    cluster=at.cluster,
                    name=at.name,
                    id=at.id,
                    address=at.address,
                    status=status if status is not None else None if old is None else old.status,
                    seen_at=now if status is not None else None if old is None else old.seen_at,
                    failure=None if status is not None else reasons.get(at.address, late),
                )
            )
        if addresses is None and failure is None:
            failure = late
        gone = _gone(before.values(), rows, now)
        if missing is not None:
            gone = _remembered(missing, rows, gone, before, now)
        rows = sorted([*rows, *gone], key=lambda row: row.sort_key)
        self.view = attrs.evolve(
            self.view,
            brokers=tuple(rows),
            name_servers=tuple(
                NameServerRow(address, servers.get(address, late))
                for address in self.polling.namesrv_addresses
            ),
            failure=failure,
            taken_at=now,
            listed_at=self.view.listed_at if addresses is None else now,
        )
        (put, all_put), (get, all_get) = self.view.put_rate, self.view.get_rate
        self.samples.append(RateSample(now, put if all_put else None, get if all_get else None))
        await self.warn_pages()

    async def warn_pages(self, *, forget: bool = False) -> None:
        """Keep pages from waiting for brokers that are silent.

        ``forget``: what pages themselves found slow may be asked again.
        """
        if self.reading is None:
            return
        silent = frozenset(row.address for row in self.view.brokers if row.failure is not None)
        if silent == self._silent and not forget:
            return
        if forget or self._silent - silent:
            self.reading.limit_to(FOREVER_SECONDS)  # forgets all of them
        await self.reading.for_each(silent, self.reading.broker_status)
        self._silent = silent

    async def read_tables(self) -> None:
        """Read the topics, groups and backlogs of every broker name."""
        leaders = self.view.leaders()
        missing = {
            row.name: row.failure or "" for row in self.view.brokers if row.name not in leaders
        }
        missing |= dict.fromkeys(leaders, f"no answer within {self.tables_deadline_seconds:g} s")

        async def read_tables_of(name: str) -> None:
            try:
                self._tables[name] = await self._tables_of(leaders[name])
                del missing[name]
                self._failures.worked(f"tables of {name}")
            except TrioMQError as error:
                missing[name] = str(error)
                self._failures.failed(f"tables of {name}", error)

        sets: Mapping[str, GroupReplicas] = self.view.sets

        async def read_sets() -> None:
            nonlocal sets
            with suppress(TrioMQError):
                sets = await self._sets_at(list(leaders.values()))

        with trio.move_on_after(self.tables_deadline_seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_sets)
                for name in leaders:
                    nursery.start_soon(read_tables_of, name)
        if self.view.failure is None:
            names = {row.name for row in self.view.brokers}
            self._tables = {name: self._tables[name] for name in self._tables if name in names}
        servers = {
            name
            for row in self.view.brokers
            for name in (row.name, row.cluster, reply_topic(row.cluster))
        }
        topics, groups = topic_rows(self._tables, servers), group_rows(self._tables)
        self.view = attrs.evolve(
            self.view,
            topics=topics,
            groups=groups,
            tables_at=min((table.taken_at for table in self._tables.values()), default=None),
            tables_missing=missing,
            sets=sets,
            cut=max(len(topics), len(groups)) >= TABLE_ROWS_MAX,
        )

    async def _sets_at(self, addresses: Sequence[str]) -> Mapping[str, GroupReplicas]:
        """Ask the controllers that brokers name. Raises: TrioMQError."""
        code = RequestCode.GET_BROKER_CONFIG
        settings = (await read_settings(self.polling, addresses, code)).values
        names, controllers = named_controllers(self.view.brokers, settings)
        if not controllers:
            return {}
        return await groups_at(self.polling, await leader_of(self.polling, controllers), names)

    async def _tables_of(self, address: str) -> BrokerTables:
        ask, now = self.polling.ask, time.time()
        topics = read_body(TopicTable, await ask(address, RequestCode.GET_ALL_TOPIC_CONFIG))
        groups = read_body(
            SubscriptionGroupTable, await ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        )
        backlog = None
        try:
            header = BrokerConsumeStatsHeader(False)
            answer = await ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header)
            backlog = read_body(BrokerConsumeStats, answer)
        except BrokerError:
            logger.debug("%s does not tell the backlog of its groups", address)
        return BrokerTables(
            topics=topics.topic_config_table,
            groups=tuple(groups.subscription_group_table),
            backlog=backlog,
            taken_at=now,
        )
