"""The databases that tests of ``@once`` use: their stores, and an effect that can be counted."""

from __future__ import annotations

import sqlite3
from typing import Any

import attrs
import psycopg
import redis

from triomq import PostgresqlOnceStore, RedisOnceStore, SqliteOnceStore

EFFECTS = "CREATE TABLE IF NOT EXISTS effects (name TEXT NOT NULL)"


@attrs.frozen
class Database:
    """One database. ``kind``: sqlite, postgresql or redis; ``address``: what its store takes."""

    kind: str
    address: str

    @property
    def transactional(self) -> bool:
        return self.kind != "redis"

    def store(self, **options: Any) -> Any:
        kinds: dict[str, Any] = {
            "sqlite": SqliteOnceStore,
            "postgresql": PostgresqlOnceStore,
            "redis": RedisOnceStore,
        }
        return kinds[self.kind](self.address, **options)

    def ask(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        """Run a statement in a transaction of its own; return the rows."""
        if self.kind == "sqlite":
            connection: Any = sqlite3.connect(self.address, timeout=20, isolation_level=None)
        else:
            connection = psycopg.connect(self.address, autocommit=True)
        try:
            return answered(connection, self.in_dialect(statement), parameters)
        finally:
            connection.close()

    def in_dialect(self, statement: str) -> str:
        return statement.replace("?", "%s") if self.kind == "postgresql" else statement

    def prepare(self) -> None:
        if self.transactional:
            self.ask(EFFECTS)

    def clear(self) -> None:
        """Remove all keys of Redis."""
        with redis.Redis.from_url(self.address) as client:
            client.flushall()

    def keys(self) -> int:
        """Return the number of keys in Redis."""
        with redis.Redis.from_url(self.address) as client:
            return int(client.dbsize())

    def add_effect(self, name: str) -> None:
        if self.transactional:
            self.ask("INSERT INTO effects VALUES (?)", (name,))
        else:
            with redis.Redis.from_url(self.address) as client:
                client.incr(f"effect {name}")

    def effects(self, name: str) -> int:
        """Return how often an effect has happened."""
        if self.transactional:
            return int(self.ask("SELECT count(*) FROM effects WHERE name = ?", (name,))[0][0])
        with redis.Redis.from_url(self.address) as client:
            found: Any = client.get(f"effect {name}")
            return int(found or 0)


def answered(connection: Any, statement: str, parameters: tuple[object, ...]) -> list[Any]:
    cursor = connection.execute(statement, parameters)
    return list(cursor.fetchall()) if cursor.description is not None else []
