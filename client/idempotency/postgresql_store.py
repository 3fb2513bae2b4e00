"""``PostgresqlOnceStore``: claims of ``@once`` in PostgreSQL, for consumers on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.core.errors import SettingsError
from triomq.client.idempotency.claims import ATTEMPT_SECONDS, LEASE_SECONDS, RETENTION_SECONDS
from triomq.client.idempotency.sql_store import SqlOnceStore

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

_DEFAULTS = {
    "application_name": "triomq-once",
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",  # ms: a server that is out of reach is an error, not a hang
}


class PostgresqlOnceStore(SqlOnceStore["psycopg.Connection[TupleRow]"]):
    """Claims and marks in a table of a PostgreSQL database; needs the extra ``postgresql``.

    With ``transaction=True`` the handler works in a transaction (READ COMMITTED) of the database.
    The server ends a transaction that takes longer than the lease, so a consumer that lost its
    network holds nobody up. The table is created if it is missing; create it yourself if the user
    has no right to.
    """

    _parameter = "%s"
    _now = "extract(epoch FROM clock_timestamp())::double precision"
    _begin = (
        "BEGIN ISOLATION LEVEL READ COMMITTED;"
        f"SET LOCAL lock_timeout = {int(ATTEMPT_SECONDS * 1000)}"
    )
    _skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(
        self,
        conninfo: str,
        *,
        lease: float = LEASE_SECONDS,
        retention: float = RETENTION_SECONDS,
        table: str = "triomq_once",
    ) -> None:
        """Describe a store; the first message connects.

        ``conninfo``: a connection string of libpq, ``"host=db dbname=shop user=app"`` or a
        ``postgresql://`` URL. ``lease``: seconds that a handler may take. ``retention``: seconds
        that a mark is kept.

        Raises: ``SettingsError``, also if psycopg is not installed.
        """
        try:
            import psycopg  # an optional extra
            import psycopg.conninfo
        except ImportError as error:
            raise SettingsError(
                f"PostgresqlOnceStore needs psycopg 3, which cannot be imported ({error}):"
                " pip install 'triomq[postgresql]'"
            ) from None
        try:
            given = psycopg.conninfo.conninfo_to_dict(conninfo)
        except psycopg.Error as error:
            raise SettingsError(f"conninfo is not a connection string of libpq: {error}") from None
        self._psycopg = psycopg
        self._failures = (psycopg.Error,)  # type: ignore[misc] # known when psycopg is
        self._conninfo = psycopg.conninfo.make_conninfo("", **(_DEFAULTS | given))
        place = " ".join(f"{name}={given[name]}" for name in ("host", "dbname") if name in given)
        super().__init__(f"PostgreSQL {place}".rstrip(), lease, retention, table)

    def _connect(self) -> psycopg.Connection[TupleRow]:
        return self._psycopg.connect(self._conninfo, autocommit=True)

    def _prepare(self, connection: psycopg.Connection[TupleRow]) -> None:
        if connection.execute("SELECT to_regclass(%s)", [self._table]).fetchone() == (None,):
            # Two consumers that create the same table at once would fail.
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [self._table])
            super()._prepare(connection)
            connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", [self._table])

    def _limit(self, connection: psycopg.Connection[TupleRow]) -> None:
        lease = int(self.lease * 1000) + 1  # 0 would be no limit
        connection.execute(
            f"SET LOCAL lock_timeout = {lease};"
            f"SET LOCAL statement_timeout = {lease};"
            f"SET LOCAL idle_in_transaction_session_timeout = {lease}"
        )

    def _in_transaction(self, connection: psycopg.Connection[TupleRow]) -> bool:
        # Not INERROR: a COMMIT would roll back then, without an error.
        return connection.info.transaction_status == self._psycopg.pq.TransactionStatus.INTRANS

    def _is_busy(self, error: BaseException) -> bool:
        errors = self._psycopg.errors
        return isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected)

    def _is_broken(self, connection: psycopg.Connection[TupleRow]) -> bool:
        return connection.closed
