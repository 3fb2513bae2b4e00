"""Read routes from the name servers over a blocking connection."""

import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

import attrs

from triomq.client.spark.errors import SourceError, Unreachable
from triomq.client.spark.offsets import Queue
from triomq.remoting.client.access import Access
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.name_servers import NameServers
from triomq.remoting.core.errors import ConnectionLost, RemotingError
from triomq.remoting.protocol.bodies.route import MASTER_ID, PERM_READ, PERM_WRITE, TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    WELL_KNOWN_SYSTEM_TOPICS,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_SECONDS = 3.0


@attrs.frozen
class TopicAddresses:
    """The part of a topic's route that a reader or a writer needs."""

    topic: str
    addresses: Mapping[str, str]
    """broker name → address of its master, of a slave while it has no master"""
    queue_counts: Mapping[str, int]
    """broker name → number of queues"""
    slaves: frozenset[str] = frozenset()
    """the brokers whose address is a slave's"""

    def queues(self) -> list[Queue]:
        return [
            Queue(self.topic, broker, number)
            for broker, count in sorted(self.queue_counts.items())
            for number in range(count)
        ]


def readable(topic: str, route: TopicRoute) -> TopicAddresses:
    """Return the readable queues of brokers that have a master or a slave."""
    addresses: dict[str, str] = {}
    slaves = set()
    for broker in route.broker_datas:
        if broker.broker_addrs:
            broker_id = min(broker.broker_addrs)
            addresses[broker.broker_name] = broker.broker_addrs[broker_id]
            if broker_id != MASTER_ID:
                slaves.add(broker.broker_name)
    counts = {
        queues.broker_name: queues.read_queue_count
        for queues in route.queue_datas
        if queues.perm & PERM_READ and queues.broker_name in addresses
    }
    return TopicAddresses(topic, addresses, counts, frozenset(slaves))


def writable(topic: str, route: TopicRoute) -> TopicAddresses:
    """Return the queues of brokers with a master that take messages."""
    masters = route.masters
    counts = {
        queues.broker_name: queues.write_queue_count
        for queues in route.queue_datas
        if queues.perm & PERM_WRITE and queues.broker_name in masters
    }
    return TopicAddresses(topic, masters, counts)


def read_route(
    topic: str, answer: Command, address: str, part: Callable[[str, TopicRoute], TopicAddresses]
) -> TopicAddresses | None:
    """Return what is wanted of a route; None for an unknown topic. Raises: SourceError."""
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise SourceError(
            f"name server {address} refuses the route of topic {topic} with {answer.code}:"
            f" {answer.remark}"
        )
    return part(topic, TopicRoute.decode(bytes(answer.body)))


def read_names(answer: Command, address: str) -> set[str]:
    """Return the topics of an answer. Raises: SourceError for a refusal."""
    from triomq.remoting.protocol.bodies.topics import TopicNames  # only patterns: start-up time

    if answer.code != ResponseCode.SUCCESS:
        raise SourceError(
            f"name server {address} refuses its list of topics with {answer.code}: {answer.remark};"
            " name the topics in 'subscribe'"
        )
    return set(TopicNames.decode(bytes(answer.body)).topic_list)


class RouteReader:
    """Reads routes; the name server that answers is asked first the next time."""

    def __init__(self, addresses: Sequence[str], access: Access = Access()) -> None:  # noqa: B008  (frozen)
        self._access = access
        self._names = NameServers(random.sample(addresses, len(addresses)))
        self._connection: BlockingConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def routes(
        self, topics: Sequence[str], part: Callable[[str, TopicRoute], TopicAddresses] = readable
    ) -> dict[str, TopicAddresses | None]:
        """Return the route of every topic, None for a topic that the name server does not know.

        Raises: Unreachable with the reason of each name server; SourceError if a name server
            refuses.
        """

        def ask(connection: BlockingConnection, seconds: float) -> dict[str, TopicAddresses | None]:
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            answers = connection.invoke_all(
                (request(code, GetRouteHeader(topic=topic)) for topic in topics), seconds
            )
            return {
                topic: read_route(topic, answer, connection.address, part)
                for topic, answer in zip(topics, answers, strict=True)
            }

        return self._first_answer(ask)

    def topics(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the topics whose whole name matches, without those of the system. Sorted.

        Raises: Unreachable with the reason of each name server; SourceError if a name server
            refuses.
        """

        def ask(connection: BlockingConnection, seconds: float) -> list[str]:
            all_topics, of_system = (
                read_names(connection.invoke(request(code), seconds), connection.address)
                for code in (
                    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
                    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
                )
            )
            return sorted(
                topic
                for topic in all_topics - of_system - WELL_KNOWN_SYSTEM_TOPICS
                if pattern.fullmatch(topic)
                and not topic.startswith((SYSTEM_TOPIC_PREFIX, RETRY_PREFIX, DLQ_PREFIX))
            )

        return self._first_answer(ask)

    def _first_answer(self, ask: Callable[[BlockingConnection, float], T]) -> T:
        """Call ``ask(connection, seconds)`` at the name servers in turn until one answers."""
        reasons: dict[str, str] = {}
        deadline = time.monotonic() + REQUEST_SECONDS * len(self._names.addresses)
        for turn in self._names.turns(time.monotonic, deadline, reasons):
            try:
                found = self._ask_at(turn.address, min(turn.seconds, REQUEST_SECONDS), ask)
            except (RemotingError, OSError) as error:
                reasons[turn.address] = str(error)
                logger.debug("name server %s: %s", turn.address, error)
                self.close()
                continue
            self._names.answered(turn.address)
            return found
        raise Unreachable(
            f"no name server answers ({'; '.join(dict.fromkeys(reasons.values()))}); check the"
            " option 'nameServer' and that mqnamesrv runs there"
        )

    def _ask_at(
        self, address: str, seconds: float, ask: Callable[[BlockingConnection, float], T]
    ) -> T:
        """Ask over the present connection; anew if it is another's, or has died while it idled."""
        if self._connection is not None and self._connection.address == address:
            try:
                return ask(self._connection, seconds)
            except ConnectionLost as error:
                logger.debug("name server %s: %s", address, error)
        self.close()
        self._connection = BlockingConnection(address, timeout=seconds, **self._access.options())
        return ask(self._connection, seconds)
