"""A cluster of real processes with the verbs of ``triomq.testing.local_cluster``: its crashes are
SIGKILLs, and each service has a memory of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import psutil
import trio
from processes import free_port, write_broker_conf

from triomq import TrioMQError
from triomq.client.admin.admin import Admin
from triomq.in_process import SMALL_STORE

READY_SECONDS_MAX = 60.0


@attrs.define(eq=False)
class ServiceProcess:
    """A name server or a broker: its process is replaced by every start."""

    name: str
    port: int
    command: Sequence[str]
    log: Path
    process: trio.Process | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None

    def anonymous_bytes(self) -> int | None:
        """Memory that no file backs; None while it does not run. (``uss`` counts the pages of a
        mapped file that only one process has.)
        """
        process = self.process
        if process is None or process.poll() is not None:
            return None
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return psutil.Process(process.pid).memory_full_info().uss

    async def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self.process = await trio.lowlevel.open_process(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    async def end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        assert process.poll() is None, (
            f"{self.name} ended by itself:\n{self.log.read_text()[-4000:]}"
        )
        process.send_signal(number)
        with trio.move_on_after(READY_SECONDS_MAX):
            await process.wait()
            return
        process.kill()
        await process.wait()


@attrs.define(eq=False)
class ProcessCluster:
    """What a soak needs of a cluster."""

    folder: Path
    namesrvs: list[ServiceProcess]
    brokers: list[ServiceProcess] = attrs.field(factory=list)

    @property
    def namesrv_address(self) -> str:
        return ";".join(namesrv.address for namesrv in self.namesrvs)

    def _named(self, name: str) -> ServiceProcess:
        return next(service for service in (*self.brokers, *self.namesrvs) if service.name == name)

    async def create_topic(self, name: str, queues: int) -> None:
        async with Admin(
            [namesrv.address for namesrv in self.namesrvs if namesrv.running]
        ) as admin:
            await admin.create_topic(name, queues=queues)

    async def stop_broker(self, name: str) -> None:
        """Stop a broker in order."""
        await self._named(name).end(signal.SIGTERM)

    async def crash_broker(self, name: str) -> None:
        """Kill a broker, whatever it is doing."""
        await self._named(name).end(signal.SIGKILL)

    async def start_broker(self, name: str) -> None:
        """Start a broker; returns when every running name server lists it."""
        broker = self._named(name)
        await broker.start()
        for namesrv in self.namesrvs:
            if namesrv.running:
                await self._until_answered(broker, namesrv, broker.address)

    async def stop_namesrv(self, name: str) -> None:
        await self._named(name).end(signal.SIGTERM)

    async def start_namesrv(self, name: str) -> None:
        """Start a name server; returns when it answers. It knows nothing until brokers register
        again.
        """
        namesrv = self._named(name)
        await namesrv.start()
        await self._until_answered(namesrv, namesrv, None)

    async def _until_answered(
        self, started: ServiceProcess, namesrv: ServiceProcess, wanted: str | None
    ) -> None:
        with trio.fail_after(READY_SECONDS_MAX):
            while True:
                assert started.process is not None
                assert started.process.poll() is None, (
                    f"{started.name} did not start:\n{started.log.read_text()[-4000:]}"
                )
                try:
                    async with Admin(namesrv.address) as admin:
                        addresses = {broker.address for broker in await admin.brokers()}
                    if wanted is None or wanted in addresses:
                        return
                except TrioMQError:
                    pass  # not yet
                await trio.sleep(0.1)


@asynccontextmanager
async def process_cluster(
    folder: Path, *, brokers: Sequence[str], namesrvs: int, settings: Mapping[str, object]
) -> AsyncIterator[ProcessCluster]:
    """Run name servers and brokers as processes for the length of the block; stores and logs stay
    in ``folder``.
    """
    names = [f"namesrv-{number}" for number in range(1, namesrvs + 1)]
    cluster = ProcessCluster(folder, [_name_server(folder, name) for name in names])
    for name in brokers:
        port = free_port()
        values = {**SMALL_STORE, "haListenPort": 0, **settings}
        conf = write_broker_conf(folder / name, name, cluster.namesrv_address, port, **values)
        command = [sys.executable, "-m", "triomq.broker", "-c", str(conf)]
        cluster.brokers.append(ServiceProcess(name, port, command, folder / "logs" / f"{name}.log"))
    try:
        for namesrv in cluster.namesrvs:
            await cluster.start_namesrv(namesrv.name)
        for broker in cluster.brokers:
            await cluster.start_broker(broker.name)
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            for service in (*cluster.brokers, *cluster.namesrvs):
                if service.process is not None and service.process.poll() is None:
                    await service.end(signal.SIGTERM)


def _name_server(folder: Path, name: str) -> ServiceProcess:
    port = free_port()
    kv_path = f"kvConfigPath={folder / name / 'kvConfig.json'}"
    command = [sys.executable, "-m", "triomq.namesrv", "-p", str(port), "-D", kv_path]
    return ServiceProcess(name, port, command, folder / "logs" / f"{name}.log")
