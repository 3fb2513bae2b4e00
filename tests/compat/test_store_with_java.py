"""One store directory, in turns under our broker and under Java's: each opens what the other has
written, after a stop and after a kill.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
from processes import (
    java_command,
    java_peer,
    our_broker,
    running,
    wait_registered,
    write_java_conf,
    write_logback,
)

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

TOPIC = "Shared"
NAME = "broker-shared"
FIRST, SECOND, THIRD = 30, 20, 10


@contextmanager
def java_broker_on(
    version: str, folder: Path, namesrv: str, store: Path
) -> Iterator[subprocess.Popen[bytes]]:
    port = processes.free_port(span=2)
    home = folder / f"java-{port}"
    write_logback(home)
    conf = write_java_conf(home, NAME, namesrv, port, storePathRootDir=store)
    command = java_command(
        version, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=home
    )
    with running(command, home / "broker.log", port=port) as process:
        wait_registered(namesrv, NAME)
        yield process


@contextmanager
def our_broker_on(folder: Path, namesrv: str, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    with our_broker(folder, NAME, namesrv, storePathRootDir=store) as (_, process):
        wait_registered(namesrv, NAME)
        yield process


def end(process: subprocess.Popen[bytes], *, killed: bool) -> None:
    """Java takes its time to stop, and writes the groups' offsets at the very end of it."""
    if killed:
        process.kill()
    else:
        process.terminate()
    process.wait(60)


def consumed(version: str, namesrv: str, group: str, count: int) -> list[tuple[str, str]]:
    """(tag, body) of what a group gets."""
    lines = java_peer(version, "consume", namesrv, TOPIC, group, "*", str(count), "60", seconds=120)
    return sorted((line[2], line[7]) for line in lines if line[0] == "GOT")


def send(version: str, namesrv: str, count: int, tag: str) -> list[tuple[str, str]]:
    lines = java_peer(version, "send", namesrv, TOPIC, str(count), tag, "sync", seconds=120)
    assert [line[1] for line in lines if line[0] == "SENT"] == ["SEND_OK"] * count
    return sorted((tag, f"body-{number}") for number in range(count))


def tags_by_key(version: str, namesrv: str, key: str) -> int:
    return len(
        [
            line
            for line in java_peer(version, "query", namesrv, TOPIC, key, seconds=120)
            if line[0] == "FOUND"
        ]
    )


@pytest.mark.loss
@pytest.mark.compatible(
    "directory from theirs", "directory from ours", peer="java-server-{java_version}"
)
@pytest.mark.feature("29a", "29b", "187a", "187b")
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_directory_goes_from_us_to_java_and_back(
    java_version: str, killed: bool, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with our_broker_on(tmp_path / "ours-1", namesrv, store) as process:
            first = send(java_version, namesrv, FIRST, "First")
            end(process, killed=killed)
        with java_broker_on(java_version, tmp_path, namesrv, store) as process:
            assert consumed(java_version, namesrv, "early", FIRST) == first
            assert tags_by_key(java_version, namesrv, "java-3") == 1
            second = send(java_version, namesrv, SECOND, "Second")
            end(process, killed=killed)
        with our_broker_on(tmp_path / "ours-2", namesrv, store) as process:
            assert consumed(java_version, namesrv, "late", FIRST + SECOND) == sorted(first + second)
            if not killed:  # Java writes offsets every 5 s
                assert consumed(java_version, namesrv, "early", SECOND) == second
            assert tags_by_key(java_version, namesrv, "java-3") == 2
            third = send(java_version, namesrv, THIRD, "Third")
            end(process, killed=killed)
        with java_broker_on(java_version, tmp_path, namesrv, store):
            assert consumed(java_version, namesrv, "last", FIRST + SECOND + THIRD) == sorted(
                first + second + third
            )
    command = [sys.executable, "-m", "triomq.broker.inspect", "verify", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)
