"""Open the timers of a store, and save them at the end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from triomq.broker.services.persisted import Version
from triomq.broker.services.timers.timer_counts import open_timer_counts
from triomq.broker.services.timers.timer_rules import TimerRules
from triomq.broker.services.timers.timer_schedule import TimerSchedule
from triomq.broker.services.timers.timer_settings import TimerSettings
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.core.errors import starting
from triomq.broker.store.store import MessageStore
from triomq.broker.store.timer.timer_files import TimerFiles, open_timer_files
from triomq.remoting.protocol.names import TIMER_TOPIC

logger = logging.getLogger(__name__)


@asynccontextmanager
async def opened_timers(
    settings: TimerSettings,
    store: MessageStore,
    clock_ms: Callable[[], int],
    *,
    slave: bool = False,
) -> AsyncIterator[Timers | None]:
    """Open the timers of a store for the block; None if they are off.

    Raises: StartError, DamagedTable.
    """
    if not settings.enabled:
        yield None
        return
    timers = await open_timers(settings, store, clock_ms)
    timers.slave = slave
    store.indexer.on_arrival.append(timers.arrived)
    try:
        yield timers
    finally:
        timers.files.close()


async def open_timers(
    settings: TimerSettings, store: MessageStore, clock_ms: Callable[[], int]
) -> Timers:
    """Open the files of the timers and recover. The caller closes ``files``.

    Raises: StartError, DamagedTable. Checkpoint: always.
    """
    root = store.config.root
    with starting(root):
        files = await trio.to_thread.run_sync(
            open_timer_files, store.disk, root, settings.precision_ms, settings.log_file_bytes
        )
    check = files.check
    rules = TimerRules(
        settings.precision_ms, settings.delay_max_seconds * 1000, settings.roll_window_slots
    )
    schedule = TimerSchedule(
        rules, check.read_ms, passed_ms=check.passed_ms, bounds=list(check.delivered)
    )
    return Timers(
        store,
        files,
        settings,
        schedule,
        open_timer_counts(root / "config", Version(clock_ms), clock_ms),
        clock_ms,
        await _queue_offset(files, store),
    )


async def _queue_offset(files: TimerFiles, store: MessageStore) -> int:
    """Return the next message of the topic to put into the wheel.

    With our mark the check says it. After a Java broker it is the one behind the message of the
    last record, but no farther than the check says, as in Java.
    """
    check = files.check
    offset = check.queue_offset
    if not check.marked and files.last is not None:
        _, record = files.last
        found = await store.messages_at(TIMER_TOPIC, [(record.log_offset, record.size)])
        for message in found.values():
            offset = min(message.queue_offset + 1, check.master_queue_offset)
    low, high = store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)
    if not low <= offset <= high:
        logger.warning(
            "the progress of timers, %d, is outside of their topic's messages %d to %d and is set"
            " to the nearest of them",
            offset,
            low,
            high,
        )
    return min(max(offset, low), high)
