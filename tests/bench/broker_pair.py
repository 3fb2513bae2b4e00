"""Our broker and the Java broker 5.5.0 as processes that a benchmark can stop, kill and start
again, each with its own store and name server.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import processes
from bench_broker import call, connect, create_topic, frame, run_shape
from side_by_side import Side, broker_script

TOPIC = "SideBySide"
GIB = 1 << 30
START_SECONDS_MAX = 900
START_TRIES = 10
JAVA_HEAP = "4g"


@dataclass
class Broker:
    """One of the two. ``side`` collects what is measured; a new process changes its pid."""

    name: str
    folder: Path
    command: list[str]
    port: int
    namesrv: str
    process: subprocess.Popen[bytes] | None = None
    side: Side = field(init=False)

    def __post_init__(self) -> None:
        self.side = Side(self.address, 0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self) -> float:
        """Start it; return the seconds until it has answered a request. Try again if another
        process has one of its ports meanwhile.
        """
        for _ in range(START_TRIES):
            size = log.stat().st_size if (log := self.folder / "broker.log").exists() else 0
            seconds = self._start_once()
            if seconds is not None:
                return seconds
            with log.open(errors="replace") as text:
                text.seek(size)
                said = text.read()
            if "in use" not in said:
                break
            time.sleep(1)
        raise SystemExit(f"{self.name} did not start; its log ends with\n{said[-3000:]}")

    def _start_once(self) -> float | None:
        begun = time.perf_counter()
        with (self.folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self.side.pid = self.process.pid
        while time.perf_counter() - begun < START_SECONDS_MAX:
            with suppress(OSError, struct.error), connect(self.address) as sock:
                call(sock, frame(30, {"topic": TOPIC, "queueId": "0"}))
                return time.perf_counter() - begun
            if self.process.poll() is not None:
                return None
            time.sleep(0.01)
        return None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(timeout=180)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def files(self) -> list[Path]:
        """Log and consume queues."""
        return [
            path
            for name in ("commitlog", "consumequeue")
            for path in (self.store / name).rglob("*")
            if path.is_file()
        ]

    def drop_cache(self) -> None:
        """Have the page cache forget the store, but for what a process has mapped and touched."""
        os.sync()
        for path in self.files():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def fill(self, messages: int, topic: str = TOPIC) -> int:
        """Send so many messages of 1 KiB, 64 in flight, with the keys that ``key_of`` gives; how
        many were acknowledged.
        """
        result = run_shape(self.address, topic, 1, 64, 3600, prefix=RUN_KEY, requests_max=messages)
        return result.messages

    def end_offsets(self, topic: str = TOPIC, queues: int = 8) -> list[int]:
        with connect(self.address) as sock:
            return [end_offset_of(sock, topic, queue) for queue in range(queues)]


RUN_KEY = f"{os.getpid():08X}{int(time.time()) & 0xFFFFFFFF:08X}"


def key_of(number: int) -> str:
    """UNIQ_KEY of the message with this number of ``fill``."""
    return f"{RUN_KEY}{number:016X}"


def end_offset_of(sock: socket.socket, topic: str, queue: int) -> int:
    header, _ = call(sock, frame(30, {"topic": topic, "queueId": str(queue)}))
    fields = header.get("extFields")
    return int(fields["offset"]) if header["code"] == 0 and isinstance(fields, dict) else 0


@contextmanager
def broker_pair(*, with_java: bool = True, **settings: object) -> Iterator[list[Broker]]:
    """Both brokers, started, with these lines in their configurations; everything is ended and
    removed afterwards.
    """
    if with_java and processes.java_home("5.5.0") is None:
        raise SystemExit("the Java broker is not installed: run `make peers`, or give --no-java")
    folder = Path(tempfile.mkdtemp(prefix="broker-pair-", dir=os.environ.get("BENCH_DIR")))
    try:
        with ExitStack() as stack:
            brokers = [_ours(stack, folder / "ours", settings)]
            if with_java:
                brokers.append(_java(stack, folder / "java", settings))
            for broker in brokers:
                stack.callback(broker.stop)
                broker.start()
                create_topic(broker.address, TOPIC)
            with telling_of_the_dead(brokers):
                yield brokers
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def telling_of_the_dead(brokers: list[Broker]) -> Iterator[None]:
    """When the block fails, the logs of brokers that have ended by themselves say why."""
    try:
        yield
    except BaseException:
        for broker in brokers:
            if broker.process is not None and broker.process.poll() is not None:
                print(
                    f"{broker.name} in {broker.folder.name} ended with {broker.process.returncode};"
                    " its log ends"
                    f" with\n{(broker.folder / 'broker.log').read_text(errors='replace')[-3000:]}",
                    file=sys.stderr,
                )
        raise


def _ours(stack: ExitStack, folder: Path, settings: dict[str, object]) -> Broker:
    return our_server(
        folder, stack.enter_context(processes.our_name_server(folder)), "broker-ours", **settings
    )


def _java(stack: ExitStack, folder: Path, settings: dict[str, object]) -> Broker:
    return java_server(
        folder,
        stack.enter_context(processes.java_name_server("5.5.0", folder / "namesrv")),
        "broker-java",
        **settings,
    )


def our_server(folder: Path, namesrv: str, name: str, **settings: object) -> Broker:
    """A broker of ours that is not started yet."""
    port = processes.free_port(span=2)
    conf = processes.write_broker_conf(folder, name, namesrv, port, **settings)
    return Broker("ours", folder, [broker_script(), "-c", str(conf)], port, namesrv)


def java_server(folder: Path, namesrv: str, name: str, **settings: object) -> Broker:
    """The same of Java 5.5.0."""
    port = processes.free_port(span=2)
    processes.write_logback(folder)
    conf = processes.write_broker_conf(
        folder, name, namesrv, port, haListenPort=port + 1, **settings
    )
    command = processes.java_command(
        "5.5.0",
        "org.apache.rocketmq.broker.BrokerStartup",
        "-c",
        str(conf),
        home=folder,
        heap=JAVA_HEAP,
    )
    return Broker("Java", folder, command, port, namesrv)


def warm_up(brokers: list[Broker], seconds: float) -> None:
    """Java's compiler needs load before it is fast; ours gets a tenth of it."""
    for broker in brokers:
        if seconds:
            run_shape(
                broker.address, TOPIC, 1, 64, seconds if broker.name == "Java" else seconds / 10
            )
