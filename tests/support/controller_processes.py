"""Three controllers in three processes, which can be killed, stopped and started again."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

import attrs
from processes import free_port, running

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.controller import ControllerMetadataHeader

IDS = ("n0", "n1", "n2")
SECONDS_MAX = 60


@attrs.define(eq=False)
class ControllerProcesses:
    """``mqnamesrv`` with a controller, three times."""

    folder: Path
    ports: dict[str, tuple[int, int]] = attrs.field(init=False)
    """Of the name server and of the controller."""
    running: dict[str, tuple[Popen[bytes], ExitStack]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.ports = {name: (free_port(), free_port()) for name in (*IDS, "n3")}

    @property
    def name_servers(self) -> str:
        return ";".join(f"127.0.0.1:{self.ports[name][0]}" for name in IDS)

    @property
    def addresses(self) -> str:
        return ";".join(self.address(name) for name in IDS)

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name][1]}"

    def start(self, name: str, named: Sequence[str] = IDS) -> None:
        """*named*: the controllers of its settings."""
        folder, (namesrv_port, port) = self.folder / name, self.ports[name]
        peers = ";".join(f"{one}-{self.address(one)}" for one in named)
        define = (
            "enableControllerInNamesrv=true",
            "controllerDLegerGroup=group1",
            f"controllerDLegerPeers={peers}",
            f"controllerDLegerSelfId={name}",
            f"controllerStorePath={folder / 'controller'}",
        )
        settings = [word for line in define for word in ("-D", line)]
        command = [sys.executable, "-m", "triomq.namesrv", "-p", str(namesrv_port), *settings]
        stack = ExitStack()
        process = stack.enter_context(
            running(command, folder / "namesrv.log", port=port, env={"HOME": str(folder)})
        )
        self.running[name] = process, stack

    def kill(self, name: str) -> None:
        process, stack = self.running.pop(name)
        process.kill()
        process.wait()
        stack.close()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name][0].send_signal(number)

    def leader(self, *besides: str) -> str:
        """Wait until a controller leads that is not one of *besides*."""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            for name in self.running.keys() - set(besides):
                answer = self.try_at(name, request(Code.CONTROLLER_GET_METADATA_INFO))
                if answer is not None and answer.header(ControllerMetadataHeader).is_leader:
                    return name
            time.sleep(0.05)
        raise AssertionError("no controller leads")

    def ask(self, command: Command, *besides: str) -> Command:
        """Ask whoever leads until it answers, like a broker."""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            for name in self.running.keys() - set(besides):
                answer = self.try_at(name, command)
                if answer is not None and answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    return answer
            time.sleep(0.05)
        raise AssertionError("no controller leads")

    def try_at(self, name: str, command: Command, seconds: float = 3) -> Command | None:
        try:
            with BlockingConnection(self.address(name)) as connection:
                return connection.invoke(command, timeout=seconds)
        except RemotingError:
            return None


@contextmanager
def controller_processes(folder: Path) -> Iterator[ControllerProcesses]:
    controllers = ControllerProcesses(folder)
    try:
        for name in IDS:
            controllers.start(name)
        yield controllers
    finally:
        for process, _ in controllers.running.values():
            process.send_signal(signal.SIGCONT)
        for _, stack in controllers.running.values():
            stack.close()
