"""The programs answer ``--help`` and ``--version`` without heavy imports, and Ctrl-C during the
start prints no traceback. Start-up time is not asserted: these tests check the imports that
determine it.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import triomq
from triomq.client.mqadmin.core.command_list import LIST

ENTRIES = {
    "mqadmin": "triomq.client.mqadmin.cli",
    "mqbroker": "triomq.broker.__main__",
    "mqcontroller": "triomq.namesrv.controller_program",
    "mqlocal": "triomq.local",
    "mqnamesrv": "triomq.namesrv.__main__",
    "mqpipeline": "triomq.client.pipeline.__main__",
    "mqstore": "triomq.broker.inspect.__main__",
    "triomq": "triomq.runner.__main__",
}
HEAVY = {"trio", "msgspec", "cryptography", "rich", "asyncio"}


def imported(entry: str, *words: str) -> tuple[str, set[str]]:
    """Return the output of a program for some words, and every module that it imports."""
    code = f"import sys; from {entry} import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


@pytest.mark.parametrize("program", ENTRIES)
def test_help_loads_nothing_heavy(program: str) -> None:
    out, modules = imported(ENTRIES[program], "--help")
    assert out.startswith(f"usage: {program}")
    assert {"encodings", ENTRIES[program]} <= modules, "the list of modules is read wrongly"
    assert modules & HEAVY == set()


@pytest.mark.parametrize("program", ENTRIES)
def test_version_loads_nothing_heavy(program: str) -> None:
    out, modules = imported(ENTRIES[program], "--version")
    assert out == f"{program} (TrioMQ {triomq.__version__})\n"
    assert modules & HEAVY == set()


def test_the_list_of_commands_loads_no_command() -> None:
    _, modules = imported("triomq.client.mqadmin.cli", "help")
    assert {name for name in modules if name.startswith("triomq.client.mqadmin.commands.")} == set()


HELP_OF_EACH_MODULE = """
import sys
from triomq.client.mqadmin.cli import run_words

for words in sys.argv[1:]:
    run_words([words, "--help"])
    ours = {name for name in sys.modules if name.startswith("triomq.client.mqadmin.commands.")}
    print("loaded", *ours)
    for name in ours:
        del sys.modules[name]
print("heavy", *{"trio", "cryptography", "rich"} & set(sys.modules))
"""


def test_the_help_of_a_command_loads_its_module_only() -> None:
    """Neither Trio nor another command's module; most commands need the classes of the protocol,
    and with them msgspec, for their declaration.
    """
    first = {listed.module: name for name, listed in reversed(LIST.items())}
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_EACH_MODULE, *first.values()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.findall(r"^loaded (.*)$", done.stdout, re.MULTILINE) == [
        f"triomq.client.mqadmin.commands.{module}" for module in first
    ]
    assert re.findall(r"^heavy.*$", done.stdout, re.MULTILINE) == ["heavy"]


INTERRUPTED_IMPORT = """
import os, signal, sys

interrupted = sys.argv.pop(1)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from {entry} import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("program", "words", "code", "line"),
    [
        ("mqadmin", ["topicList", "-n", "127.0.0.1:1"], 128 + signal.SIGINT, ""),
        (
            "mqstore",
            ["verify", "DIR"],
            128 + signal.SIGINT,
            "mqstore: interrupted: not everything has been read\n",
        ),
        ("mqbroker", ["-D", "listenPort=0", "-D", "storePathRootDir=DIR"], 0, ""),
        ("mqlocal", ["--port", "0", "--dir", "DIR"], 0, ""),
        ("mqnamesrv", ["--port", "0", "-D", "kvConfigPath=DIR/kv.json"], 0, ""),
    ],
)
def test_control_c_while_the_program_is_loaded(
    tmp_path: Path, program: str, words: list[str], code: int, line: str
) -> None:
    """The tools are interrupted; the servers stop in order, as at any later moment."""
    source = INTERRUPTED_IMPORT.format(entry=ENTRIES[program])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            source,
            "trio",
            *(word.replace("DIR", str(tmp_path)) for word in words),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", line)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "mqbroker",
            ["-D", "listenPort=0", "-D", "storePathRootDir=DIR/store", "--log-dir", "DIR/logs"],
        ),
        ("mqlocal", ["--port", "0", "--dir", "DIR", "--json"]),
        ("mqnamesrv", ["--port", "0", "-D", "kvConfigPath=DIR/kv.json", "--log-dir", "DIR/logs"]),
    ],
)
def test_control_c_of_a_server_is_an_orderly_end(
    tmp_path: Path, program: str, words: list[str]
) -> None:
    """Neither a traceback nor a warning of Python."""
    command = [
        sys.executable,
        "-X",
        "dev",
        "-m",
        ENTRIES[program].removesuffix(".__main__"),
        *(word.replace("DIR", str(tmp_path)) for word in words),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() != ""
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "")
            assert process.returncode == 0
        finally:
            process.kill()
    assert list(tmp_path.rglob("abort")) == [], "the mark of a store that was not closed"
    assert (
        program == "mqlocal"
        or "SIGINT: stopping" in (tmp_path / "logs" / f"{program}.log").read_text()
    )
