"""The users file and ``mqconsole user``; sessions; the limit on failed logins."""

from __future__ import annotations

import hashlib
import io
import stat
from base64 import b64decode
from pathlib import Path

import pytest

from triomq.client.console.__main__ import main
from triomq.client.console.core import users
from triomq.client.console.core.sessions import (
    BLOCKED_SECONDS,
    FAILED_LOGINS_MAX,
    IDLE_SECONDS,
    REMEMBERED_MAX,
    SESSION_SECONDS,
    SESSIONS_MAX,
    LoginLimiter,
    SessionTable,
)
from triomq.client.console.core.users import UserRole, hash_password, password_matches, read_users
from triomq.remoting.core.settings import ConfigError


@pytest.fixture(autouse=True)
def _cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "SCRYPT_N", 16)


def test_a_hash_is_scrypt_s_and_salted() -> None:
    one, two = hash_password("päss wörd"), hash_password("päss wörd")
    assert one != two
    kind, n, r, p, salt, digest = one.split("$")
    assert kind == "scrypt"
    by_hand = hashlib.scrypt(
        "päss wörd".encode(), salt=b64decode(salt), n=int(n), r=int(r), p=int(p), dklen=32
    )
    assert by_hand == b64decode(digest)
    assert password_matches("päss wörd", one)
    assert not password_matches("pass word", one)
    assert not password_matches("x" * 5000, one)


def test_cost_of_a_real_hash_is_what_the_page_says() -> None:
    assert users.SCRYPT_R * 128 * (1 << 15) == 32 * 1024 * 1024


@pytest.mark.parametrize("password", ["", "short12", "x" * 1025])
def test_bad_passwords_are_refused(password: str) -> None:
    with pytest.raises(ValueError, match="8 to 1024"):
        hash_password(password)


def run(*arguments: str, stdin: str = "", monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    return main(arguments)


def test_user_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users"
    add = ("user", "add", "--users", str(file), "--password-stdin", "--role", "operator", "ada")
    assert run(*add, stdin="correct horse\n", monkeypatch=monkeypatch) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "correct horse" not in file.read_text()
    user = read_users(file)["ada"]
    assert user.role is UserRole.OPERATOR
    assert password_matches("correct horse", user.password_hash)
    assert user.password_hash not in repr(user)
    assert run("user", "list", "--users", str(file), monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ada\toperator"
    assert run(*add, stdin="short\n", monkeypatch=monkeypatch) == 2
    assert run(*add[:-1], "a:b", stdin="correct horse\n", monkeypatch=monkeypatch) == 2
    assert "cannot be used" in capsys.readouterr().err
    assert run("user", "remove", "--users", str(file), "bob", monkeypatch=monkeypatch) == 2
    assert run("user", "remove", "--users", str(file), "ada", monkeypatch=monkeypatch) == 0
    assert read_users(file) == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ada", "is not name:role:hash"),
        ("a da:viewer:scrypt$16$8$1$AA==$AA==", "is not name:role:hash"),
        ("ada:root:scrypt$16$8$1$AA==$AA==", "role 'root'"),
        ("ada:admin:plain", "not scrypt's"),
        (f"ada:admin:scrypt${1 << 30}$8$1$AA==$AA==", "too much memory"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "users"
    file.write_text(f"# people\n\n{line}\n")
    with pytest.raises(ConfigError, match=reason) as caught:
        read_users(file)
    assert caught.value.where == "users:3"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "nobody can log in"),
        (("--users", "nowhere"), "does not exist"),
        (("--cluster-login", "--allow-changes"), "audit file"),
        (("--cluster-login", "--poll", "0"), "out of range"),
        (("--cluster-login", "--port", "70000"), "not a port"),
        (("--cluster-login", "--key", "k"), "belong together"),
        (("--cluster-login", "--audit", "/"), "cannot write"),
    ],
)
def test_unusable_options_are_refused(
    options: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("-n", "127.0.0.1:1", *options)) == 2
    assert reason in capsys.readouterr().err


def test_sessions_end_by_idleness_and_by_age() -> None:
    table = SessionTable()
    cookie = table.begin("ada", UserRole.ADMIN, 0.0)
    assert table.find(cookie + "x", 1.0, touch=True) is None
    session = table.find(cookie, IDLE_SECONDS, touch=False)
    assert session is not None
    assert table.find(cookie, IDLE_SECONDS + 1, touch=True) is None, "a refresh is no use"
    cookie = table.begin("ada", UserRole.ADMIN, 0.0)
    now = 0.0
    while now + IDLE_SECONDS < SESSION_SECONDS:
        now += IDLE_SECONDS
        assert table.find(cookie, now, touch=True) is not None
    assert table.find(cookie, SESSION_SECONDS + 1, touch=True) is None


def test_sessions_are_bounded_and_follow_the_users() -> None:
    table = SessionTable()
    names = [f"u{number}" for number in range(SESSIONS_MAX + 1)]
    cookies = [table.begin(name, UserRole.VIEWER, 0.0) for name in names]
    assert table.find(cookies[0], 1.0, touch=True) is None
    assert table.find(cookies[1], 1.0, touch=True) is not None
    table.keep({"u2": UserRole.ADMIN})
    assert table.find(cookies[1], 1.0, touch=True) is None
    promoted = table.find(cookies[2], 1.0, touch=True)
    assert promoted is not None
    assert promoted.role is UserRole.ADMIN
    table.end(cookies[2])
    assert table.find(cookies[2], 1.0, touch=True) is None


def test_form_tokens_belong_to_one_cookie() -> None:
    table = SessionTable()
    token = table.form_token("a")
    assert table.token_matches("a", token)
    assert not table.token_matches("b", token)
    assert not table.token_matches("a", "")
    assert not table.token_matches(None, token)
    assert not table.token_matches("", table.form_token(""))
    assert not SessionTable().token_matches("a", token), "another console"


def test_failed_logins_are_limited_by_user_and_by_address() -> None:
    limiter = LoginLimiter()
    for number in range(FAILED_LOGINS_MAX):
        assert limiter.wait_seconds("ada", "192.0.2.1", 0.0) == 0
        limiter.failed("ada", f"192.0.2.{number}", 0.0)
    assert limiter.wait_seconds("ada", "198.51.100.1", 1.0) == BLOCKED_SECONDS - 1
    assert limiter.wait_seconds("bob", "192.0.2.1", 1.0) == 0
    assert limiter.wait_seconds("ada", "192.0.2.1", BLOCKED_SECONDS) == 0
    limiter.failed("ada", "192.0.2.1", BLOCKED_SECONDS + 1)
    assert limiter.wait_seconds("ada", "192.0.2.1", BLOCKED_SECONDS + 1) == 0, "failed long ago"
    for number in range(FAILED_LOGINS_MAX):
        limiter.failed(f"u{number}", "192.0.2.9", 0.0)
    assert limiter.wait_seconds("eve", "192.0.2.9", 1.0) > 0
    limiter.worked("ada", "192.0.2.9")
    assert limiter.wait_seconds("ada", "192.0.2.9", 1.0) == 0
    for number in range(REMEMBERED_MAX + 5):
        limiter.failed(f"x{number}", f"y{number}", 2.0)
    assert len(limiter._failed) == REMEMBERED_MAX
