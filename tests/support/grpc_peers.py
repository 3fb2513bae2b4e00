"""The official clients of RocketMQ 5 as programs: each carries out scenarios, several at once, and
prints what it did as JSON lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import foreign_peers
import pytest
from grpc_scenarios import COUNT
from processes import PEERS, ROOT

PROGRAMS = ROOT / "tests" / "compat" / "grpc"
SECONDS_MAX = 120


def java_program(home: Path) -> list[str]:
    # A small heap and the fast compiler only: three clients start at once on two cores.
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *options, "-cp", f"{home}/classes:{home}/jars/*", "GrpcPeer"]


def python_program(home: Path) -> list[str]:
    return [str(home / "venv" / "bin" / "python"), str(PROGRAMS / "python" / "grpc_peer.py")]


def node_program(home: Path) -> list[str]:
    return ["node", str(PROGRAMS / "node" / "grpc_peer.js")]


def go_program(home: Path) -> list[str]:
    return [str(home / "grpc_peer")]


CLIENTS = {
    "grpc-java-5.2.0": java_program,
    "grpc-python-5.1.2": python_program,
    "grpc-node-1.0.8": node_program,
    "grpc-go-5.1.4": go_program,
}
"""Column of docs/compatibility.md, and folder below ``.peers`` -> the start of its command line."""


@attrs.define(eq=False)
class GrpcPeer:
    """A running program; ``events``: what it printed of each scenario, in order."""

    client: str
    process: subprocess.Popen[str]
    log: Path
    events: dict[str, list[dict[str, Any]]]
    _ended: bool = False
    _news: threading.Condition = attrs.field(factory=threading.Condition)

    def read(self) -> None:
        """Take in what it prints, in a thread of its own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                event = json.loads(line)
                self.events[event.pop("scenario")].append(event)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def done(self, scenario: str) -> list[dict[str, Any]]:
        """Wait until the scenario is done, and return its other events."""
        foreign_peers.note(self.client)
        events = self.events[scenario]
        deadline = time.monotonic() + SECONDS_MAX
        with self._news:
            while (last := self._last(scenario)) is None:
                assert not self._ended, f"{self.client} has ended: {events}\n{self.errors()}"
                left = deadline - time.monotonic()
                assert left > 0, f"{self.client}, {scenario}: {events}\n{self.errors()}"
                self._news.wait(left)
        others = [event for event in events if event is not last]
        assert last["event"] == "done", f"{last}\nafter {others}\n{self.errors()}"
        return others

    def _last(self, scenario: str) -> dict[str, Any] | None:
        ends = (event for event in self.events[scenario] if event["event"] in {"done", "failed"})
        return next(ends, None)

    def errors(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def grpc_peer(
    client: str,
    endpoint: str,
    scenarios: Sequence[str],
    prefix: str,
    folder: Path,
    *,
    ca: Path | None = None,
) -> Iterator[GrpcPeer]:
    """Let the client begin with the scenarios, of topics ``<prefix>-<scenario>`` and groups of the
    same names; end it after the block. Its logs go to the folder.

    ``ca``: speak TLS, and verify the server's certificate (the clients in Java and Go never do).
    """
    home = folder / prefix
    home.mkdir(parents=True)
    command = [
        *CLIENTS[client](PEERS / client),
        endpoint,
        "tls" if ca else "plain",
        ",".join(scenarios),
    ]
    if client.startswith("grpc-java"):
        command.insert(1, f"-Duser.home={home}")
    log = home / "errors.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, prefix, prefix, str(COUNT)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env={
                **os.environ,
                "HOME": str(home),
                "NODE_PATH": str(PEERS / client / "node_modules"),
                "rocketmq.client.enableSsl": "true" if ca else "false",
                "rocketmq.client.logRoot": str(home),
                **({"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca)} if ca else {}),
            },
        )
    peer = GrpcPeer(client, process, log, {scenario: [] for scenario in scenarios})
    reader = threading.Thread(target=peer.read)
    reader.start()
    try:
        yield peer
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def need_grpc_clients() -> None:
    missing = [client for client in CLIENTS if not (PEERS / client / ".complete").exists()]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; run `make peers`")
