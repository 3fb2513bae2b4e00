"""The key index: which records carry a key. Files are filled one after the other; a query goes from the newest to the oldest.

Keys of a record, in this order: ``topic#UNIQ_KEY``, ``topic#word`` for every word of KEYS, ``topic#T#TAGS`` (the last since RocketMQ 5.5.0). Only hashes are
kept, so a query may return records of other keys with the same hash; whoever asked compares.

Source: store/…/index/IndexService.java.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from triomq.broker.store.config import StoreConfig
from triomq.broker.store.disk import Disk
from triomq.broker.store.draft import Batch
from triomq.broker.store.errors import StoreDamaged
from triomq.broker.store.key_index_file import Geometry, KeyIndexFile
from triomq.broker.store.reads import Reads
from triomq.remoting.protocol.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK, hash_batch, java_hash

logger = logging.getLogger(__name__)

NAME_DIGITS = 17
U32 = 0xFFFFFFFF
PREFIXES_MAX = 65_536


def index_hash(topic: str, key: str) -> int:
    """Non-negative hash of ``topic#key``; |-2^31| does not fit and becomes 0, as in Java."""
    value = abs(java_hash(f"{topic}#{key}"))
    return value if value < 1 << 31 else 0


@attrs.define(eq=False)
class KeyIndex:
    """All files, oldest first. ``position`` is the log offset of the last record applied, -1 for none."""

    config: StoreConfig
    disk: Disk
    clock: Callable[[], int]
    """Wall time in ms: files are named by it."""
    files: list[KeyIndexFile] = attrs.field(factory=list, init=False)
    position: int = attrs.field(default=-1, init=False)
    full_timestamp: int = attrs.field(default=0, init=False)
    """Store time of the last entry of the newest full file; goes into the checkpoint."""
    geometry: Geometry = attrs.field(init=False)
    _spare: list[KeyIndexFile] = attrs.field(factory=list, init=False)
    _unsynced: dict[Path, None] = attrs.field(factory=dict, init=False)
    names_durable: bool = attrs.field(default=True, init=False)
    """False while a new file's name may be lost in a power failure."""
    _prefixes: dict[str, int] = attrs.field(factory=dict, init=False)
    _tag_hashes: dict[tuple[str, str], int] = attrs.field(factory=dict, init=False)
    _powers: list[int] = attrs.field(factory=lambda: [1], init=False)
    """31^n mod 2^32."""

    def __attrs_post_init__(self) -> None:
        self.geometry = Geometry(self.config.index_slot_count, self.config.index_entry_count)

    @property
    def directory(self) -> Path:
        return self.config.root / "index"

    # Applying

    def apply(self, batch: Batch) -> None:
        """Add all keys of a batch; records at or before ``position`` are skipped. Atomic: no checkpoint. Raises DiskFull, and then has added nothing."""
        texts: list[str] = []
        prefixes: list[int] = []
        tags: list[tuple[int, int]] = []  # (place in the list of hashes, hash)
        offsets: list[int] = []
        timestamps: list[int] = []
        position = self.position
        for draft, place in zip(batch.drafts, batch.places):
            offset = place.log_offset
            if offset <= position or draft.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                continue
            topic, count = draft.topic, 0
            prefix = self._prefixes.get(topic)
            if prefix is None:
                prefix = self._prefix(topic)
            if draft.unique_key:
                texts.append(draft.unique_key)
                count = 1
            if draft.keys:
                words = [word for word in draft.keys.split(" ") if word]
                texts += words
                count += len(words)
            prefixes += [prefix] * count
            if draft.tags:
                value = self._tag_hashes.get((topic, draft.tags))
                if value is None:
                    value = self._tag_hash(topic, draft.tags)
                tags.append((len(offsets) + count, value))
                count += 1
            offsets += [offset] * count
            timestamps += [place.store_timestamp] * count
        hashes = self._hashes(prefixes, texts)
        for number, value in tags:
            hashes.insert(number, value)
        if hashes:
            self._put(hashes, offsets, timestamps)
        if batch.places:
            self.position = max(position, batch.places[-1].log_offset)

    def _prefix(self, topic: str) -> int:
        """Hash of ``topic#``, unsigned."""
        if len(self._prefixes) >= PREFIXES_MAX:
            self._prefixes.clear()
        prefix = self._prefixes[topic] = java_hash(topic + "#") & U32
        return prefix

    def _tag_hash(self, topic: str, tags: str) -> int:
        if len(self._tag_hashes) >= PREFIXES_MAX:
            self._tag_hashes.clear()
        value = self._tag_hashes[topic, tags] = index_hash(topic, "T#" + tags)
        return value

    def _hashes(self, prefixes: list[int], texts: list[str]) -> list[int]:
        """Hashes of prefix + text: h(a + b) = h(a)·31^len(b) + h(b), made non-negative as Java does."""
        lengths = set(map(len, texts))
        if len(lengths) <= 1:
            values = hash_batch("", texts)
        else:  # texts of one length are hashed together
            values = [0] * len(texts)
            for length in lengths:
                members = [number for number, text in enumerate(texts) if len(text) == length]
                for number, value in zip(members, hash_batch("", [texts[number] for number in members])):
                    values[number] = value
        powers = self._powers
        while len(powers) <= 2 * max(lengths, default=0):  # lengths count UTF-16 units, of which a character has at most two
            powers.append(powers[-1] * 31 & U32)
        hashes = []
        for prefix, text, value in zip(prefixes, texts, values):
            units = len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
            value = (prefix * powers[units] + value) & U32
            hashes.append(value if value < 1 << 31 else (1 << 32) - value & 0x7FFFFFFF)
        return hashes

    def _put(self, hashes: list[int], offsets: list[int], timestamps: list[int]) -> None:
        """Distribute entries over files. Room for all is claimed before the first is written."""
        count, start = len(hashes), 0
        self._claim(count)
        while start < count:
            file = self.files[-1]
            if not file.room:
                file = self._roll(file)
            stop = min(count, start + file.room)
            file.put(hashes[start:stop], offsets[start:stop], timestamps[start:stop])
            self._unsynced[file.path] = None
            start = stop

    def _claim(self, count: int) -> None:
        """Make room for ``count`` entries in the newest file and, behind it, in spare ones. Raises DiskFull or StoreIoError."""
        if not self.files:
            self.files.append(self._create())
        self.files[-1].open()
        targets = [self.files[-1], *self._spare]
        while count > 0:
            if not targets:
                self._spare.append(self._create())
                targets = self._spare[-1:]
            part = min(count, targets[0].room)
            targets.pop(0).reserve(part)
            count -= part

    def _roll(self, full: KeyIndexFile) -> KeyIndexFile:
        fresh = self._spare.pop(0)
        fresh.follow(full)
        full.close()
        self.full_timestamp = full.end_timestamp
        self.files.append(fresh)
        return fresh

    def _create(self) -> KeyIndexFile:
        """A new file, named by local time, always behind the last one in the order of names. Raises DiskFull or StoreIoError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        now_ms = self.clock()
        last = next((file.path.name for file in reversed(self.files + self._spare)), "")
        while (name := time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / 1000)) + f"{now_ms % 1000:03d}") <= last:
            now_ms += 1
        self.names_durable = False
        return KeyIndexFile.create(self.disk, self.directory / name, self.geometry)

    # Loading and repair

    def load(self) -> None:
        """Read the headers of all files. Raises StoreDamaged, OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.directory.iterdir()):
            if len(path.name) != NAME_DIGITS or not path.name.isdecimal():
                raise StoreDamaged(path, "not a key index file", "move it away")
            length = path.stat().st_size
            if length != self.geometry.size_bytes:
                raise StoreDamaged(
                    path,
                    f"its length is {length}, but the configured geometry gives {self.geometry.size_bytes}",
                    "set maxHashSlotNum and maxIndexNum as they were; or delete the folder index, what the log still holds is indexed again",
                )
            file = KeyIndexFile.load(self.disk, path, self.geometry)
            if file.next_entry == 1 and file.begin_offset == file.end_offset == 0:
                path.unlink()  # made ahead and never used
                continue
            self.files.append(file)
        self._note_position()

    def _note_position(self) -> None:
        self.position = self.files[-1].end_offset if self.files and self.files[-1].next_entry > 1 else -1
        self.full_timestamp = max((file.end_timestamp for file in self.files if not file.room), default=0)

    def truncate(self, log_offset: int) -> None:
        """Forget all records that start at or after ``log_offset``; those before it must be whole on the disk."""
        while self.files and (self.files[-1].next_entry == 1 or self.files[-1].begin_offset >= log_offset):
            self._drop(self.files.pop())
        if self.files:
            self.files[-1].truncate(log_offset)
            self.files[-1].close()  # gives back the memory of all slots, which the repair has touched; the next put opens it again
            self._unsynced[self.files[-1].path] = None
        self._note_position()

    def drop_after(self, timestamp: int) -> int:
        """Java's rule after a crash: delete the files with entries later than ``timestamp``; the store time up to which all is still indexed."""
        while self.files and self.files[-1].end_timestamp > timestamp:
            self._drop(self.files.pop())
        self._note_position()
        return self.files[-1].end_timestamp if self.files else 0

    def _drop(self, file: KeyIndexFile) -> None:
        file.close()
        file.path.unlink()
        self._unsynced.pop(file.path, None)

    def take_unsynced(self) -> tuple[list[Path], list[Path]]:
        """(files, directories) changed since the last call."""
        files = list(self._unsynced)
        self._unsynced.clear()
        directories = [] if self.names_durable else [self.directory, self.directory.parent]
        self.names_durable = True
        return files, directories

    def close(self) -> None:
        for file in self.files:
            file.close()
        for file in self._spare:
            self._drop(file)

    # Asking

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, count_max: int, reads: Reads) -> list[int]:
        """Log offsets of the records that carry the key (or one with the same hash), each once, newest first. Raises Cold."""
        value = index_hash(topic, key)
        found: dict[int, None] = {}
        for file in reversed(self.files):
            if len(found) >= count_max:
                break
            if file.begin_timestamp <= end_ms and file.end_timestamp >= begin_ms:
                found.update(dict.fromkeys(file.find(value, begin_ms, end_ms, count_max - len(found), reads)))
            if file.begin_timestamp < begin_ms:
                break
        return list(found)

    @property
    def last_offset(self) -> int:
        """Log offset of the newest entry, -1 if there is none."""
        return self.files[-1].end_offset if self.files else -1

    @property
    def last(self) -> tuple[int, int]:
        """(store time, log offset) of the newest entry, (0, 0) if there is none."""
        return (self.files[-1].end_timestamp, self.files[-1].end_offset) if self.files else (0, 0)
