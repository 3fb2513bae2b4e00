"""Heartbeats to the brokers of the routes: the client's id, its groups and its subscriptions.

Every broker gets a heartbeat when its connection is new, and every ``heartbeat_interval``. A broker
that has not seen a heartbeat on a connection refuses its pulls; the client is not *registered*
there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from triomq.client.core.calls import Calls
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import TrioMQError
from triomq.client.core.failure_log import FailureLog
from triomq.client.core.routes import KnownRoutes
from triomq.remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.client import UnregisterClientHeader

logger = logging.getLogger(__name__)

FORGOTTEN_SECONDS = 100.0
"""Brokers forget a client after 120 s without a heartbeat; its queues then go to others."""


@attrs.frozen(kw_only=True)
class JoinedGroups:
    """The groups that a client belongs to: at most one of each kind."""

    producer_group: str | None = None
    consumer_group: str | None = None
    consumer_data: Callable[[], ConsumerData] | None = None
    """returns the current subscriptions; called for every heartbeat"""


@attrs.define(eq=False)
class Heartbeats:
    """The heartbeats of one client, and its orderly end."""

    settings: ClientSettings
    client_id: str
    groups: JoinedGroups
    routes: KnownRoutes
    on_broker_joined: Callable[[], None]
    """called after the first heartbeat on a new connection"""
    _calls: Calls
    _failures: FailureLog
    on_unregistered: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    """called when a broker that was registered is so no longer"""
    registered: set[str] = attrs.field(factory=set, init=False)
    """addresses of brokers that have seen a heartbeat on their current connection"""
    forgotten: set[str] = attrs.field(factory=set, init=False)
    """addresses of brokers that heard nothing for so long that they may have forgotten this client:
    what it knows of its group is old
    """
    _heard: dict[str, float] = attrs.field(factory=dict, init=False)
    """address -> trio time of the last heartbeat that was answered"""
    _locks: dict[str, trio.Lock] = attrs.field(factory=dict, init=False)
    """one heartbeat at a time for each address; a task that waited finds the broker registered"""
    _failed: dict[str, TrioMQError] = attrs.field(factory=dict, init=False)
    """why the last ``ensure`` for an address failed"""
    _new_brokers: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def ensure(self, address: str) -> None:
        """Send a broker a heartbeat, unless its current connection has seen one.

        Tasks that wait for the same heartbeat share its failure: beside a broker that hangs they
        would otherwise wait for each other.

        Raises: ``TrioMQError``.
        Checkpoint: maybe, only when it sends.
        """
        if address in self.registered:
            return
        before = self._failed.get(address)
        async with self._locks.setdefault(address, trio.Lock()):
            if address in self.registered:
                return
            failed = self._failed.get(address)
            if failed is not None and failed is not before:
                raise failed
            try:
                await self._send(address)
            except TrioMQError as error:
                self._failed[address] = error
                raise

    def ensure_soon(self) -> None:
        """Have every broker that is not registered sent a heartbeat by the background task."""
        self._new_brokers.set()

    def unregistered(self, address: str) -> None:
        """Note that a broker lacks this client's heartbeat: it refused, or was disconnected."""
        if address in self.registered:
            self.registered.discard(address)
            self.on_unregistered()

    def may_have_forgotten(self, address: str) -> bool:
        """Return whether a broker may have given this client's queues to others."""
        heard = self._heard.get(address)
        silent = heard is not None and trio.current_time() - heard >= FORGOTTEN_SECONDS
        return silent or address in self.forgotten

    def brokers_changed(self, gone: set[str], added: set[str]) -> None:
        """Note which broker addresses left the routes, and which are new."""
        self.registered -= gone
        self.forgotten -= gone
        for address in gone:
            self._heard.pop(address, None)
            self._failed.pop(address, None)
            self._locks.pop(address, None)  # tasks that wait for the lock still hold a reference
            self._failures.forget(f"broker {address}")
        if added:
            self.ensure_soon()

    async def _send(self, address: str) -> None:
        command = request(RequestCode.HEART_BEAT, None, self._heartbeat().encode())
        await self._calls.call(address, command, self.settings.request_timeout)
        self._failures.worked(f"broker {address}")
        forgotten = self.may_have_forgotten(address)
        self._heard[address] = trio.current_time()
        if forgotten:
            self.forgotten.add(address)
        if forgotten or address not in self.registered:
            self.registered.add(address)
            self.on_broker_joined()

    def _heartbeat(self) -> HeartbeatData:
        groups = self.groups
        producers = (
            [ProducerData(groups.producer_group)] if groups.producer_group is not None else []
        )
        consumers = [groups.consumer_data()] if groups.consumer_data is not None else []
        return HeartbeatData(client_id=self.client_id, producers=producers, consumers=consumers)

    async def ensure_all(self) -> None:
        """Send a heartbeat to every broker that is not registered; failures are logged."""
        async with trio.open_nursery() as nursery:
            for address in self._brokers() - self.registered:
                nursery.start_soon(self._log_failure, self.ensure, address)

    async def send_all(self) -> None:
        """Send every broker a heartbeat now; failures are logged."""
        async with trio.open_nursery() as nursery:
            for address in self._brokers():
                nursery.start_soon(self._log_failure, self._send, address)

    async def send_heartbeats(self) -> None:
        """Send heartbeats every ``heartbeat_interval``, and at once to brokers of new routes."""
        due = trio.current_time() + self.settings.heartbeat_interval
        while True:
            with trio.move_on_at(due):
                await self._new_brokers.wait()
                self._new_brokers = trio.Event()
                await self.ensure_all()
                continue
            await self.send_all()
            due = trio.current_time() + self.settings.heartbeat_interval

    def _brokers(self) -> set[str]:
        # Producers send nothing to slaves.
        return set(self.routes.addresses(masters_only=self.groups.consumer_group is None))

    async def _log_failure(self, send: Callable[[str], Awaitable[None]], address: str) -> None:
        try:
            await send(address)
        except TrioMQError as error:
            self._failures.failed(f"broker {address}", error)

    async def unregister(self) -> None:
        """Unregister from every registered broker; failures are logged."""
        header = UnregisterClientHeader(
            client_id=self.client_id,
            producer_group=self.groups.producer_group,
            consumer_group=self.groups.consumer_group,
        )
        async with trio.open_nursery() as nursery:
            for address in self.registered:
                nursery.start_soon(self._unregister_from, address, header)

    async def _unregister_from(self, address: str, header: UnregisterClientHeader) -> None:
        try:
            await self._calls.call(
                address,
                request(RequestCode.UNREGISTER_CLIENT, header),
                self.settings.request_timeout,
            )
        except TrioMQError as error:
            logger.debug("not unregistered from %s: %s", address, error)
        except Exception:  # raised by an RPC hook; the other brokers must hear of it all the same
            logger.exception(
                "not unregistered from %s, which forgets this client when the connection closes",
                address,
            )
