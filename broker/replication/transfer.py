"""The replication stream: reports from the slave, frames from the master. SANS-IO.

=========  ===================================================================================
direction  content
=========  ===================================================================================
to master  *reports*, i8 each: the end of the slave's log; the first says where to go on
to slave   *frames*: log offset i8, size i4, then ``size`` bytes of the log; size 0: heartbeat
=========  ===================================================================================

There is no handshake and no version. Source: store/ha/DefaultHAConnection.java,
DefaultHAClient.java; 4.9: HAConnection.java, HAService.java.

Between two brokers of TrioMQ there is more, in a form that a Java master does not notice. A slave
of TrioMQ sends -1 before its first report, which Java takes for "nothing reported yet"
(``slaveRequestOffset < 0``). A master of TrioMQ then answers with a frame of size ``HELLO_SIZE``,
which no other slave ever gets, and may send further frames with negative sizes; the slave may then
name itself by a report below -1.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import attrs
import msgspec

from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.replication.errors import LinkBroken

REPORT = struct.Struct(">q")
FRAME = struct.Struct(">qi")
FRAME_BYTES_MAX = 64 * 1024 * 1024

HELLO = -1
"""A report that only a master of TrioMQ understands. Twice: an empty log begins at the master's
last segment, as with Java.
"""
NAME_MAX = -2
"""Reports from here down are names: the number that a slave chose when it started."""

HELLO_SIZE = -1
TABLES_CHANGED_SIZE = -2
_HELLO = struct.Struct(">qqqI?")
CHECKED_BYTES = 4096


class LogData(msgspec.Struct, frozen=True, gc=False):
    """Bytes of the log, cut anywhere."""

    start: int
    data: bytes


@attrs.frozen
class Heartbeat:
    """A sign of life; ``offset`` is that of the next log byte to come."""

    offset: int


@attrs.frozen
class MasterHello:
    """The answer of a master of TrioMQ, whose log is [first, end).

    ``check_crc``: the CRC-32 of its bytes from ``check_start`` to where the slave goes on;
    ``awaited``: senders wait for this slave's reports.
    """

    first: int
    end: int
    check_start: int
    check_crc: int
    awaited: bool = False


@attrs.frozen
class TablesChanged:
    """Tables have changed on the master: copy them now."""


@attrs.frozen
class MasterEpochs:
    """The answer of a master in controller mode: the epochs of its log, and where it ends."""

    history: EpochHistory
    end: int


@attrs.frozen
class EpochBegins:
    """What follows was written in this epoch, whose first byte is at ``start``."""

    number: int
    start: int


Event: TypeAlias = LogData | Heartbeat | MasterHello | TablesChanged | MasterEpochs | EpochBegins


def report(offset: int) -> bytes:
    """Return one report."""
    return REPORT.pack(offset)


def frame_head(start: int, size: int) -> bytes:
    """Return the head of a frame."""
    return FRAME.pack(start, size)


def hello_frame(offset: int, hello: MasterHello) -> bytes:
    return FRAME.pack(offset, HELLO_SIZE) + _HELLO.pack(
        hello.first, hello.end, hello.check_start, hello.check_crc, hello.awaited
    )


def tables_changed_frame(offset: int) -> bytes:
    return FRAME.pack(offset, TABLES_CHANGED_SIZE)


def check_start(offset: int, segment_size: int) -> int:
    """Return the start of the bytes that show whether two logs are the same up to ``offset``.

    They are in one segment: a log with the end of a segment has the whole segment.
    """
    if offset <= 0:
        return 0
    base = (offset - 1) - (offset - 1) % segment_size
    return max(base, offset - CHECKED_BYTES)


@attrs.define(eq=False)
class ReportDecoder:
    """Bytes in, reports out."""

    _rest: bytes = b""

    def receive(self, data: bytes | memoryview) -> list[int]:
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        return [value for (value,) in REPORT.iter_unpack(data[:whole])]


@attrs.define(eq=False)
class FrameDecoder:
    """Bytes in, events out.

    Log bytes become events as they come, those of adjacent frames one event.
    """

    _rest: bytes = b""
    """The part of a head that has come."""
    _next: int = 0
    _left: int = 0

    fault: LinkBroken | None = None
    """Why nothing more can be read; the events before it are valid."""

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Return the events of what came; the caller checks ``fault`` afterwards."""
        events: list[Event] = []
        pieces: list[memoryview] = []
        start = follows = at = 0
        if self._rest:
            data, self._rest = self._rest + data, b""
        view = memoryview(data)
        try:
            while at < len(data):
                if not self._left:
                    end, event = self._read_head(view, at)
                    if not end:
                        self._rest = bytes(view[at:])
                        break
                    at = end
                    if event is not None:
                        flush(events, pieces, start)
                        events.append(event)
                    continue
                piece = view[at : at + self._left]
                if pieces and self._next != follows:
                    flush(events, pieces, start)
                if not pieces:
                    start = self._next
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                follows = self._next = self._next + len(piece)
        except LinkBroken as fault:
            self.fault = fault
        flush(events, pieces, start)
        return events

    def _read_head(self, data: memoryview, at: int) -> tuple[int, Event | None]:
        """Return the end of the head at ``at``, and its event unless log bytes follow.

        The end is 0 if the head is not complete.
        """
        end = at + FRAME.size
        if end > len(data):
            return 0, None
        offset, size = FRAME.unpack_from(data, at)
        if 0 <= size <= FRAME_BYTES_MAX and offset >= 0:
            self._next, self._left = offset, size
            return end, None if size else Heartbeat(offset)
        if size == TABLES_CHANGED_SIZE:
            return end, TablesChanged()
        if size == HELLO_SIZE:
            if end + _HELLO.size > len(data):
                return 0, None
            return end + _HELLO.size, MasterHello(*_HELLO.unpack_from(data, end))
        raise LinkBroken(
            f"a frame for log offset {offset} with {size} bytes: this is not the HA port of a"
            " master (haListenPort)"
        )


def flush(events: list[Event], pieces: list[memoryview], start: int) -> None:
    """Turn the pieces into one event."""
    if pieces:
        events.append(LogData(start, b"".join(pieces)))
        pieces.clear()
