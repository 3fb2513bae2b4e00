"""CompactionPass: removes the values of keys that have newer ones, in steps of a bounded size.

A pass covers all files but the last one. It first notes the newest record of each key among the
records that no pass has seen, as far as the table has room, then copies what stays into new files
and puts them in the place of the old ones. New files have the names of the first old ones: what is
left never needs more files.

Source: store/kv/CompactionLog.java#doCompaction.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from triomq.broker.store.compaction.compaction_log import CompactionLog, key_of
from triomq.broker.store.compaction.copy_file import CopyFile
from triomq.broker.store.compaction.newest_by_key import NewestByKey
from triomq.remoting.protocol.record import StoredMessage


@attrs.define(eq=False)
class CompactionPass:
    """One pass. Between steps copies may be appended and read; there is one pass at a time.

    ``since``: the last queue offset that earlier passes have covered, as ``reached`` had it; -1
    covers everything. ``tombstones_before_ms``: a tombstone, a message with an empty body, goes if
    it was stored before this time, so that readers have seen it.
    """

    log: CompactionLog
    since: int
    keys_max: int
    tombstones_before_ms: int
    removed: int = attrs.field(default=0, init=False)
    """Copies that this pass leaves out."""
    kept: int = attrs.field(default=0, init=False)
    done: bool = attrs.field(default=False, init=False)
    _old: list[CopyFile] = attrs.field(init=False)
    _new: list[CopyFile] = attrs.field(factory=list, init=False)
    _newest: NewestByKey = attrs.field(init=False)
    _work: Iterator[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._old = self.log.files[:-1]
        self._newest = NewestByKey(self.keys_max, self.since)
        self._work = self._run()

    @property
    def reached(self) -> int:
        """The last queue offset that this pass covers: ``since`` of the next one."""
        return self._newest.reached

    def step(self, bytes_max: int) -> int:
        """Work until ``bytes_max`` bytes were read and written, and return how many were.

        A record is handled as a whole; the last step forces all new files out. ``done`` says
        whether there are further steps.

        Raises: DiskFull, StoreIoError, StoreDamaged, FlushFailed. Then the pass is over, and the
        old or the new files are in use.
        """
        size = 0
        try:
            for step_bytes in self._work:
                size += step_bytes
                if size >= bytes_max:
                    return size
        except BaseException:
            self.stop()
            raise
        self.stop()
        return size

    def stop(self) -> None:
        """End the pass, finished or not. What it wrote and did not put in place is forgotten."""
        self.done = True
        self._work = iter(())
        for file in [*self._old, *self._new]:
            file.close()

    def _run(self) -> Iterator[int]:
        """Yield the size of each piece of work in bytes."""
        if not self._old:
            return
        for _, message, _ in self._messages():
            if message.queue_offset > self.since:
                key = key_of(message)
                if key is not None and not self._newest.add(key, message.queue_offset):
                    break
            yield message.size
        self.log.replacement.prepare()
        for code, message, data in self._messages():
            if self._stays(message):
                self._keep(code, message, data)
                self.kept += 1
                yield 2 * message.size
            else:
                self.removed += 1
                yield message.size
        if self.removed:
            if self._new:
                self._new[-1].seal()
            self.log.replace(self._old, self._new)

    def _messages(self) -> Iterator[tuple[int, StoredMessage, bytes]]:
        """Yield tags code, message and record of all copies."""
        for file in self._old:
            for number in range(file.count):
                entry = file.entry(number)
                message, data = self.log.message(file, entry)
                yield entry.tags_code, message, data

    def _stays(self, message: StoredMessage) -> bool:
        deletes = not message.body and message.store_timestamp < self.tombstones_before_ms
        key = key_of(message)
        # A Java broker takes no message without a key either; such a copy has no value to keep.
        return key is not None and self._newest.keeps(key, message.queue_offset, deletes=deletes)

    def _keep(self, code: int, message: StoredMessage, data: bytes) -> None:
        if not self._new or not self._new[-1].has_room(len(data)):
            if self._new:
                self._new[-1].seal()
            base = self._old[len(self._new)].base
            replacement = self.log.replacement
            self._new.append(
                CopyFile.create(
                    self.log.disk, replacement.new_log, replacement.new_queue, base, self.log.sizes
                )
            )
        self._new[-1].append(data, message.queue_offset, code, message.store_timestamp)
