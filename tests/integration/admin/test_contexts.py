"""Contexts: ``mqadmin context``, ``--context`` and TRIOMQ_CONTEXT."""

from __future__ import annotations

import io
import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from mqadmin_calls import Done, failed, mqadmin

from triomq.client.admin.access import given_access
from triomq.client.admin.arguments import Values
from triomq.client.admin.contexts import FILE_BYTES_MAX, Context, contexts_path, with_context
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.command_line import Call, understand
from triomq.testing import local_cluster

SECRET = "s3cr3t-w0rd"


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NAMESRV_ADDR", "TRIOMQ_CONTEXT", "TRIOMQ_TLS", "TRIOMQ_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "triomq" / "contexts.json"


async def context(*words: object) -> Done:
    done = await mqadmin("context", *words)
    assert done.code == 0, done
    return done


def stored(path: Path) -> dict[str, dict[str, str]]:
    contexts: dict[str, dict[str, str]] = json.loads(path.read_text())["contexts"]
    return contexts


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def options(*words: str) -> Values:
    call = understand(["topicList", *words])
    assert isinstance(call, Call)
    return with_context(call.values)


async def test_a_context_is_used_by_name_by_variable_and_as_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with local_cluster() as cluster:
        await context("set", "dead", "-n", "127.0.0.1:1")
        await context("set", "live", "-n", cluster.namesrv_address)
        assert (await mqadmin("topicList")).code == 6, "the first one is the current one"
        assert (await mqadmin("topicList", "--context", "live")).code == 0
        monkeypatch.setenv("TRIOMQ_CONTEXT", "live")
        assert (await mqadmin("topicList")).code == 0
        assert (await mqadmin("topicList", "--context", "dead")).code == 6
        monkeypatch.delenv("TRIOMQ_CONTEXT")
        await context("use", "live")
        assert (await mqadmin("topicList")).code == 0
        assert (await mqadmin("doctor", "--cluster")).out != ""
        assert (await mqadmin("topicList", "-n", "127.0.0.1:1")).code == 6
        listed = (await mqadmin("context", "list", "--json")).document
        assert [(row["name"], row["current"]) for row in listed["contexts"]] == [
            ("dead", False),
            ("live", True),
        ]
        await context("delete", "live", "--yes")
        assert (await mqadmin("context", "list", "--json")).document["current"] is None
        assert failed(await mqadmin("topicList"), 6)


async def test_the_secret_key_is_used_and_never_printed(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SECRET}\n"))
    printed = ""
    for words in (
        ["set", "production", "-n", "ns:9876", "--access-key", "operators"],
        ["list"],
        ["show"],
        ["show", "production", "--json"],
        ["list", "--csv"],
    ):
        done = await context(*words)
        printed += done.out + done.err
    assert SECRET not in printed
    assert "operators" not in printed
    assert "ope…" in printed
    assert stored(path)["production"]["secretKey"] == SECRET
    tls, credentials = given_access(options())
    assert tls is None
    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key) == ("operators", SECRET)
    assert SECRET not in repr(credentials) + repr(options().value("context"))


def test_the_secret_key_is_read_from_a_terminal_without_echo(path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["context", "set", "p", "--access-key", "operators"]
    process = subprocess.Popen(
        [sys.executable, "-m", "triomq.client.mqadmin.cli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    text = b""
    while b"Secret key: " not in text:
        text += os.read(ours, 1000)
    os.write(ours, f"{SECRET}\n".encode())
    assert process.wait(60) == 0
    os.close(theirs)
    try:
        while chunk := os.read(ours, 1000):
            text += chunk
    except OSError:  # so Linux reports the end of a terminal
        pass
    os.close(ours)
    assert SECRET.encode() not in text
    assert stored(path)["p"]["secretKey"] == SECRET


async def test_only_the_owner_reads_the_file(path: Path) -> None:
    await context("set", "test", "-n", "127.0.0.1:9876")
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert os.listdir(path.parent) == [path.name]
    os.chmod(path, 0o640)
    assert failed(await mqadmin("topicList"), 2, f"chmod 600 {path}", "0640")
    assert failed(await mqadmin("context", "use", "test"), 2, "chmod 600")
    assert failed(await mqadmin("topicList", "-n", "127.0.0.1:1"), 6), "the file is not needed"


async def test_a_context_is_changed_by_what_is_given(path: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("tls.properties", "tools.yml")}
    words = ("--tls", files["tls.properties"], "--credentials", files["tools.yml"])
    await context("set", "test", "-n", "a:1", *words)
    shown = (await context("set", "test", "-n", "b:2", "--tls", "", "--json")).document
    assert shown == {
        "name": "test",
        "namesrvAddr": "b:2",
        "tls": None,
        "credentials": str(files["tools.yml"]),
        "accessKey": None,
        "secretKeySet": False,
    }
    assert set(stored(path)["test"]) == {"namesrvAddr", "credentials"}


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("use", "tset"), 4, "there is no context 'tset': use one of test"),
        (("show", "tset"), 4, "use one of test"),
        (("delete", "test"), 2, "--yes"),
        (("use",), 2, "NAME is missing"),
        (("use", "test", "more"), 2, "'more' does not belong to an option"),
        (("set", "../x", "-n", "a:1"), 2, "use letters, digits"),
        (("set", "x", "-n", "no-port"), 2, "write 'host:port'"),
        (("set", "test", "--access-key", "ops"), 2, "the secret key on stdin must have"),
    ],
)
async def test_refusals(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, expected: str
) -> None:
    await context("set", "test", "-n", "127.0.0.1:9876")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert failed(await mqadmin("context", *words), code, expected)


async def test_show_without_a_context_in_use() -> None:
    assert failed(await mqadmin("context", "show"), 2, "no context is in use")
    assert failed(await mqadmin("topicList", "--context", "x"), 4, "mqadmin context set x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not a file of contexts"),
        ("[]", "a value has another type"),
        ('{"contexts": {"a": {"namesrvAddr": 1}}}', "a value has another type"),
        ('{"contexts": {"a": {"namesrv": "x"}}}', "the unknown key 'namesrv'"),
        ('{"contexts": {"\\u001b": {}}}', "use letters, digits"),
        (" " * (FILE_BYTES_MAX + 1), "is larger than"),
    ],
)
def test_a_file_of_another_form_is_refused(path: Path, text: str, expected: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match=expected):
        options()


def write(path: Path, current: str | None) -> None:
    path.parent.mkdir()
    contexts = {"a": {"namesrvAddr": "a:1", "credentials": "/a"}, "b": {"namesrvAddr": "b:1"}}
    path.write_text(json.dumps({"current": current, "contexts": contexts}))
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("words", "environment", "namesrv", "credentials"),
    [
        ([], {}, "a:1", "/a"),
        ([], {"NAMESRV_ADDR": "c:1"}, None, None),
        ([], {"ROCKETMQ_NAMESRV_DOMAIN": "c"}, None, None),
        ([], {"TRIOMQ_CONTEXT": "b", "NAMESRV_ADDR": "c:1"}, "b:1", None),
        (["--context", "a"], {"TRIOMQ_CONTEXT": "b"}, "a:1", "/a"),
        (["-n", "d:1"], {}, "d:1", None),
        (["-n", "d:1"], {"TRIOMQ_CONTEXT": "a"}, "d:1", None),
        (["-n", "d:1", "--context", "a"], {}, "d:1", "/a"),
        (["--credentials", "/own"], {}, "a:1", "/own"),
    ],
)
def test_where_name_servers_and_credentials_come_from(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    environment: dict[str, str],
    namesrv: str | None,
    credentials: str | None,
) -> None:
    """Keys of a context do not go to servers that it does not name, unless it is named too."""
    write(path, "a")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    values = options(*words)
    assert values.maybe_text("namesrvAddr") == namesrv
    assert values.maybe_text("credentials") == credentials
    assert isinstance(values.value("context"), Context | None)


def test_a_relative_folder_of_configurations_is_ignored() -> None:
    assert (
        contexts_path({"XDG_CONFIG_HOME": "here"}) == Path.home() / ".config/triomq/contexts.json"
    )
    assert contexts_path({}) == Path.home() / ".config/triomq/contexts.json"
