"""Requests about routes and topics: route lookups, lists, and changes by operators.

Look-ups are answered at once; what visits all topics does it in steps.
Remarks are Java's where tools compare them.
Source: namesrv/…/processor/ClientRequestProcessor.java, DefaultRequestProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import attrs
import trio

from triomq.namesrv.config import RunningConfig
from triomq.namesrv.kv import KvConfig
from triomq.namesrv.route_views import in_zone
from triomq.namesrv.routed_queues import UNIT_FLAG, UNIT_SUBSCRIPTION_FLAG
from triomq.namesrv.routes import RouteTable
from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.cluster import ClusterTable
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicNames
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.fastjson import REQUEST_LIMITS
from triomq.remoting.protocol.headers.registration import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    ClusterHeader,
    WipeWritePermResponseHeader,
)
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader, TopicHeader
from triomq.remoting.protocol.limits import require_size
from triomq.remoting.protocol.names import FAQ, ORDER_TOPIC_CONFIG
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.turns import ROWS_AT_ONCE, encoded

_log = logging.getLogger(__name__)

_STANDARD_JSON_FROM = 401  # V4_9_4
ROUTE_BYTES_MAX = 128 * 1024
NEVER_KEPT = -1
"""For the changes of a route that only the clients of one zone get."""
NOTES_PER_PERIOD = 200
"""lines of a kind in ten seconds: scripts change many topics and brokers at a time"""


@attrs.define(eq=False, kw_only=True)
class RouteRequests:
    """The handlers of requests of clients and operators."""

    config: RunningConfig
    routes: RouteTable
    kv: KvConfig
    now_ms: Callable[[], int]
    started_ms: int
    limit: LogLimit

    def route(self, request: Request) -> Response | Awaitable[Response]:
        """Return queues and brokers of a topic: GET_ROUTEINFO_BY_TOPIC (105)."""
        header: GetRouteHeader = request.header
        config = self.config.current
        if (
            config.wait_for_service
            and self.now_ms() - self.started_ms < config.wait_for_service_seconds * 1000
        ):
            raise Rejected(ResponseCode.SYSTEM_ERROR, "name server not ready")
        standard = request.version >= _STANDARD_JSON_FROM or bool(header.accept_standard_json_only)
        order = self.kv.get(ORDER_TOPIC_CONFIG, header.topic) if config.order_messages else None
        body: bytes | TopicRoute | None
        changes = self.routes.changes
        if b"__ZONE_MODE" in request.raw_header:
            body = self._zone_route(request, header.topic, order, standard)
            changes = NEVER_KEPT
        else:
            body = self.routes.encoded_route(header.topic, standard=standard, order_conf=order)
        if body is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{FAQ}",
            )
        if isinstance(body, TopicRoute):
            return self._long_route(header.topic, body, (standard, order), changes)
        return Response(body=body)

    async def _long_route(
        self, topic: str, route: TopicRoute, form: tuple[bool, str | None], changes: int
    ) -> Response:
        """Encode a route of many brokers in a thread."""
        encode = route.encode_standard if form[0] else route.encode_legacy
        body = await trio.to_thread.run_sync(encode)
        self.routes.keep_route(topic, form, body, changes)
        return Response(body=body)

    def _zone_route(
        self, request: Request, topic: str, order: str | None, standard: bool
    ) -> bytes | TopicRoute | None:
        route = self.routes.route(topic, order)
        ext = request.ext()
        zone = ext.get("__ZONE_NAME", "").strip()
        if route is not None and zone and ext.get("__ZONE_MODE", "").lower() == "true":
            route = in_zone(route, zone)
        if route is None or len(route.broker_datas) > ROWS_AT_ONCE:
            return route
        return route.encode_standard() if standard else route.encode_legacy()

    def cluster_table(self, request: Request) -> Response | Awaitable[Response]:
        """Return all brokers and clusters: GET_BROKER_CLUSTER_INFO (106)."""
        body = self.routes.encoded_cluster_table()
        if isinstance(body, bytes):
            return Response(body=body)
        return self._long_table(body, self.routes.changes)

    async def _long_table(self, table: ClusterTable, changes: int) -> Response:
        """Encode a table of many brokers in a thread."""
        body = await encoded(table, len(table.broker_addr_table), bare_keys=True)
        self.routes.keep_clusters(body, changes)
        return Response(body=body)

    async def all_topics(self, request: Request) -> Response:
        """Return all topics: GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        _require(self.config.current.list_all_topics)
        return await _names(self.routes.topic_names())

    async def cluster_topics(self, request: Request) -> Response:
        """Return the topics of a cluster: GET_TOPICS_BY_CLUSTER (224)."""
        _require(self.config.current.list_topics)
        header: ClusterHeader = request.header
        return await self._selected(lambda step: self.routes.cluster_topics(header.cluster, step))

    async def _selected(self, select: Callable[[list[str]], list[str]]) -> Response:
        """Return some of all topics, looked for in steps."""
        found: list[str] = []
        for step in self.routes.topic_steps():
            found += select(step)
            await trio.lowlevel.checkpoint()
        return await _names(found)

    async def unit_topics(self, request: Request) -> Response:
        """Return topics by the unit bits of their system flag (311, 312, 313)."""
        _require(self.config.current.list_topics)
        present, absent = {
            RequestCode.GET_UNIT_TOPIC_LIST: (UNIT_FLAG, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_SUBSCRIPTION_FLAG, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (UNIT_SUBSCRIPTION_FLAG, UNIT_FLAG),
        }[RequestCode(request.code)]
        return await self._selected(lambda step: self.routes.flagged_topics(present, absent, step))

    def system_topics(self, request: Request) -> Response:
        """Return the names of clusters and brokers: GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        return Response(body=self.routes.system_names().encode())

    def register_topic(self, request: Request) -> Response:
        """Store the queues of one topic: REGISTER_TOPIC_IN_NAMESRV (217)."""
        header: TopicHeader = request.header
        route = _read_route(request)
        if not self.routes.set_topic(header.topic, route.queue_datas):
            self.limit.warning(
                _log,
                "topic %s from %s names a broker that is not registered",
                header.topic,
                request.connection.peer_text,
            )
        return Response()

    def delete_topic(self, request: Request) -> Response:
        """Remove a topic: DELETE_TOPIC_IN_NAMESRV (216)."""
        header: DeleteTopicHeader = request.header
        self.routes.delete_topic(header.topic, header.cluster_name)
        self._note(
            "%s deleted topic %s (cluster %s)",
            request.connection.peer_text,
            header.topic,
            header.cluster_name or "any",
        )
        return Response()

    async def wipe_write_permission(self, request: Request) -> Response:
        """Remove the write permission of a broker's topics: WIPE_WRITE_PERM_OF_BROKER (205)."""
        header: BrokerNameHeader = request.header
        count = await _counted(self.routes.wipe_write_permission(header.broker_name))
        self._note(
            "%s took the write permission of broker %s: %d topics",
            request.connection.peer_text,
            header.broker_name,
            count,
        )
        return Response(header=WipeWritePermResponseHeader(count))

    async def add_write_permission(self, request: Request) -> Response:
        """Make all topics of a broker readable and writable: ADD_WRITE_PERM_OF_BROKER (327)."""
        header: BrokerNameHeader = request.header
        count = await _counted(self.routes.add_write_permission(header.broker_name))
        self._note(
            "%s gave broker %s its write permission: %d topics",
            request.connection.peer_text,
            header.broker_name,
            count,
        )
        return Response(header=AddWritePermResponseHeader(count))

    def _note(self, message: str, *arguments: object) -> None:
        """Log an event for operators; limited, since any peer can cause such events."""
        self.limit.log(_log, logging.INFO, message, *arguments, lines=NOTES_PER_PERIOD)


def _require(enabled: bool) -> None:
    if not enabled:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "disable")


async def _names(topics: Sequence[str]) -> Response:
    return Response(body=await encoded(TopicNames(list(topics)), len(topics)))


async def _counted(steps: Iterator[int]) -> int:
    """Take all steps, with other tasks in between; return the sum of what they yield."""
    count = 0
    for step in steps:
        count += step
        await trio.lowlevel.checkpoint()
    return count


def _read_route(request: Request) -> TopicRoute:
    require_size(request.body, ROUTE_BYTES_MAX)
    try:
        return TopicRoute.decode(request.body, REQUEST_LIMITS)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
