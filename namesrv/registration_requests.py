"""Handlers of brokers' requests to a name server, and the removal of dead brokers.

The requests: register, unregister, heartbeat, topic version, members of a broker group. Each
handler responds without a checkpoint, except for a large registration, which a thread decodes. A
remark that tools compare has Java's wording.

Source: namesrv/…/processor/DefaultRequestProcessor.java.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b

import attrs
import trio

from triomq.namesrv.broker_registration import (
    DEFAULT_TIMEOUT_MS,
    BrokerRegistration,
    Departed,
    Outcome,
    Registered,
    described,
)
from triomq.namesrv.config import RunningConfig
from triomq.namesrv.kv import KvConfig
from triomq.namesrv.min_broker_id_notices import MinBrokerIdNotices
from triomq.namesrv.missing_brokers import Leave, MissingBrokers
from triomq.namesrv.routes import RouteTable
from triomq.remoting.core.errors import Rejected, RemoteProtocolError
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.bodies.cluster import BrokerMembersBody, KvTable
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, decode_registration
from triomq.remoting.protocol.bodies.route import QUEUES_MAX
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.fastjson import REQUEST_LIMITS
from triomq.remoting.protocol.headers.registration import (
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerMembersHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)
from triomq.remoting.protocol.limits import require_size
from triomq.remoting.protocol.names import ORDER_TOPIC_CONFIG
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response

_log = logging.getLogger(__name__)

_FILTER_SERVERS_FROM = 37  # V3_0_11
_CRC_MASK = 0x7FFF_FFFF
INLINE_BYTES_MAX = 128 * 1024
"""The largest registration that is decoded in the loop (15 ms); a thread decodes larger ones."""
DEFLATED = b"\x78"
"""The first byte of a deflated (zlib) body."""
_LEAVES = {
    Leave.UNREGISTERED: "it unregistered",
    Leave.CONNECTION_LOST: "its connection ended",
    Leave.SILENT: "it was silent for too long",
}
NOTES_PER_PERIOD = 200
"""Log lines of one kind in ten seconds: every broker is logged in a large rolling restart."""


@attrs.define(eq=False, kw_only=True)
class RegistrationRequests:
    """The handlers, one for each request code. A live broker is one that the routes have."""

    config: RunningConfig
    routes: RouteTable
    kv: KvConfig
    now_ms: Callable[[], int]
    limit: LogLimit
    notices: MinBrokerIdNotices | None = None
    missing: MissingBrokers = attrs.field(factory=MissingBrokers)
    moved: int = attrs.field(default=0, init=False)
    """Registrations for the id or the address of another live broker, accepted or refused."""
    foreign_unregistrations: int = attrs.field(default=0, init=False)
    """Unregistrations that arrived on a connection other than the broker's own."""
    _has_leaving: trio.Event = attrs.field(factory=trio.Event, init=False)

    def register_broker(self, request: Request) -> Response | Awaitable[Response]:
        """Register a broker and its topics: REGISTER_BROKER (103).

        Raises: Rejected, LimitReached.
        """
        header: RegisterBrokerHeader = request.header
        if header.body_crc and header.body_crc != zlib.crc32(request.body) & _CRC_MASK:
            self._warn(
                "registration of %s from %s: the body's checksum does not match",
                header.broker_name,
                request.connection.peer_text,
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        if len(request.body) > INLINE_BYTES_MAX:
            return self._register_large(request)
        digest = _digest(request)
        renewed = self._renewed(request, digest)
        if renewed is not None:
            return renewed
        # A short deflated body may hold many topics.
        if request.body[:1] == DEFLATED or header.broker_name in self.routes.leaving:
            return self._register_in_steps(request, digest)
        registration = self._registration(request, _read_registration(request))
        before = self._require_own(request)
        return self._finish_registration(
            request,
            digest,
            registration,
            before,
            self.routes.register(registration, request.connection, self.now_ms()),
            _too_wide(registration.table),
        )

    def _renewed(self, request: Request, digest: bytes) -> Response | None:
        """Answer a registration that repeats the previous one, as most do: the digest shows it
        without decoding thousands of topics again.
        """
        unread = self._registration(request, RegisterBrokerBody())
        registered = self.routes.renew(unread, digest, request.connection, self.now_ms())
        return None if registered is None else self._answer(request, registered, None)

    async def _register_large(self, request: Request) -> Response:
        digest = await trio.to_thread.run_sync(_digest, request)
        return self._renewed(request, digest) or await self._register_in_steps(request, digest)

    async def _register_in_steps(self, request: Request, digest: bytes) -> Response:
        """Decode the body in a thread, and store the topics in steps.

        Hundreds of thousands of topics take seconds; between steps the loop serves other requests.

        Raises: Rejected, LimitReached.
        Checkpoint: always.
        """
        body, wide = await trio.to_thread.run_sync(_read_large, request)
        if request.connection.closed:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, "the connection closed while its registration was read"
            )
        registration = self._registration(request, body)
        if registration.broker_name in self.routes.leaving:
            await self._leave()
        before = self._require_own(request)
        steps = self.routes.register_in_steps(registration, request.connection, self.now_ms())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return self._finish_registration(
                    request, digest, registration, before, end.value, wide
                )
            await trio.lowlevel.checkpoint()

    def _require_own(self, request: Request) -> str | None:
        """Return the address of the live broker with this name and id; None if there is none.

        Raises: Rejected if ``refuseForeignBrokers`` is set and that broker has another address, or
            a live broker of another name has this registration's address.
        """
        header: RegisterBrokerHeader = request.header
        self._require_own_address(header, request)
        before = self.routes.holder(header.broker_name, header.broker_id)
        if before not in (None, header.broker_addr) and self.config.current.refuse_foreign:
            self.moved += 1
            self._note_claim(request, str(before), Outcome.IGNORED)
            self._warn(
                "broker %s (id %d) lives at %s: refused to move it to %s for a registration from"
                " %s",
                header.broker_name,
                header.broker_id,
                before,
                header.broker_addr,
                request.connection.peer_text,
            )
            remark = (
                f"broker {header.broker_name} (id {header.broker_id}) lives at {before}, and this"
                " name server does not replace a live broker (refuseForeignBrokers): stop that"
                " broker, or give this broker another name or id"
            )
            raise Rejected(ResponseCode.NO_PERMISSION, remark)
        return before

    def _require_own_address(self, header: RegisterBrokerHeader, request: Request) -> None:
        """Warn if this registration takes the address of a live broker of another name.

        The registration removes that broker from the routes. On the broker's own connection this is
        a change of its name, and allowed.

        Raises: Rejected if ``refuseForeignBrokers`` is set.
        """
        name = self.routes.name_at(header.cluster_name, header.broker_addr)
        if (
            name in (None, header.broker_name)
            or self.routes.owner(str(name), header.broker_addr) is request.connection
        ):
            return
        self.moved += 1
        self._warn(
            "broker %s lives at %s, but a registration from %s claims that address for broker %s",
            name,
            header.broker_addr,
            request.connection.peer_text,
            header.broker_name,
        )
        if self.config.current.refuse_foreign:
            remark = (
                f"broker {name} lives at {header.broker_addr}, and this name server does not"
                " replace a live broker (refuseForeignBrokers): stop that broker, or give this"
                " broker another address"
            )
            raise Rejected(ResponseCode.NO_PERMISSION, remark)

    def _finish_registration(
        self,
        request: Request,
        digest: bytes,
        registration: BrokerRegistration,
        before: str | None,
        registered: Registered,
        wide: Sequence[TopicConfig],
    ) -> Response:
        header: RegisterBrokerHeader = request.header
        if before is not None and before != header.broker_addr:
            self._note_claim(request, before, registered.outcome)
        if registered.topics_left_out:
            self._warn(
                "broker %s (%s) registers %d topics that are not in the routes: the limit is %d;"
                " delete topics, or raise topicsMax",
                header.broker_name,
                header.broker_addr,
                registered.topics_left_out,
                self.config.current.limits.topics_max,
            )
        elif registered.outcome in (Outcome.NEW, Outcome.RENEWED):
            self.routes.remember(header.cluster_name, header.broker_addr, digest)
        self._warn_of_queue_counts(header.broker_name, wide)
        return self._answer(request, registered, registration.table)

    def _note_claim(self, request: Request, before: str, outcome: Outcome) -> None:
        """Note a registration for the place of another living process, accepted or ignored.

        One is a move. More of them are two processes that live side by side: that is logged once.
        """
        header: RegisterBrokerHeader = request.header
        if outcome is Outcome.RENEWED:
            self.moved += 1
        elif outcome is not Outcome.IGNORED:
            return
        place = header.cluster_name, header.broker_name, header.broker_id
        contested = self.missing.is_contested(place)
        seen_ms = self.routes.seen_ms(header.cluster_name, before)
        if self.missing.claimed(place, header.broker_addr, before, seen_ms, self.now_ms()):
            _log.error(
                "broker %s (id %d) lives at %s and at %s: clients reach one of the two only, and"
                " not the messages of the other; stop the one that you do not want",
                header.broker_name,
                header.broker_id,
                before,
                header.broker_addr,
            )
        elif not contested and outcome is Outcome.RENEWED:
            self._warn(
                "broker %s (id %d) moved from %s to %s while it was alive, by a registration from"
                " %s; two processes must not have the same name and id",
                header.broker_name,
                header.broker_id,
                before,
                header.broker_addr,
                request.connection.peer_text,
            )

    def _answer(
        self, request: Request, registered: Registered, table: TopicTable | None
    ) -> Response:
        header: RegisterBrokerHeader = request.header
        self._notify_min_ids()
        broker = described(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        if registered.outcome is Outcome.TOO_EARLY:
            self._warn("%s sent a single topic before it registered", broker)
            raise Rejected(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if registered.outcome is Outcome.IGNORED:
            self._warn(
                "ignored the registration of %s: another process has this id and a newer state",
                broker,
            )
            return Response(header=RegisterBrokerResponseHeader())
        self.missing.registered(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        if registered.outcome is Outcome.NEW and table is not None:
            self._note("%s registered %d topics", broker, len(table.topic_config_table))
        order = (
            self.kv.namespace(ORDER_TOPIC_CONFIG)
            if self.config.current.return_order_config
            else None
        )
        return Response(
            header=RegisterBrokerResponseHeader(
                registered.master_ha_address, registered.master_address
            ),
            body=b"" if order is None else KvTable(dict(order)).encode(),
        )

    def _warn_of_queue_counts(self, broker_name: str, configs: Iterable[TopicConfig]) -> None:
        for config in configs:
            self._warn(
                "broker %s registers topic %r with %d queues; routes show at most %d",
                broker_name,
                config.topic_name,
                max(config.read_queue_count, config.write_queue_count),
                QUEUES_MAX,
            )

    def _registration(self, request: Request, body: RegisterBrokerBody) -> BrokerRegistration:
        header: RegisterBrokerHeader = request.header
        return BrokerRegistration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            table=body.table,
            timeout_ms=DEFAULT_TIMEOUT_MS
            if header.heartbeat_timeout_ms is None
            else header.heartbeat_timeout_ms,
            acting_master=header.enable_acting_master,
            zone_name=header.zone_name,
            filter_servers=body.filter_server_list
            if request.version >= _FILTER_SERVERS_FROM
            else None,
        )

    def unregister_broker(self, request: Request) -> Response | Awaitable[Response]:
        """Remove a broker that is stopping: UNREGISTER_BROKER (104).

        Raises: Rejected if ``refuseForeignBrokers`` is set and the broker registered on another
            connection.
        """
        header: BrokerHeader = request.header
        owner = self.routes.owner(header.broker_name, header.broker_addr)
        if isinstance(owner, Connection) and owner is not request.connection:
            self.foreign_unregistrations += 1
            self._warn(
                "broker %s (%s) registered from %s and is unregistered from %s",
                header.broker_name,
                header.broker_addr,
                owner.peer_text,
                request.connection.peer_text,
            )
            if self.config.current.refuse_foreign:
                remark = (
                    f"broker {header.broker_name} ({header.broker_addr}) registered on another"
                    " connection, and this name server accepts its unregistration only on that"
                    " connection (refuseForeignBrokers)"
                )
                raise Rejected(ResponseCode.NO_PERMISSION, remark)
        departed = self.routes.unregister(
            header.cluster_name, header.broker_name, header.broker_addr, header.broker_id
        )
        if departed is not None:
            self._departed([departed], Leave.UNREGISTERED)
        else:
            self.missing.unregistered(header.cluster_name, header.broker_name, header.broker_addr)
        return self._left() if self.routes.leaving else Response()

    async def _left(self) -> Response:
        await self._leave()
        return Response()

    async def _leave(self) -> None:
        """Remove what brokers have left behind, in steps."""
        for _ in self.routes.leaving.steps():
            await trio.lowlevel.checkpoint()

    async def run_leaving(self) -> None:
        """Run the task "leaving-brokers": it removes what brokers that were lost have left."""
        while True:
            await self._has_leaving.wait()
            self._has_leaving = trio.Event()
            await self._leave()

    def heartbeat(self, request: Request) -> Response:
        """Note that a broker is alive: BROKER_HEARTBEAT (904)."""
        header: BrokerHeartbeatHeader = request.header
        self.routes.touch(header.cluster_name, header.broker_addr, self.now_ms())
        return Response()

    def query_data_version(self, request: Request) -> Response:
        """Return whether a broker must register its topics again: QUERY_DATA_VERSION (322).

        It must if they have changed, or if it is unknown. The request counts as a heartbeat.
        """
        header: BrokerHeader = request.header
        known = self.routes.version(header.cluster_name, header.broker_addr)
        asked = _read_version(request) if request.body else None
        self.routes.touch(header.cluster_name, header.broker_addr, self.now_ms())
        return Response(
            header=QueryDataVersionResponseHeader(known is None or known != asked),
            body=b"" if known is None else known.encode(),
        )

    def members(self, request: Request) -> Response:
        """Return the master and the slaves of a broker group: GET_BROKER_MEMBER_GROUP (901)."""
        header: BrokerMembersHeader = request.header
        return Response(
            body=BrokerMembersBody(
                self.routes.members(header.cluster_name, header.broker_name)
            ).encode(bare_keys=True)
        )

    # Removal of dead brokers

    def connection_closed(self, connection: Connection) -> None:
        """Remove the brokers that last registered on a connection that has closed."""
        self._departed(self.routes.lost(connection), Leave.CONNECTION_LOST)

    def expire(self) -> None:
        """Remove the brokers that were silent for too long, and close their connections."""
        departed, owners = self.routes.expire(self.now_ms())
        self._departed(departed, Leave.SILENT)
        for owner in owners:
            if isinstance(owner, Connection):
                owner.close("the broker was silent for too long")

    def _departed(self, departed: Sequence[Departed], leave: Leave) -> None:
        now_ms = self.now_ms()
        for gone in departed:
            self.missing.left(gone, leave, now_ms)
            self._note("%s left: %s", gone, _LEAVES[leave])
        self._notify_min_ids()
        if self.routes.leaving:
            self._has_leaving.set()

    def _notify_min_ids(self) -> None:
        changes = self.routes.take_min_id_changes()
        if self.notices is not None:
            self.notices.send(changes)

    def _warn(self, message: str, *arguments: object) -> None:
        self.limit.warning(_log, message, *arguments)

    def _note(self, message: str, *arguments: object) -> None:
        """Log an event for operators; limited, since any peer can cause such events."""
        self.limit.log(_log, logging.INFO, message, *arguments, lines=NOTES_PER_PERIOD)


def _read_large(request: Request) -> tuple[RegisterBrokerBody, list[TopicConfig]]:
    """Return the body, and the topics with too many queues. Raises: Rejected."""
    body = _read_registration(request)
    return body, _too_wide(body.table)


def _too_wide(table: TopicTable) -> list[TopicConfig]:
    return [
        config
        for config in table.topic_config_table.values()
        if max(config.read_queue_count, config.write_queue_count) > QUEUES_MAX
    ]


def _digest(request: Request) -> bytes:
    return blake2b(b"%d " % request.version + request.body, digest_size=16).digest()


def _read_registration(request: Request) -> RegisterBrokerBody:
    try:
        return (
            decode_registration(request.body, request.version)
            if request.body
            else RegisterBrokerBody()
        )
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"register broker failed: {error}") from None


def _read_version(request: Request) -> DataVersion:
    require_size(request.body, INLINE_BYTES_MAX)
    try:
        return DataVersion.decode(request.body, REQUEST_LIMITS)
    except RemoteProtocolError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
