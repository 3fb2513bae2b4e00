"""EpochHistory: which master's epoch each part of a log comes from. Pure.

A master begins its epoch at the end of its log. So two logs are equal up to the end of the last
epoch that both have with the same start, as far as both have bytes of it. Two masters never have
the same epoch: the controllers see to that. What a slave has behind the last common point is cut
off when it opens its store again (``cut_at`` in ``broker/store/recovery.py``).

The file is that of RocketMQ's controller mode: the number of entries, the CRC-32 of all lines that
follow (without its highest bit), then ``epoch-start`` on each line. Source:
store/…/ha/autoswitch/EpochFileCache.java, EpochEntry.java.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import attrs

CRC_MASK = 0x7FFFFFFF
EPOCH_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1


@attrs.frozen(order=True)
class Epoch:
    """The log from ``start`` on was written by the master of epoch ``number``."""

    number: int
    start: int


def ascending(entries: tuple[Epoch, ...]) -> bool:
    """Return whether numbers rise, and starts do not fall."""
    return all(
        one.number < other.number and one.start <= other.start for one, other in pairwise(entries)
    )


@attrs.frozen
class EpochHistory:
    """The epochs of one log, ascending. The log ends the last one; others end where one begins."""

    entries: tuple[Epoch, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not ascending(self.entries):
            raise ValueError(f"epochs that do not ascend: {self.entries}")

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> EpochHistory:
        """Make a history of (epoch, start). Raises: ValueError."""
        return cls(tuple(Epoch(number, start) for number, start in pairs))

    @property
    def last(self) -> Epoch | None:
        return self.entries[-1] if self.entries else None

    @property
    def last_number(self) -> int:
        """The newest epoch; 0 if there is none."""
        return self.entries[-1].number if self.entries else 0

    def begin(self, number: int, start: int) -> EpochHistory:
        """Add the epoch that begins at the end of the log. Raises: ValueError.

        Epochs that have no bytes, because they would begin at or behind ``start``, are dropped.
        """
        if number <= self.last_number:
            raise ValueError(f"epoch {number} begins, but epoch {self.last_number} was here")
        return EpochHistory((*self.cut(start).entries, Epoch(number, start)))

    def cut(self, end: int) -> EpochHistory:
        """Drop the epochs of which a log that ends at ``end`` has no byte."""
        return EpochHistory(tuple(entry for entry in self.entries if entry.start < end))

    def within(self, end: int) -> EpochHistory:
        """Drop the epochs that begin behind ``end``: a crash came between the file and the log."""
        return EpochHistory(tuple(entry for entry in self.entries if entry.start <= end))

    def at(self, offset: int) -> Epoch | None:
        """Return the epoch of the byte at ``offset``; the last one for the end of the log."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start)
        return self.entries[index - 1] if index else None

    def end_of(self, index: int, log_end: int) -> int:
        """Return where an epoch ends, by its index among the entries."""
        following = self.entries[index + 1 :]
        return min(following[0].start, log_end) if following else log_end

    def common_end(self, own_end: int, other: EpochHistory, other_end: int) -> int | None:
        """Return up to where this log and another one are equal for certain; None: unknown.

        ``own_end``, ``other_end``: the ends of the two logs. It is 0 if both have their epochs from
        the first byte on, and share none.
        """
        starts = {entry: index for index, entry in enumerate(other.entries)}
        for index in range(len(self.entries) - 1, -1, -1):
            found = starts.get(self.entries[index])
            if found is not None:
                return min(self.end_of(index, own_end), other.end_of(found, other_end))
        firsts = [history.entries[0].start for history in (self, other) if history.entries]
        return 0 if firsts == [0, 0] else None

    def encode(self) -> bytes:
        """Return the content of the file."""
        lines = "".join(f"{entry.number}-{entry.start}\n" for entry in self.entries).encode()
        return b"%d\n%d\n" % (len(self.entries), zlib.crc32(lines) & CRC_MASK) + lines

    @classmethod
    def decode(cls, data: bytes) -> EpochHistory:
        """Read the content of the file. Raises: ValueError."""
        count, _, rest = data.partition(b"\n")
        crc, _, lines = rest.partition(b"\n")
        if int(crc) != zlib.crc32(lines) & CRC_MASK:
            raise ValueError("the CRC is not that of its lines")
        history = cls.of(_numbers(line) for line in lines.decode("ascii").splitlines())
        if int(count) != len(history.entries):
            raise ValueError(f"it has {len(history.entries)} epochs, and says {int(count)}")
        return history


def _numbers(line: str) -> tuple[int, int]:
    number, _, start = line.partition("-")
    found = int(number), int(start)
    if not (0 <= found[0] <= EPOCH_MAX and 0 <= found[1] <= OFFSET_MAX):
        raise ValueError(f"the line {line!r} does not have the form EPOCH-START")
    return found
