"""Keep this broker registered with every name server.

It registers at the start, every 30 s, and at once when a topic changes or a name server comes back.
Each name server has a child task of its own, so one that is down delays no other; it is tried again
after 1 s, 2 s, … up to 30 s. If name servers can move (a host name with several addresses, a web
address that lists them), their addresses are looked up again and again. Name servers know nothing
of each other, and a broker that reaches none of them goes on serving the clients that know its
address. Source: broker/BrokerController.java#registerBrokerAll, broker/out/BrokerOuterAPI.java.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import attrs
import trio

from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.name_servers import NameServer, NameServerTable
from triomq.broker.services.topics import Topics
from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError, RemotingError
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, encode_deflated
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX
from triomq.remoting.protocol.headers.registration import (
    BrokerHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""Bytes of a registration that fit into one frame beside its header."""
RETRY_SECONDS_FIRST = 1.0
RETRY_SECONDS_MAX = 30.0
MASTER_SEARCH_SECONDS = 2.0
"""Period of a slave without its master: only the answer to a registration says where it is."""
UNREGISTER_SECONDS = 1.0
FIRST_TRY_SECONDS = 1.0


class Caller(Protocol):
    """The part of ``triomq.remoting.client.Connector`` that services and roles use."""

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command: ...

    async def oneway(self, address: str, command: Command, *, timeout: float) -> None: ...


@attrs.frozen(kw_only=True)
class RegistrationSettings:
    """What this broker says of itself, and how often."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    ha_address: str
    period_seconds: float = 30.0
    timeout_seconds: float = 24.0
    send_always: bool = True
    acting_master: bool = False
    """Whether a slave may act for its master."""
    deflated: bool = False
    """Send all topics in the deflated form, which carries no system flags."""
    split_count: int = 0
    """Topics in one REGISTER_BROKER; 0: all of them."""
    not_active_ms: int | None = None
    """Silence after which name servers forget this broker; None: they use their own limit."""


@attrs.frozen
class TopicsPart:
    """The body of one REGISTER_BROKER."""

    body: bytes
    count: int
    """Of topics."""
    deflated: bool

    def require_room(self) -> None:
        """Refuse a body that no frame holds: a name server closes the connection without an answer.

        Raises: LocalProtocolError.
        """
        if len(self.body) > BODY_BYTES_MAX:
            raise LocalProtocolError(
                f"the registration of {self.count} topics has {len(self.body)} bytes, and a name"
                f" server takes {BODY_BYTES_MAX}; delete topics that nothing uses, or set"
                " enableSplitRegistration=true"
            )


@attrs.define(eq=False)
class Registrar:
    """The tasks that keep this broker registered."""

    settings: RegistrationSettings
    topics: Topics
    live: LiveSettings
    servers: NameServerTable
    connector: Caller
    discover: Callable[[], Awaitable[Sequence[str]]] | None = None
    """Return the present addresses of the name servers, if these can change. Raises: RemotingError.
    """
    discover_seconds: float = 120.0
    on_master: Callable[[str | None, str | None], None] = lambda ha_address, address: None
    """Called with (HA address, address) of the master for every answer; name servers tell it to
    slaves only.
    """
    searching: Callable[[], bool] = lambda: False
    """Return whether this broker is a slave that has lost its master."""

    _all_topics: tuple[object, Sequence[TopicsPart]] | None = attrs.field(default=None, init=False)
    _lookup_failed: bool = attrs.field(default=False, init=False)
    """Whether the last lookup of addresses failed, which the log says once."""

    async def keep_registered(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the broker registered; ``started`` once every name server was tried (or is slow)."""
        async with trio.open_nursery() as nursery:
            await self._follow(nursery)
            with trio.move_on_after(FIRST_TRY_SECONDS):
                for server in list(self.servers.values()):
                    while not server.tried:
                        await server.progress.wait()
            task_status.started()
            while True:
                await trio.sleep(self.discover_seconds)
                await self._follow(nursery)

    async def _follow(self, nursery: trio.Nursery) -> None:
        """Register with new name servers and leave those that are gone.

        If the lookup fails, the present ones stay.
        """
        addresses: Sequence[str] = list(self.servers)
        if self.discover is not None:
            try:
                addresses = await self.discover()
                self._lookup_failed = False
            except RemotingError as error:
                logger.log(
                    logging.DEBUG if self._lookup_failed else logging.WARNING,
                    "cannot find out where the name servers are (%s); staying with %s",
                    error,
                    ", ".join(self.servers) or "none",
                )
                self._lookup_failed = True
        for address in [address for address in self.servers if address not in addresses]:
            server = self.servers.pop(address)
            known, server.registered = server.registered, False
            server.scope.cancel()
            server.note_progress()
            logger.info("name server %s is not listed any more", address)
            if known:
                nursery.start_soon(self._unregister_one, server)
        for address in addresses:
            server = self.servers.setdefault(address, NameServer(address))
            if not server.started:
                server.started = True
                nursery.start_soon(self._keep_registered, server, name=f"registration-{address}")

    async def wait_announced(self) -> None:
        """Return when every registered name server knows the present topics.

        The caller sets the deadline.
        """
        generation = self.topics.generation
        for server in list(self.servers.values()):
            while server.registered and server.generation < generation:
                await server.progress.wait()

    async def _keep_registered(self, server: NameServer) -> None:
        retry_seconds = RETRY_SECONDS_FIRST
        with server.scope:
            while True:
                server.wake = trio.Event()
                pending, server.pending = server.pending, set()
                try:
                    await self._register(server, pending if server.registered else None)
                except RemotingError as error:
                    server.registered = False
                    logger.warning(
                        "name server %s: cannot register (%s); clients that ask it will not find"
                        " this broker; next try in %g s",
                        server.address,
                        error,
                        retry_seconds,
                    )
                    server.note_progress()
                    await trio.sleep(retry_seconds)
                    retry_seconds = min(retry_seconds * 2, RETRY_SECONDS_MAX)
                    continue
                retry_seconds = RETRY_SECONDS_FIRST
                server.note_progress()
                with trio.move_on_after(
                    MASTER_SEARCH_SECONDS if self.searching() else self.settings.period_seconds
                ):
                    await server.wake.wait()

    async def _register(self, server: NameServer, changed: set[str] | None) -> None:
        """Register with the changed topics, or with all of them if none has changed.

        With ``forceRegister=false``, a name server that knows this broker gets all of them only
        if it lacks some.
        """
        generation = self.topics.generation
        configs = self.topics.configs
        if changed and not changed <= configs.keys():
            changed = None  # a topic was deleted: only a registration of all topics shows that
        if changed:
            configs = {name: configs[name] for name in changed}
        elif (
            changed is not None
            and not self.settings.send_always
            and not await self._outdated(server)
        ):
            return
        version = self.topics.version.current
        parts = (
            [TopicsPart(self._body(configs, version).encode(), len(configs), False)]
            if changed
            else await self._all_parts()
        )
        for part in parts:
            part.require_room()
        for part in parts:
            await self._send(server, part)
        if not server.registered:
            logger.info(
                "registered with name server %s as %s", server.address, self.settings.broker_address
            )
        server.registered = True
        server.generation = max(server.generation, generation)

    async def _send(self, server: NameServer, part: TopicsPart) -> None:
        header = RegisterBrokerHeader(
            broker_name=self.settings.broker_name,
            broker_addr=self.settings.broker_address,
            cluster_name=self.settings.cluster_name,
            ha_server_addr=self.settings.ha_address,
            broker_id=self.settings.broker_id,
            heartbeat_timeout_ms=self.settings.not_active_ms,
            enable_acting_master=self.settings.acting_master,
            compressed=part.deflated,
            body_crc=zlib.crc32(part.body) & 0x7FFFFFFF,
        )
        answer = await self._call(server, request(RequestCode.REGISTER_BROKER, header, part.body))
        if self.settings.broker_id:
            header_of_answer = answer.header(RegisterBrokerResponseHeader)
            self.on_master(header_of_answer.ha_server_addr, header_of_answer.master_addr)
        if answer.body:
            self.topics.mark_ordered(set(KvTable.decode(bytes(answer.body)).table))

    def _body(self, configs: Mapping[str, TopicConfig], version: DataVersion) -> RegisterBrokerBody:
        mask = self.live.broker_permission
        if mask & 6 != 6:
            configs = {
                name: attrs.evolve(config, perm=config.perm & mask)
                for name, config in configs.items()
            }
        return RegisterBrokerBody(TopicTable(dict(configs), version))

    async def _all_parts(self) -> Sequence[TopicsPart]:
        """Return all topics, encoded once for all name servers and kept until something changes.

        Thousands of topics take a while. Each part has a version of its own, since a name server
        takes changes of known topics only with a version that it does not have; the last part has
        the version for which brokers ask later (broker/topic/TopicConfigManager.java,
        buildSerializeWrapper).
        """
        key = (self.topics.generation, self.topics.version.current, self.live.broker_permission)
        if self._all_topics is None or self._all_topics[0] != key:
            rows = list(self.topics.configs.items())
            size = self.settings.split_count or max(1, len(rows))
            current = self.topics.version.current
            starts = range(0, len(rows), size)
            parts = [
                await self._part(
                    dict(rows[start : start + size]),
                    attrs.evolve(current, timestamp=current.timestamp - later),
                )
                for start, later in zip(starts, reversed(range(len(starts))))
            ]
            self._all_topics = (key, parts)
        return self._all_topics[1]

    async def _part(self, configs: Mapping[str, TopicConfig], version: DataVersion) -> TopicsPart:
        body = self._body(configs, version)
        plain = b"" if self.settings.deflated else body.encode()
        if plain and len(plain) <= BODY_BYTES_MAX:
            return TopicsPart(plain, len(configs), False)
        return TopicsPart(await trio.to_thread.run_sync(encode_deflated, body), len(configs), True)

    async def _outdated(self, server: NameServer) -> bool:
        """Ask whether the name server has an older version of our topics."""
        header = BrokerHeader(
            broker_name=self.settings.broker_name,
            broker_addr=self.settings.broker_address,
            cluster_name=self.settings.cluster_name,
            broker_id=self.settings.broker_id,
        )
        body = self.topics.version.current.encode()
        answer = await self._call(server, request(RequestCode.QUERY_DATA_VERSION, header, body))
        return bool(answer.header(QueryDataVersionResponseHeader).changed)

    async def _call(self, server: NameServer, command: Command) -> Command:
        answer = await self.connector.invoke(
            server.address, command, timeout=self.settings.timeout_seconds
        )
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteProtocolError(
                f"it answered {answer.code} {answer.remark}", "see the name server's log"
            )
        return answer

    async def unregister(self) -> None:
        """Unregister from every name server that knows this broker.

        This is the first step of an orderly stop, after ``keep_registered`` was cancelled.
        """
        async with trio.open_nursery() as nursery:
            for server in self.servers.values():
                if server.registered:
                    nursery.start_soon(self._unregister_one, server)

    async def _unregister_one(self, server: NameServer) -> None:
        header = BrokerHeader(
            broker_name=self.settings.broker_name,
            broker_addr=self.settings.broker_address,
            cluster_name=self.settings.cluster_name,
            broker_id=self.settings.broker_id,
        )
        try:
            await self.connector.invoke(
                server.address,
                request(RequestCode.UNREGISTER_BROKER, header),
                timeout=UNREGISTER_SECONDS,
            )
        except RemotingError as error:
            logger.warning(
                "name server %s: cannot unregister (%s); it drops this broker when it hears no"
                " more of it",
                server.address,
                error,
            )
