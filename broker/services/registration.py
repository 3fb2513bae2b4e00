"""Announces this broker to every name server: at the start, every 30 s, and at once when a topic changes or a name server comes back.

Each name server has a child task of its own, so that one that is down delays nobody; it is tried again after 1 s, 2 s, … up to 30 s.
Where name servers may move (a host name with several addresses, a web address that lists them), it is asked again where they are.
Name servers know nothing of each other, and a broker that cannot reach any goes on serving whoever knows its address.
Source: broker/BrokerController.java#registerBrokerAll, broker/out/BrokerOuterAPI.java.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import attrs
import trio

from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.topics import Topics
from triomq.remoting.errors import LocalProtocolError, RemoteProtocolError, RemotingError
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, encode_deflated
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.framing import FRAME_BYTES_MAX
from triomq.remoting.protocol.headers.route import (
    QueryDataVersionHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerHeader,
)

logger = logging.getLogger(__name__)

PLAIN_BYTES_MAX = 4 * 1024 * 1024
"""A registration that is longer as JSON is deflated, whatever the settings say: it is not far from what a frame holds."""
BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
"""of a registration: what a frame holds beside its header"""
RETRY_SECONDS_FIRST = 1.0
RETRY_SECONDS_MAX = 30.0
MASTER_SEARCH_SECONDS = 2.0
"""A slave without its master registers so often: the answer is the only way to hear where it is."""
UNREGISTER_SECONDS = 1.0
FIRST_TRY_SECONDS = 1.0


class Caller(Protocol):
    """What is needed of ``triomq.remoting.client.Connector``."""

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command: ...

    async def oneway(self, address: str, command: Command, *, timeout: float) -> None: ...


@attrs.frozen(kw_only=True)
class RegistrationSettings:
    """Who this broker is, and how often it says so."""

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
    """Send all topics in the deflated form."""
    split_count: int = 0
    """Send all topics in pieces of so many; 0: in one."""
    not_active_ms: int | None = None
    """Name servers forget this broker after so long without a sign of life; None: their own time."""


@attrs.frozen
class Piece:
    """The body of one REGISTER_BROKER."""

    body: bytes
    count: int
    """of topics"""
    deflated: bool

    def require_room(self) -> None:
        """Refuse what no name server would read: it would close the connection without a word.

        Raises: LocalProtocolError.
        """
        if len(self.body) > BODY_BYTES_MAX:
            raise LocalProtocolError(
                f"the registration of {self.count} topics has {len(self.body)} bytes, and a name server takes {BODY_BYTES_MAX}; "
                "delete topics that nothing uses, or set enableSplitRegistration=true"
            )


@attrs.define(eq=False)
class NameServer:
    """One name server as this broker sees it."""

    address: str
    registered: bool = False
    tried: bool = False
    generation: int = -1
    pending: set[str] = attrs.field(factory=set)
    wake: trio.Event = attrs.field(factory=trio.Event)
    progress: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """around the task that keeps the broker registered there"""
    started: bool = False

    def note_progress(self) -> None:
        self.tried = True
        progress, self.progress = self.progress, trio.Event()
        progress.set()


@attrs.define(eq=False)
class Registration:
    """The tasks and what they have reached."""

    settings: RegistrationSettings
    topics: Topics
    live: LiveSettings
    servers: dict[str, NameServer]
    discover: Callable[[], Awaitable[Sequence[str]]] | None = None
    """where the name servers are now, when that can change; raises RemotingError"""
    discover_seconds: float = 120.0
    connector: Caller = attrs.field(init=False)
    on_master: Callable[[str | None, str | None], None] = lambda ha_address, address: None
    """Told (HA address, address) of the master with every answer; name servers say it to slaves only."""
    searching: Callable[[], bool] = lambda: False
    """Whether this broker is a slave that has lost its master."""

    _whole: tuple[object, Sequence[Piece]] | None = attrs.field(default=None, init=False)
    _blind: bool = attrs.field(default=False, init=False)
    """the last question where they are was not answered, and the log says so"""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the broker registered; ``started`` once every name server was tried (or is slow)."""
        async with trio.open_nursery() as nursery:
            if self.discover is not None:
                await self._follow(nursery, self.discover)
            for server in self.servers.values():
                self._start(nursery, server)
            with trio.move_on_after(FIRST_TRY_SECONDS):
                for server in list(self.servers.values()):
                    while not server.tried:
                        await server.progress.wait()
            task_status.started()
            while True:
                await trio.sleep(self.discover_seconds)
                if self.discover is not None:
                    await self._follow(nursery, self.discover)

    async def _follow(self, nursery: trio.Nursery, discover: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Register with name servers that are new, leave those that are gone; when nobody can tell, stay with those of now."""
        try:
            addresses = await discover()
        except RemotingError as error:
            level = logging.DEBUG if self._blind else logging.WARNING
            logger.log(level, "cannot find out where the name servers are (%s); staying with %s", error, ", ".join(self.servers) or "none")
            self._blind = True
            return
        self._blind = False
        for address in [address for address in self.servers if address not in addresses]:
            server = self.servers.pop(address)
            known, server.registered = server.registered, False
            server.scope.cancel()
            server.note_progress()
            logger.info("name server %s is not listed any more", address)
            if known:
                nursery.start_soon(self._unregister_one, server)
        for address in addresses:
            if address not in self.servers:
                server = self.servers[address] = NameServer(address)
                self._start(nursery, server)

    def _start(self, nursery: trio.Nursery, server: NameServer) -> None:
        if not server.started:
            server.started = True
            nursery.start_soon(self._keep_registered, server, name=f"registration-{server.address}")

    def topics_changed(self, topics: list[str]) -> None:
        """Announce these topics to every name server.  atomic: no checkpoint."""
        for server in self.servers.values():
            server.pending.update(topics)
            server.wake.set()

    def announce_again(self) -> None:
        """Register everywhere now.  atomic: no checkpoint."""
        for server in self.servers.values():
            server.wake.set()

    def connection_lost(self, address: str, reason: str) -> None:
        """A name server forgets a broker whose connection closes: register again at once."""
        server = self.servers.get(address)
        if server is not None and server.registered:
            server.registered = False
            server.wake.set()

    async def wait_announced(self) -> None:
        """Return when every name server that is reachable knows the topics of now.  The caller sets the deadline."""
        generation = self.topics.generation
        for server in list(self.servers.values()):
            while server.registered and server.generation < generation:
                await server.progress.wait()

    async def _keep_registered(self, server: NameServer) -> None:
        with server.scope:
            await self._register_again_and_again(server)

    async def _register_again_and_again(self, server: NameServer) -> None:
        retry_seconds = RETRY_SECONDS_FIRST
        while True:
            server.wake = trio.Event()
            pending, server.pending = server.pending, set()
            try:
                await self._register(server, pending if server.registered else None)
            except RemotingError as error:
                server.registered = False
                logger.warning(
                    "name server %s: cannot register (%s); clients that ask it will not find this broker; next try in %g s",
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
            with trio.move_on_after(MASTER_SEARCH_SECONDS if self.searching() else self.settings.period_seconds):
                await server.wake.wait()

    async def _register(self, server: NameServer, changed: set[str] | None) -> None:
        """Register with all topics, or with the changed ones where a name server has the others already."""
        generation = self.topics.generation
        configs = self.topics.configs
        if changed and not changed <= configs.keys():
            changed = None  # one is deleted, which only a registration of all topics says
        if changed:
            configs = {name: configs[name] for name in changed}
        elif changed is not None and not self.settings.send_always and not await self._outdated(server):
            return
        pieces = [Piece(self._body(configs).encode(), len(configs), False)] if changed else await self._whole_pieces()
        for piece in pieces:
            piece.require_room()
        for piece in pieces:
            await self._send(server, piece)
        if not server.registered:
            logger.info("registered with name server %s as %s", server.address, self.settings.broker_address)
        server.registered = True
        server.generation = max(server.generation, generation)

    async def _send(self, server: NameServer, piece: Piece) -> None:
        header = RegisterBrokerHeader(
            broker_name=self.settings.broker_name,
            broker_addr=self.settings.broker_address,
            cluster_name=self.settings.cluster_name,
            ha_server_addr=self.settings.ha_address,
            broker_id=self.settings.broker_id,
            heartbeat_timeout_ms=self.settings.not_active_ms,
            enable_acting_master=self.settings.acting_master,
            compressed=piece.deflated,
            body_crc=zlib.crc32(piece.body) & 0x7FFFFFFF,
        )
        answer = await self._call(server, request(RequestCode.REGISTER_BROKER, header, piece.body))
        if self.settings.broker_id:
            told = answer.header(RegisterBrokerResponseHeader)
            self.on_master(told.ha_server_addr, told.master_addr)
        if answer.body:
            self.topics.mark_ordered(set(KvTable.decode(bytes(answer.body)).table))

    def _body(self, configs: Mapping[str, TopicConfig]) -> RegisterBrokerBody:
        mask = self.live.broker_permission
        if mask & 6 != 6:
            configs = {name: attrs.evolve(config, perm=config.perm & mask) for name, config in configs.items()}
        return RegisterBrokerBody(TopicTable(dict(configs), self.topics.version.current))

    async def _whole_pieces(self) -> Sequence[Piece]:
        """All topics, encoded once for all name servers and until something changes: thousands of topics take a while."""
        key = (self.topics.generation, self.topics.version.current, self.live.broker_permission)
        if self._whole is None or self._whole[0] != key:
            rows = list(self.topics.configs.items())
            size = self.settings.split_count or max(1, len(rows))
            pieces = [await self._piece(dict(rows[start : start + size])) for start in range(0, len(rows), size)]
            self._whole = (key, pieces)
        return self._whole[1]

    async def _piece(self, configs: Mapping[str, TopicConfig]) -> Piece:
        body = self._body(configs)
        plain = b"" if self.settings.deflated else body.encode()
        if plain and len(plain) <= PLAIN_BYTES_MAX:
            return Piece(plain, len(configs), False)
        return Piece(await trio.to_thread.run_sync(encode_deflated, body), len(configs), True)

    async def _outdated(self, server: NameServer) -> bool:
        """Ask whether the name server has an older version of our topics."""
        header = QueryDataVersionHeader(
            broker_name=self.settings.broker_name,
            broker_addr=self.settings.broker_address,
            cluster_name=self.settings.cluster_name,
            broker_id=self.settings.broker_id,
        )
        body = self.topics.version.current.encode()
        answer = await self._call(server, request(RequestCode.QUERY_DATA_VERSION, header, body))
        return bool(answer.header(QueryDataVersionResponseHeader).changed)

    async def _call(self, server: NameServer, command: Command) -> Command:
        answer = await self.connector.invoke(server.address, command, timeout=self.settings.timeout_seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteProtocolError(f"it answered {answer.code} {answer.remark}", "see the name server's log")
        return answer

    async def unregister(self) -> None:
        """Say goodbye to every name server that knows this broker: the first step of an orderly stop, after ``run`` was cancelled."""
        async with trio.open_nursery() as nursery:
            for server in self.servers.values():
                if server.registered:
                    nursery.start_soon(self._unregister_one, server)

    async def _unregister_one(self, server: NameServer) -> None:
        header = UnregisterBrokerHeader(
            broker_name=self.settings.broker_name,
            broker_addr=self.settings.broker_address,
            cluster_name=self.settings.cluster_name,
            broker_id=self.settings.broker_id,
        )
        try:
            await self.connector.invoke(
                server.address, request(RequestCode.UNREGISTER_BROKER, header), timeout=UNREGISTER_SECONDS
            )
        except RemotingError as error:
            logger.warning("name server %s: cannot unregister (%s); it will notice by itself", server.address, error)
