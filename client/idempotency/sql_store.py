"""``SqlOnceStore``: claims in a table of an SQL database, the same for SQLite and PostgreSQL.

    triomq_once(scope, message_key, token, done, valid_until)

A claim is one INSERT that replaces a row only if that has ended. The token says whose claim a row
is, so a consumer that was too slow cannot mark or remove the claim of its successor. In a
transaction the row is inserted as a mark at once: nobody else sees it before the effect, and the
database itself lets a second consumer of the same key wait, without a lease.

All times are the database's clock, in seconds since 1970.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs

from triomq.client.core.arguments import check_seconds, shown
from triomq.client.core.errors import ClaimLost, OnceStoreFailed, SettingsError
from triomq.client.idempotency.claims import Busy, ClosedByBlock, Done, Held, stored_key

R = TypeVar("R")

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_CLAIMS_BETWEEN_CLEANINGS = 100
_CLEANED_MAX = 200
"""Rows removed at a time: twice as many as are added meanwhile, so the table stays bounded."""


class DatabaseCursor(Protocol):
    """What DB-API cursors have in common."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...


class DatabaseConnection(Protocol):
    """What DB-API connections have in common; each statement is its own transaction."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> DatabaseCursor: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=DatabaseConnection)


class SqlOnceStore(ClosedByBlock, Generic[C]):
    """Claims and marks in one table, which is created on first use.

    Connections are opened when they are needed, one for each thread that is at work, and kept.
    """

    _failures: ClassVar[tuple[type[Exception], ...]]
    """the driver's errors"""
    _parameter: ClassVar[str]
    """how the driver writes a parameter"""
    _now: ClassVar[str]
    """the database's clock, in SQL"""
    _begin: ClassVar[str]
    _skip_locked: ClassVar[str] = ""

    def __init__(self, name: str, lease: float, retention: float, table: str) -> None:
        self.lease = check_period("lease", lease)
        self.retention = check_period("retention", retention)
        if not _TABLE.fullmatch(table):
            raise SettingsError(
                f"table must be a name of letters, digits and _, at most 41, not {shown(table)}"
            )
        self.name = name
        """what errors call the database"""
        self._table = table
        self._pid = os.getpid()
        self._idle: deque[C] = deque()
        self._inherited: list[Any] = []
        """connections of the process that forked this one: closing them would end them there"""
        self._ready = False
        self._until_cleaning = _CLAIMS_BETWEEN_CLEANINGS
        p, now = self._parameter, self._now
        mine = f"scope = {p} AND message_key = {p}"
        self._insert = (
            f"INSERT INTO {table} (scope, message_key, token, done, valid_until)"
            f" VALUES ({p}, {p}, {p}, {p}, {now} + {p})"
            " ON CONFLICT (scope, message_key) DO UPDATE SET token = excluded.token,"
            " done = excluded.done, valid_until = excluded.valid_until"
            f" WHERE {table}.valid_until <= {now} OR {table}.token = excluded.token"
        )
        self._find = f"SELECT done FROM {table} WHERE {mine} AND valid_until > {now}"
        self._remove = f"DELETE FROM {table} WHERE {mine} AND token = {p} AND done = 0"
        self._clean = (
            f"DELETE FROM {table} WHERE (scope, message_key) IN (SELECT scope, message_key FROM"
            f" {table} WHERE valid_until <= {now} LIMIT {_CLEANED_MAX}{self._skip_locked})"
        )
        self._create = (
            (
                f"CREATE TABLE IF NOT EXISTS {table} (scope TEXT NOT NULL,"
                " message_key TEXT NOT NULL, token TEXT NOT NULL, done INTEGER NOT NULL,"
                " valid_until DOUBLE PRECISION NOT NULL, PRIMARY KEY (scope, message_key))"
            ),
            f"CREATE INDEX IF NOT EXISTS {table}_ends ON {table} (valid_until)",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    # What the guard calls

    def claim(self, scope: str, key: str) -> Held[None] | Done | Busy:
        """Claim a key in one atomic step, by one try. Raises: ``OnceStoreFailed``."""
        self._clean_sometimes()
        claim = _SqlClaim(self, scope, stored_key(key), uuid.uuid4().hex)
        return self._transact(lambda connection: self._insert_or_find(connection, claim) or claim)

    def begin(self, scope: str, key: str) -> Held[C] | Done | Busy:
        """Begin a transaction that marks the key, by one try. Raises: ``OnceStoreFailed``."""
        self._clean_sometimes()
        if not self._enter():
            return Busy()
        claim = _SqlClaim(self, scope, stored_key(key), uuid.uuid4().hex)

        def begin(connection: C) -> _OpenTransaction[C] | Done | Busy:
            found = self._insert_or_find(connection, claim, done=True)
            if found is not None:
                return found
            self._limit(connection)
            return _OpenTransaction(self, connection)

        begun: _OpenTransaction[C] | Done | Busy | None = None
        try:
            begun = self._transact(begin)
            return begun
        finally:
            if not isinstance(begun, _OpenTransaction):
                self._leave()

    def clean(self) -> int:
        """Remove all that has ended; return the number of rows.

        Not necessary: claims remove some of it as they come.
        Raises: ``OnceStoreFailed``.
        """
        removed = 0
        while count := self._patiently(self._remove_ended):
            removed += count
        return removed

    def close(self) -> None:
        """Close the connections that are not in use; the next call opens one again."""
        while self._idle:
            self._idle.pop().close()

    # What a database adds

    @abstractmethod
    def _connect(self) -> C:
        """Open a connection without a transaction."""

    @abstractmethod
    def _in_transaction(self, connection: C) -> bool:
        """Return whether the transaction is open and can be committed."""

    @abstractmethod
    def _is_busy(self, error: BaseException) -> bool:
        """Return whether another transaction was in the way for ``ATTEMPT_SECONDS``."""

    @abstractmethod
    def _is_broken(self, connection: C) -> bool:
        """Return whether the connection has ended."""

    def _prepare(self, connection: C) -> None:
        """Create the table."""
        for statement in self._create:
            connection.execute(statement)

    def _limit(self, connection: C) -> None:
        """Set the limits of a transaction that has begun."""

    def _enter(self) -> bool:
        """Wait for the right to begin a transaction, at most ``ATTEMPT_SECONDS``."""
        return True

    def _leave(self) -> None:
        """Give the right back."""

    # Steps

    def _insert_or_find(
        self, connection: C, claim: _SqlClaim, *, done: bool = False
    ) -> Done | Busy | None:
        """Insert a claim or a mark, over one that has ended; return what is there instead."""
        row = (
            *(claim.scope, claim.key, claim.token, int(done)),
            self.retention if done else self.lease,
        )
        if connection.execute(self._insert, row).rowcount:
            return None
        found = connection.execute(self._find, (claim.scope, claim.key)).fetchone()
        return Done() if found is not None and found[0] else Busy()

    def _remove_ended(self, connection: C) -> int:
        return connection.execute(self._clean).rowcount

    def _transact(self, operation: Callable[[C], R]) -> R | Busy:
        """Call an operation in a transaction, which is committed unless it is the outcome.

        Connections that ended while they were idle (the server was started again) are replaced,
        and the operation is called again.
        """
        while True:
            connection: C | None = None
            reused = False
            try:
                connection = self._reuse()
                reused = connection is not None
                if connection is None:
                    connection = self._open()
                connection.execute(self._begin)
                outcome = operation(connection)
                if not isinstance(outcome, _OpenTransaction):
                    connection.execute("COMMIT")
                    self._idle.append(connection)
            except BaseException as error:
                broken = connection is not None and self._is_broken(connection)
                self._discard(connection)
                if not isinstance(error, self._failures):
                    raise
                if self._is_busy(error):
                    return Busy()
                if not (reused and broken):
                    raise self._failed(error) from error
            else:
                return outcome

    def _open(self) -> C:
        connection = self._connect()
        if not self._ready:
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._ready = True
        return connection

    def _reuse(self) -> C | None:
        if self._pid != os.getpid():
            self._inherited += self._idle
            self._idle.clear()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _discard(self, connection: C | None) -> None:
        if connection is not None:
            try:
                connection.close()
            except self._failures:
                return  # it is gone already

    def _failed(self, error: BaseException) -> OnceStoreFailed:
        reason = " ".join(str(error).split()).rstrip(".")
        return OnceStoreFailed(
            f"the claims of @once in {self.name} cannot be read or written: {reason}. The message"
            " comes again later; check that the database runs, and its rights and its space"
        )

    def _clean_sometimes(self) -> None:
        self._until_cleaning -= 1  # threads may race: it need not be exact
        if self._until_cleaning <= 0:
            self._until_cleaning = _CLAIMS_BETWEEN_CLEANINGS
            self._transact(self._remove_ended)

    def _finish_claim(self, claim: _SqlClaim) -> bool:
        return self._patiently(
            lambda connection: self._insert_or_find(connection, claim, done=True) is None
        )

    def _release_claim(self, claim: _SqlClaim) -> None:
        parameters = (claim.scope, claim.key, claim.token)
        self._patiently(lambda connection: connection.execute(self._remove, parameters).rowcount)

    def _patiently(self, operation: Callable[[C], R]) -> R:
        """Run an operation, again while another transaction is in the way, for the lease's time."""
        end = time.monotonic() + self.lease
        while isinstance(outcome := self._transact(operation), Busy):
            if time.monotonic() > end:
                raise OnceStoreFailed(
                    f"{self.name} was busy for the lease of {self.lease:g} s: a transaction holds"
                    " its lock; make handlers shorter, or the lease longer"
                )
        return outcome

    def _end(self, transaction: _OpenTransaction[C], *, commit: bool) -> bool:
        """End a transaction; return False if it is not open any more."""
        connection = transaction.connection
        try:
            sound = self._in_transaction(connection)
            if not sound:
                self._discard(connection)  # the database undoes what was not committed
                return False
            connection.execute("COMMIT" if commit else "ROLLBACK")
        except self._failures as error:
            self._discard(connection)
            if commit:
                raise self._failed(error) from error
            return False
        except BaseException:
            self._discard(connection)
            raise
        else:
            self._idle.append(connection)
            return True
        finally:
            self._leave()


@attrs.define(eq=False)
class _SqlClaim:
    """A row that says that this process works on the key."""

    store: SqlOnceStore[Any] = attrs.field(repr=False)
    scope: str
    key: str
    token: str
    connection: None = None

    def finish(self) -> bool:
        return self.store._finish_claim(self)

    def release(self) -> None:
        self.store._release_claim(self)


@attrs.define(eq=False)
class _OpenTransaction(Generic[C]):
    """An open transaction with the mark of the key in it."""

    store: SqlOnceStore[C] = attrs.field(repr=False)
    connection: C

    def finish(self) -> bool:
        if not self.store._end(self, commit=True):
            raise ClaimLost(
                "the transaction that @once gave to the handler cannot be committed: the handler"
                " ended it, or hid an error of one of its statements, or took longer than the"
                f" lease of {self.store.lease:g} s. Let @once commit, let errors leave the handler"
            )
        return True

    def release(self) -> None:
        self.store._end(self, commit=False)


def check_period(name: str, value: object) -> float:
    """Return a duration above 0 in seconds. Raises: ``SettingsError``."""
    seconds = check_seconds(name, value)
    if not seconds:
        raise SettingsError(f"{name} must be a number of seconds above 0, not {shown(value)}")
    return seconds


def rows(cursor: Any) -> Sequence[Any]:
    """Return what a statement found; nothing for a statement that finds nothing."""
    return cursor.fetchall() if cursor.description is not None else ()
