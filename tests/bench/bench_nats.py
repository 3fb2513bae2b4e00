"""The SDK beside nats-py with JetStream and aiokafka, in one run, on this machine: ``make
bench-nats``.

    python tests/bench/bench_nats.py [--seconds 2] [--rounds 5] [--kept 60000] [--size 1024]
        [--json FILE] [--base CHECKOUT] [--no-nats] [--kafka]

nats-server with JetStream file storage, and our name server and broker, run at the same time with
their own defaults; so do the client processes, of which one works at a time, in turns, so that a
noisy minute hits all. Each cell is the median of the rounds. Neither store waits for the disk:
JetStream syncs its files every two minutes, our broker (ASYNC_FLUSH) every half second, Kafka
leaves it to the system. nats-py and aiokafka live in environments of their own below ``.bench``;
the servers are the system's ``nats-server`` (or NATS_SERVER names one) and, with ``--kafka``, the
node of ``kafka_side_by_side.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import processes
from kafka_side_by_side import kafka_node, need_kafka

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent.parent

PEERS = {"nats": "nats-py>=2.9", "kafka": "aiokafka>=0.12"}
DEPTHS = (1, 64, 256)
SERVER_MISSING = """\
nats-server is not installed. On Debian: apt-get install nats-server
(or without root: apt-get download nats-server && dpkg -x nats-server_*.deb nats \
&& export NATS_SERVER=$PWD/nats/usr/sbin/nats-server)"""
CLIENT_MISSING = (
    "{peer} cannot be installed into {folder}: {reason}\nIt needs a package index: run with"
    " network."
)


def nats_server() -> str:
    found = (
        os.environ.get("NATS_SERVER")
        or shutil.which("nats-server")
        or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin:/usr/local/bin")
    )
    if found is None:
        raise SystemExit(SERVER_MISSING)
    return found


def python_of(side: str) -> str:
    """The interpreter of the environment that holds that peer's client, made at first use."""
    folder = ROOT / ".bench" / side
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEERS[side]],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                CLIENT_MISSING.format(
                    peer=PEERS[side], folder=folder, reason=done.stderr.strip()[-500:]
                )
            )
        ready.touch()
    return str(python)


@contextlib.contextmanager
def nats_running(folder: Path) -> Iterator[str]:
    port = processes.free_port()
    command = [
        nats_server(),
        "-js",
        "-sd",
        str(folder / "jetstream"),
        "-a",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    with processes.running(command, folder / "nats.log", port=port):
        yield f"127.0.0.1:{port}"


class Client:
    """One client process, which carries out requests and reports their results."""

    def __init__(
        self, command: list[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(environment or {})},
            )

    def ask(self, **request: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self._process.args!r} ended while it was asked for"
                f" {request}:\n{self._log.read_text()[-4000:]}"
            )
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def work_list(kept: int, seconds: float, size: int) -> list[tuple[str, str, str, dict[str, Any]]]:
    """(row, column, side, request) of one round."""
    work: list[tuple[str, str, str, dict[str, Any]]] = []
    for depth in DEPTHS:
        row, load = (
            f"publish, {depth} in flight",
            {"in_flight": depth, "seconds": seconds, "size": size},
        )
        work += [
            (row, "ours", "ours", {"verb": "publish", **load}),
            (row, "ours, asyncio", "asyncio", {"verb": "publish", **load}),
            (row, "ours, sync", "sync", {"verb": "publish", **load}),
            (row, "nats-py", "nats", {"verb": "publish", **load}),
            (row, "aiokafka", "kafka", {"verb": "publish", **load}),
            (row, "ours, `auto_batch`", "ours", {"verb": "publish_batched", **load}),
            (row, "nats-py, `publish_async`", "nats", {"verb": "publish_async", **load}),
        ]
    for row, column, side, how in (
        ("consume, a call for each message", "ours", "ours", "handler"),
        ("consume, a call for each message", "ours, asyncio", "asyncio", "handler"),
        ("consume, a call for each message", "ours, sync", "sync", "handler"),
        ("consume, a call for each message", "nats-py", "nats", "callback"),
        ("consume, a call for each message", "nats-py, no acks", "nats", "ordered"),
        ("consume, a call for each message", "aiokafka", "kafka", "each"),
        ("consume, lists of 256", "ours", "ours", "poll"),
        ("consume, lists of 256", "ours, asyncio", "asyncio", "poll"),
        ("consume, lists of 256", "ours, sync", "sync", "poll"),
        ("consume, lists of 256", "nats-py", "nats", "fetch"),
        ("consume, lists of 256", "aiokafka", "kafka", "getmany"),
        ("consume, lists of 256, acknowledged one by one", "ours", "ours", "take"),
        ("consume, lists of 256, acknowledged one by one", "ours, asyncio", "asyncio", "take"),
        ("consume, lists of 256, acknowledged one by one", "ours, sync", "sync", "take"),
        ("consume, lists of 256, acknowledged one by one", "nats-py", "nats", "fetch"),
    ):
        work.append((row, column, side, {"verb": "consume", "how": how, "count": kept}))
    return work


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[dict[str, float]]]]:
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        clients: dict[str, Client] = {}
        if options.nats:
            server, python = nats_server(), python_of("nats")
            version = subprocess.run(
                [server, "--version"], capture_output=True, text=True, check=True
            ).stdout.strip()
            print(f"{version}; Python {sys.version.split()[0]}", file=sys.stderr)
            address = stack.enter_context(nats_running(folder))
            clients["nats"] = Client(
                [python, str(BENCH / "nats_client.py"), address], folder / "nats-client.log"
            )
        if options.kafka:
            need_kafka()
            node = stack.enter_context(kafka_node(folder / "kafka"))
            clients["kafka"] = Client(
                [python_of("kafka"), str(BENCH / "kafka_client.py"), node.address],
                folder / "kafka-client.log",
            )
        namesrv = stack.enter_context(processes.our_name_server(folder))
        stack.enter_context(processes.our_broker(folder, "broker-a", namesrv))
        ours = [sys.executable, str(BENCH / "sdk_client.py"), namesrv]
        clients["ours"] = Client(ours, folder / "ours.log")
        for name in ("asyncio", "sync"):
            command = [sys.executable, str(BENCH / "facade_client.py"), namesrv, name]
            clients[name] = Client(command, folder / f"{name}.log")
        if options.base is not None:
            clients["base"] = Client(ours, folder / "base.log", {"PYTHONPATH": str(options.base)})
        for client in clients.values():
            stack.callback(client.end)
        for side in clients.keys() & {"ours", "nats", "kafka"}:
            clients[side].ask(verb="fill", count=options.kept, size=options.size)
        for number in range(options.rounds):
            for row, column, side, request in work_list(
                options.kept, options.seconds, options.size
            ):
                if options.only not in row:
                    continue
                sides = {column: side}
                if side == "ours":
                    sides[column.replace("ours", "base")] = "base"
                for name in sorted(sides, reverse=bool(number % 2)):
                    if sides[name] in clients:
                        answer = clients[sides[name]].ask(**request)
                        results.setdefault(row, {}).setdefault(name, []).append(answer)
                        print(
                            f"{row:<50} {name:<26} {rate(answer):>9,.0f} /s  {cost(answer):6.1f} µs"
                            " of CPU each",
                            file=sys.stderr,
                            flush=True,
                        )
    return results


def rate(answer: dict[str, float]) -> float:
    return answer["messages"] / answer["seconds"]


def cost(answer: dict[str, float]) -> float:
    return answer["cpu"] / max(answer["messages"], 1) * 1e6


def table(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Markdown: messages a second (and µs of the client's CPU for each), medians; the ratio is that
    of ours to the best of nats-py.
    """
    lines = [
        "| | ours | nats-py | ours : best of nats-py | otherwise |",
        "|---|---:|---:|---:|---|",
    ]
    for row, columns in results.items():
        middle = {name: statistics.median(map(rate, answers)) for name, answers in columns.items()}
        price = {name: statistics.median(map(cost, answers)) for name, answers in columns.items()}
        text = {name: f"{middle[name]:,.0f} ({price[name]:.1f})" for name in columns}
        best = max(
            (value for name, value in middle.items() if name.startswith("nats-py")), default=0.0
        )
        ratio = f"{middle['ours'] / best:.2f}" if best else ""
        others = "; ".join(
            f"{name}: {text[name]}" for name in columns if name not in ("ours", "nats-py")
        )
        lines.append(f"| {row} | {text['ours']} | {text.get('nats-py', '')} | {ratio} | {others} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each publishing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kept", type=int, default=60_000, help="messages that consumers read")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--json", type=Path, help="write every single result there")
    parser.add_argument(
        "--folder",
        type=Path,
        help="folder of both stores (default: the system's folder for temporary files)",
    )
    parser.add_argument(
        "--base",
        type=Path,
        help="another checkout of TrioMQ, whose SDK is measured in turns with this one",
    )
    parser.add_argument("--only", default="", help="measure only rows whose names hold this text")
    parser.add_argument("--no-nats", dest="nats", action="store_false", help="without nats-py")
    parser.add_argument("--kafka", action="store_true", help="aiokafka and Kafka, too")
    options = parser.parse_args()
    results = measure(options)
    print(table(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
