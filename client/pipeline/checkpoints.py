"""Which folder does each query of a pipeline keep its position in?"""

from __future__ import annotations

RUN = "run"
"""the lock of a process that brings batches into the tables: ``run`` and ``backfill``"""
UPKEEP = "upkeep"
"""the lock of ``compact``, which may run beside ``run``"""
REPLAY = "replay"
"""the lock of ``replay``"""


def rows_checkpoint(checkpoint: str) -> str:
    """Return the folder of the query that keeps rows."""
    return f"{checkpoint.rstrip('/')}/rows"


def window_checkpoint(checkpoint: str, name: str) -> str:
    """Return the folder of the query that keeps the totals of a window."""
    return f"{checkpoint.rstrip('/')}/windows/{name}"
