"""The key-value table: text values by namespace and key, kept in one JSON file in Java's form.

The only thing that a name server remembers over a restart.  It is small and changes by hand (order configuration of
topics, mostly), so every change writes the whole file: to a temporary file first, the old content stays as ``.bak``.
Source: namesrv/…/kvconfig/KVConfigManager.java, KVConfigSerializeWrapper.java.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from triomq.namesrv.errors import KvFileError

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

    @classmethod
    def open(cls, path: Path) -> KvConfig:
        """Read the table; empty if there is no file. A damaged file gives way to its ``.bak``; both damaged is KvFileError."""
        backup = backup_of(path)
        try:
            table = _read(path)
        except msgspec.DecodeError as error:
            try:
                table = _read(backup)
            except msgspec.DecodeError:
                table = None
            if table is None:
                raise KvFileError(path, f"not a key-value table ({error})", "restore the file, or remove it to begin with an empty table") from None
            _log.warning("%s is damaged (%s); going on with %s", path, error, backup)
        return cls(path, table or {})

    def get(self, namespace: str, key: str) -> str | None:
        """One value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All values of a namespace; None if nothing was ever put there."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and save."""
        self._save({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})
        _log.info("key-value table: %s %s = %s", namespace, key, value)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it is there, and save. The namespace stays."""
        if self.get(namespace, key) is None:
            return
        self._save({**self._table, namespace: {name: value for name, value in self._table[namespace].items() if name != key}})
        _log.info("key-value table: %s %s removed", namespace, key)

    def _save(self, table: Table) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(_File(table)))
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.path.replace(backup_of(self.path))
            temporary.replace(self.path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise KvFileError(self.path, reason, "make room or give the name server the right to write there") from None
        self._table = table


def backup_of(path: Path) -> Path:
    """Where the content before the last change stays."""
    return path.with_name(path.name + ".bak")


def _read(path: Path) -> Table | None:
    """The table of a file, None if there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KvFileError(path, (error.strerror or str(error)).lower(), "give the name server the right to read it, or set kvConfigPath") from None
    return msgspec.json.decode(data, type=_File).table
