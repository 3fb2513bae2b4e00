"""Heartbeats of the proxy: the groups of all its gRPC clients, to the brokers of their topics.

A broker hears of a new, changed or lost group at once, and of all groups every 30 s, in heartbeats
of 100 groups. The groups are spread over several connections to each broker, since brokers bound
the groups of one (``groupsPerConnectionMax``); each connection is a client of its own there. One
task sends; a caller that changes something waits until the brokers have heard of it.

Source: proxy/…/service/transaction/ClusterTransactionService.java;
client/…/impl/factory/MQClientInstance.java#sendHeartbeatToAllBroker.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from triomq.client.core.failure_log import FailureLog
from triomq.client.proxy.group_places import GroupPlaces
from triomq.client.proxy.joined_clients import GroupKey, JoinedClients
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.messaging.status_codes import Refused, refused_by_broker
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.client import UnregisterClientHeader

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
DISCOVERY_SECONDS = 3.0
"""Interval of the search for brokers that do not know the groups: new, moved or lost ones."""
DISCOVERY_TOPICS = 500
"""Topics whose brokers one search finds; the next search goes on with the others."""
CALL_SECONDS = 3.0
WAIT_SECONDS = 1.0
"""How long a client waits until brokers know its groups; a silent broker must not keep it."""
SENDERS_MAX = 32
"""Brokers that get heartbeats at the same time."""
PART_GROUPS = 100
"""Groups of one heartbeat, as Java's proxy has it (transactionHeartbeatBatchNum): a broker of Java
creates a retry topic for each that is new.
"""

Route = Callable[[str], Awaitable[TopicRoute | None]]
Call = Callable[[int, str, Command, float], Awaitable[Command]]


@attrs.define(eq=False)
class OwedGroups:
    """Groups of one connection that a broker does not know; the newest is last, and sent first."""

    owed: dict[GroupKey, None] = attrs.field(factory=dict)
    gone: dict[GroupKey, None] = attrs.field(factory=dict)
    """Groups to unregister."""


@attrs.define(eq=False)
class Registrations:
    """What brokers know. ``route`` finds the brokers of a topic.

    ``call`` sends to an address, over the connection of a number.
    """

    client_id: str
    route: Route
    call: Call
    joined: JoinedClients
    places: GroupPlaces
    failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)
    _addresses: set[str] = attrs.field(factory=set, init=False)
    """Those of the brokers of all topics."""
    _owed: dict[tuple[int, str], OwedGroups] = attrs.field(factory=dict, init=False)
    """By connection and address."""
    _sent_version: int = attrs.field(default=0, init=False)
    _searched: int = attrs.field(default=0, init=False)
    """Number of topics that the current pass has searched."""
    _round_done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def known_to(self) -> set[str]:
        """Addresses of the brokers that have heard of all groups."""
        behind = {address for (_, address), pending in self._owed.items() if pending.owed}
        return self._addresses - behind if len(self.joined) else set()

    # Changes

    async def register(self, data: HeartbeatData) -> None:
        """Note the groups of a client; wait until the brokers know them, for a second at most.

        Raises: Refused (TOO_MANY_REQUESTS).
        """
        if self.joined.put(data, time.time_ns() // 1_000_000):
            await self._wait_sent()

    async def unregister(self, client_id: str, producers: list[str], consumers: list[str]) -> None:
        """Take a client out of groups; brokers forget groups without clients."""
        if self.joined.leave(client_id, producers, consumers):
            await self._wait_sent()

    def forget(self, client_id: str) -> None:
        """Take a client out of all groups. Checkpoint: never."""
        if self.joined.remove(client_id):
            self._wake.set()

    def connection_lost(self, address: str, number: int) -> None:
        """Note that a broker forgets the groups of a connection now. Checkpoint: never."""
        pending = self._owed.get((number, address))
        if pending is not None:
            pending.owed.update(dict.fromkeys(self.places.groups(number)))
            self._wake.set()

    async def _wait_sent(self) -> None:
        version = self.joined.version
        self._wake.set()
        with trio.move_on_after(WAIT_SECONDS):
            while self._sent_version < version:
                await self._round_done.wait()

    # The task

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        due = search_due = trio.current_time()
        while True:
            with trio.move_on_at(search_due):
                await self._wake.wait()
            self._wake = trio.Event()
            now = trio.current_time()
            version = self.joined.version
            changed = self._note_changes()
            if now >= due:
                due = now + HEARTBEAT_SECONDS
                search_due = now + DISCOVERY_SECONDS
                await self._find_addresses(self.joined.topics(), whole=True)
                for (number, _), pending in self._owed.items():
                    pending.owed = dict.fromkeys(self.places.groups(number))
            else:
                topics = self.joined.topics_of(changed)
                if now >= search_due:
                    search_due = now + DISCOVERY_SECONDS
                    topics |= self._next_topics()
                await self._find_addresses(topics)
            await self._send_all()
            self._sent_version = version
            self._round_done.set()
            self._round_done = trio.Event()

    async def unregister_all(self) -> None:
        """Let all brokers forget the groups: the proxy ends."""
        for (number, _), pending in self._owed.items():
            pending.owed.clear()
            pending.gone = dict.fromkeys(self.places.groups(number))
        await self._send_all()

    def _note_changes(self) -> Iterable[GroupKey]:
        """Note for each broker what it has to hear; return the groups that changed."""
        changed = self.joined.take_changed()
        for group in changed:
            there = group in self.joined
            number = self.places.take(group) if there else self.places.leave(group)
            for (of_number, _), pending in self._owed.items():
                if of_number == number:
                    pending.owed.pop(group, None)
                    pending.gone.pop(group, None)
                    (pending.owed if there else pending.gone)[group] = None
        return changed

    def _next_topics(self) -> set[str]:
        """Return the topics of the next search."""
        topics = sorted(self.joined.topics())
        begin = self._searched if self._searched < len(topics) else 0
        self._searched = begin + DISCOVERY_TOPICS
        return set(topics[begin : begin + DISCOVERY_TOPICS])

    async def _find_addresses(self, topics: set[str], *, whole: bool = False) -> None:
        """Look up the brokers of topics; keep those that are known while that fails.

        ``whole``: these are all topics, so brokers without one are forgotten.
        """
        found = set() if whole else set(self._addresses)
        for topic in sorted(topics):
            try:
                route = await self.route(topic)
            except RemotingError as error:
                self.failures.failed("routes for heartbeats", error)
                found |= self._addresses
                break
            if route is not None:
                for broker in route.broker_datas:
                    found.update(broker.broker_addrs.values())
        else:
            if topics:
                self.failures.worked("routes for heartbeats")
        self._addresses = found
        for place in [place for place in self._owed if place[1] not in found]:
            del self._owed[place]
        for number, address in itertools.product(range(self.places.count), found):
            if (number, address) not in self._owed:
                groups = dict.fromkeys(self.places.groups(number))
                self._owed[number, address] = OwedGroups(groups)

    # To brokers

    async def _send_all(self) -> None:
        """Send every broker what it does not know, all at once."""
        limit = trio.CapacityLimiter(SENDERS_MAX)
        async with trio.open_nursery() as nursery:
            for place, pending in list(self._owed.items()):
                if pending.owed or pending.gone:
                    nursery.start_soon(self._send_to, place, pending, limit)

    async def _send_to(
        self, place: tuple[int, str], pending: OwedGroups, limit: trio.CapacityLimiter
    ) -> None:
        number, address = place
        client_id = f"{self.client_id}#{number}" if number else self.client_id
        async with limit:
            # First: a group that is gone may have made place for one that is new.
            if not await self._unregister_gone(place, pending, client_id):
                return
            refused: list[GroupKey] = []
            while pending.owed:
                part = [
                    pending.owed.popitem()[0] for _ in range(min(PART_GROUPS, len(pending.owed)))
                ]
                body = self.joined.heartbeat(client_id, part).encode()
                try:
                    await self._request(place, new_request(RequestCode.HEART_BEAT, body=body))
                except RemotingError as error:
                    refused += part
                    self.failures.failed(f"heartbeat to {address}", error)
                    if not isinstance(error, Refused):  # the other parts may be taken
                        break
            else:
                if not refused:
                    self.failures.worked(f"heartbeat to {address}")
            pending.owed.update(dict.fromkeys(group for group in refused if group in self.joined))

    async def _unregister_gone(
        self, place: tuple[int, str], pending: OwedGroups, client_id: str
    ) -> bool:
        """Unregister groups; return False if the broker does not answer.

        It forgets them when the connection ends, or after two minutes.
        """
        gone, pending.gone = pending.gone, {}
        for group in gone:
            kind = "consumer_group" if group.consumers else "producer_group"
            header = UnregisterClientHeader(client_id, **{kind: group.name})
            try:
                await self._request(place, new_request(RequestCode.UNREGISTER_CLIENT, header))
            except RemotingError as error:
                self.failures.failed(f"heartbeat to {place[1]}", error)
                if not isinstance(error, Refused):
                    return False
        return True

    async def _request(self, place: tuple[int, str], command: Command) -> None:
        """Send a request to a broker. Raises: Refused by the broker; RemotingError."""
        answer = await self.call(*place, command, CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
