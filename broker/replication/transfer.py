"""The replication stream: reports from the slave, frames from the master.  SANS-IO.

=========  ======================================================================================================
direction  content
=========  ======================================================================================================
to master  *reports*, i8 each: the end of the slave's log.  The first is where it wants to go on, all acknowledge
to slave   *frames*: log offset i8, size i4, so many bytes of the log.  Size 0 is a sign of life
=========  ======================================================================================================

There is no handshake and no version.  Source: store/ha/DefaultHAConnection.java, DefaultHAClient.java; 4.9: HAConnection.java, HAService.java.

Between two of ours there is more, in a form that a Java master cannot notice: our slave sends -1 before its first report, which Java takes for "nothing said yet"
(``slaveRequestOffset < 0``).  A master of ours then answers with a frame of size ``HELLO_SIZE``, which no other slave ever gets, and may send further frames with
negative sizes; the slave may then name itself by a report below -1.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import attrs
import msgspec

from triomq.broker.replication.errors import LinkBroken

REPORT = struct.Struct(">q")
FRAME = struct.Struct(">qi")
FRAME_BYTES_MAX = 64 * 1024 * 1024

HELLO = -1
"""A report that only a master of ours understands.  Twice: an empty log is to begin at the master's last segment, as with Java."""
NAME_MAX = -2
"""Reports from here down are names: a number that a slave chose when it started."""

HELLO_SIZE = -1
TABLES_CHANGED_SIZE = -2
_HELLO = struct.Struct(">qqqI?")
CHECKED_BYTES = 4096


class LogData(msgspec.Struct, frozen=True, gc=False):
    """Bytes of the log, in any cuts."""

    start: int
    data: bytes


@attrs.frozen
class Heartbeat:
    """A sign of life; ``offset`` is the next one to come."""

    offset: int


@attrs.frozen
class MasterHello:
    """The master is one of ours.  Its log is [first, end); its bytes from ``check_start`` to where the slave goes on have this CRC-32.

    ``awaited``: senders wait for this slave's reports.
    """

    first: int
    end: int
    check_start: int
    check_crc: int
    awaited: bool = False


@attrs.frozen
class TablesChanged:
    """Topics, groups or the like have changed on the master: copy them now."""


Event: TypeAlias = LogData | Heartbeat | MasterHello | TablesChanged


def report(offset: int) -> bytes:
    return REPORT.pack(offset)


def frame_head(start: int, size: int) -> bytes:
    return FRAME.pack(start, size)


def hello_frame(offset: int, hello: MasterHello) -> bytes:
    return FRAME.pack(offset, HELLO_SIZE) + _HELLO.pack(hello.first, hello.end, hello.check_start, hello.check_crc, hello.awaited)


def tables_changed_frame(offset: int) -> bytes:
    return FRAME.pack(offset, TABLES_CHANGED_SIZE)


def check_start(offset: int, segment_size: int) -> int:
    """Where the bytes begin that tell whether two logs are the same up to ``offset``: both have all of the segment, if they have its end."""
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
    """Bytes in, events out.  Log bytes are handed on as they come, those of adjacent frames in one piece."""

    _head: bytearray = attrs.field(factory=bytearray)
    _next: int = 0
    _left: int = 0

    fault: LinkBroken | None = None
    """Why nothing more can be read; what came before it is good."""

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """What came; the caller looks at ``fault`` afterwards."""
        events: list[Event] = []
        pieces: list[memoryview] = []
        start = follows = 0
        view, at = memoryview(data), 0
        try:
            while at < len(data):
                if not self._left:
                    event, at = self._read_head(data, at)
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

    def _read_head(self, data: bytes | memoryview, at: int) -> tuple[Event | None, int]:
        """Take what has come of a head; its event, if it is a whole one without log bytes, and where it ends."""
        if not self._head and len(data) - at >= FRAME.size:
            offset, size = FRAME.unpack_from(data, at)
            if size >= 0:  # nearly always
                return self._begin(offset, size, b""), at + FRAME.size
        taken = data[at : at + self._wanted() - len(self._head)]
        self._head += taken
        at += len(taken)
        if len(self._head) < self._wanted():
            return None, at
        offset, size = FRAME.unpack_from(self._head)
        body = bytes(self._head[FRAME.size :])
        self._head.clear()
        return self._begin(offset, size, body), at

    def _wanted(self) -> int:
        """Length of the head that is being read: a hello's is known once its first part is there."""
        if len(self._head) < FRAME.size:
            return FRAME.size
        return FRAME.size + (_HELLO.size if FRAME.unpack_from(self._head)[1] == HELLO_SIZE else 0)

    def _begin(self, offset: int, size: int, body: bytes) -> Event | None:
        """Begin with what follows a complete head."""
        if size == HELLO_SIZE:
            return MasterHello(*_HELLO.unpack(body))
        if size == TABLES_CHANGED_SIZE:
            return TablesChanged()
        if offset < 0 or not 0 <= size <= FRAME_BYTES_MAX:
            raise LinkBroken(f"a frame for log offset {offset} with {size} bytes: this is no master's HA port (haListenPort)")
        self._next, self._left = offset, size
        return None if size else Heartbeat(offset)


def flush(events: list[Event], pieces: list[memoryview], start: int) -> None:
    """Make what was gathered one event."""
    if pieces:
        events.append(LogData(start, b"".join(pieces)))
        pieces.clear()
