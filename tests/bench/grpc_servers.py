"""The servers of ``bench_messaging.py``: our broker with its gRPC endpoint, and Java's broker 5.5.0
with its proxy in one process (``-pm local``), on cores of their own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import psutil
from bench_broker import call, connect, create_topic, frame
from side_by_side import broker_script, processes
from verdict_table import Missing

VERSION = "5.5.0"
HOME = processes.PEERS / f"rocketmq-proxy-{VERSION}"
JAVA_HEAP = "4g"
START_SECONDS_MAX = 120


def need_peers() -> None:
    if not (HOME / ".complete").exists() or processes.java_home(VERSION) is None:
        raise Missing("Java's broker and proxy are missing: run `make peers`, or give --no-java")


@attrs.define(eq=False)
class GrpcServed:
    """A broker with an endpoint that runs. ``waiting``: messages that no consumer has had."""

    name: str
    address: str
    pid: int
    waiting: int = 0

    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu(self) -> float:
        """Return the seconds of the process and its children, ended ones included."""
        return sum(sum(process.cpu_times()[:4]) for process in self.processes())

    def resident_mb(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 1e6


@contextmanager
def alone(server: GrpcServed, servers: Sequence[GrpcServed]) -> Iterator[None]:
    """Stop the other servers for the block: on one core, Java's threads take time also when nothing
    is asked of them.
    """
    others = [process for other in servers if other is not server for process in other.processes()]
    for process in others:
        process.suspend()
    try:
        yield
    finally:
        for process in others:
            process.resume()


def pinned(command: Sequence[object], cpus: str) -> list[str]:
    return ["taskset", "-c", cpus, *map(str, command)]


def create_group(address: str, group: str) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), with the defaults."""
    with connect(address) as sock:
        header, _ = call(sock, frame(200, {}, json.dumps({"groupName": group}).encode()))
        if header["code"] != 0:
            raise SystemExit(f"cannot create group {group}: {header}")


@contextmanager
def served(
    name: str,
    folder: Path,
    namesrv: str,
    names: Sequence[str],
    cpus: str,
    *,
    profile: Path | None = None,
) -> Iterator[GrpcServed]:
    """Run ours or Java's for the block; their settings name places only. Each of ``names`` becomes
    a topic and a group: Java's proxy makes no groups.
    """
    port, grpc_port = processes.free_port(), processes.free_port()
    conf = processes.write_broker_conf(
        folder, f"broker-{name}", namesrv, port, grpcServerPort=grpc_port, haListenPort=port + 1
    )
    if name == "Java":
        command = java_command(folder, conf, namesrv, grpc_port)
    elif profile is None:
        command = [broker_script(), "-c", str(conf)]
    else:
        command = [sys.executable, "-m", "cProfile", "-o", str(profile), "-m", "triomq.broker"]
        command += ["-c", str(conf)]
    log = folder / "broker.log"
    home = {"RMQ_PROXY_HOME": str(folder), "ROCKETMQ_HOME": str(folder), "HOME": str(folder)}
    with processes.running(pinned(command, cpus), log, env=home) as process:
        for number in (port, grpc_port):
            processes.wait_listening(number, process, log, START_SECONDS_MAX)
        processes.wait_registered(namesrv, f"broker-{name}")
        for one in names:
            create_topic(f"127.0.0.1:{port}", one)
            create_group(f"127.0.0.1:{port}", one)
        yield GrpcServed(name, f"127.0.0.1:{grpc_port}", process.pid)


def java_command(folder: Path, conf: Path, namesrv: str, grpc_port: int) -> list[str]:
    """Broker and proxy in one process."""
    settings = folder / "conf" / "rmq-proxy.json"
    settings.parent.mkdir(parents=True)
    content = {
        "rocketMQClusterName": "TestCluster",
        "namesrvAddr": namesrv,
        "grpcServerPort": grpc_port,
        "remotingListenPort": processes.free_port(),
    }
    settings.write_text(json.dumps(content))
    # On one core, but with the threads and the collector of the whole machine.
    options = [f"-Xmx{JAVA_HEAP}", "-Xms64m", "-XX:+UseG1GC"]
    options += [f"-XX:ActiveProcessorCount={os.cpu_count()}", f"-Duser.home={folder}"]
    options += [
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    ]
    main = ["-cp", f"{HOME}/jars/*", "org.apache.rocketmq.proxy.ProxyStartup"]
    return ["java", *options, *main, "-pm", "local", "-bc", str(conf), "-pc", str(settings)]
