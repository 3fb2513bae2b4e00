"""The key-value table: text values by namespace and key, kept in one JSON file in Java's form.

The only thing that a name server remembers over a restart.  It is small and changes by hand (order configuration of
topics, mostly), so every change replaces the whole file (`atomic_file`).
Source: namesrv/…/kvconfig/KVConfigManager.java, KVConfigSerializeWrapper.java.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from triomq.namesrv.errors import KvFileError
from triomq.namesrv.limits import namesrv_limits
from triomq.remoting.atomic_file import DamagedFile, read_file, replace_file
from triomq.remoting.limits import Limits

_log = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace: topic -> ``broker-a:8;broker-b:8``."""

Table = dict[str, dict[str, str]]


class _File(msgspec.Struct):
    table: Table = msgspec.field(default_factory=dict, name="configTable")


@attrs.define(eq=False)
class KvConfig:
    """The table and its file. Every change is on the disk when the call returns, or KvFileError and nothing changed."""

    path: Path
    _table: Table = attrs.field(factory=dict)
    limits: Limits = attrs.field(factory=namesrv_limits, kw_only=True)

    @classmethod
    def open(cls, path: Path, limits: Limits | None = None) -> KvConfig:
        """Read the table, from the backup if the file is damaged or missing; empty if neither exists. Raises KvFileError if both are damaged."""
        try:
            return cls(path, read_file(path, _decode) or {}, limits=limits or namesrv_limits())
        except DamagedFile as error:
            raise KvFileError(path, f"not a key-value table ({error})", "restore the file, or remove it to begin with an empty table") from None
        except OSError as error:
            raise KvFileError(path, (error.strerror or str(error)).lower(), "give the name server the right to read it, or set kvConfigPath") from None

    def get(self, namespace: str, key: str) -> str | None:
        """One value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All values of a namespace; None if nothing was ever put there."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and save.

        Raises: KvFileError, LimitReached.
        """
        table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
        size = len(msgspec.json.encode(table))
        self.limits.require("kv_bytes_max", size, f"key {key[:100]} of namespace {namespace[:100]} is not stored, the table would have {size} bytes")
        self._save(table)
        _log.info("key-value table: %s %s = %s", namespace, key, value)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it is there, and save. The namespace stays."""
        if self.get(namespace, key) is None:
            return
        self._save({**self._table, namespace: {name: value for name, value in self._table[namespace].items() if name != key}})
        _log.info("key-value table: %s %s removed", namespace, key)

    def _save(self, table: Table) -> None:
        try:
            replace_file(self.path, msgspec.json.encode(_File(table)))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise KvFileError(self.path, reason, "make room or give the name server the right to write there") from None
        self._table = table


def _decode(data: bytes) -> Table:
    return msgspec.json.decode(data, type=_File).table
