"""A small network: hosts that are network namespaces, joined by a bridge in a namespace of its own.
Needs root, iproute2 and iptables.

    with Network(("names", "master")) as network:
        subprocess.Popen([*network.inside("master"), "mqbroker", ...])
        network.cut("names", "master")

The machine's own network does not see it, so the addresses are always the same. Names of namespaces
contain the id of this process; the next run removes what a killed run left behind. Rules go to the
INPUT chain of the receiving host, so a packet is lost on its way and no side hears of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

import attrs
import small_file_system

PREFIX = "tmqf"
TOOLS = ("ip", "tc", "iptables")


class NetworkMissing(RuntimeError):
    """This machine cannot do it, and why."""


def why_not() -> str:
    """Why there can be no such network here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} missing (apt-get install iproute2 iptables)"
    try:
        with Network(("one", "two")) as network:
            network.cut("one", "two")
            network.lose("one", "two", 0.5)
            network.slow("two", 1000)
    except NetworkMissing as error:
        return str(error)
    return small_file_system.why_not()


def command(*words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NetworkMissing(
            f"`{' '.join(map(str, words))}` ends with {done.returncode}:"
            f" {(done.stderr or done.stdout).strip()}"
        )
    return done.stdout


def remove_leftovers() -> None:
    """Namespaces of runs that are no more."""
    for line in command("ip", "netns", "list").splitlines():
        found = re.match(rf"{PREFIX}(\d+)-", line)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            with contextlib.suppress(NetworkMissing):
                command("ip", "netns", "del", line.split()[0])


@attrs.define
class Network:
    """Hosts have the addresses 10.77.0.2, 10.77.0.3 … in their order."""

    hosts: Sequence[str]
    tag: str = attrs.field(factory=lambda: f"{PREFIX}{os.getpid()}-{secrets.token_hex(2)}")
    _rules: list[tuple[str, ...]] = attrs.field(factory=list)
    """Host and words of each rule of its firewall."""
    _slow: set[str] = attrs.field(factory=set)

    def __enter__(self) -> Network:
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def _build(self) -> None:
        hub = f"{self.tag}-hub"
        command("ip", "netns", "add", hub)
        command("ip", "-n", hub, "link", "add", "hub", "type", "bridge")
        command("ip", "-n", hub, "link", "set", "hub", "up")
        for host in self.hosts:
            name = self.name(host)
            command("ip", "netns", "add", name)
            command(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                f"to-{host}"[:15],
                "netns",
                hub,
            )
            command("ip", "-n", hub, "link", "set", f"to-{host}"[:15], "master", "hub", "up")
            command("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                command("ip", "-n", name, "link", "set", device, "up")

    def remove(self) -> None:
        """All of it, with what is in the namespaces but for processes."""
        for line in command("ip", "netns", "list").splitlines():
            if line.startswith(f"{self.tag}-"):
                command("ip", "netns", "del", line.split()[0])

    def name(self, host: str) -> str:
        return f"{self.tag}-{host}"

    def address(self, host: str) -> str:
        return f"10.77.0.{2 + self.hosts.index(host)}"

    def inside(self, host: str) -> list[str]:
        """What goes before a command that shall run there; ``ip`` becomes that command, so its
        process id is the right one.
        """
        return ["ip", "netns", "exec", self.name(host)]

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one to the other. The way back is open."""
        self._add(target, "-s", self.address(source), "-j", "DROP")

    def lose(self, source: str, target: str, share: float) -> None:
        """So many of the packets."""
        self._add(
            target,
            "-s",
            self.address(source),
            "-m",
            "statistic",
            "--mode",
            "random",
            "--probability",
            f"{share:.3f}",
            "-j",
            "DROP",
        )

    def _add(self, host: str, *words: str) -> None:
        command(*self.inside(host), "iptables", "-w", "-A", "INPUT", *words)
        self._rules.append((host, *words))

    def join(self, source: str, target: str) -> None:
        """Take back ``cut`` and ``lose`` on this way."""
        for rule in [
            rule for rule in self._rules if rule[0] == target and rule[2] == self.address(source)
        ]:
            command(*self.inside(target), "iptables", "-w", "-D", "INPUT", *rule[1:])
            self._rules.remove(rule)

    def slow(self, host: str, kilobits: int) -> None:
        """What a host sends goes out at this rate; 0 takes that back."""
        if kilobits:
            command(
                "tc",
                "-n",
                self.name(host),
                "qdisc",
                "replace",
                "dev",
                "eth0",
                "root",
                "tbf",
                "rate",
                f"{kilobits}kbit",
                "burst",
                "16kb",
                "latency",
                "400ms",
            )
            self._slow.add(host)
        elif host in self._slow:
            command("tc", "-n", self.name(host), "qdisc", "del", "dev", "eth0", "root")
            self._slow.discard(host)

    def heal(self) -> None:
        """Everything as at the beginning."""
        for source in self.hosts:
            for target in self.hosts:
                self.join(source, target)
        for host in list(self._slow):
            self.slow(host, 0)
