"""A whole cluster inside one Trio loop: the services of the processes, ready in milliseconds.

They listen on free ports of the loopback. Sockets, files and the protocol are real; only the
processes are missing. ``triomq.testing`` is the public interface of this module, which is the one
module that may import every service.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import attrs
import trio

from triomq.broker.app import BrokerReady, run_broker
from triomq.broker.config import BrokerConfig
from triomq.broker.java_keys import BROKER_KEYS
from triomq.client.admin.admin import Admin
from triomq.client.admin.broker_address import BrokerAddress
from triomq.client.core.background import open_background, sole_error
from triomq.client.core.errors import TrioMQError
from triomq.client.core.portal import Portal
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.remoting.core.open_files import ConnectionBudget
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import Source, load
from triomq.remoting.server.listen import AddressInUse
from triomq.remoting.tls.client import Tls

HOST = "127.0.0.1"
CLUSTER = "DefaultCluster"
READY_SECONDS_MAX = 30.0
PORT_ATTEMPTS = 3
POLL_SECONDS = 0.002

SMALL_STORE: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
"""Store geometry of test brokers: smaller files of the same layout; messages may have 4 MiB."""
SHARED_LOOP: Mapping[str, str] = {"waitTimeMillsInSendQueue": "10000"}
"""A broker in the test's own loop would refuse sends as busy whenever the test works for 0.2 s."""


class _Ready(Protocol):
    """What both services report when they answer requests."""

    port: int

    def stop(self) -> None: ...


@attrs.define(eq=False)
class _Running:
    """A service that runs in the nursery."""

    ready: _Ready
    scope: trio.CancelScope
    ended: trio.Event
    stopping: bool = False


@attrs.define(eq=False)
class _Server:
    """One server of the cluster; ``address`` keeps its port when it is stopped and started."""

    name: str
    port: int = attrs.field(default=0, init=False)
    _running: _Running | None = attrs.field(default=None, init=False, repr=False)
    """the present run, even while it stops"""

    @property
    def address(self) -> str:
        """The address, ``127.0.0.1:port``."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server runs; False as soon as it begins to stop."""
        return self._running is not None and not self._running.stopping

    async def _stop(self) -> None:
        if self._running is not None:
            self._running.stopping = True
            self._running.ready.stop()
        await self._wait_ended()

    async def _wait_ended(self) -> None:
        running = self._running
        if running is not None:
            await running.ended.wait()
            if self._running is running:
                self._running = None  # its callbacks would keep the server in memory


@attrs.define(eq=False)
class InProcessBroker(_Server):
    """One broker of the cluster."""

    store_dir: Path
    settings: Mapping[str, str] = attrs.field(repr=False)


@attrs.define(eq=False)
class InProcessNameServer(_Server):
    """One name server of the cluster."""

    kv_path: Path


S = TypeVar("S", bound=_Server)


class InProcessCluster:
    """Name servers and brokers of one ``local_cluster`` block."""

    def __init__(
        self, nursery: trio.Nursery, folder: Path, cluster_name: str, tls_config: Path | None = None
    ) -> None:
        self._nursery = nursery
        self._budget = ConnectionBudget.of_process()
        self.dir = folder
        """the folder of the stores, ``<dir>/<broker name>``"""
        self.cluster_name = cluster_name
        self.tls = Tls.from_file(tls_config) if tls_config is not None else None
        """the clients' setting for ``tls=True``: ``ClientSettings(tls=cluster.tls)``"""
        self._tls_lines = (
            {
                "tls.config.file": str(tls_config),
                "tls.server.mode": "enforcing",
                "tls.enable": "true",
            }
            if tls_config is not None
            else {}
        )
        self.namesrvs: list[InProcessNameServer] = []
        self.brokers: list[InProcessBroker] = []

    @property
    def namesrv_address(self) -> str:
        """The name servers' addresses as clients take them, ``"127.0.0.1:4711;127.0.0.1:4712"``."""
        return ";".join(namesrv.address for namesrv in self.namesrvs)

    def broker(self, name: str) -> InProcessBroker:
        """Return a broker by name. Raises: ``KeyError``."""
        return _find("broker", name, self.brokers)

    def namesrv(self, name: str) -> InProcessNameServer:
        """Return a name server by name. Raises: ``KeyError``."""
        return _find("name server", name, self.namesrvs)

    # What tests do with a cluster

    async def create_topic(self, name: str, queues: int = 4, *, attributes: str = "") -> None:
        """Create a topic on every running broker, and wait until clients find it.

        ``queues``: number of queues on each broker.
        """
        async with self.admin() as admin:
            await admin.create_topic(name, queues=queues, attributes=attributes)

    def admin(self) -> Admin:
        """Return an ``Admin`` for the running name servers, to be used with ``async with``."""
        return Admin(
            [namesrv.address for namesrv in self.namesrvs if namesrv.running], tls=self.tls
        )

    async def stop_broker(self, name: str) -> None:
        """Stop a broker in an orderly way, and wait until no name server lists it any more."""
        broker = self.broker(name)
        await broker._stop()
        await self._wait_listed(broker)

    async def crash_broker(self, name: str) -> None:
        """End a broker as ``kill -9`` would, and wait until no name server lists it any more.

        A task cannot be killed, so the broker's files are put back to their state at the call: with
        what the operating system had been given then, without what the broker wrote while ending.
        """
        broker = self.broker(name)
        if broker._running is None or not broker.running:
            return
        # A task that is about to run may still store a message, which must not be acknowledged.
        cast("BrokerReady", broker._running.ready).drop_connections()
        snapshot = broker.store_dir.with_name(f"{broker.store_dir.name}.crashed")
        # In one step of the loop, so that no message is stored in between.
        shutil.copytree(broker.store_dir, snapshot, copy_function=_copy_if_there)
        broker._running.scope.cancel()
        await broker._running.ended.wait()
        broker._running = None
        shutil.rmtree(broker.store_dir)
        snapshot.rename(broker.store_dir)
        await self._wait_listed(broker)

    async def start_broker(self, name: str) -> None:
        """Start a stopped broker with its store and port; wait until all name servers list it.

        If the broker is still stopping, it is started after that.
        """
        broker = self.broker(name)
        if broker.running:
            return
        lines = {
            "grpcServerPort": "0",
            **broker.settings,
            "haListenPort": "0",  # any free one: another program may have the port above
            "namesrvAddr": self.namesrv_address,
        }
        for attempt in range(PORT_ATTEMPTS):
            try:
                await self._start(broker, run_broker, BrokerConfig, lines, BROKER_KEYS)
                break
            except AddressInUse as error:
                # A program that is started again may take its old port while we hold it as free.
                if attempt + 1 == PORT_ATTEMPTS or error.address == broker.address:
                    raise
        await self._wait_listed(broker)

    async def stop_namesrv(self, name: str) -> None:
        """Stop a name server."""
        await self.namesrv(name)._stop()

    async def start_namesrv(self, name: str) -> None:
        """Start a stopped name server on its port; it has no routes until brokers register.

        If the name server is still stopping, it is started after that.
        """
        namesrv = self.namesrv(name)
        if namesrv.running:
            return
        lines = {"bindAddress": HOST, "kvConfigPath": str(namesrv.kv_path)}
        await self._start(namesrv, run_namesrv, NamesrvConfig, lines, NAMESRV_KEYS)

    async def _start(
        self,
        server: _Server,
        service: Callable[..., Awaitable[None]],
        kind: type[Any],
        lines: Mapping[str, str],
        keys: Any,
    ) -> None:
        lines = {**self._tls_lines, **lines, "listenPort": str(server.port)}
        entries = tuple(Entry(key, value) for key, value in lines.items())
        config = load(kind, [Source("local_cluster", entries)], keys).config
        await server._wait_ended()
        service = partial(service, budget=self._budget)
        try:
            running: _Running = await self._nursery.start(_run, service, config)
        except BaseExceptionGroup as group:
            raise sole_error(group) from None
        server._running, server.port = running, running.ready.port

    async def _wait_listed(self, broker: InProcessBroker) -> None:
        """Wait until every running name server lists a broker that runs, and no other."""
        for namesrv in self.namesrvs:
            if not namesrv.running:
                continue
            async with Admin(namesrv.address, tls=self.tls) as admin:
                with trio.fail_after(READY_SECONDS_MAX):
                    while (  # noqa: ASYNC110
                        broker.address in {known.address for known in await _brokers(admin)}
                    ) is not broker.running:
                        await trio.sleep(POLL_SECONDS)

    async def _stop_all(self) -> None:
        for server in (*reversed(self.brokers), *reversed(self.namesrvs)):
            await server._stop()


def _find(what: str, name: str, servers: Sequence[S]) -> S:
    for server in servers:
        if server.name == name:
            return server
    names = ", ".join(server.name for server in servers)
    raise KeyError(f"there is no {what} {name!r}; the cluster has {names}")


async def _brokers(admin: Admin) -> list[BrokerAddress]:
    try:
        return await admin.brokers()
    except TrioMQError:
        return []


async def _run(
    service: Callable[..., Awaitable[None]],
    config: object,
    *,
    task_status: trio.TaskStatus[_Running],
) -> None:
    """Run one service; report it with what is needed to end it."""
    ended = trio.Event()
    try:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                ready = await nursery.start(service, config)
                task_status.started(_Running(ready, scope, ended))
    finally:
        ended.set()


@asynccontextmanager
async def local_cluster(
    *,
    brokers: int | Sequence[str] = 1,
    namesrvs: int = 1,
    dir: Path | str | None = None,  # noqa: A002  (the word that tests expect)
    cluster_name: str = CLUSTER,
    settings: Mapping[str, object] | None = None,
    tls: bool = False,
) -> AsyncIterator[InProcessCluster]:
    """Run a cluster for the length of the block.

    ``brokers`` is a number (broker-a, broker-b, …) or the names. ``dir`` keeps the stores; None
    uses a temporary folder, which is deleted. ``settings`` are lines of ``broker.conf`` for every
    broker, under RocketMQ's names; they override ``SMALL_STORE`` and ``SHARED_LOOP``. With ``tls``
    every connection is encrypted, with certificates made for this cluster; ``cluster.tls`` is the
    clients' setting. An error in a service cancels the block and leaves it.
    """
    names = (
        [f"broker-{chr(ord('a') + number)}" for number in range(brokers)]
        if isinstance(brokers, int)
        else list(brokers)
    )
    with (
        tempfile.TemporaryDirectory(prefix="triomq-", ignore_cleanup_errors=True)
        if dir is None
        else nullcontext(dir)
    ) as place:
        folder = Path(place)
        async with open_background() as nursery:
            cluster = InProcessCluster(
                nursery, folder, cluster_name, _tls_files(folder) if tls else None
            )
            try:
                for number in range(1, namesrvs + 1):
                    cluster.namesrvs.append(
                        InProcessNameServer(
                            f"namesrv-{number}", folder / f"namesrv-{number}" / "kvConfig.json"
                        )
                    )
                    await cluster.start_namesrv(f"namesrv-{number}")
                for name in names:
                    lines = {
                        **SMALL_STORE,
                        **SHARED_LOOP,
                        **{key: _text(value) for key, value in (settings or {}).items()},
                        "brokerClusterName": cluster_name,
                        "brokerName": name,
                        "brokerIP1": HOST,
                        "bindAddress": HOST,
                        "storePathRootDir": str(folder / name),
                    }
                    cluster.brokers.append(InProcessBroker(name, folder / name, lines))
                    await cluster.start_broker(name)
                yield cluster
            finally:
                with trio.CancelScope(
                    shield=True, deadline=trio.current_time() + READY_SECONDS_MAX
                ):
                    await cluster._stop_all()


def _tls_files(folder: Path) -> Path:
    from triomq.remoting.tls.development import initialise  # cryptography, only with TLS

    return initialise(folder / "tls", [HOST, "localhost"]).config


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _copy_if_there(source: str, target: str) -> str:
    """Copy a file, unless a thread that saves a table has just given it another name."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)
    return target


@contextmanager
def server_in_thread(
    *,
    brokers: int | Sequence[str] = 1,
    namesrvs: int = 1,
    dir: Path | str | None = None,  # noqa: A002  (the word that tests expect)
    settings: Mapping[str, object] | None = None,
    tls: bool = False,
) -> Iterator[InProcessCluster]:
    """Run ``local_cluster`` in a thread of its own for the length of the block.

    Other threads may only read ``namesrv_address`` and ``tls`` of the cluster.
    """
    portal = Portal(
        local_cluster(brokers=brokers, namesrvs=namesrvs, dir=dir, settings=settings, tls=tls)
    )
    cluster = portal.start().result()
    try:
        yield cluster
    finally:
        stopped = portal.stop()
        portal.join()
    stopped.result()
