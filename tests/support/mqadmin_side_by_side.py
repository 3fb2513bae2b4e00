"""A cluster of ours and one of Java's in the same state, and mqadmin, RocketMQ's own and ours, on
both: what it prints is compared after times, addresses and ids became words.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from processes import (
    PEERS,
    java_broker,
    java_command,
    java_name_server,
    our_broker,
    our_name_server,
    wait_registered,
    write_logback,
)

CLUSTER, BROKER = "TestCluster", "broker-a"
AUTH = "org.apache.rocketmq.auth"
JAVA_USERS = {
    "authenticationMetadataProvider": (
        f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationMetadataProvider": (
        f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
"""settings of a Java broker that keeps users; nobody has to be one"""


@attrs.frozen
class Side:
    """One cluster."""

    whose: str
    namesrv: str
    broker: str
    folder: Path
    """for exports"""

    def words(self, line: str) -> list[str]:
        """A command with the names of this side."""
        names = {"ADDR": self.broker, "FOLDER": str(self.folder)}
        return [names.get(word, word) for word in line.split()]


@contextlib.contextmanager
def quick_jvms() -> Iterator[None]:
    """JVMs that start now compile less: half of the time of a short run goes into that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@contextlib.contextmanager
def both_sides(version: str, folder: Path) -> Iterator[tuple[Side, Side]]:
    """Ours, then Java's."""
    users: dict[str, object] = (
        {**JAVA_USERS, "authConfigPath": folder / "auth"} if version >= "5.3" else {}
    )
    with (
        quick_jvms(),
        java_name_server(version, folder / "java-namesrv") as java_namesrv,
        our_name_server(folder) as namesrv,
        our_broker(folder / "ours", BROKER, namesrv) as (address, _),
        java_broker(version, folder / "java", BROKER, java_namesrv, **users) as java_address,
    ):
        wait_registered(namesrv, BROKER)
        yield (
            Side("ours", namesrv, address, folder / "exports-ours"),
            Side("java", java_namesrv, java_address, folder / "exports-java"),
        )


def java_prints(
    version: str, side: Side, blocks: Sequence[Sequence[str]]
) -> dict[tuple[int, str], str]:
    """(block, command) → what RocketMQ's own mqadmin prints; commands of a block run at the same
    time.
    """
    write_logback(PEERS / "home")
    lines = [
        "".join("\t".join([*side.words(line), "-n", side.namesrv]) + "\n" for line in block)
        for block in blocks
    ]
    done = subprocess.run(
        java_command(version, "ManyMqadmin", side.namesrv),
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outputs = done.stdout.split("\n===\n")[:-1]
    commands = [(number, line) for number, block in enumerate(blocks) for line in block]
    assert (done.returncode, len(outputs)) == (0, len(commands)), done.stdout + done.stderr
    return {
        command: "\n".join(one for one in text.splitlines() if "|-INFO" not in one)
        for command, text in zip(commands, outputs, strict=True)
    }


def java_prints_on_both(
    version: str, sides: Sequence[Side], blocks: Sequence[Sequence[str]]
) -> list[dict[tuple[int, str], str]]:
    """The outputs of each side; two JVMs at the same time."""
    with ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(lambda side: java_prints(version, side, blocks), sides))


WORDS = (
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?", "TIME"),
    (r"\b1[6-9]\d{11}\b", "MS"),
    (r"\b[0-9A-F]{32,56}\b", "ID"),
    (r"127\.0\.0\.1:\d+", "HOST"),
)


def plain_text(side: Side, text: str) -> list[str]:
    """The lines of an output, sorted, with words in place of what differs from run to run."""
    text = text.replace(side.broker, "BROKER").replace(side.namesrv, "NAMESRV")
    text = text.replace(str(side.folder), "FOLDER")
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return sorted(filter(None, (" ".join(line.split()) for line in text.splitlines())))


def plain_document(side: Side, value: Any) -> Any:
    """The same for a JSON document."""
    if isinstance(value, Mapping):
        return {
            plain_document(side, key): plain_document(side, member) for key, member in value.items()
        }
    if isinstance(value, list):
        return [plain_document(side, member) for member in value]
    if isinstance(value, str):
        return "\n".join(plain_text(side, value))
    if isinstance(value, int) and not isinstance(value, bool) and value > 1_600_000_000_000:
        return "MS"
    return value


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two values differ."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        lines = [f"{path}/{key}: only one has it" for key in sorted(ours.keys() ^ theirs.keys())]
        for key in ours.keys() & theirs.keys():
            lines += differences(ours[key], theirs[key], f"{path}/{key}")
        return sorted(lines)
    if ours != theirs:
        return [f"{path}: {ours!r} at ours, {theirs!r} at theirs"]
    return []
