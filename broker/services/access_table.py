"""The users and rules of a broker, in ``config/access.json``, which only its owner may read."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Any

import attrs
import msgspec

from triomq.broker.services.persisted import PersistedTable, encode_pretty, load_table
from triomq.remoting.access.access_settings import AccessSettings
from triomq.remoting.access.documents import (
    rules_document,
    rules_of_document,
    user_document,
    user_of_document,
)
from triomq.remoting.access.users import SUBJECT, AccessUser, UserTable

logger = logging.getLogger(__name__)


class _AccessFile(msgspec.Struct):
    users: dict[str, dict[str, Any]]
    acls: dict[str, dict[str, Any]]


@attrs.define(eq=False)
class AccessTable(PersistedTable):
    """The file. ``inner``: the user of the brokers of the cluster, which settings name."""

    private = True

    users: UserTable = attrs.field(factory=UserTable, kw_only=True)
    inner: AccessUser | None = attrs.field(default=None, kw_only=True)

    def encode(self) -> bytes:
        users, rules = self.users.users, self.users.rules
        return encode_pretty(
            {
                "users": {name: user_document(users[name]) for name in sorted(users)},
                "acls": {
                    SUBJECT + name: rules_document(name, rules[name]) for name in sorted(rules)
                },
            }
        )

    def replace(self, table: UserTable) -> None:
        """Take over the table of the master; the user of the brokers stays."""
        if self.inner is not None:
            table.put(self.inner)
        if table.users == self.users.users and table.rules == self.users.rules:
            return
        self.users.users, self.users.rules = table.users, table.rules
        self.touch()


def _decode(content: bytes) -> UserTable:
    loaded = msgspec.json.decode(content, type=_AccessFile)
    table = UserTable()
    for document in loaded.users.values():
        table.put(user_of_document(document))
    for document in loaded.acls.values():
        name, rules = rules_of_document(document)
        table.put_rules(name, rules)
    return table


def open_access_table(directory: Path, settings: AccessSettings) -> AccessTable:
    """Load the table, and add the users that settings name. Raises: DamagedTable."""
    path = directory / "access.json"
    table = AccessTable(path, users=load_table(path, _decode) or UserTable())
    _close_to_others(path)
    users = table.users
    first = settings.initial_user
    if first is not None and first.access_key not in users.users:
        users.put(AccessUser(first.access_key, first.secret_key, is_super=True))
        table.touch()
    if settings.inner is not None:
        table.inner = AccessUser(
            settings.inner.access_key, settings.inner.secret_key, is_super=True
        )
        if users.users.get(table.inner.name) != table.inner:
            users.put(table.inner)
            table.touch()
    if settings.authentication and not any(user.is_super for user in users.users.values()):
        logger.warning(
            "authentication is on, but there is no super user, and only a super user can create"
            " users: set initAuthenticationUser in the file of this broker"
        )
    return table


def _close_to_others(path: Path) -> None:
    """Take the rights of others on a file with passwords, and say so."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        logger.warning("%s has passwords and was open to others; it is not any more", path)
