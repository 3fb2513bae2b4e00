"""Ask the name servers which brokers were registered and are not any more.

Our name servers remember for a day which brokers left (``namesrv/missing_brokers.py``); without
that, a broker that is gone would be in no answer, and what is known without it would look complete.
Java's name servers remember none: then nothing is known to be missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import TypeVar

import attrs
import trio

from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.errors import BrokerMissing, MasterMissing
from triomq.client.admin.missing_brokers import DISPLACED, MissingBroker, names_beside, with_missing
from triomq.client.admin.requests import AdminRequests
from triomq.client.core.errors import TrioMQError
from triomq.remoting.client.name_servers import FIRST_SECONDS
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.bodies.cluster import (
    MISSING_BROKERS_NAMESPACE,
    ClusterTable,
    KvTable,
    MissingProcess,
    MissingProcesses,
)
from triomq.remoting.protocol.bodies.route import MASTER_ID
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.registration import KvConfigHeader, KvNamespaceHeader

T = TypeVar("T")
KNOWN_SECONDS = 1.0
"""how long an answer is used again: one command asks for many groups"""


@attrs.define(eq=False)
class MissingSearch:
    """Asks the name servers of one ``Admin`` for missing brokers."""

    requests: AdminRequests
    _found: list[MissingBroker] | None = attrs.field(default=None, init=False)
    _asked_at: float = attrs.field(default=-math.inf, init=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def find(self, cluster: str | None = None) -> list[MissingBroker] | None:
        """Return the missing brokers; None if no name server remembers any (Java's).

        One that is registered at some name server is not missing. Of two that live with one name
        and id both are returned: which of them is in the routes changes.
        """
        async with self._lock:
            if trio.current_time() >= self._asked_at + KNOWN_SECONDS:
                self._found = await self._ask_name_servers()
                self._asked_at = trio.current_time()
        if self._found is None:
            return None
        return [broker for broker in self._found if cluster in (None, broker.cluster)]

    async def masters_of(self, cluster: str | None, answers: Answers[T]) -> Answers[T]:
        """Add a failure for each missing master to the answers of all masters, by address."""
        missing = await self.find(cluster) or ()
        lost = {one.address: one for one in missing if one.id == MASTER_ID}
        return with_missing(
            answers, {at: one for at, one in lost.items() if at not in answers.values}
        )

    async def fail_without_masters(self, cluster: str | None) -> None:
        """Say why no master is asked. Raises: NoBrokerAnswered, BrokerMissing, MasterMissing."""
        (await self.masters_of(cluster, Answers({}, {}))).some()
        raise BrokerMissing("", ()) if cluster is None else MasterMissing(cluster)

    async def names_beside(self, present: Collection[str], answers: Answers[T]) -> Answers[T]:
        """Add a failure for each name of which no process is left to answers by broker name."""
        return with_missing(answers, names_beside(present, await self.find()))

    async def forget(self, name: str) -> Answers[Command]:
        """Make every name server forget the missing brokers of a name. Raises: BrokerMissing."""
        missing = {broker.name for broker in await self.find() or ()}
        if name not in missing:
            raise BrokerMissing(name, missing, "that is missing", none="none is")
        self._asked_at = -math.inf
        return await self.requests.servers(
            self.requests.namesrv_addresses,
            RequestCode.DELETE_KV_CONFIG,
            KvConfigHeader(MISSING_BROKERS_NAMESPACE, name),
        )

    async def _ask_name_servers(self) -> list[MissingBroker] | None:
        answers = await self._all(
            RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespaceHeader(MISSING_BROKERS_NAMESPACE)
        )
        if not answers:
            return None
        newest: dict[tuple[str, str, int], MissingBroker] = {}
        displaced: set[MissingBroker] = set()
        for gone in (gone for answer in answers for gone in _processes(answer)):
            place = gone.cluster, gone.broker_name, gone.broker_id
            if gone.leave == DISPLACED:
                displaced.add(MissingBroker(*place, gone.address, gone.leave, gone.seconds))
                continue
            known = newest.get(place)
            if known is None or gone.seconds < known.seconds:
                newest[place] = MissingBroker(*place, gone.address, gone.leave, gone.seconds)
        if not newest:
            return sorted(displaced)
        places: set[tuple[str, str, int]] = set()
        addresses: set[str] = set()
        for answer in await self._all(RequestCode.GET_BROKER_CLUSTER_INFO, None):
            for data in read_body(ClusterTable, answer).broker_addr_table.values():
                places.update((data.cluster, data.broker_name, one) for one in data.broker_addrs)
                addresses.update(data.broker_addrs.values())
        gone_ones = {
            broker
            for place, broker in newest.items()
            if place not in places and broker.address not in addresses
        }
        return sorted(gone_ones | displaced)

    async def _all(self, code: RequestCode, header: object | None) -> list[Command]:
        """Return the answers of the name servers that answer about as soon as the first.

        The others have ``FIRST_SECONDS`` more: one that hangs must not cost a whole time-out.
        """
        answers: list[Command] = []
        silent = set(self.requests.namesrv_addresses)

        async def ask(address: str) -> None:
            try:
                answer = await self.requests.server(
                    address, code, header, accept=(ResponseCode.QUERY_NOT_FOUND,)
                )
            except TrioMQError:
                return
            silent.discard(address)
            scope.deadline = min(scope.deadline, trio.current_time() + FIRST_SECONDS)
            if answer.code == ResponseCode.SUCCESS:
                answers.append(answer)

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                for address in self.requests.namesrv_addresses:
                    nursery.start_soon(ask, address)
        if scope.cancelled_caught:
            for address in silent:
                self.requests.names.was_silent(address, trio.current_time())
        return answers


def _processes(answer: Command) -> Iterable[MissingProcess]:
    try:
        for value in KvTable.decode(answer.body).table.values():
            yield from MissingProcesses.decode(value.encode()).processes
    except RemotingError:
        return  # no name server of ours
