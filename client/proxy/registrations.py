"""Heartbeats of the proxy: the groups of all its gRPC clients, to the brokers of their topics.

Each broker of a topic of a client hears of all groups every 30 s, at once when they change, and
soon when it is new or was lost. One task sends; who changes something waits until the brokers have
heard of it.

Source: proxy/…/service/transaction/ClusterTransactionService.java;
client/…/impl/factory/MQClientInstance.java#sendHeartbeatToAllBroker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.client.failure_log import FailureLog
from triomq.client.proxy.joined_clients import JoinedClients
from triomq.remoting.errors import RemotingError
from triomq.remoting.messaging.status_codes import refused_by_broker
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.command import request as new_request
from triomq.remoting.protocol.headers.client import UnregisterClientHeader

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
LOOK_SECONDS = 3.0
"""Between two looks for brokers that have not heard of the groups: new, moved or lost ones."""
CALL_SECONDS = 3.0
WAIT_SECONDS = 1.0
"""How long a client waits until brokers know its groups; a silent broker must not keep it."""
SENDERS_MAX = 32
"""Brokers that are told at the same time."""

Route = Callable[[str], Awaitable[TopicRoute | None]]
Call = Callable[[str, Command, float], Awaitable[Command]]


@attrs.define(eq=False)
class Registrations:
    """What brokers know. ``route`` finds the brokers of a topic; ``call`` sends to an address."""

    client_id: str
    route: Route
    call: Call
    joined: JoinedClients = attrs.field(factory=JoinedClients, init=False)
    known_to: set[str] = attrs.field(factory=set, init=False)
    """Addresses that have heard of the groups on their connection."""
    failures: FailureLog = attrs.field(factory=lambda: FailureLog(logger), init=False)
    _addresses: set[str] = attrs.field(factory=set, init=False)
    """Those of the brokers of all topics."""
    _told: tuple[set[str], set[str]] = attrs.field(factory=lambda: (set(), set()), init=False)
    """Producer and consumer groups of the last heartbeat."""
    _sent_version: int = attrs.field(default=0, init=False)
    _round_done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    # Changes

    async def register(self, data: HeartbeatData) -> None:
        """Note the groups of a client; wait until the brokers know them, for a second at most."""
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

    def connection_lost(self, address: str) -> None:
        """Note that a broker forgets the proxy now. Checkpoint: never."""
        if address in self.known_to:
            self.known_to.discard(address)
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
        due = trio.current_time() + HEARTBEAT_SECONDS
        while True:
            with trio.move_on_after(LOOK_SECONDS):
                await self._wake.wait()
            self._wake = trio.Event()
            if trio.current_time() >= due or self._sent_version != self.joined.version:
                due = trio.current_time() + HEARTBEAT_SECONDS
                await self._tell_all()
            else:
                await self._find_addresses()
                await self._tell(self._addresses - self.known_to)

    async def farewell(self) -> None:
        """Let all brokers forget the groups: the proxy ends."""
        await self._tell_gone(*self._told)

    async def _tell_all(self) -> None:
        """Tell every broker what there is now."""
        version = self.joined.version
        producers, consumers = self.joined.groups()
        told_producers, told_consumers = self._told
        self._told = producers, consumers
        # First: the brokers of a group that is gone need not have any other topic.
        await self._tell_gone(told_producers - producers, told_consumers - consumers)
        await self._find_addresses()
        await self._tell(self._addresses)
        self._sent_version = version
        self._round_done.set()
        self._round_done = trio.Event()

    async def _find_addresses(self) -> None:
        """Look up the brokers of all topics; keep those that are known while that fails."""
        found = set()
        for topic in sorted(self.joined.topics()):
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
            self.failures.worked("routes for heartbeats")
        self._addresses = found
        self.known_to &= found

    async def _tell(self, addresses: set[str]) -> None:
        """Send a heartbeat to these brokers, all at once."""
        if not addresses or not len(self.joined):
            return
        body = self.joined.heartbeat(self.client_id).encode()
        limit = trio.CapacityLimiter(SENDERS_MAX)

        async def tell(address: str) -> None:
            async with limit:
                if await self._told_to(address, new_request(RequestCode.HEART_BEAT, body=body)):
                    self.known_to.add(address)

        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(tell, address)

    async def _tell_gone(self, producers: set[str], consumers: set[str]) -> None:
        headers = [
            *(UnregisterClientHeader(self.client_id, producer_group=name) for name in producers),
            *(UnregisterClientHeader(self.client_id, consumer_group=name) for name in consumers),
        ]

        async def tell(address: str) -> None:
            for header in headers:
                command = new_request(RequestCode.UNREGISTER_CLIENT, header)
                if not await self._told_to(address, command):
                    return  # it forgets them when the connection ends, or after two minutes

        async with trio.open_nursery() as nursery:
            for address in self.known_to if headers else ():
                nursery.start_soon(tell, address)

    async def _told_to(self, address: str, command: Command) -> bool:
        """Send a request to a broker; log a failure and return False."""
        try:
            answer = await self.call(address, command, CALL_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                raise refused_by_broker(answer.code, answer.remark)
        except RemotingError as error:
            self.known_to.discard(address)
            self.failures.failed(f"heartbeat to {address}", error)
            return False
        self.failures.worked(f"heartbeat to {address}")
        return True
