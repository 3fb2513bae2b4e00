"""Requests about routes and topics: route lookups, lists, and changes by operators.

Every handler answers at once; nothing here waits. Remarks are Java's where tools compare them.
Source: namesrv/…/processor/ClientRequestProcessor.java, DefaultRequestProcessor.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs

from triomq.namesrv.config import RunningConfig
from triomq.namesrv.kv import KvConfig
from triomq.namesrv.route_views import in_zone
from triomq.namesrv.routed_queues import UNIT_FLAG, UNIT_SUBSCRIPTION_FLAG
from triomq.namesrv.routes import RouteTable
from triomq.remoting.errors import Rejected, RemoteProtocolError
from triomq.remoting.limits import require_size
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicNames
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.fastjson import REQUEST_LIMITS
from triomq.remoting.protocol.headers.route import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    ClusterHeader,
    GetRouteHeader,
    WipeWritePermResponseHeader,
)
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader, TopicHeader
from triomq.remoting.protocol.names import FAQ, ORDER_TOPIC_CONFIG
from triomq.remoting.server.requests import Request, Response

_log = logging.getLogger(__name__)

_STANDARD_JSON_FROM = 401  # V4_9_4
ROUTE_BYTES_MAX = 128 * 1024
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

    def route(self, request: Request) -> Response:
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
        if b"__ZONE_MODE" in request.raw_header:
            body = self._zone_route(request, header.topic, order, standard)
        else:
            body = self.routes.encoded_route(header.topic, standard=standard, order_conf=order)
        if body is None:
            raise Rejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{FAQ}",
            )
        return Response(body=body)

    def _zone_route(
        self, request: Request, topic: str, order: str | None, standard: bool
    ) -> bytes | None:
        route = self.routes.route(topic, order)
        ext = request.ext()
        zone = ext.get("__ZONE_NAME", "").strip()
        if route is not None and zone and ext.get("__ZONE_MODE", "").lower() == "true":
            route = in_zone(route, zone)
        if route is None:
            return None
        return route.encode_standard() if standard else route.encode_legacy()

    def cluster_table(self, request: Request) -> Response:
        """Return all brokers and clusters: GET_BROKER_CLUSTER_INFO (106)."""
        return Response(body=self.routes.encoded_cluster_table())

    def all_topics(self, request: Request) -> Response:
        """Return all topics: GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        _require(self.config.current.list_all_topics)
        return _names(self.routes.topic_names())

    def cluster_topics(self, request: Request) -> Response:
        """Return the topics of a cluster: GET_TOPICS_BY_CLUSTER (224)."""
        _require(self.config.current.list_topics)
        header: ClusterHeader = request.header
        return _names(self.routes.cluster_topics(header.cluster))

    def unit_topics(self, request: Request) -> Response:
        """Return topics by the unit bits of their system flag (311, 312, 313)."""
        _require(self.config.current.list_topics)
        present, absent = {
            RequestCode.GET_UNIT_TOPIC_LIST: (UNIT_FLAG, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_SUBSCRIPTION_FLAG, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (UNIT_SUBSCRIPTION_FLAG, UNIT_FLAG),
        }[RequestCode(request.code)]
        return _names(self.routes.flagged_topics(present, absent))

    def system_topics(self, request: Request) -> Response:
        """Return the names of clusters and brokers: GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        return Response(body=self.routes.system_names().encode())

    def register_topic(self, request: Request) -> Response:
        """Store the queues of one topic: REGISTER_TOPIC_IN_NAMESRV (217)."""
        header: TopicHeader = request.header
        route = _read_route(request)
        if not self.routes.set_topic(header.topic, route.queue_datas):
            self.limit.log(
                _log,
                logging.WARNING,
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

    def wipe_write_permission(self, request: Request) -> Response:
        """Remove the write permission of a broker's topics: WIPE_WRITE_PERM_OF_BROKER (205)."""
        header: BrokerNameHeader = request.header
        count = self.routes.wipe_write_permission(header.broker_name)
        self._note(
            "%s took the write permission of broker %s: %d topics",
            request.connection.peer_text,
            header.broker_name,
            count,
        )
        return Response(header=WipeWritePermResponseHeader(count))

    def add_write_permission(self, request: Request) -> Response:
        """Make all topics of a broker readable and writable: ADD_WRITE_PERM_OF_BROKER (327)."""
        header: BrokerNameHeader = request.header
        count = self.routes.add_write_permission(header.broker_name)
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


def _names(topics: Sequence[str]) -> Response:
    return Response(body=TopicNames(list(topics)).encode())


def _read_route(request: Request) -> TopicRoute:
    require_size(request.body, ROUTE_BYTES_MAX)
    try:
        return TopicRoute.decode(request.body, REQUEST_LIMITS)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
