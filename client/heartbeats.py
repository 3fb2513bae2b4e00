"""Heartbeats to the brokers of the routes: who we are, in which groups, and what we subscribe.

Every broker gets one when its connection is new and every `heartbeat_interval`; one that has not seen a heartbeat refuses pulls.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.client.calls import Calls
from triomq.client.config import ClientSettings
from triomq.client.errors import TrioMQError
from triomq.client.routes import RouteTable
from triomq.client.trouble import TroubleLog
from triomq.remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import UnregisterClientHeader

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Member:
    """In which groups this client takes part; at most one of each kind."""

    producer_group: str | None = None
    consumer_group: str | None = None
    consumer_data: Callable[[], ConsumerData] | None = None
    """the present subscriptions, asked for at every heartbeat"""

    @property
    def masters_only(self) -> bool:
        """Producers do not concern slaves."""
        return self.consumer_group is None


@attrs.define(eq=False)
class Heartbeats:
    """The heartbeats of one client, and its farewell."""

    settings: ClientSettings
    client_id: str
    member: Member
    routes: RouteTable
    on_broker_joined: Callable[[], None]
    """called after the first heartbeat on a new connection"""
    _calls: Calls
    _trouble: TroubleLog
    greeted: set[str] = attrs.field(factory=set, init=False)
    """broker addresses whose present connection has seen a heartbeat"""
    _greetings: dict[str, trio.Lock] = attrs.field(factory=dict, init=False)
    """one at a time for each address; whoever waited finds it done"""
    _new_brokers: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def greet(self, address: str) -> None:
        """Make sure that the present connection to a broker has seen a heartbeat; before it, a broker refuses pulls."""
        if address in self.greeted:
            return
        async with self._greetings.setdefault(address, trio.Lock()):
            if address not in self.greeted:
                await self._beat(address)

    def ungreeted(self, address: str) -> None:
        """Note that the broker does not know us (any more); called when its connection is lost, too."""
        self.greeted.discard(address)

    def brokers_changed(self, gone: set[str], come: set[str]) -> None:
        """Note that the routes name other addresses now.  Atomic: no checkpoint."""
        self.greeted -= gone
        for address in gone:
            self._greetings.pop(address, None)  # who waits for it has it in hand
            self._trouble.forget(f"broker {address}")
        if come:
            self._new_brokers.set()

    async def _beat(self, address: str) -> None:
        command = request(RequestCode.HEART_BEAT, None, self._heartbeat().encode())
        await self._calls.call(address, command, self.settings.request_timeout)
        self._trouble.worked(f"broker {address}")
        if address not in self.greeted:
            self.greeted.add(address)
            self.on_broker_joined()

    def _heartbeat(self) -> HeartbeatData:
        member = self.member
        producers = [ProducerData(member.producer_group)] if member.producer_group is not None else []
        consumers = [member.consumer_data()] if member.consumer_data is not None else []
        return HeartbeatData(client_id=self.client_id, producers=producers, consumers=consumers)

    async def greet_all(self) -> None:
        """Send a heartbeat to every broker that has not seen one on its present connection; failures are logged."""
        async with trio.open_nursery() as nursery:
            for address in self._brokers() - self.greeted:
                nursery.start_soon(self._fenced, self.greet, address)

    async def beat_all(self) -> None:
        """Send every broker a heartbeat now: it is time, or our subscriptions changed; failures are logged."""
        async with trio.open_nursery() as nursery:
            for address in self._brokers():
                nursery.start_soon(self._fenced, self._beat, address)

    async def run(self) -> None:
        """Beat every `heartbeat_interval`, and at once for brokers that a new route brings."""
        due = trio.current_time() + self.settings.heartbeat_interval
        while True:
            with trio.move_on_at(due):
                await self._new_brokers.wait()
                self._new_brokers = trio.Event()
                await self.greet_all()
                continue
            await self.beat_all()
            due = trio.current_time() + self.settings.heartbeat_interval

    def _brokers(self) -> set[str]:
        return set(self.routes.addresses(masters_only=self.member.masters_only))

    async def _fenced(self, send: Callable[[str], Awaitable[None]], address: str) -> None:
        try:
            await send(address)
        except TrioMQError as error:
            self._trouble.failed(f"broker {address}", error)

    async def unregister(self) -> None:
        """Say goodbye to every broker that knows us; failures are logged."""
        header = UnregisterClientHeader(
            client_id=self.client_id,
            producer_group=self.member.producer_group,
            consumer_group=self.member.consumer_group,
        )
        async with trio.open_nursery() as nursery:
            for address in self.greeted:
                nursery.start_soon(self._unregister_fenced, address, header)

    async def _unregister_fenced(self, address: str, header: UnregisterClientHeader) -> None:
        try:
            await self._calls.call(
                address, request(RequestCode.UNREGISTER_CLIENT, header), self.settings.request_timeout
            )
        except TrioMQError as error:
            logger.debug("no farewell to %s: %s", address, error)
        except Exception:  # an RPC hook's: the other brokers are to be told all the same
            logger.exception("no farewell to %s, which forgets us when the connection is closed", address)
