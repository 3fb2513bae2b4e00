"""The files of ACL 1.0: ``plain_acl.yml`` and those of the folder ``acl`` beside it, reloaded.

A change counts when two looks in a row have found the same content, so a file that is being written
decides nothing. Files that cannot be used leave what was loaded before in force, and the log says
so. Source: acl/…/plain/PlainPermissionManager.java, common/…/AclFileWatchService.java (5.2.0).
"""

from __future__ import annotations

import importlib
import logging
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from triomq.broker.store.opening import wall_clock_ms
from triomq.remoting.access.plain_acl import PlainAcl
from triomq.remoting.access.plain_acl_text import (
    AclLoad,
    Contents,
    digest_of,
    document_of,
    parsed,
    version_of,
)
from triomq.remoting.access.users import AccessUser, UserTable
from triomq.remoting.core.atomic_file import replace_file
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.settings import ConfigError

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
FILE_BYTES_MAX = 4 * 1024 * 1024


@attrs.define(eq=False)
class PlainAclFiles:
    """``table`` is what decides now; a reload changes it in one step.

    ``path``: the main file; ``inner``: the user of the brokers of the cluster.
    """

    path: Path
    inner: AccessUser | None = None
    claimed: bool = False
    """Whether clients can claim any address (proxyProtocol=optional): none is trusted then."""
    clock_ms: Callable[[], int] = wall_clock_ms
    table: UserTable = attrs.field(factory=UserTable, init=False)
    loads: int = attrs.field(default=0, init=False)
    _loaded: AclLoad = attrs.field(factory=lambda: AclLoad({}, PlainAcl(), b""), init=False)
    _seen: bytes = attrs.field(default=b"", init=False)
    _refused: bytes = attrs.field(default=b"", init=False)
    _changing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """A look or a request that changes a file ends before the next one begins."""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    @property
    def acl(self) -> PlainAcl:
        """What the files say."""
        return self._loaded.acl

    def open(self) -> None:
        """Load the files at the start. Blocks. Raises: ConfigError."""
        try:
            contents = read_files(self.path)
            if not contents:
                raise ValueError(
                    f"there is neither {self.path} nor a .yml file in {self.path.parent / 'acl'}"
                )
            self._use(self._understood(contents))
        except ValueError as error:
            raise ConfigError(
                "plainAclFile", f"{error}", "correct the file; docs/security.md has an example"
            ) from None
        except OSError as error:
            raise ConfigError(
                "plainAclFile",
                f"the files of ACL 1.0 cannot be read: {explained(error)}",
                "let this program read them",
            ) from None

    async def run(self) -> None:
        """Run the task "plain-acl": reload changed files until cancelled."""
        while True:
            await trio.sleep(POLL_SECONDS)
            async with self._changing:
                await self.reload_changed()

    async def reload_changed(self) -> None:
        """Use the files if they have changed. Errors go to the log. Checkpoint: always."""
        try:
            contents = await trio.to_thread.run_sync(read_files, self.path)
            digest = digest_of(contents)
            settled, self._seen = digest == self._seen, digest
            if digest == self._loaded.digest:
                self._refused = b""
            if not settled or digest in (self._loaded.digest, self._refused):
                return
            loaded = await trio.to_thread.run_sync(self._understood, contents)
        except ValueError as error:
            self._refused = self._seen
            logger.error(
                "the changed files of ACL 1.0 are not used, what was loaded before stays in"
                " force: %s",
                error,
            )
        except OSError as error:
            self._limit.log(
                logger,
                logging.ERROR,
                "the files of ACL 1.0 cannot be read for now: %s",
                explained(error),
            )
        else:
            self._use(loaded)
            logger.info("files of ACL 1.0 have changed: %d accounts", len(self.acl.accounts))

    async def change(self, path: Path, edit: Callable[[dict[str, object]], None]) -> None:
        """Let *edit* change the content of one file; it is written, and decides from now on.

        Comments of the file are lost, as in Java.

        Raises: ValueError if the files would not be valid; OSError.
        """
        async with self._changing:
            work = partial(self._changed, path, edit, self.clock_ms())
            loaded = await trio.to_thread.run_sync(work)
            self._use(loaded)

    def _changed(
        self, path: Path, edit: Callable[[dict[str, object]], None], now_ms: int
    ) -> AclLoad:
        """Change one of the files, and return what all of them say then. Blocks.

        Raises: ValueError, OSError.
        """
        contents = dict(read_files(self.path))
        document = document_of(path, contents.get(path, b"")) or {}
        edit(document)
        counter = version_of(document)["counter"] + 1
        document["dataVersion"] = [{"timestamp": now_ms, "counter": counter}]
        yaml: Any = importlib.import_module("yaml")
        text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        contents[path] = text.encode()
        loaded = self._understood(contents)
        replace_file(path, contents[path], private=True)
        return loaded

    def file_of(self, access_key: str) -> Path:
        """Return the file with an account, the main file if there is none."""
        for path, document in self._loaded.documents.items():
            accounts = (document or {}).get("accounts") or ()
            if any(account["accessKey"] == access_key for account in accounts):
                return path
        return self.path

    def versions(self) -> dict[Path, dict[str, int]]:
        """Return the version of each file."""
        return {
            path: version_of(document or {}) for path, document in self._loaded.documents.items()
        }

    def _understood(self, contents: Contents) -> AclLoad:
        """Return what the files say. Raises: ValueError."""
        loaded = parsed(contents)
        if self.claimed and (
            any(loaded.acl.white_addresses)
            or any(each.white_address for each in loaded.acl.accounts)
        ):
            raise ValueError(
                "white addresses with proxyProtocol=optional: every client can claim any address in"
                " a PROXY header; write proxyProtocol=required or off, or remove them"
            )
        return loaded

    def _use(self, loaded: AclLoad) -> None:
        """Let what was loaded decide from now on. Checkpoint: never."""
        made = loaded.acl.table()
        if self.inner is not None:
            made.put(self.inner)
        self.table.users, self.table.rules = made.users, made.rules
        self.table.trusted, self.table.wording = made.trusted, made.wording
        self._loaded, self._seen = loaded, loaded.digest
        self.loads += 1


def read_files(path: Path) -> Contents:
    """Return the files that there are. Blocks. Raises: OSError; ValueError for one too large."""
    folder = path.parent / "acl"
    found = sorted(each for each in folder.rglob("*") if each.suffix in (".yml", ".yaml"))
    contents: dict[Path, bytes] = {}
    for each in (*found, path):
        try:
            with each.open("rb") as file:
                contents[each] = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            continue
        if len(contents[each]) > FILE_BYTES_MAX:
            raise ValueError(f"{each} is larger than {FILE_BYTES_MAX} bytes")
    return contents


def open_plain_acl(path: Path, inner: AccessUser | None, *, claimed: bool = False) -> PlainAclFiles:
    """Load the files, and warn if others may read them. Raises: ConfigError."""
    files = PlainAclFiles(path, inner, claimed)
    files.open()
    for each in read_files(path):
        if each.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            logger.warning("%s has passwords and is open to others: chmod 600 %s", each, each)
    return files
