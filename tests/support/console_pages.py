"""A console in the test's own loop, and a client that uses its pages as a browser does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import attrs
import httpx

from triomq.client.console.app import make_app
from triomq.client.console.core import users
from triomq.client.console.core.console_settings import ConsoleSettings
from triomq.client.console.core.page_visit import Console
from triomq.client.console.core.users import ConsoleUser, UserRole, write_users
from triomq.client.console.run import open_console

PASSWORD = "correct horse battery"
ORIGIN = "http://console.test"
COLUMN_NAME = re.compile(r' data-label="[^"]*"')
"""what a narrow screen shows beside a cell"""
TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')


def write_three_users(path: Path) -> Path:
    """A viewer, an operator and an admin with the same password; hashes are cheap."""
    found, users.SCRYPT_N = users.SCRYPT_N, 16
    try:
        hashed = users.hash_password(PASSWORD)
    finally:
        users.SCRYPT_N = found
    write_users(path, {role.word: ConsoleUser(role.word, role, hashed) for role in UserRole})
    return path


@attrs.define(eq=False)
class PageClient:
    """One browser: cookies, and the token of the last page."""

    http: httpx.AsyncClient
    console: Console
    text: str = ""
    status: int = 0
    headers: httpx.Headers = attrs.field(factory=httpx.Headers)

    async def get(self, path: str, **headers: str) -> str:
        return self._keep(await self.http.get(path, headers=headers))

    async def post(self, path: str, headers: dict[str, str] | None = None, **fields: Any) -> str:
        """Send a form with the token of the last page."""
        found = TOKEN.search(self.text)
        data = {"token": found.group(1) if found else "", **fields}
        return self._keep(
            await self.http.post(path, data=data, headers={"Origin": ORIGIN, **(headers or {})})
        )

    async def follow(self) -> str:
        """Go where the last answer leads."""
        assert self.status == 303, self.text
        return await self.get(self.headers["location"])

    def _keep(self, answer: httpx.Response) -> str:
        self.status, self.headers = answer.status_code, answer.headers
        text = COLUMN_NAME.sub("", answer.text)
        self.text = unescape(text) if answer.status_code != 303 else self.text
        return text

    async def log_in(self, name: str, password: str = PASSWORD) -> int:
        await self.get("/login")
        await self.post("/login", name=name, password=password, next="/")
        return self.status

    def audit(self) -> list[dict[str, Any]]:
        path = self.console.settings.audit_file
        assert path is not None
        return [json.loads(line) for line in path.read_text().splitlines()]


@asynccontextmanager
async def console_of(namesrv: str, folder: Path, **changes: Any) -> AsyncIterator[PageClient]:
    """Run a console that may change the cluster, and nobody is logged in."""
    settings = attrs.evolve(
        ConsoleSettings(
            namesrv=namesrv,
            users_file=write_three_users(folder / "users"),
            allow_changes=True,
            audit_file=folder / "audit.jsonl",
            poll_seconds=0.2,
        ),
        **changes,
    )
    async with open_console(settings) as console:
        transport = httpx.ASGITransport(make_app(console), client=("192.0.2.7", 5000))
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, timeout=30) as http:
            yield PageClient(http, console)


@asynccontextmanager
async def other_browser(client: PageClient) -> AsyncIterator[PageClient]:
    """Another browser at the same console."""
    transport = httpx.ASGITransport(make_app(client.console), client=("192.0.2.8", 5000))
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, timeout=30) as http:
        yield PageClient(http, client.console)


@contextmanager
def mqconsole(
    namesrv: str, folder: Path, *options: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the program until the block ends; yield the address that it prints."""
    command = [sys.executable, "-m", "triomq.client.console", "-n", namesrv, "--port", "0"]
    command += ["--users", str(write_three_users(folder / "users")), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"console ready on (https?://\S+)", line)
            assert found is not None, line
            yield found.group(1), process
        finally:
            process.terminate()
            process.wait(10)
