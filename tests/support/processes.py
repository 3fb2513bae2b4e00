"""Real processes for tests: our name server and broker, and the Java ones, each ended by its own
pid.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import access_run
import foreign_peers

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / ".peers"


def ports_of(ports: str, worker: int, workers: int) -> range:
    """The part of ``ports`` ("15000-31999") that worker number ``worker`` of ``workers`` has."""
    first, _, last = ports.partition("-")
    share = (int(last) + 1 - int(first)) // workers
    return range(int(first) + worker * share, int(first) + (worker + 1) * share)


FREE_PORTS = ports_of(
    os.environ.get("TEST_PORTS", "15000-31999"),
    int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
"""Below those that the system gives to outgoing connections: one of them may come at any moment
between the look and the use. Suites that run at the same time, and the workers of pytest-xdist,
have ports of their own.
"""


BLOCK = 8
_blocks = list(range(FREE_PORTS.start, FREE_PORTS.stop - BLOCK, BLOCK))
random.SystemRandom().shuffle(_blocks)  # Hypothesis seeds the common one
_next_block = itertools.cycle(_blocks)


def free_port(*, span: int = 2) -> int:
    """A port of 127.0.0.1 that is free together with the ``span - 1`` above it (replication) and
    the two below (the fast port). None of them is given again before all others were: a test may
    ask for several before a program takes the first, or start one again at its port.
    """
    assert span <= BLOCK - 2, f"a block has {BLOCK} ports"
    for block in itertools.islice(_next_block, len(_blocks)):
        port = block + 2
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for candidate in range(port - 2, port + span):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", candidate))
            return port
    raise AssertionError(f"no free ports from {FREE_PORTS.start} to {FREE_PORTS.stop}")


def wait_listening(
    port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 60
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(
        f"nothing listens on port {port}; log of {process.args!r}:\n{log.read_text()[-4000:]}"
    )


def wait_registered(namesrv: str, broker_name: str, seconds: float = 60) -> None:
    """Until the name server's answer to GET_BROKER_CLUSTER_INFO (106) names the broker."""
    host, port = namesrv.rsplit(":", 1)
    header = b'{"code":106,"flag":0,"language":"JAVA","opaque":1,"version":513}'
    frame = (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(frame)
            answer = b""
            while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4]):
                answer += connection.recv(65536)
        if f'"{broker_name}"'.encode() in answer:
            return
        time.sleep(0.1)
    raise AssertionError(f"broker {broker_name} did not register with {namesrv}")


@contextlib.contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    port: int | None = None,
    env: dict[str, str] | None = None,
    only: bool = False,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, wait until its port listens, end it with SIGTERM (SIGKILL after ten
    seconds). ``only``: with the environment ``env`` and nothing of this process's.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**({} if only else os.environ), **(env or {})},
            cwd=cwd,
        )
    try:
        with foreign_peers.alive(command):
            if port is not None:
                wait_listening(port, process, log)
            yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def our_name_server(
    folder: Path, port: int | None = None, define: Sequence[str] = ()
) -> Iterator[str]:
    port = port or free_port()
    settings = [word for line in define for word in ("-D", line)]
    with running(
        [sys.executable, "-m", "triomq.namesrv", "-p", str(port), *settings],
        folder / "namesrv.log",
        port=port,
        env={"HOME": str(folder)},
    ):
        yield f"127.0.0.1:{port}"


def write_broker_conf(folder: Path, name: str, namesrv: str, port: int, **settings: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "brokerClusterName": "TestCluster",
        "brokerName": name,
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "grpcServerPort": 0,
        "namesrvAddr": namesrv,
        "storePathRootDir": folder / "store",
        **settings,
    }
    conf = folder / f"{name}.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return conf


REGISTERED_SECONDS = 5.0
"""A broker listens a moment before name servers know it, on a busy machine a long one. After this
time the test goes on without: some have no name server.
"""


@contextlib.contextmanager
def our_broker(
    folder: Path, name: str, namesrv: str, port: int | None = None, **settings: object
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield (address, process) of a real ``mqbroker`` process."""
    port = port or free_port()
    settings = {"haListenPort": 0, **access_run.BROKER_SETTINGS, **settings}
    conf = write_broker_conf(folder, name, namesrv, port, **settings)
    log = folder / f"{name}.log"
    before = log.stat().st_size if log.exists() else 0
    with running(
        [sys.executable, "-m", "triomq.broker", "-c", str(conf)], log, port=port
    ) as process:
        deadline = time.monotonic() + REGISTERED_SECONDS
        while (
            b"registered with name server" not in log.read_bytes()[before:]
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        if process.poll() is not None:
            raise AssertionError(f"the broker ended:\n{log.read_text()[-4000:]}")
        if access_run.ON:
            access_run.add_client(f"127.0.0.1:{port}")
        yield f"127.0.0.1:{port}", process


def java_home(version: str) -> Path | None:
    """The folder of the installed Java peers, or None when ``make peers`` has not run."""
    home = PEERS / f"java-{version}"
    return home if (home / "classes" / "Peer.class").exists() and shutil.which("java") else None


UNDER_PYTEST = "PYTEST_VERSION" in os.environ
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Short runs take a quarter less of the processor with the fast compiler only. Benchmarks do not
run under pytest, and have the whole of Java.
"""
QUIET_BROKER = {"transactionMetricFlushInterval": 500, "timerFlushIntervalMs": 30_000}
"""Settings of Java's brokers in tests. By default that of 5.5.0 spins for ten seconds, until it
saves its transaction metrics for the first time, and writes its whole timer wheel (37 MB) to the
disk each second, which takes a sixth of a processor.
"""


def java_command(
    version: str,
    main: str,
    *arguments: str,
    home: Path | None = None,
    heap: str = "512m",
    define: Sequence[str] = (),
) -> list[str]:
    folder = java_home(version)
    assert folder is not None
    options = [f"-Xmx{heap}", "-Xms64m", "-Dfile.encoding=UTF-8"]
    options += QUICK_JAVA if UNDER_PYTEST else ("-XX:+UseG1GC",)
    options += [
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    ]  # 4.9 unmaps files by reflection
    home = home or PEERS / "home"  # Java writes its logs below user.home
    options += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    options += [f"-D{line}" for line in define]
    command = ["java", *options, "-cp", f"{folder}/classes:{folder}/jars/*", main, *arguments]
    foreign_peers.note(str(foreign_peers.peer_of(command)))
    return command


def java_peer(
    version: str,
    *arguments: str,
    seconds: float = 60,
    define: Sequence[str] = (),
    heap: str = "512m",
) -> list[list[str]]:
    """Run a verb of tests/compat/java/Peer.java to its end, with these system properties; its
    lines, split at tabs.
    """
    done = subprocess.run(
        java_command(version, "Peer", *arguments, define=define, heap=heap),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (
        f"Peer {arguments} ended with"
        f" {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return [
        line.split("\t")
        for line in done.stdout.splitlines()
        if line.split("\t")[0] in {"SENT", "GOT", "FOUND", "COMPLETE", "STARTED"}
    ]


def java_mqadmin(
    version: str,
    namesrv: str,
    commands: Sequence[Sequence[object]],
    seconds: float = 120,
    home: Path | None = None,
) -> list[str]:
    """Run commands of RocketMQ's own mqadmin in one JVM; what each of them printed. A command that
    fails prints its stack trace, which raises here. ``home`` may have credentials in
    ``conf/tools.yml``.
    """
    home = home or PEERS / ("home-with-access" if access_run.ON else "home")
    write_logback(home)
    if access_run.ON:
        (home / "conf" / "tools.yml").write_text(access_run.CREDENTIALS)
    lines = "".join("\t".join([*map(str, command), "-n", namesrv]) + "\n" for command in commands)
    done = subprocess.run(
        java_command(version, "Mqadmin", home=home),
        input=lines,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    outputs = done.stdout.split("\n===\n")[:-1]
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(outputs) == len(commands), (
        f"{len(outputs)} of {len(commands)} commands"
        f" ended\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    failures = [
        line
        for line in done.stderr.splitlines()
        if "SubCommandException" in line or line.startswith("Caused by")
    ]
    assert failures == [], "\n".join(failures) + done.stderr[-4000:]
    return [
        "\n".join(
            line for line in output.splitlines() if "|-INFO" not in line and "|-WARN" not in line
        )
        for output in outputs
    ]


def write_logback(home: Path) -> None:
    """4.x does not start without its own log configurations."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker", "tools"):
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>\n")


@contextlib.contextmanager
def java_name_server(
    version: str, folder: Path, define: Sequence[str] = (), **settings: object
) -> Iterator[str]:
    port = free_port()
    write_logback(folder)
    conf = folder / "namesrv.properties"
    conf.write_text(
        "".join(f"{key}={value}\n" for key, value in {"listenPort": port, **settings}.items())
    )
    command = java_command(
        version,
        "org.apache.rocketmq.namesrv.NamesrvStartup",
        "-c",
        str(conf),
        home=folder,
        define=define,
    )
    with running(command, folder / "namesrv.log", port=port):
        yield f"127.0.0.1:{port}"


def write_java_conf(folder: Path, name: str, namesrv: str, port: int, **settings: object) -> Path:
    """The configuration of a Java broker, which replicates at the next port."""
    quiet = QUIET_BROKER if UNDER_PYTEST else {}
    values = {"haListenPort": port + 1, **quiet, **settings}
    return write_broker_conf(folder, name, namesrv, port, **values)


@contextlib.contextmanager
def java_broker(
    version: str,
    folder: Path,
    name: str,
    namesrv: str,
    *,
    heap: str = "1g",
    define: Sequence[str] = (),
    **settings: object,
) -> Iterator[str]:
    port = free_port(span=2)
    write_logback(folder)
    conf = write_java_conf(folder, name, namesrv, port, **settings)
    command = java_command(
        version,
        "org.apache.rocketmq.broker.BrokerStartup",
        "-c",
        str(conf),
        home=folder,
        heap=heap,
        define=define,
    )
    with running(command, folder / f"{name}.log", port=port) as process:
        wait_registered(namesrv, name)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()  # an orderly stop takes it eight seconds
