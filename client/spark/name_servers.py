"""Routes from the name servers, over a blocking connection: which brokers hold a topic, where they are, how many queues each has."""

import logging
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import attrs

from triomq.client.spark.errors import SourceError, Unreachable
from triomq.client.spark.offsets import Queue
from triomq.remoting.client.access import Access
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.bodies.route import MASTER_ID, PERM_READ, TopicRoute
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.route import GetRouteHeader

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 3.0


@attrs.frozen
class ReadRoute:
    """What a reader needs of a topic's route."""

    topic: str
    addresses: Mapping[str, str]
    """broker name → address of its master; a broker without master is left out"""
    queue_counts: Mapping[str, int]
    """broker name → number of queues to read"""

    def queues(self) -> list[Queue]:
        return [
            Queue(self.topic, broker, number)
            for broker, count in sorted(self.queue_counts.items())
            for number in range(count)
        ]


class NameServers:
    """Asks one name server after the other until one answers, and stays with it."""

    def __init__(self, addresses: Sequence[str], access: Access = Access()) -> None:  # noqa: B008  (frozen)
        self._access = access
        self._addresses = random.sample(addresses, len(addresses))
        self._connection: BlockingConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def routes(self, topics: Sequence[str]) -> dict[str, ReadRoute | None]:
        """The route of every topic; None where the name server knows no such topic.

        Raises Unreachable with the reason of each name server, SourceError when one refuses.
        """
        reasons = []
        for _ in range(len(self._addresses) + 1):  # one more: a connection that was idle may have died
            address = self._addresses[0]
            try:
                if self._connection is None:
                    self._connection = BlockingConnection(address, timeout=REQUEST_SECONDS, **self._access.options())
                return self._ask(self._connection, address, topics)
            except (RemotingError, OSError) as error:
                reasons.append(str(error))
                logger.debug("name server %s: %s", address, error)
                self.close()
                self._addresses.append(self._addresses.pop(0))
        raise Unreachable(
            f"no name server answers ({'; '.join(dict.fromkeys(reasons))}); check the option 'nameServer' and that mqnamesrv runs there"
        )

    def _ask(self, connection: BlockingConnection, address: str, topics: Sequence[str]) -> dict[str, ReadRoute | None]:
        sent = [
            (topic, connection.send(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic=topic))))
            for topic in topics
        ]
        routes: dict[str, ReadRoute | None] = {}
        for topic, opaque in sent:
            response = connection.receive(opaque, REQUEST_SECONDS)
            if response.code == ResponseCode.TOPIC_NOT_EXIST:
                routes[topic] = None
            elif response.code != ResponseCode.SUCCESS:
                raise SourceError(
                    f"name server {address} refuses the route of topic {topic} with {response.code}: {response.remark}"
                )
            else:
                routes[topic] = read_route(topic, TopicRoute.decode(bytes(response.body)))
        return routes


def read_route(topic: str, route: TopicRoute) -> ReadRoute:
    """Reduce a route to readable queues of brokers that have a master."""
    addresses = {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    }
    counts = {
        queues.broker_name: queues.read_queue_count
        for queues in route.queue_datas
        if queues.perm & PERM_READ and queues.broker_name in addresses
    }
    return ReadRoute(topic, addresses, counts)
