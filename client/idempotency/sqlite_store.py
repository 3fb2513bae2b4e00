"""``SqliteOnceStore``: claims of ``@once`` in an SQLite file, for the consumers of one machine."""

from __future__ import annotations

import os
import sqlite3
import threading

from triomq.client.idempotency.claims import ATTEMPT_SECONDS, LEASE_SECONDS, RETENTION_SECONDS
from triomq.client.idempotency.sql_store import SqlOnceStore


class SqliteOnceStore(SqlOnceStore[sqlite3.Connection]):
    """Claims and marks in a table of an SQLite file.

    The file may be the application's own database: with ``transaction=True`` the handler works in
    it. SQLite has one writer at a time, so such handlers run one after the other. Marks survive a
    power failure (write-ahead log, ``synchronous=FULL``).
    """

    _failures = (sqlite3.Error,)
    _parameter = "?"
    _now = "((julianday('now') - 2440587.5) * 86400.0)"
    _begin = "BEGIN IMMEDIATE"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease: float = LEASE_SECONDS,
        retention: float = RETENTION_SECONDS,
        table: str = "triomq_once",
    ) -> None:
        """Describe a store; the file is opened, or made, by the first message.

        ``lease``: seconds that a handler may take. ``retention``: seconds that a mark is kept.

        Raises: ``SettingsError``.
        """
        self._path = os.fspath(path)
        super().__init__(f"SQLite {self._path}", lease, retention, table)
        self._turn = threading.Lock()
        """the writers of this process wait here in order, instead of polling for SQLite's lock"""

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=ATTEMPT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _in_transaction(self, connection: sqlite3.Connection) -> bool:
        return connection.in_transaction

    def _is_busy(self, error: BaseException) -> bool:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

    def _is_broken(self, connection: sqlite3.Connection) -> bool:
        return False

    def _enter(self) -> bool:
        return self._turn.acquire(timeout=ATTEMPT_SECONDS)

    def _leave(self) -> None:
        self._turn.release()
