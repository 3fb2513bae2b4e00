"""The key-value table: text values by namespace and key, kept in one JSON file in Java's form.

A name server remembers only this table over a restart. The table is small and operators change it
by hand (usually the order configuration of topics), so every change replaces the whole file
(``atomic_file``).
Source: namesrv/…/kvconfig/KVConfigManager.java, KVConfigSerializeWrapper.java.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from triomq.namesrv.table_limits import namesrv_limits
from triomq.remoting.core.atomic_file import DamagedFile, read_file, replace_file
from triomq.remoting.core.open_files import explained, none_left
from triomq.remoting.protocol.limits import Limits

_log = logging.getLogger(__name__)

Table = dict[str, dict[str, str]]


class KvFileError(Exception):
    """The file of the key-value table cannot be read or written: *path*, *reason*, *fix*."""

    def __init__(self, path: Path, reason: str, fix: str) -> None:
        super().__init__(f"{path}: {reason}; {fix}")
        self.path = path
        self.reason = reason
        self.fix = fix


class _File(msgspec.Struct):
    table: Table = msgspec.field(default_factory=dict, name="configTable")


@attrs.define(eq=False)
class KvConfig:
    """The table and its file.

    A change is on the disk when the call returns; if it raises KvFileError, nothing has changed.
    """

    path: Path
    _table: Table = attrs.field(factory=dict)
    limits: Limits = attrs.field(factory=namesrv_limits, kw_only=True)

    @classmethod
    def open(cls, path: Path, limits: Limits | None = None) -> KvConfig:
        """Read the table; from the backup if the file is damaged or missing, empty without either.

        Raises: KvFileError if both are damaged.
        """
        try:
            return cls(path, read_file(path, _decode) or {}, limits=limits or namesrv_limits())
        except DamagedFile as error:
            raise KvFileError(
                path,
                f"not a key-value table ({error})",
                "restore the file, or remove it to begin with an empty table",
            ) from None
        except OSError as error:
            raise KvFileError(
                path,
                (error.strerror or str(error)).lower(),
                "give the name server the right to read it, or set kvConfigPath",
            ) from None

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace; None if it was never written."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and save the table. Raises: KvFileError, LimitReached."""
        table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
        size = len(msgspec.json.encode(table))
        self.limits.require(
            "kv_bytes_max",
            size,
            f"key {key[:100]} of namespace {namespace[:100]} is not stored, the table would have"
            f" {size} bytes",
        )
        self._save(table)
        _log.info("key-value table: %s %s = %s", namespace, key, value)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists, and save the table. The namespace stays.

        Raises: KvFileError.
        """
        if self.get(namespace, key) is None:
            return
        left = dict(self._table[namespace])
        del left[key]
        self._save({**self._table, namespace: left})
        _log.info("key-value table: %s %s removed", namespace, key)

    def _save(self, table: Table) -> None:
        try:
            replace_file(self.path, msgspec.json.encode(_File(table)))
        except OSError as error:
            fix = (
                "then try again"
                if none_left(error)
                else "make room or give the name server the right to write there"
            )
            raise KvFileError(self.path, explained(error).lower(), fix) from None
        self._table = table


def _decode(data: bytes) -> Table:
    return msgspec.json.decode(data, type=_File).table
