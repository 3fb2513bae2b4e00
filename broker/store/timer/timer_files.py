"""TimerFiles: wheel, timer log and check of a store, opened, changed in memory, and saved.

A save takes everything at one moment and writes it in the order log, wheel, check, so that after a
crash at any point the check describes what the disk has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from triomq.broker.store.core.errors import FlushFailed, StoreDamaged, io_error
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.open_files import OpenFiles
from triomq.broker.store.io.reads import ColdFetch, Reads
from triomq.broker.store.io.segment import Segment
from triomq.broker.store.io.segments import Segments
from triomq.broker.store.log.flusher import sync_files
from triomq.broker.store.timer.timer_check import SIZE_BYTES, TimerCheck
from triomq.broker.store.timer.timer_log import TimerLog
from triomq.broker.store.timer.timer_record import SIZE, TimerRecord
from triomq.broker.store.timer.timer_recovery import TimerRecovery, slot_parts
from triomq.broker.store.timer.wheel import BLOCK_BYTES, NONE, WHEEL_BYTES, TimerWheel

WHEEL_RECORDS_MAX = 500_000
"""Records that the file of the wheel may lack: a start reads them again, as Java's does with up to
two million.
"""


@attrs.define
class TimerPlace:
    """A message that is to wait; times in ms. ``due_ms`` 0: until the end of its slot."""

    slot_ms: int
    magic: int
    log_offset: int
    size: int
    topic_hash: int
    due_ms: int


@attrs.frozen
class TimerSave:
    """What one save writes, taken at one moment."""

    check: TimerCheck
    log_files: tuple[Segment, ...]
    blocks: tuple[tuple[int, bytes], ...]


@attrs.define(eq=False)
class TimerFiles:
    """Made by ``open_timer_files``. Methods without ``async`` never checkpoint."""

    disk: Disk
    wheel: TimerWheel
    log: TimerLog
    check_path: Path
    wheel_path: Path
    check: TimerCheck
    """As the disk has it."""
    last: tuple[int, TimerRecord] | None
    """The last record that recovery found."""
    _check_fd: int = attrs.field(default=-1, init=False)
    _wheel_fd: int = attrs.field(default=-1, init=False)
    """Files that are made by the first save: a broker without timers has none."""
    _fetch: ColdFetch = attrs.field(init=False)
    _open_files: OpenFiles = attrs.field(init=False)
    _wheel_end: int = attrs.field(init=False)
    """The end of the timer log up to which the file of the wheel has all records."""

    def __attrs_post_init__(self) -> None:
        self._fetch = ColdFetch(self.disk)
        self._open_files = OpenFiles(self.disk, 1)
        self._wheel_end = self.check.wheel_end if self.check.marked else 0

    def add(self, places: Sequence[TimerPlace], write_ms: int) -> None:
        """Append a record for each message, and put it into its slot: all or none.

        Raises: DiskFull, StoreIoError.
        """
        wheel, log = self.wheel, self.log
        newest: dict[int, int] = {}
        records: list[tuple[int, TimerRecord]] = []
        position = log.end
        for place in places:
            position = log.next_position(position)
            previous = newest.get(place.slot_ms)
            if previous is None:
                slot = wheel.find(place.slot_ms)
                previous = slot.last if slot is not None else NONE
            newest[place.slot_ms] = position
            records.append(
                (
                    position,
                    TimerRecord(
                        previous,
                        place.magic,
                        write_ms,
                        place.slot_ms,
                        place.log_offset,
                        place.size,
                        place.topic_hash,
                        place.due_ms,
                    ),
                )
            )
            position += SIZE
        log.append(records)
        for position, record in records:
            wheel.put(record.slot_ms, position, -1 if record.deletes else 1)

    async def chain(
        self, position: int, count_max: int
    ) -> tuple[list[tuple[int, TimerRecord]], int]:
        """Return (position, record) of a slot, newest first, and where it goes on; -1: nowhere.

        Raises: StoreIoError. Checkpoint: always.
        """
        return await self._fetch.until_warm(
            lambda reads: self.log.chain(position, count_max, reads),
            Reads(self.disk, self._open_files),
        )

    # Saving

    def snapshot(self, check: TimerCheck, *, wheel: bool = False) -> TimerSave:
        """Return what to write so that ``check`` holds; its positions are set here.

        ``wheel``: write the wheel in any case, otherwise only if its file lacks many records.
        """
        end = self.log.end
        blocks: tuple[tuple[int, bytes], ...] = ()
        if wheel or end - self._wheel_end > WHEEL_RECORDS_MAX * SIZE:
            blocks = tuple(self.wheel.take_dirty())
            self._wheel_end = end
        check = attrs.evolve(check, log_end=end, marked=True, wheel_end=self._wheel_end)
        files = tuple(self.log.segments.covering(self.check.log_end, end))
        return TimerSave(check, files, blocks)

    @property
    def lacks_wheel(self) -> bool:
        """Whether the file of the wheel lacks records."""
        return self._wheel_end < self.log.end

    def forget_save(self, save: TimerSave) -> None:
        """Note that a save failed: a later one writes its parts of the wheel again."""
        for position, data in save.blocks:
            first = position // BLOCK_BYTES
            self.wheel.dirty.update(range(first, first + len(data) // BLOCK_BYTES))
        self._wheel_end = self.check.wheel_end if self.check.marked else 0

    def write(self, save: TimerSave) -> None:
        """Write a save to the disk. Blocks: for a thread.

        Raises: DiskFull, StoreIoError, FlushFailed. A failed save is repeated by a later one.
        """
        if save.log_files:
            unnamed = [file for file in save.log_files if not file.name_durable]
            directories = [self.log.segments.directory] if unnamed else []
            sync_files(self.disk, [file.path for file in save.log_files], directories)
            for file in unnamed:
                file.name_durable = True
        if save.blocks:
            if self._wheel_fd < 0:
                self._wheel_fd = self._create(self.wheel_path, WHEEL_BYTES)
            for position, data in save.blocks:
                self.disk.write_at(self._wheel_fd, data, position, self.wheel_path)
            self._sync(self._wheel_fd, self.wheel_path)
        if self._check_fd < 0:
            self._check_fd = self._create(self.check_path, SIZE_BYTES)
        self.disk.write_at(self._check_fd, save.check.encode(), 0, self.check_path)
        self._sync(self._check_fd, self.check_path)
        self.check = save.check

    def _create(self, path: Path, size: int) -> int:
        fd = self.disk.create(path, size)
        sync_files(self.disk, (), [path.parent])
        return fd

    def _sync(self, fd: int, path: Path) -> None:
        try:
            self.disk.sync(fd)
        except OSError as error:
            raise FlushFailed(path, error) from error

    def delete_oldest(self) -> None:
        """Delete the oldest file of the timer log. Raises: StoreIoError."""
        oldest = self.log.segments.take_oldest()
        try:
            self.disk.remove(oldest.path)
        except OSError as error:
            self.log.segments.put_back(oldest)
            raise io_error(oldest.path, error) from error

    def close(self) -> None:
        self.log.segments.close()
        for fd in (self._wheel_fd, self._check_fd):
            if fd >= 0:
                self.disk.close(fd)
        self._wheel_fd = self._check_fd = -1


def open_timer_files(disk: Disk, root: Path, precision_ms: int, file_bytes: int) -> TimerFiles:
    """Open or create the files and recover. Blocks: for a thread.

    Raises: StoreDamaged, DiskFull, StoreIoError, OSError.
    """
    disk.make_durable_directory(root / "config")
    segments = Segments(disk, root / "timerlog", file_bytes, size_key="mappedFileSizeTimerLog")
    segments.load()
    check_path, wheel_path = root / "config" / "timercheck", root / "timerwheel"
    check = (
        TimerCheck.decode(disk.read_path(check_path, SIZE_BYTES, 0))
        if check_path.exists()
        else TimerCheck()
    )
    # Without the file, or with one that a power failure left empty, nothing was saved: the timer
    # log counts for nothing, and everything is put into the wheel again.
    if check == TimerCheck():
        check = TimerCheck(marked=True)
    length = wheel_path.stat().st_size if wheel_path.exists() else 0
    if length not in (0, WHEEL_BYTES):
        raise StoreDamaged(
            wheel_path,
            f"its length is {length} bytes, a timer wheel has {WHEEL_BYTES}",
            "restore it from a copy, or remove it: it is made again from the timer log",
        )
    if not length:
        check = attrs.evolve(check, wheel_end=0, log_end=check.log_end if check.marked else 0)
    wheel = TimerWheel(precision_ms)
    parts = _read_wheel(disk, wheel_path, wheel) if length else []
    recovery = TimerRecovery(disk, wheel, TimerLog(segments), check, parts)
    recovery.run()
    if not check.marked:  # the whole log counts as not yet on the disk
        check = attrs.evolve(check, log_end=0)
    return TimerFiles(disk, wheel, recovery.log, check_path, wheel_path, check, recovery.last)


def _read_wheel(disk: Disk, path: Path, wheel: TimerWheel) -> list[tuple[int, int]]:
    """Copy the parts of the file that have data into memory; return them as (begin, end)."""
    parts: list[tuple[int, int]] = []
    fd = disk.open(path, writable=False)
    try:
        position = disk.next_data(path, 0)
        while position < WHEEL_BYTES:
            end = disk.next_hole(fd, position, WHEEL_BYTES)
            begin, end = slot_parts(position, min(end, WHEEL_BYTES))
            wheel.data[begin:end] = disk.read(fd, end - begin, begin)
            parts.append((begin, end))
            position = disk.next_data(path, end)
    finally:
        disk.close(fd)
    return parts
