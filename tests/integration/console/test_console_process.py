"""``mqconsole`` as a process: its start, a login through sockets, https, its orderly stop."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from console_pages import PASSWORD, TOKEN, mqconsole, write_three_users

from triomq.remoting.tls.development import initialise


def log_in(client: httpx.Client) -> httpx.Response:
    found = TOKEN.search(client.get("/login").text)
    assert found is not None
    form = {"token": found.group(1), "name": "viewer", "password": PASSWORD, "next": "/"}
    return client.post("/login", data=form, follow_redirects=True)


def test_a_login_through_sockets(triomq_server: str, tmp_path: Path) -> None:
    with mqconsole(triomq_server, tmp_path) as (url, process):
        with httpx.Client(base_url=url) as client:
            assert client.get("/livez").text == "ok\n"
            assert "1 of 1" in log_in(client).text
            assert client.get("/topics").status_code == 200
            assert client.get("/nowhere").status_code == 404
            assert "server" not in client.headers
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_https(triomq_server: str, tmp_path: Path) -> None:
    files = initialise(tmp_path / "tls", ["127.0.0.1", "localhost"]).config.parent
    options = ("--certificate", str(files / "server.pem"), "--key", str(files / "server-key.pem"))
    with mqconsole(triomq_server, tmp_path, *options) as (url, _):
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=str(files / "ca.pem"))
        with httpx.Client(base_url=url, verify=context) as client:
            answer = log_in(client)
            assert "1 of 1" in answer.text
            assert "Secure" in answer.history[0].headers["set-cookie"]


def test_a_taken_port_has_its_exit_code(triomq_server: str, tmp_path: Path) -> None:
    with mqconsole(triomq_server, tmp_path) as (url, _):
        port = url.rpartition(":")[2]
        command = [sys.executable, "-m", "triomq.client.console", "-n", triomq_server]
        command += ["--users", str(tmp_path / "users"), "--port", port]
        second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode == 3
        assert second.stderr.startswith("mqconsole: cannot listen on 127.0.0.1:")
        assert "set --port to another port" in second.stderr


@pytest.mark.parametrize("package", ["starlette", "hypercorn", "jinja2"])
def test_a_missing_package_is_named(tmp_path: Path, package: str) -> None:
    code = (
        "import sys, importlib.util; found = importlib.util.find_spec;"
        f"importlib.util.find_spec = lambda name: None if name == {package!r} else found(name);"
        "from triomq.client.console.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    users = str(write_three_users(tmp_path / "users"))
    command = [sys.executable, "-c", code, "-n", "127.0.0.1:1", "--users", users]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env=dict(os.environ)
    )
    assert done.returncode == 2
    assert f"the package {package} is missing; install it: pip install 'triomq[console]'" in (
        done.stderr
    )
