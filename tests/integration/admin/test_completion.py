"""Completion of mqadmin's command line: the candidates, and real shells that ask for them."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from mqadmin_calls import failed, mqadmin
from silent_servers import silent_server

from triomq.client.mqadmin.completion import completed
from triomq.client.mqadmin.core.command_list import LIST, VERBS
from triomq.client.mqadmin.core.completion_scripts import SCRIPTS
from triomq.testing import local_cluster


@pytest.fixture(autouse=True)
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "triomq" / "contexts.json"
    path.parent.mkdir()
    servers = {"production": {"namesrvAddr": "p:1"}, "preview": {}}
    path.write_text(json.dumps({"current": None, "contexts": servers}))
    path.chmod(0o600)
    return path


def words_for(*words: str) -> list[str]:
    return [line.partition("\t")[0] for line in completed(words).splitlines()]


def test_the_first_word_is_a_group_or_a_name() -> None:
    assert words_for("") == [*VERBS, "top", "doctor", "completion", "help"]
    assert words_for("to") == ["topic", "top"]
    assert words_for("topicL") == ["topicList"]
    assert words_for("topic-st") == ["topic-status"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["topic", "st"], ["status", "stats"]),
        (["help", "topic", "li"], ["list"]),
        (["topic", "nothing", ""], []),
        (["nothing", ""], []),
        (["topic", "create", "--read"], ["--readQueueNums"]),
        (["updateTopic", "--read"], ["--readQueueNums"]),
        (["topic", "create", "--readQueueNums", "4", "--read"], []),
        (["topic", "create", "--readQueueNums=4", "--r"], []),
        (["topic", "create", "-r4", "--r"], []),
        (["topic", "create", "-o", ""], ["true", "false"]),
        (["topic", "create", "-t", ""], []),
        (["topic", "list", "-c", "--w"], ["--watch"]),
        (["topic", "delete", "--d"], ["--dry-run"]),
        (["topic", "list", "--d"], []),
        (["topic", "list", "--context", "pr"], ["production", "preview"]),
        (["context", "use", ""], ["production", "preview"]),
        (["context", "use", "production", "--j"], ["--json"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["topic", "list", "--tls", ""], []),
        (["topic", "create", "-r"], ["-r"]),
    ],
)
def test_candidates(words: list[str], expected: list[str]) -> None:
    assert words_for(*words) == expected


async def test_names_are_those_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        namesrv, broker = cluster.namesrv_address, cluster.brokers[0]
        await mqadmin("group", "create", "-c", "DefaultCluster", "-g", "billing", "-n", namesrv)

        async def found(*words: str) -> list[str]:
            return await trio.to_thread.run_sync(words_for, *words)

        assert await found("topic", "route", "-n", namesrv, "ord") == ["orders"]
        assert await found("topic", "route", "-n", namesrv, "-t", "ord") == ["orders"]
        assert await found("topic", "route", f"--namesrvAddr={namesrv}", "ord") == ["orders"]
        assert await found("topic", "route", "-n", namesrv, "%") == ["%RETRY%billing"]
        monkeypatch.setenv("NAMESRV_ADDR", namesrv)
        assert await found("group", "why", "b") == ["billing"]
        assert await found("group", "members", "b") == ["billing"]
        assert await found("group", "members", "-g", "b") == ["billing"]
        assert await found("group", "members", "billing", "b") == []
        assert await found("dlq", "show", "b") == ["billing"]
        assert await found("broker", "drain", "") == [broker.name]
        assert await found("broker", "config", "-b", "") == [broker.address]
        assert await found("topic", "delete", "-c", "") == ["DefaultCluster"]


def test_a_cluster_that_does_not_answer_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_server() as port:
        monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:{port}")
        assert words_for("topic", "route", "") == []
    monkeypatch.setenv("NAMESRV_ADDR", "not an address")
    assert words_for("topic", "route", "") == []


def test_every_command_can_be_completed() -> None:
    for name in LIST:
        assert "--json" in words_for(name, "--js")


def test_a_file_of_contexts_that_cannot_be_read_is_no_failure(contexts: Path) -> None:
    contexts.chmod(0o644)
    assert words_for("context", "use", "") == []


async def test_the_command_prints_the_script_of_a_shell() -> None:
    for shell, script in SCRIPTS.items():
        assert (await mqadmin("completion", shell)).out == script
    assert failed(await mqadmin("completion", "tcsh"), 2, "use one of bash, zsh, fish")
    assert failed(await mqadmin("completion"), 2, "SHELL is missing")


# --- real shells


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program, in front of PATH and the current one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "mqadmin").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m triomq.client.mqadmin.cli "$@"\n'
    )
    (folder / "mqadmin").chmod(0o755)
    (folder / "tls.properties").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    return folder


Typing = Callable[[str, str], str]


@pytest.fixture
def typing(program: Path) -> Iterator[Callable[[list[str], str], Typing]]:
    """Start a shell on a terminal; the function types a text and waits for another one."""
    processes: list[tuple[subprocess.Popen[bytes], int]] = []

    def start(words: list[str], setting: str) -> Typing:
        if shutil.which(words[0]) is None:
            pytest.skip(f"{words[0]} is not installed")
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            words,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=program,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200", "PS1": "> "},
            start_new_session=True,
        )
        os.close(theirs)
        processes.append((process, ours))

        def enter(text: str, expected: str) -> str:
            os.write(ours, text.encode())
            found, end = "", time.monotonic() + 30
            while expected not in found:
                assert time.monotonic() < end, found
                found += os.read(ours, 4096).decode(errors="replace")
            return found

        enter(f"{setting}; echo rea''dy\n", "ready")
        return enter

    yield start
    for process, ours in processes:
        process.kill()
        process.wait()
        os.close(ours)


SHELLS = {
    "bash": (["bash", "--norc", "-i"], "source <(mqadmin completion bash)"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit && compinit -D -u; source <(mqadmin completion zsh)",
    ),
}


@pytest.mark.feature("170d")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell: str, typing: Callable[[list[str], str], Typing]) -> None:
    """The rest of a word appears on the line after a tab."""
    enter = typing(*SHELLS[shell])
    for typed, completed_line in (
        ("mqadmin topi", "topic "),
        ("li", "list "),
        ("--clu", "--clusterModel "),
        ("--context prod", "production "),
        ("--tls tls.p", "tls.properties "),
    ):
        enter(f"{typed}\t", completed_line)
    enter("\x15mqadmin topicSta\t", "topicStatus ")  # Ctrl-U: an empty line


def test_fish_completes(program: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    for line, expected in {
        "mqadmin topic li": ["list\tlist the topics"],
        "mqadmin context use prod": ["production\tp:1"],
        "mqadmin topic list --tls tls.p": ["tls.properties"],
        "mqadmin doc": [f"doctor\t{LIST['doctor'].summary}"],
    }.items():
        script = f"mqadmin completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            cwd=program,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.splitlines() == expected
