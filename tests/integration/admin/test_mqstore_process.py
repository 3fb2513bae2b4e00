"""mqstore as a process: exit codes, streams, a running or killed broker, a terminal, a
closed pipe.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import runpy
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from golden_data import GOLDEN
from processes import our_broker, our_name_server

from triomq import sync
from triomq.broker.inspect import layout

MQSTORE = [sys.executable, "-m", "triomq.broker.inspect"]


def call(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MQSTORE, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.fixture
def java_store(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "store" / "java-5.5.0.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "java-5.5.0"


@pytest.mark.parametrize(
    "command",
    [
        ["verify", "-c", "FIFO", "STORE"],
        ["dump", "--topic", "GoldTopic", "--count", "0", "-c", "FIFO", "STORE"],
    ],
)
def test_control_c_is_neither_damage_nor_a_traceback(
    java_store: Path, tmp_path: Path, command: list[str]
) -> None:
    """While mqstore waits for the rest of its configuration file."""
    fifo = tmp_path / "broker.conf"
    os.mkfifo(fifo)
    words = [str({"FIFO": fifo, "STORE": java_store}.get(word, word)) for word in command]
    with subprocess.Popen(
        [*MQSTORE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        with fifo.open("w"):  # opens when mqstore reads
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (
            "",
            "mqstore: interrupted: not everything has been read\n",
        )


def test_control_c_while_messages_are_printed(java_store: Path) -> None:
    """While mqstore waits for a reader of the pipe, which has room for a tenth of the messages."""
    command = [*MQSTORE, "dump", "--json", "--topic", "GoldTopic", "--count", "0", str(java_store)]
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with (
        os.fdopen(reader, "rb", buffering=0) as out,
        subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process,
    ):
        os.close(writer)
        assert out.read(1) == b"{"
        process.send_signal(signal.SIGINT)
        while out.read(65536):
            pass
        assert process.stderr is not None
        assert process.stderr.read() == b"mqstore: interrupted: not everything has been read\n"
        assert process.wait(timeout=60) == 130


@pytest.mark.feature("186b")
def test_exit_codes_and_streams(java_store: Path, tmp_path: Path) -> None:
    done = call("verify", java_store)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "verdict  clean"
    (java_store / "commitlog" / "00000000000000065536").unlink()
    done = call("verify", java_store)
    assert (done.returncode, done.stderr) == (1, "")
    assert "DAMAGE   commitlog/00000000000000065536 at 65536: the log has a hole" in done.stdout
    assert "what can be done: restore the missing segments" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("verdict  DAMAGED: 1 findings of damage")
    for words, complaint in (
        (["verify", tmp_path / "nowhere"], "is not a directory"),
        (["verify", tmp_path], "is not a store"),
        (["verify"], "DIR"),
        (["verify", "--quick", java_store], "--quick"),
        (["verify", "-D", "listenPort=1", java_store], "listenPort"),
        (["verify", "-D", "maxIndexNum=x", java_store], "maxIndexNum"),
        (["dump", java_store], "--topic"),
        (["dump", java_store, "--topic", "nope"], "the store holds no message of topic nope"),
        (["dump", java_store, "--topic", "GoldTopic", "--queue", "-1"], "negative"),
        ([], "COMMAND"),
    ):
        done = call(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr
    lost = call("dump", java_store, "--topic", "GoldRoll", "--count", 0)
    assert lost.returncode == 1
    assert "cannot be read: no segment holds it" in lost.stderr


def test_a_closed_pipe_is_not_an_error(java_store: Path) -> None:
    done = subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            f"{' '.join(MQSTORE)} dump {java_store} --topic GoldTopic --count 0 | head -1",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GoldTopic queue 0 offset 0")


def test_a_progress_bar_on_a_terminal_only(java_store: Path) -> None:
    leader, follower = pty.openpty()
    try:
        with subprocess.Popen(
            [*MQSTORE, "verify", "--json", str(java_store)],
            stdout=subprocess.PIPE,
            stderr=follower,
            env={**os.environ, "TERM": "xterm"},
        ) as process:
            assert process.stdout is not None
            document = json.loads(process.stdout.read())
        os.close(follower)
        follower = -1
        shown = b""
        try:
            while more := os.read(leader, 65536):
                shown += more
        except OSError:
            pass  # so Linux reports that the other side is closed
    finally:
        os.close(leader)
        if follower >= 0:
            os.close(follower)
    assert document["verdict"] == "clean"
    assert b"verify" in shown


@pytest.mark.feature("186a", "186c")
def test_a_store_in_use_and_killed(tmp_path: Path) -> None:
    """While a broker runs there is a warning; a store after kill -9 is clean, and so is the store
    after the next start.
    """
    with our_name_server(tmp_path) as namesrv:
        with our_broker(tmp_path, "broker-a", namesrv) as (_, process):
            with sync.Producer(group="p", namesrv=namesrv) as producer:
                for number in range(50):
                    producer.send(
                        "Orders", f"order {number}".encode(), keys=[f"k{number}"], tag="new"
                    )
            root = tmp_path / "store"
            done = call("verify", "--json", root)
            assert done.returncode == 0
            assert f"process {process.pid} uses {root}" in done.stderr
            document = json.loads(done.stdout)
            assert (document["state"], document["pid"]) == ("in use", process.pid)
            process.kill()
            process.wait()
        done = call("verify", "--json", root)
        document = json.loads(done.stdout)
        assert (done.returncode, done.stderr, document["state"]) == (0, "", "crashed")
        found = call(
            "dump", "--json", "--topic", "Orders", "--key", "k17", "--log", root
        )  # queue entries may have been in memory only
        assert found.returncode == 0
        assert json.loads(found.stdout)["body"] == "order 17"
        with our_broker(tmp_path, "broker-a", namesrv):
            pass
    done = call("verify", "--json", root)
    document = json.loads(done.stdout)
    assert (done.returncode, document["state"], document["findings"]) == (0, "stopped", [])
    assert document["queues"]["entries"] == document["log"]["records"] == 50


def test_the_page_is_up_to_date() -> None:
    docs = Path(__file__).parents[3] / "docs"
    page = runpy.run_path(str(docs / "generate_mqstore.py"))["page"]()
    assert (docs / "mqstore.md").read_text() == page, "run make docs"


def test_every_kind_of_finding_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mqstore.md").read_text()
    sources = "".join(path.read_text() for path in Path(layout.__file__).parent.glob("*.py"))
    kinds = set(re.findall(r'(?:damage|note|add)\(\s*(?:level,\s*)?"([a-z-]+)"', sources)) | set(
        re.findall(r'(?:_finding|not_empty)\(\w+, "([a-z-]+)"', sources)
    )
    assert {"record", "index-slot", "abort", "queue-ahead", "index-behind", "empty-index"} <= kinds
    assert {kind for kind in kinds if f"`{kind}`" not in page} == set()
