"""Requests to the name server: header and body -> RouteTable or key-value table -> answer.

Every handler answers at once; nothing here waits.  Remarks are Java's where tools compare them.
Source: namesrv/…/processor/DefaultRequestProcessor.java, ClientRequestProcessor.java.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NoReturn, TypeVar

import attrs
import trio

from triomq.namesrv.config import NAMESRV_KEYS, PROTECTED_KEYS, NamesrvConfig
from triomq.namesrv.errors import KvFileError
from triomq.namesrv.kv import ORDER_TOPIC_CONFIG, KvConfig
from triomq.namesrv.notices import SmallestIdNotices
from triomq.namesrv.routes import (
    UNIT_FLAG,
    UNIT_SUBSCRIPTION_FLAG,
    Departed,
    Outcome,
    Registered,
    Registration,
    RouteRules,
    RouteTable,
    in_zone,
)
from triomq.remoting.errors import Rejected, RemoteProtocolError
from triomq.remoting.limits import SETTINGS_BYTES_MAX, require_size
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.properties import PropertiesError, format_properties, parse_entries
from triomq.remoting.protocol.bodies.cluster import BrokerMembersBody, KvTable
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, decode_registration
from triomq.remoting.protocol.bodies.route import QUEUES_MAX, TopicRoute
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicNames
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.headers.route import (
    AddWritePermResponseHeader,
    BrokerHeartbeatHeader,
    BrokerMembersHeader,
    BrokerNameHeader,
    ClusterHeader,
    GetKvConfigResponseHeader,
    GetRouteHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
    QueryDataVersionHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerHeader,
    WipeWritePermResponseHeader,
)
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader, TopicHeader
from triomq.remoting.protocol.loose_json import LOOSE_BYTES_MAX
from triomq.remoting.saved_settings import SavedSettings
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Handler, HandlerTable, Request, Response
from triomq.remoting.settings import ConfigError, Source, load, render

_log = logging.getLogger(__name__)
_Body = TypeVar("_Body")

_STANDARD_JSON_FROM = 401  # V4_9_4
_FILTER_SERVERS_FROM = 37  # V3_0_11
_CRC_MASK = 0x7FFF_FFFF
_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
INLINE_BYTES_MAX = 128 * 1024
"""A registration up to here is read in the loop: 15 ms."""
DEFLATED = b"\x78"
"""the first byte of a deflated one"""
NOTES_PER_PERIOD = 200
"""lines of a kind in ten seconds: a rolling restart of a large cluster shows every broker"""
LIVE_KEYS = frozenset(
    {
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "needWaitForService",
        "orderMessageEnable",
        "refuseForeignBrokers",
        "returnOrderTopicConfigToBroker",
        "supportActingMaster",
        "waitSecondsForService",
    }
)
"""Settings that a request may change while the name server runs."""


@attrs.define(eq=False)
class NamesrvProcessor:
    """All handlers of a name server; what they share is its state."""

    config: NamesrvConfig
    routes: RouteTable
    kv: KvConfig
    now_ms: Callable[[], int]
    saved: SavedSettings
    started_ms: int = attrs.field(kw_only=True)
    limit: LogLimit = attrs.field(factory=LogLimit, kw_only=True)
    notices: SmallestIdNotices | None = attrs.field(default=None, kw_only=True)
    moved: int = attrs.field(default=0, init=False)
    """registrations that took the place of a living broker at another address"""
    foreign_unregistrations: int = attrs.field(default=0, init=False)
    """unregistrations that came on another connection than the broker's own"""

    def _warn(self, message: str, *arguments: object) -> None:
        self.limit.log(_log, logging.WARNING, message, *arguments)

    def _note(self, message: str, *arguments: object) -> None:
        """What operators want to read, though any peer can cause it."""
        self.limit.log(_log, logging.INFO, message, *arguments, lines=NOTES_PER_PERIOD)

    # Brokers

    def register_broker(self, request: Request) -> Response | Awaitable[Response]:
        """103: a broker and its topics.  Raises Rejected, LimitReached."""
        header: RegisterBrokerHeader = request.header
        if header.body_crc and header.body_crc != zlib.crc32(request.body) & _CRC_MASK:
            self._warn("registration of %s from %s: the body's checksum does not match", header.broker_name, request.connection.peer_text)
            raise Rejected(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        # Most registrations repeat the last one; to read thousands of topics again would keep everybody else waiting.
        digest = blake2b(b"%d " % request.version + request.body, digest_size=16).digest()
        announced = self._registration(request, RegisterBrokerBody())
        registered = self.routes.renew(announced, digest, request.connection, self.now_ms())
        if registered is not None:
            return self._registered(request, registered, None)
        # Deflated, a little may stand for a lot.
        if len(request.body) > INLINE_BYTES_MAX or request.body[:1] == DEFLATED:
            return self._take_registration_elsewhere(request, digest)
        return self._take_registration(request, digest, _read_registration(request))

    async def _take_registration_elsewhere(self, request: Request, digest: bytes) -> Response:
        """Read the body in a thread: hundreds of thousands of topics take seconds, and the loop serves others meanwhile."""
        body = await trio.to_thread.run_sync(_read_registration, request)
        if request.connection.closed:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "the connection ended while its registration was read")
        return self._take_registration(request, digest, body)

    def _take_registration(self, request: Request, digest: bytes, body: RegisterBrokerBody) -> Response:
        header: RegisterBrokerHeader = request.header
        before = self.routes.holder(header.broker_name, header.broker_id)
        if before not in (None, header.broker_addr) and self.config.refuse_foreign:
            self._refuse_move(header, str(before), request)
        left_out = self.routes.limits.refused.total()
        registered = self.routes.register(self._registration(request, body), request.connection, self.now_ms())
        if before not in (None, header.broker_addr) and registered.outcome is Outcome.RENEWED:
            self.moved += 1
            self._warn(
                "broker %s (id %d) moved from %s to %s by a registration from %s while it was alive; two processes must not have one name and id",
                header.broker_name, header.broker_id, before, header.broker_addr, request.connection.peer_text,
            )  # fmt: skip
        left_out = self.routes.limits.refused.total() - left_out
        if left_out:
            self._warn(
                "broker %s (%s) registers %d topics that are not in the routes: the limit is %d; delete topics, or raise topicsMax",
                header.broker_name, header.broker_addr, left_out, self.config.limits.topics_max,
            )  # fmt: skip
        elif registered.outcome in (Outcome.NEW, Outcome.RENEWED):
            self.routes.remember(header.cluster_name, header.broker_addr, digest)
        self._warn_of_queue_counts(header.broker_name, body.table.topic_config_table.values())
        return self._registered(request, registered, body)

    def _registered(self, request: Request, registered: Registered, body: RegisterBrokerBody | None) -> Response:
        header: RegisterBrokerHeader = request.header
        self._tell_smallest_ids()
        who = (header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        if registered.outcome is Outcome.TOO_EARLY:
            self._warn("cluster %s, broker %s (id %d, %s) sent a single topic before it registered", *who)
            raise Rejected(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if registered.outcome is Outcome.IGNORED:
            self._warn("cluster %s, broker %s (id %d, %s) is ignored: another process with a newer state has this id", *who)
            return Response(header=RegisterBrokerResponseHeader())
        if registered.outcome is Outcome.NEW and body is not None:
            self._note("cluster %s, broker %s (id %d, %s) registered %d topics", *who, len(body.table.topic_config_table))
        order = self.kv.namespace(ORDER_TOPIC_CONFIG) if self.config.return_order_config else None
        return Response(
            header=RegisterBrokerResponseHeader(registered.master_ha_address, registered.master_address),
            body=b"" if order is None else KvTable(dict(order)).encode(),
        )

    def _refuse_move(self, header: RegisterBrokerHeader, before: str, request: Request) -> NoReturn:
        self.moved += 1
        self._warn(
            "broker %s (id %d) lives at %s: refused a registration from %s that moves it to %s",
            header.broker_name, header.broker_id, before, request.connection.peer_text, header.broker_addr,
        )  # fmt: skip
        remark = (
            f"broker {header.broker_name} (id {header.broker_id}) lives at {before}, and this name server moves no living broker (refuseForeignBrokers): "
            "stop that one, or give this one another name or id"
        )
        raise Rejected(ResponseCode.NO_PERMISSION, remark)

    def _warn_of_queue_counts(self, broker_name: str, configs: Iterable[TopicConfig]) -> None:
        for config in configs:
            count = max(config.read_queue_count, config.write_queue_count)
            if count > QUEUES_MAX:
                self._warn("broker %s registers topic %r with %d queues; routes show %d, the limit", broker_name, config.topic_name, count, QUEUES_MAX)

    def _registration(self, request: Request, body: RegisterBrokerBody) -> Registration:
        header: RegisterBrokerHeader = request.header
        return Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            table=body.table,
            timeout_ms=header.heartbeat_timeout_ms,
            acting_master=header.enable_acting_master,
            zone_name=header.zone_name,
            filter_servers=body.filter_server_list if request.version >= _FILTER_SERVERS_FROM else None,
        )

    def unregister_broker(self, request: Request) -> Response:
        """104: a broker leaves."""
        header: UnregisterBrokerHeader = request.header
        owner = self.routes.owner(header.broker_name, header.broker_addr)
        if isinstance(owner, Connection) and owner is not request.connection:
            self.foreign_unregistrations += 1
            self._warn("broker %s (%s) registered from %s and is unregistered from %s", header.broker_name, header.broker_addr, owner.peer_text, request.connection.peer_text)
            if self.config.refuse_foreign:
                remark = f"broker {header.broker_name} ({header.broker_addr}) registered on another connection, and this name server takes no word of others (refuseForeignBrokers)"
                raise Rejected(ResponseCode.NO_PERMISSION, remark)
        departed = self.routes.unregister(header.cluster_name, header.broker_name, header.broker_addr)
        self._log_departed([] if departed is None else [departed], "it unregistered")
        return Response()

    def heartbeat(self, request: Request) -> Response:
        """904: a sign of life."""
        header: BrokerHeartbeatHeader = request.header
        self.routes.touch(header.cluster_name, header.broker_addr, self.now_ms())
        return Response()

    def query_data_version(self, request: Request) -> Response:
        """322: have the topics of this broker changed since it registered them? Counts as a sign of life."""
        header: QueryDataVersionHeader = request.header
        known = self.routes.version(header.cluster_name, header.broker_addr)
        asked = _decode(request, DataVersion.decode) if request.body else None
        self.routes.touch(header.cluster_name, header.broker_addr, self.now_ms())
        return Response(header=QueryDataVersionResponseHeader(known is None or known != asked), body=b"" if known is None else known.encode())

    def members(self, request: Request) -> Response:
        """901: the processes behind one broker name."""
        header: BrokerMembersHeader = request.header
        return Response(body=BrokerMembersBody(self.routes.members(header.cluster_name, header.broker_name)).encode(bare_keys=True))

    def wipe_write_permission(self, request: Request) -> Response:
        """205: no more writes to a broker."""
        header: BrokerNameHeader = request.header
        count = self.routes.wipe_write_permission(header.broker_name)
        self._note("%s took the write permission of broker %s: %d topics", request.connection.peer_text, header.broker_name, count)
        return Response(header=WipeWritePermResponseHeader(count))

    def add_write_permission(self, request: Request) -> Response:
        """327: undo 205."""
        header: BrokerNameHeader = request.header
        count = self.routes.add_write_permission(header.broker_name)
        self._note("%s gave broker %s its write permission: %d topics", request.connection.peer_text, header.broker_name, count)
        return Response(header=AddWritePermResponseHeader(count))

    # Routes

    def route(self, request: Request) -> Response:
        """105: queues and brokers of a topic."""
        header: GetRouteHeader = request.header
        config = self.config
        if config.wait_for_service and self.now_ms() - self.started_ms < config.wait_for_service_seconds * 1000:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "name server not ready")
        standard = request.version >= _STANDARD_JSON_FROM or bool(header.accept_standard_json_only)
        order = self.kv.get(ORDER_TOPIC_CONFIG, header.topic) if config.order_messages else None
        if b"__ZONE_MODE" in request.raw_header:
            body = self._zone_route(request, header.topic, order, standard)
        else:
            body = self.routes.encoded_route(header.topic, standard=standard, order_conf=order)
        if body is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {header.topic}{_FAQ}")
        return Response(body=body)

    def _zone_route(self, request: Request, topic: str, order: str | None, standard: bool) -> bytes | None:
        route = self.routes.route(topic, order)
        ext = request.ext()
        zone = ext.get("__ZONE_NAME", "").strip()
        if route is not None and zone and ext.get("__ZONE_MODE", "").lower() == "true":
            route = in_zone(route, zone)
        if route is None:
            return None
        return route.encode_standard() if standard else route.encode_legacy()

    def cluster_table(self, request: Request) -> Response:
        """106: all brokers and clusters."""
        return Response(body=self.routes.encoded_cluster_table())

    def all_topics(self, request: Request) -> Response:
        """206: all topics."""
        _require(self.config.list_all_topics)
        return _names(self.routes.topic_names())

    def cluster_topics(self, request: Request) -> Response:
        """224: the topics of a cluster."""
        _require(self.config.list_topics)
        header: ClusterHeader = request.header
        return _names(self.routes.cluster_topics(header.cluster))

    def unit_topics(self, request: Request) -> Response:
        """311, 312, 313: topics by the unit bits of their system flag."""
        _require(self.config.list_topics)
        present, absent = {
            RequestCode.GET_UNIT_TOPIC_LIST: (UNIT_FLAG, 0),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (UNIT_SUBSCRIPTION_FLAG, 0),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (UNIT_SUBSCRIPTION_FLAG, UNIT_FLAG),
        }[RequestCode(request.code)]
        return _names(self.routes.flagged_topics(present, absent))

    def system_topics(self, request: Request) -> Response:
        """304: names of clusters and brokers."""
        return Response(body=self.routes.system_names().encode())

    def register_topic(self, request: Request) -> Response:
        """217: the queues of one topic."""
        header: TopicHeader = request.header
        route = _decode(request, TopicRoute.decode)
        if not self.routes.set_topic(header.topic, route.queue_datas):
            self._warn("topic %s from %s names a broker that is not registered", header.topic, request.connection.peer_text)
        return Response()

    def delete_topic(self, request: Request) -> Response:
        """216: forget a topic."""
        header: DeleteTopicHeader = request.header
        self.routes.delete_topic(header.topic, header.cluster_name)
        self._note("%s deleted topic %s (cluster %s)", request.connection.peer_text, header.topic, header.cluster_name or "any")
        return Response()

    # Key-value table and configuration

    def put_kv(self, request: Request) -> Response:
        """100."""
        header: PutKvConfigHeader = request.header
        _saved(lambda: self.kv.put(header.namespace, header.key, header.value))
        return Response()

    def get_kv(self, request: Request) -> Response:
        """101."""
        header: KvConfigHeader = request.header
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            raise Rejected(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return Response(header=GetKvConfigResponseHeader(value))

    def delete_kv(self, request: Request) -> Response:
        """102: succeeds without such a key too."""
        header: KvConfigHeader = request.header
        _saved(lambda: self.kv.delete(header.namespace, header.key))
        return Response()

    def kv_namespace(self, request: Request) -> Response:
        """219."""
        header: KvNamespaceHeader = request.header
        values = self.kv.namespace(header.namespace)
        if values is None:
            raise Rejected(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}")
        return Response(body=KvTable(dict(values)).encode())

    def get_config(self, request: Request) -> Response:
        """319: the effective configuration as properties."""
        return Response(body=format_properties(render(self.config)).encode())

    async def update_config(self, request: Request) -> Response:
        """318: change some settings, now and for later starts; nothing is changed unless all of them can be."""
        require_size(request.body, SETTINGS_BYTES_MAX)
        try:
            entries = parse_entries(request.body.decode())
        except (UnicodeDecodeError, PropertiesError):
            raise Rejected(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        changed = {entry.key for entry in entries}
        if changed & (PROTECTED_KEYS | set(self.config.protected_keys.split(";"))):
            raise Rejected(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        fixed = sorted(changed - LIVE_KEYS)
        if fixed:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"{', '.join(fixed)}: takes effect at a start only; write it into the name server's file")
        wanted = Source("request", tuple(entries))
        texts = render(self._changed_by(wanted))
        try:
            await self.saved.save({key: texts[key] for key in changed})
        except OSError as error:
            remark = f"cannot save the change in {self.saved.path}: {error.strerror or error}; nothing was changed"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark) from None
        self.config = self._changed_by(wanted)  # once more: others may have changed it while this was saved
        self.routes.set_rules(route_rules(self.config))
        _log.info("%s changed: %s", request.connection.peer_text, ", ".join(f"{e.key}={e.value}" for e in entries))
        return Response()

    def _changed_by(self, wanted: Source) -> NamesrvConfig:
        """The configuration with some other values; Rejected if they cannot be."""
        current = Source("now", tuple(parse_entries(format_properties(render(self.config, secrets=True)))))
        try:
            return load(NamesrvConfig, [current, wanted], NAMESRV_KEYS).config
        except ConfigError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None

    # The end of brokers

    def connection_closed(self, connection: Connection) -> None:
        """Forget the brokers of a connection that ended."""
        self._log_departed(self.routes.lost(connection), "its connection ended")

    def expire(self) -> None:
        """Forget silent brokers and close their connections."""
        departed, owners = self.routes.expire(self.now_ms())
        self._log_departed(departed, "it was silent for too long")
        for owner in owners:
            if isinstance(owner, Connection):
                owner.close("the broker was silent for too long")

    def _log_departed(self, departed: Sequence[Departed], reason: str) -> None:
        for gone in departed:
            self._note("cluster %s, broker %s (id %d, %s) left: %s", gone.cluster, gone.broker_name, gone.broker_id, gone.address, reason)
        self._tell_smallest_ids()

    def _tell_smallest_ids(self) -> None:
        changes = self.routes.take_smallest_ids()
        if self.notices is not None:
            self.notices.tell(changes)


def route_rules(config: NamesrvConfig) -> RouteRules:
    """What of a configuration the route table must know."""
    return RouteRules(delete_missing_topics=config.delete_missing_topics, acting_master=config.acting_master)


def _read_registration(request: Request) -> RegisterBrokerBody:
    try:
        return decode_registration(request.body, request.version) if request.body else RegisterBrokerBody()
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"register broker failed: {error}") from None


def _require(enabled: bool) -> None:
    if not enabled:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "disable")


def _names(topics: Sequence[str]) -> Response:
    return Response(body=TopicNames(list(topics)).encode())


def _decode(request: Request, decode: Callable[[bytes, int], _Body]) -> _Body:
    require_size(request.body, INLINE_BYTES_MAX)
    try:
        return decode(request.body, LOOSE_BYTES_MAX)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None


def _saved(change: Callable[[], None]) -> None:
    try:
        change()
    except KvFileError as error:
        _log.error("%s", error)
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None


def handler_table(processor: NamesrvProcessor) -> HandlerTable:
    """Every request code of the name server."""
    code = RequestCode
    return HandlerTable(
        [
            Handler(code.GET_ROUTEINFO_BY_TOPIC, processor.route, "route", GetRouteHeader),
            Handler(code.REGISTER_BROKER, processor.register_broker, header=RegisterBrokerHeader),
            Handler(code.UNREGISTER_BROKER, processor.unregister_broker, header=UnregisterBrokerHeader),
            Handler(code.BROKER_HEARTBEAT, processor.heartbeat, header=BrokerHeartbeatHeader),
            Handler(code.QUERY_DATA_VERSION, processor.query_data_version, header=QueryDataVersionHeader),
            Handler(code.GET_BROKER_MEMBER_GROUP, processor.members, header=BrokerMembersHeader),
            Handler(code.GET_BROKER_CLUSTER_INFO, processor.cluster_table),
            Handler(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, processor.all_topics),
            Handler(code.GET_TOPICS_BY_CLUSTER, processor.cluster_topics, header=ClusterHeader),
            Handler(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, processor.system_topics),
            Handler(code.GET_UNIT_TOPIC_LIST, processor.unit_topics),
            Handler(code.GET_HAS_UNIT_SUB_TOPIC_LIST, processor.unit_topics),
            Handler(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, processor.unit_topics),
            Handler(code.REGISTER_TOPIC_IN_NAMESRV, processor.register_topic, header=TopicHeader),
            Handler(code.DELETE_TOPIC_IN_NAMESRV, processor.delete_topic, header=DeleteTopicHeader),
            Handler(code.WIPE_WRITE_PERM_OF_BROKER, processor.wipe_write_permission, header=BrokerNameHeader),
            Handler(code.ADD_WRITE_PERM_OF_BROKER, processor.add_write_permission, header=BrokerNameHeader),
            Handler(code.PUT_KV_CONFIG, processor.put_kv, header=PutKvConfigHeader),
            Handler(code.GET_KV_CONFIG, processor.get_kv, header=KvConfigHeader),
            Handler(code.DELETE_KV_CONFIG, processor.delete_kv, header=KvConfigHeader),
            Handler(code.GET_KVLIST_BY_NAMESPACE, processor.kv_namespace, header=KvNamespaceHeader),
            Handler(code.UPDATE_NAMESRV_CONFIG, processor.update_config),
            Handler(code.GET_NAMESRV_CONFIG, processor.get_config),
        ]
    )
