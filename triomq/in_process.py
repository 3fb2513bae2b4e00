"""A whole cluster inside one Trio loop: the same services as the processes, on port 0 of the loopback, ready in milliseconds.

Real sockets, real files, the real protocol; only the processes are missing.  `triomq.testing` is the public door to this module.  This is the
one place that may import every service; nothing but that door imports it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import attrs
import trio

from triomq.broker.app import BrokerReady, run_broker
from triomq.broker.config import BrokerConfig
from triomq.broker.java_keys import BROKER_KEYS
from triomq.client.admin.admin import Admin, BrokerAddress
from triomq.client.errors import TrioMQError
from triomq.namesrv.app import run_namesrv
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.remoting.properties import Entry
from triomq.remoting.settings import Source, load
from triomq.remoting.tls.client import Tls

HOST = "127.0.0.1"
CLUSTER = "DefaultCluster"
READY_SECONDS_MAX = 30.0
POLL_SECONDS = 0.002

SMALL_STORE: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
"""Store geometry of test brokers: files of the same layout, only smaller.  A message still may have 4 MiB."""


class _Ready(Protocol):
    """What both services report when they answer requests."""

    port: int

    def stop(self) -> None: ...


@attrs.define(eq=False)
class _Running:
    """A service in the nursery."""

    ready: _Ready
    scope: trio.CancelScope
    ended: trio.Event


@attrs.define(eq=False)
class InProcessBroker:
    """One broker of the cluster; `address` keeps its port over `stop_broker` and `start_broker`."""

    name: str
    store_dir: Path
    settings: Mapping[str, str]
    port: int = 0
    _running: _Running | None = None

    @property
    def address(self) -> str:
        """Return `127.0.0.1:port`."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._running is not None


@attrs.define(eq=False)
class InProcessNameServer:
    """One name server of the cluster."""

    name: str
    kv_path: Path
    port: int = 0
    _running: _Running | None = None

    @property
    def address(self) -> str:
        """Return `127.0.0.1:port`."""
        return f"{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._running is not None


class InProcessCluster:
    """Name servers and brokers of one `local_cluster` block."""

    def __init__(self, nursery: trio.Nursery, folder: Path, cluster_name: str, tls_config: Path | None = None) -> None:
        self._nursery = nursery
        self.dir = folder
        """where stores are; `<dir>/<broker name>`"""
        self.cluster_name = cluster_name
        self.tls = Tls.from_file(tls_config) if tls_config is not None else None
        """how clients approach a cluster that was started with `tls=True`: `ClientSettings(tls=cluster.tls)`"""
        self._tls_lines = (
            {"tls.config.file": str(tls_config), "tls.server.mode": "enforcing", "tls.enable": "true"}
            if tls_config is not None
            else {}
        )
        self.namesrvs: list[InProcessNameServer] = []
        self.brokers: list[InProcessBroker] = []

    @property
    def namesrv_address(self) -> str:
        """Return the name servers' addresses as clients take them, `"127.0.0.1:4711;127.0.0.1:4712"`."""
        return ";".join(namesrv.address for namesrv in self.namesrvs)

    def broker(self, name: str) -> InProcessBroker:
        """Return a broker by name; `KeyError` for an unknown one."""
        for broker in self.brokers:
            if broker.name == name:
                return broker
        raise KeyError(
            f"there is no broker {name!r}; the cluster has {', '.join(broker.name for broker in self.brokers)}"
        )

    def namesrv(self, name: str) -> InProcessNameServer:
        """Return a name server by name; `KeyError` for an unknown one."""
        for namesrv in self.namesrvs:
            if namesrv.name == name:
                return namesrv
        raise KeyError(
            f"there is no name server {name!r}; the cluster has {', '.join(namesrv.name for namesrv in self.namesrvs)}"
        )

    # --- what tests do with it ---------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, queues: int = 4, *, attributes: str = "") -> None:
        """Create a topic on every running broker, with so many queues each; return when clients can find it."""
        async with self.admin() as admin:
            await admin.create_topic(name, queues=queues, attributes=attributes)

    def admin(self) -> Admin:
        """Return an administration client of the running name servers, to be used with `async with`."""
        return Admin([namesrv.address for namesrv in self.namesrvs if namesrv.running], tls=self.tls)

    async def stop_broker(self, name: str) -> None:
        """Stop a broker in an orderly way; return when no name server lists it any more."""
        broker = self.broker(name)
        await _stop(broker)
        await self._wait_listed(broker.address, listed=False)

    async def crash_broker(self, name: str) -> None:
        """End a broker as `kill -9` would; return when no name server lists it any more.

        A task cannot be killed, so its files are put back to what they were at the moment of the call: what the operating system had
        been given is there, whatever the broker did while it was leaving is not.
        """
        broker = self.broker(name)
        if broker._running is None:
            return
        # A task that is about to run may still store a message: then nobody may hear of it.
        cast("BrokerReady", broker._running.ready).drop_connections()
        snapshot = broker.store_dir.with_name(f"{broker.store_dir.name}.crashed")
        shutil.copytree(broker.store_dir, snapshot)  # in one step of the loop: no message can come in between
        broker._running.scope.cancel()
        await broker._running.ended.wait()
        broker._running = None
        shutil.rmtree(broker.store_dir)
        snapshot.rename(broker.store_dir)
        await self._wait_listed(broker.address, listed=False)

    async def start_broker(self, name: str) -> None:
        """Start a stopped broker again, with its store and its port; return when every name server lists it."""
        broker = self.broker(name)
        if broker._running is not None:
            return
        lines = {
            **self._tls_lines,
            **broker.settings,
            "listenPort": str(broker.port),
            "haListenPort": "0",  # the next one may be somebody else's
            "namesrvAddr": self.namesrv_address,
        }
        config = _config(BrokerConfig, lines, BROKER_KEYS)
        broker._running = await self._start(run_broker, config)
        broker.port = broker._running.ready.port
        await self._wait_listed(broker.address, listed=True)

    async def stop_namesrv(self, name: str) -> None:
        """Stop a name server."""
        await _stop(self.namesrv(name))

    async def start_namesrv(self, name: str) -> None:
        """Start a stopped name server again, on its port.  It knows nothing until brokers register again."""
        namesrv = self.namesrv(name)
        if namesrv._running is not None:
            return
        lines = {
            **self._tls_lines,
            "bindAddress": HOST,
            "listenPort": str(namesrv.port),
            "kvConfigPath": str(namesrv.kv_path),
        }
        namesrv._running = await self._start(run_namesrv, _config(NamesrvConfig, lines, NAMESRV_KEYS))
        namesrv.port = namesrv._running.ready.port

    async def _start(self, service: Callable[..., Awaitable[None]], config: object) -> _Running:
        try:
            running: _Running = await self._nursery.start(_run, service, config)
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise error from None
        return running

    async def _wait_listed(self, address: str, *, listed: bool) -> None:
        """Ask every running name server until all agree."""
        for namesrv in self.namesrvs:
            if not namesrv.running:
                continue
            async with Admin(namesrv.address, tls=self.tls) as admin:
                with trio.fail_after(READY_SECONDS_MAX):
                    while (address in {broker.address for broker in await _brokers(admin)}) is not listed:  # noqa: ASYNC110  (asked over the wire)
                        await trio.sleep(POLL_SECONDS)

    async def _stop_all(self) -> None:
        for broker in reversed(self.brokers):
            await _stop(broker)
        for namesrv in reversed(self.namesrvs):
            await _stop(namesrv)


async def _brokers(admin: Admin) -> list[BrokerAddress]:
    try:
        return await admin.brokers()
    except TrioMQError:
        return []


async def _run(
    service: Callable[..., Awaitable[None]], config: object, *, task_status: trio.TaskStatus[_Running]
) -> None:
    """Run one service; report it with the means to end it."""
    ended = trio.Event()
    try:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                ready = await nursery.start(service, config)
                task_status.started(_Running(ready, scope, ended))
    finally:
        ended.set()


async def _stop(service: InProcessBroker | InProcessNameServer) -> None:
    running, service._running = service._running, None
    if running is not None:
        running.ready.stop()
        await running.ended.wait()


def _config(kind: type[Any], lines: Mapping[str, str], keys: Any) -> Any:
    return load(kind, [Source("local_cluster", tuple(Entry(key, value) for key, value in lines.items()))], keys).config


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

    `brokers` is a number (broker-a, broker-b, …) or the names.  `dir` keeps the stores; None takes a temporary folder that goes away.
    `settings` are lines of `broker.conf` for every broker, under RocketMQ's names; they win over `SMALL_STORE`.
    With `tls` every connection is encrypted, with certificates made for this cluster; `cluster.tls` is for the clients.
    An error in any service cancels the block and leaves it.
    """
    names = (
        [f"broker-{chr(ord('a') + number)}" for number in range(brokers)] if isinstance(brokers, int) else list(brokers)
    )
    failure: Exception | None = None
    async with AsyncExitStack() as stack:
        folder = (
            Path(dir)
            if dir is not None
            else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triomq-", ignore_cleanup_errors=True)))
        )
        async with trio.open_nursery() as nursery:
            cluster = InProcessCluster(nursery, folder, cluster_name, _tls_files(folder) if tls else None)
            try:
                for number in range(1, namesrvs + 1):
                    cluster.namesrvs.append(
                        InProcessNameServer(f"namesrv-{number}", folder / f"namesrv-{number}" / "kvConfig.json")
                    )
                    await cluster.start_namesrv(f"namesrv-{number}")
                for name in names:
                    lines = {
                        **SMALL_STORE,
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
            except Exception as error:  # kept aside, so that it leaves the block as it is, without a group around it
                failure = error
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + READY_SECONDS_MAX):
                    await cluster._stop_all()
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


def _tls_files(folder: Path) -> Path:
    from triomq.remoting.tls.development import initialise  # cryptography, only with TLS

    return initialise(folder / "tls", [HOST, "localhost"]).config


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
