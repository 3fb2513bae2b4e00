"""``RedisOnceStore``: claims of ``@once`` in Redis, for consumers on any machine."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import attrs

from triomq.client.core.errors import OnceStoreFailed, SettingsError
from triomq.client.idempotency.claims import (
    LEASE_SECONDS,
    RETENTION_SECONDS,
    Busy,
    ClosedByBlock,
    Done,
    Held,
    stored_key,
)
from triomq.client.idempotency.sql_store import check_period

_TIMEOUT_SECONDS = 10.0

# Each script is atomic, and may be repeated: the driver does so when an answer was lost.
_CLAIM = """
local found = redis.call('GET', KEYS[1])
if not found or found == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 'held'
end
return found
"""
_FINISH = """
local found, done = redis.call('GET', KEYS[1]), 'done ' .. ARGV[1]
if not found or found == ARGV[1] or found == done then
  redis.call('SET', KEYS[1], done, 'PX', ARGV[2])
  return 1
end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class RedisOnceStore(ClosedByBlock):
    """Claims and marks as keys of Redis, which removes them by itself; needs the extra ``redis``.

    Redis may forget the marks of its last second in a crash (``appendfsync everysec``), and more
    in a failover: their messages have their effect again if they come again. It has no
    transactions that could include the handler's effect.
    """

    def __init__(
        self,
        url: str,
        *,
        lease: float = LEASE_SECONDS,
        retention: float = RETENTION_SECONDS,
        prefix: str = "triomq:once:",
    ) -> None:
        """Describe a store; the first message connects.

        ``url``: ``redis://``, ``rediss://`` or ``unix://``. ``lease``: seconds that a handler may
        take. ``retention``: seconds that a mark is kept.

        Raises: ``SettingsError``, also if redis is not installed.
        """
        try:
            import redis  # an optional extra
        except ImportError as error:
            raise SettingsError(
                f"RedisOnceStore needs the package redis, which cannot be imported ({error}):"
                " pip install 'triomq[redis]'"
            ) from None
        self.lease = check_period("lease", lease)
        self.retention = check_period("retention", retention)
        self._prefix = prefix
        self._error = redis.RedisError
        try:
            # Any: redis-py's annotations cover its blocking and its asyncio client in one.
            self._redis: Any = redis.Redis.from_url(
                url,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                decode_responses=True,
            )
        except ValueError as error:
            raise SettingsError(f"url is not the address of a Redis server: {error}") from None
        self._claim = self._redis.register_script(_CLAIM)
        self._finish = self._redis.register_script(_FINISH)
        self._release = self._redis.register_script(_RELEASE)

    def __repr__(self) -> str:
        return f"<RedisOnceStore {self._prefix}>"

    def claim(self, scope: str, key: str) -> Held[None] | Done | Busy:
        """Claim a key in one atomic step, by one try. Raises: ``OnceStoreFailed``."""
        name, token = f"{self._prefix}{scope}:{stored_key(key)}", uuid.uuid4().hex
        found = self._call(self._claim, name, token, _ms(self.lease))
        if found == "held":
            return _RedisClaim(self, name, token)
        return Done() if found.startswith("done ") else Busy()

    def close(self) -> None:
        """Close the connections that are not in use; the next call opens one again."""
        self._redis.connection_pool.disconnect(inuse_connections=False)

    def _call(self, script: Callable[..., Any], name: str, *arguments: object) -> Any:
        try:
            return script(keys=[name], args=arguments)
        except self._error as error:
            raise OnceStoreFailed(
                f"the claims of @once in Redis cannot be read or written: {error}. The message"
                " comes again later; check that the server runs, and its memory"
            ) from error


@attrs.define(eq=False)
class _RedisClaim:
    """A key that says that this process works on the message."""

    store: RedisOnceStore = attrs.field(repr=False)
    name: str
    token: str
    connection: None = None

    def finish(self) -> bool:
        retention = _ms(self.store.retention)
        return bool(self.store._call(self.store._finish, self.name, self.token, retention))

    def release(self) -> None:
        self.store._call(self.store._release, self.name, self.token)


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
