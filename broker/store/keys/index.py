"""KeyIndex: which records carry a key.

Files are filled one after the other; a query goes from the newest file to the oldest. A file also
ends where store times go back, so that they grow inside of each.

Keys of a record, in this order: ``topic#UNIQ_KEY``, ``topic#word`` for every word of KEYS,
``topic#T#TAGS`` (since RocketMQ 5.5.0). The files have only the hashes, so a query may return
records of other keys with the same hash; the client compares the keys.

Source: store/…/index/IndexService.java.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import attrs

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.core.stored_times import AHEAD_MS_MAX, steps_back
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.reads import Reads
from triomq.broker.store.keys.index_file import HEADER, Geometry, KeyIndexFile
from triomq.broker.store.queues.batch import Batch
from triomq.remoting.protocol.java_hash import (
    KEPT_CHARACTERS_MAX,
    concat_hash,
    hash_batch,
    java_hash,
    tags_code,
    utf16_units,
)
from triomq.remoting.protocol.sys_flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK

logger = logging.getLogger(__name__)

NAME_DIGITS = 17
HASH_MASK = 0x7FFFFFFF
TOPICS_MAX = 16_384
"""Topics whose hash is cached: a broker with 50,000 queues, eight per topic, has 6,250 topics. A
topic has at most 255 bytes.
"""


def index_hash(topic: str, key: str) -> int:
    """Return the non-negative hash of ``topic#key``: 0 for -2^31, as in Java."""
    return abs(java_hash(f"{topic}#{key}")) & HASH_MASK


@functools.lru_cache(maxsize=TOPICS_MAX)
def topic_hash(topic: str) -> int:
    """Return the hash that the hashes of all keys of a topic continue."""
    return java_hash(topic + "#")


def tag_hash(topic: str, tags: str) -> int:
    """Return the hash under which all records with these tags are found."""
    return (
        _kept_tag_hash(topic, tags)
        if len(tags) <= KEPT_CHARACTERS_MAX
        else index_hash(topic, f"T#{tags}")
    )


@functools.lru_cache(maxsize=TOPICS_MAX)
def _kept_tag_hash(topic: str, tags: str) -> int:
    return (
        abs(concat_hash(topic_hash(topic), tags_code(f"T#{tags}"), 2 + utf16_units(tags)))
        & HASH_MASK
    )


def every_key(unique_key: str | None, keys: str) -> list[str]:
    """Return the unique key, if there is one, and the words of KEYS."""
    words = [word for word in keys.split(" ") if word]
    return [unique_key, *words] if unique_key else words


def hash_by_length(prefix: str, keys: list[str]) -> list[int]:
    """Return ``java_hash(prefix + key)`` of all keys. Keys of one length are hashed together."""
    if len(set(map(len, keys))) == 1:
        return hash_batch(prefix, keys)
    by_length: dict[int, list[int]] = {}  # one pass: a batch may have hundreds of lengths
    for number, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(number)
    hashes = [0] * len(keys)
    for numbers in by_length.values():
        for number, value in zip(numbers, hash_batch(prefix, [keys[number] for number in numbers])):
            hashes[number] = value
    return hashes


def hash_together(texts: dict[str, list[str]]) -> dict[str, list[int]]:
    """Return ``index_hash`` of the keys of each topic.

    The keys of several topics are hashed together without topic, and each hash then continues the
    hash of its topic.
    """
    if len(texts) == 1:
        return {
            topic: [abs(value) & HASH_MASK for value in hash_by_length(topic + "#", keys)]
            for topic, keys in texts.items()
        }
    plain = iter(hash_by_length("", [key for keys in texts.values() for key in keys]))
    hashes = {}
    for topic, keys in texts.items():
        seed = topic_hash(topic)
        hashes[topic] = [
            abs(concat_hash(seed, value, utf16_units(key))) & HASH_MASK
            for key, value in zip(keys, plain)
        ]
    return hashes


def entries_of(batch: Batch, position: int) -> tuple[list[int], list[int], list[int]]:
    """Return (hashes, log offsets, store times) of the entries of a batch after ``position``."""
    drafts, places = batch.drafts, batch.places
    flags = {draft.sys_flag & TRANSACTION_MASK for draft in drafts}
    if TRANSACTION_ROLLBACK in flags or (places and places[0].log_offset <= position):
        kept = [
            (draft, place)
            for draft, place in zip(drafts, places)
            if place.log_offset > position
            and draft.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
        ]
        drafts, places = [draft for draft, _ in kept], [place for _, place in kept]
    # All keys of a topic are hashed together; below each entry takes the next hash.
    texts: dict[str, list[str]] = {}
    topic, words = "", []  # type: str, list[str]
    for draft in drafts:
        if draft.topic != topic:
            topic = draft.topic
            words = texts.setdefault(topic, [])
        if draft.keys:
            words += every_key(draft.unique_key, draft.keys)
        elif draft.unique_key:
            words.append(draft.unique_key)
    ready = {topic: iter(values).__next__ for topic, values in hash_together(texts).items()}

    hashes: list[int] = []  # one per entry, like offsets and timestamps
    offsets: list[int] = []
    timestamps: list[int] = []
    add_hash, add_offset, add_timestamp = hashes.append, offsets.append, timestamps.append
    topic, last_tags, last_hash = "", None, 0
    for draft, place in zip(drafts, places):
        offset, timestamp, tags = place.log_offset, place.store_timestamp, draft.tags
        if draft.topic != topic:
            topic, last_tags = draft.topic, None
            next_hash = ready[topic]
        if draft.keys:
            for _ in every_key(draft.unique_key, draft.keys):
                add_hash(next_hash())
                add_offset(offset)
                add_timestamp(timestamp)
        elif draft.unique_key:
            add_hash(next_hash())
            add_offset(offset)
            add_timestamp(timestamp)
        if tags:
            if tags != last_tags:
                last_tags, last_hash = tags, tag_hash(topic, tags)
            add_hash(last_hash)
            add_offset(offset)
            add_timestamp(timestamp)
    return hashes, offsets, timestamps


@attrs.define(eq=False)
class KeyIndex:
    """All files, oldest first. ``position``: log offset of the last applied record, -1 for none."""

    config: StoreConfig
    disk: Disk
    clock: Callable[[], int]
    """Wall time in ms. Files are named after it."""
    files: list[KeyIndexFile] = attrs.field(factory=list, init=False)
    position: int = attrs.field(default=-1, init=False)
    geometry: Geometry = attrs.field(init=False)
    _spare: list[KeyIndexFile] = attrs.field(factory=list, init=False)
    _unsynced: dict[Path, None] = attrs.field(factory=dict, init=False)
    names_durable: bool = attrs.field(default=True, init=False)
    """False while a power failure may lose the name of a new file."""

    damaged: bool = attrs.field(default=False, init=False)
    """Whether ``load`` has deleted files. Then keys of the last record in the remaining files may
    be lost.
    """

    def __attrs_post_init__(self) -> None:
        self.geometry = Geometry(self.config.index_slot_count, self.config.index_entry_count)

    @property
    def directory(self) -> Path:
        return self.config.root / "index"

    # Applying

    def apply(self, batch: Batch) -> None:
        """Add all keys of a batch; skip records at or before ``position``. An error adds none.

        Raises: DiskFull, StoreIoError. Checkpoint: never.
        """
        position = self.position
        hashes, offsets, timestamps = entries_of(batch, position)
        if hashes:
            self._put(hashes, offsets, timestamps)
        if batch.places:
            self.position = max(position, batch.places[-1].log_offset)

    def _put(self, hashes: list[int], offsets: list[int], timestamps: list[int]) -> None:
        """Distribute entries over files. Reserve room for all before the first one is written.

        Where times go back a file begins: its entries count their seconds from its begin.
        """
        steps = steps_back(timestamps, self.files[-1].end_timestamp if self.files else 0)
        pieces = list(pairwise((0, *steps, len(hashes))))
        if steps or not self.files or self.files[-1].room_reserved < len(hashes):
            self._claim([stop - start for start, stop in pieces])
        for number, (start, end) in enumerate(pieces):
            if number:
                self._roll(self.files[-1])
            while start < end:
                file = self.files[-1]
                if not file.room:
                    file = self._roll(file)
                stop = min(end, start + file.room)
                file.put(hashes[start:stop], offsets[start:stop], timestamps[start:stop])
                self._unsynced[file.path] = None
                start = stop

    def _claim(self, counts: list[int]) -> None:
        """Reserve room for entries in the newest file and, behind it, in spare files.

        The entries of each further count begin a file.

        Raises: DiskFull, StoreIoError.
        """
        if not self.files:
            self.files.append(self._create())
        self.files[-1].open()
        targets = [self.files[-1], *self._spare]
        for count in counts:
            left = count
            while True:
                if not targets:
                    self._spare.append(self._create())
                    targets = self._spare[-1:]
                part = min(left, targets[0].room)
                targets.pop(0).reserve(part)
                left -= part
                if not left:
                    break

    def _roll(self, older: KeyIndexFile) -> KeyIndexFile:
        fresh = self._spare.pop(0)
        fresh.follow(older)
        older.close()
        self.files.append(fresh)
        return fresh

    def _create(self) -> KeyIndexFile:
        """Create a file, named after the local time, and the last one in the order of names.

        Raises: DiskFull, StoreIoError.
        """
        try:
            self.disk.make_directory(self.directory)
        except OSError as error:
            raise self.disk.write_error(self.directory, error) from error
        now_ms = self.clock()
        last = next((file.path.name for file in reversed(self.files + self._spare)), "")
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / 1000)) + f"{now_ms % 1000:03d}"
        # Two files in a millisecond, or a clock that was set back. Only the order of names matters.
        if name <= last:
            name = f"{int(last) + 1:0{NAME_DIGITS}d}"
        self.names_durable = False
        return KeyIndexFile.create(self.disk, self.directory / name, self.geometry)

    # Loading and repair

    def load(self) -> None:
        """Read the headers of all files.

        A damaged file is deleted with all later ones, which are then rebuilt from the log.

        Raises: StoreDamaged, OSError.
        """
        self.disk.make_directory(self.directory)
        paths = sorted(self.directory.iterdir())
        for path in paths:
            if len(path.name) != NAME_DIGITS or not path.name.isdecimal():
                raise StoreDamaged(path, "not a key index file", "move it away")
        lengths = {path: path.stat().st_size for path in paths}
        if paths and lengths[paths[-1]] == 0:  # made just before a power failure
            del lengths[paths[-1]]
            self.disk.remove(paths.pop())
        if paths and self.geometry.size_bytes not in lengths.values():
            raise StoreDamaged(
                paths[0],
                f"its length is {lengths[paths[0]]}, but the configured geometry gives"
                f" {self.geometry.size_bytes}",
                "set maxHashSlotNum and maxIndexNum as they were; or delete the folder index, what"
                " the log still holds is indexed again",
            )
        for number, path in enumerate(paths):
            reason = self._complaint(path, lengths[path])
            if reason is not None:
                logger.warning(
                    "%s is damaged: %s; it and the %s files after it are deleted and rebuilt"
                    " from the log",
                    path,
                    reason,
                    len(paths) - number - 1,
                )
                for late in reversed(paths[number:]):
                    self.disk.remove(late)
                self.damaged = True
                break
            file = KeyIndexFile.load(self.disk, path, self.geometry)
            if file.next_entry == 1 and file.begin_offset == file.end_offset == 0:
                self.disk.remove(path)  # created as a spare and never used
                continue
            self.files.append(file)
        self._note_position()

    def _complaint(self, path: Path, length: int) -> str | None:
        if length != self.geometry.size_bytes:
            return f"its length is {length} instead of {self.geometry.size_bytes}"
        header = self.disk.read_path(path, HEADER.size, 0)
        reason = KeyIndexFile.complaint(header, self.geometry)
        begin_offset = HEADER.unpack(header)[2]
        if (
            reason is None
            and self.files
            and begin_offset
            and begin_offset < self.files[-1].end_offset
        ):
            return (
                f"it begins at log offset {begin_offset}, before the end of the file before it,"
                f" {self.files[-1].end_offset}"
            )
        return reason

    def _note_position(self) -> None:
        self.position = (
            self.files[-1].end_offset if self.files and self.files[-1].next_entry > 1 else -1
        )

    @property
    def full_timestamp(self) -> int:
        """Store time of the last entry of the newest full file, for the checkpoint.

        0 if a file behind it begins earlier: then no time tells them apart.
        """
        newest = 0
        for file in self.files:
            if file.begin_timestamp < newest:
                newest = 0
            if not file.room:
                newest = file.end_timestamp
        return newest

    def truncate(self, log_offset: int) -> None:
        """Forget all records that start at or after ``log_offset``.

        The entries of records before it must be whole on the disk.
        """
        while self.files and (
            self.files[-1].next_entry == 1 or self.files[-1].begin_offset >= log_offset
        ):
            self._drop(self.files.pop())
        if self.files:
            self.files[-1].truncate(log_offset)
            # Give back the memory of all slots, which the repair has touched; the next put opens
            # the file again.
            self.files[-1].close()
            self._unsynced[self.files[-1].path] = None
        self._note_position()

    def drop_after(self, timestamp: int) -> None:
        """Delete the files with entries later than ``timestamp``: Java's rule after a crash.

        Only full files count in that time, so no other one is known to be on the disk.
        """
        while self.files and (self.files[-1].room or self.files[-1].end_timestamp > timestamp):
            self._drop(self.files.pop())
        self._note_position()
        # Keys of the last record may have been in a deleted file: the record is indexed again, as
        # in Java.
        self.position -= 1

    def take_expired(self, log_min: int) -> Path | None:
        """Forget the oldest file if all its records are below ``log_min``; the caller deletes it.

        Never the last file, which gets the next keys.
        """
        if len(self.files) < 2 or self.files[0].end_offset >= log_min:
            return None
        file = self.files.pop(0)
        self._unsynced.pop(file.path, None)
        return file.path

    def _drop(self, file: KeyIndexFile) -> None:
        file.close()
        self.disk.remove(file.path)
        self._unsynced.pop(file.path, None)

    def take_unsynced(self) -> tuple[list[Path], list[Path]]:
        """Return (files, directories) changed since the last call."""
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

    # Queries

    def find(
        self, topic: str, key: str, begin_ms: int, end_ms: int, count_max: int, reads: Reads
    ) -> list[int]:
        """Return the log offsets of the records that carry the key, each once, newest first.

        Among them may be records of another key with the same hash.

        Raises: Cold, StoreIoError.
        """
        value = index_hash(topic, key)
        found: dict[int, None] = {}
        for file in reversed(self.files):
            if len(found) >= count_max:
                break
            if (
                file.begin_timestamp <= end_ms + AHEAD_MS_MAX
                and file.end_timestamp + AHEAD_MS_MAX >= begin_ms
            ):
                found.update(
                    dict.fromkeys(file.find(value, begin_ms, end_ms, count_max - len(found), reads))
                )
        return list(found)

    def steps_back(self) -> list[int]:
        """Return the log offsets from which on store times are far smaller, in ascending order.

        Java does not begin a file there: of its own steps back nothing is known.
        """
        return [
            later.begin_offset
            for earlier, later in pairwise(self.files)
            if later.begin_timestamp + AHEAD_MS_MAX < earlier.end_timestamp
        ]

    @property
    def last_offset(self) -> int:
        """The log offset of the newest entry; -1 if there is none."""
        return self.files[-1].end_offset if self.files else -1

    @property
    def last(self) -> tuple[int, int]:
        """(store time, log offset) of the newest entry; (0, 0) if there is none."""
        return (self.files[-1].end_timestamp, self.files[-1].end_offset) if self.files else (0, 0)
