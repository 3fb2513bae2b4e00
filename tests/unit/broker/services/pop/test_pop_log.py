"""When records of POP count as safe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from triomq.broker.services.pop.pop_log import RevivePopLog


@pytest.mark.parametrize("durable", [True, False])
def test_records_are_safe_when_the_disk_has_them_although_senders_need_not_wait(
    durable: bool,
) -> None:
    """With ASYNC_FLUSH too: a position that a crash keeps without its records loses messages."""
    store: Any = SimpleNamespace(flushed=SimpleNamespace(value=5))
    durability: Any = SimpleNamespace(durable_now=lambda end: durable)
    timers: Any = None
    log = RevivePopLog(store, timers, durability, lambda: 0, "R")
    assert log.is_safe(5) is durable
    assert log.is_safe(6) is False
