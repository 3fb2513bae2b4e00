"""CompactionLog: the copies of one queue's messages, of which passes remove the old values.

::

    compaction/compactionLog/<topic>/<queue id>/<position>    records
    compaction/compactionCq/<topic>/<queue id>/<position>     their queue entries
    compaction/replacing/<topic>/<queue id>/                  what a pass writes: ``Replacement``

Copies have the queue offsets of their messages; a pass leaves gaps. Only records that are on the
disk of the commit log may be copied: a value that a copy has replaced is gone.

Source: store/kv/CompactionStore.java, store/kv/CompactionLog.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import msgspec

from triomq.broker.store.compaction.copy_file import CopyFile, CopySizes
from triomq.broker.store.compaction.replacement import Replacement, ReplacementPlan
from triomq.broker.store.core.errors import IllegalMessage, StoreDamaged, io_error
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.segment import NAME_DIGITS, segment_name
from triomq.broker.store.log.flusher import sync_files
from triomq.broker.store.queues.batch_queue import BatchEntry
from triomq.remoting.protocol.java_hash import tags_code
from triomq.remoting.protocol.message_properties import KEYS
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import read_record

PLACES = "compactionLog", "compactionCq", "replacing"
"""The folders below ``compaction``; each has a folder for each topic and queue."""


class Copy(msgspec.Struct, frozen=True):
    """A copy as readers get it."""

    queue_offset: int
    tags_code: int
    store_timestamp: int
    """ms"""
    record: bytes
    """The record, with its position in the compaction log as its log offset."""


def key_of(message: StoredMessage) -> str | None:
    """Return the key whose value a message is: the whole property KEYS; None: it has none.

    Source: store/kv/CompactionLog.java#shouldRetainMsg.
    """
    keys = message.properties.get(KEYS, "")
    return keys if keys.strip() else None


@attrs.define(eq=False)
class CompactionLog:
    """Opened by ``open_compaction_log``. Calls block: for a thread, one at a time."""

    disk: Disk
    topic: str
    queue_id: int
    sizes: CopySizes
    replacement: Replacement
    files: list[CopyFile] = attrs.field(factory=list, init=False)
    """In the order of the queue. Copies are appended to the last one; a pass takes the others."""
    durable_end: int = attrs.field(default=0, init=False)
    """The commit log may forget messages of the queue below this queue offset."""
    _pending: ReplacementPlan | None = attrs.field(default=None, init=False)
    _replaced: list[CopyFile] | None = attrs.field(default=None, init=False)
    """What ``files`` are after ``_pending``."""

    # Bounds

    @property
    def min_offset(self) -> int:
        """The queue offset of the first copy; ``end_offset`` if there is none."""
        return next((file.first_offset for file in self.files if file.count), 0)

    @property
    def end_offset(self) -> int:
        """One past the queue offset of the last copy; 0: there is none."""
        return next((file.last_offset + 1 for file in reversed(self.files) if file.count), 0)

    @property
    def compacted_end(self) -> int:
        """The queue offset from which on no pass has removed anything."""
        if self.files and self.files[-1].count:
            return self.files[-1].first_offset
        return self.end_offset

    # Writing

    def append(self, record: bytes) -> bool:
        """Copy a record of the commit log, the next one of the queue; False: there is a copy.

        The record must be on the disk of the commit log.

        Raises: IllegalMessage for bytes that are not a record of this queue, or have no key;
        DiskFull, StoreIoError, FlushFailed. After an error the call may be repeated, but for
        FlushFailed.
        """
        self._finish_replacement()
        message = self._message(record)
        if message.queue_offset < self.end_offset:
            return False
        if not self.files or not self.files[-1].has_room(len(record)):
            self._roll()
        self.files[-1].append(
            record, message.queue_offset, tags_code(message.tag), message.store_timestamp
        )
        return True

    def _message(self, record: bytes) -> StoredMessage:
        message = read_record(record, 0, len(record))
        place = f"a message of {self.topic}, queue {self.queue_id}"
        if isinstance(message, str):
            raise IllegalMessage(f"{place} cannot be copied for compaction: {message}")
        if (message.topic, message.queue_id, message.size) != (
            self.topic,
            self.queue_id,
            len(record),
        ):
            raise IllegalMessage(f"{place} expected, found {message.topic}, {message.queue_id}")
        if key_of(message) is None:
            raise IllegalMessage(f"{place} has no key: send it with the property KEYS")
        if message.size > self.sizes.record_bytes_max:
            raise IllegalMessage(
                f"{place} has {message.size} bytes; a file of the compaction log takes"
                f" {self.sizes.record_bytes_max} (compactionMappedFileSize)"
            )
        return message

    def _roll(self) -> None:
        """Begin a new file; the last one is complete, and forced out first."""
        base = 0
        if self.files:
            self.files[-1].seal()
            self.sync()
            base = self.files[-1].base + self.sizes.log_bytes
            self.files[-1].close()
        self.files.append(
            CopyFile.create(
                self.disk, self.replacement.log, self.replacement.queue, base, self.sizes
            )
        )

    def sync(self) -> None:
        """Force the copies to the disk, so that ``durable_end`` is ``end_offset``.

        Raises: FlushFailed.
        """
        if not self.files or self.durable_end >= self.end_offset:
            return
        file = self.files[-1]
        folders = () if file.names_durable else (self.replacement.log, self.replacement.queue)
        sync_files(self.disk, (file.log_path, file.queue_path), folders)
        file.names_durable = True
        self.durable_end = self.end_offset

    # Reading

    def read(self, queue_offset: int, count_max: int, bytes_max: int) -> list[Copy]:
        """Return copies in queue order, the first one at or after ``queue_offset``.

        ``bytes_max``: limit of the records together; the first copy comes in any case.

        Raises: StoreIoError.
        """
        self._finish_replacement()
        copies: list[Copy] = []
        size = 0
        for file in self.files:
            if file.last_offset < queue_offset:
                continue
            for number in range(file.number_from(queue_offset), file.count):
                entry = file.entry(number)
                size += entry.size
                if len(copies) >= count_max or (copies and size > bytes_max):
                    return copies
                copies.append(
                    Copy(entry.base, entry.tags_code, entry.store_timestamp, file.record(entry))
                )
        return copies

    def offset_by_time(self, timestamp_ms: int, *, upper: bool = False) -> int | None:
        """Return the queue offset of the first copy stored at or after a time; None: none is.

        ``upper``: of the last one stored at or before it; None: none is.

        Raises: StoreIoError.
        """
        self._finish_replacement()
        bound = timestamp_ms + 1 if upper else timestamp_ms
        before: int | None = None
        for file in self.files:
            if not file.count:
                continue
            number = file.number_stored_from(bound)
            if number:
                before = file.entry(number - 1).base
            if number < file.count:
                return before if upper else file.entry(number).base
        return before if upper else None

    def message_at(self, position: int) -> StoredMessage | None:
        """Return the copy at a position, which readers got as its log offset; None: there is none.

        A pass moves copies. Raises: StoreIoError.
        """
        self._finish_replacement()
        for file in self.files:
            if file.base <= position < file.base + file.end:
                data = file.record_at(position)
                found = read_record(data, 0, len(data)) if data is not None else ""
                return found if not isinstance(found, str) else None
        return None

    def message(self, file: CopyFile, entry: BatchEntry) -> tuple[StoredMessage, bytes]:
        """Return a copy, decoded, and its bytes. Raises: StoreDamaged, StoreIoError."""
        data = file.record(entry)
        found = read_record(data, 0, len(data))
        if isinstance(found, str) or found.queue_offset != entry.base:
            raise StoreDamaged(
                file.log_path,
                f"no copy of queue offset {entry.base} at position {entry.log_offset - file.base}",
                "restore the folder compaction from a copy (of a slave, or a backup)",
            )
        return found, data

    # Replacing

    def replace(self, old: list[CopyFile], new: list[CopyFile]) -> None:
        """Put ``new`` in the place of the first files, ``old``; they were made by a pass.

        Raises: FlushFailed, StoreIoError. After an error the old or the new files are in use.
        """
        assert self.files[: len(old)] == old
        assert len(old) < len(self.files)
        plan = ReplacementPlan(
            *([segment_name(file.base) for file in files] for files in (old, new))
        )
        following = [self._moved(file) for file in new] + self.files[len(old) :]
        try:
            self.replacement.decide(plan)
        finally:
            if self.replacement.decided():
                self._pending, self._replaced = plan, following
        self._finish_replacement()

    def _moved(self, file: CopyFile) -> CopyFile:
        """Return a new file as it is when it has the place of an old one."""
        file.close()
        name = segment_name(file.base)
        log, queue = self.replacement.log / name, self.replacement.queue / name
        moved = attrs.evolve(file, log_path=log, queue_path=queue, names_durable=True)
        moved.count, moved.end = file.count, file.end
        moved.first_offset, moved.last_offset = file.first_offset, file.last_offset
        return moved

    def _finish_replacement(self) -> None:
        """Carry out a plan that an error interrupted: until then no file has a known content."""
        if self._pending is not None and self._replaced is not None:
            for file in self.files:
                file.close()
            self.replacement.carry_out(self._pending)
            self.files, self._pending, self._replaced = self._replaced, None, None

    def close(self) -> None:
        """Close the files; ``sync`` first."""
        for file in self.files:
            file.close()


def open_compaction_log(
    disk: Disk, root: Path, topic: str, queue_id: int, sizes: CopySizes, log_min: int | None
) -> CompactionLog:
    """Open or create the compaction log of a queue, and recover it. Blocks: for a thread.

    ``root``: the folder of the store. ``log_min``: the smallest queue offset that the commit log
    still has; copies from there on that lie in the last file are made again by the caller, from
    ``end_offset`` on. None after an orderly stop, when all copies are on the disk.

    Raises: StoreDamaged, StoreIoError, DiskFull, FlushFailed.
    """
    place = Path("compaction")
    log, queue, replacing = (root / place / name / topic / str(queue_id) for name in PLACES)
    opened = CompactionLog(disk, topic, queue_id, sizes, Replacement(disk, replacing, log, queue))
    try:
        for folder in (log, queue):
            disk.make_durable_directory(folder)
        plan = opened.replacement.pending()
        if plan is not None:
            opened.replacement.carry_out(plan)
        opened.replacement.clear()
        for base in _bases(disk, log, queue):
            name = segment_name(base)
            file = CopyFile(disk, log / name, queue / name, base, sizes)
            file.check_lengths()
            opened.files.append(file)
    except OSError as error:
        raise io_error(root / place, error) from error
    for file in opened.files:
        last = file is opened.files[-1]
        file.load(topic, queue_id, log_min if last else None)
        if not last:
            file.close()
    _check_order(opened.files)
    if log_min is None:
        opened.durable_end = opened.end_offset
    elif opened.files:
        opened.files[-1].names_durable = False  # the next `sync` forces all of it out
    return opened


def _bases(disk: Disk, log: Path, queue: Path) -> Iterator[int]:
    """Find the pairs; remove the newest file if a crash left it without its partner or size.

    Raises: StoreDamaged, OSError.
    """
    found = {
        folder: {path.name: path for path in folder.iterdir() if not path.is_dir()}
        for folder in (log, queue)
    }
    names = sorted({name for paths in found.values() for name in paths})
    for name in names:
        pair = [paths[name] for paths in found.values() if name in paths]
        if len(name) != NAME_DIGITS or not name.isdecimal():
            raise StoreDamaged(
                pair[0], "only files of the compaction log may lie here", "move the file away"
            )
        if len(pair) < 2 or any(not path.stat().st_size for path in pair):
            if name == names[-1]:
                for path in pair:
                    disk.remove(path)
                return
            raise StoreDamaged(
                pair[0],
                "the file of the same name in the other folder (compactionLog, compactionCq) is"
                " missing or empty",
                "restore it from a copy (of a slave, or a backup)",
            )
        yield int(name)


def _check_order(files: list[CopyFile]) -> None:
    """Raises: StoreDamaged if the queue offsets of a file do not follow those before it."""
    last = -1
    for file in files:
        if file.count:
            if file.first_offset <= last:
                raise StoreDamaged(
                    file.log_path,
                    f"it begins with queue offset {file.first_offset}, after offset {last}",
                    "restore the folder compaction from a copy (of a slave, or a backup)",
                )
            last = file.last_offset
