"""The state of timed messages, which slaves ask for: 60 (a binary body) and 61.

Source: store/…/timer/TimerCheckpoint.java, TimerMetrics.java.
"""

from struct import Struct

import attrs

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.bodies.topics import DataVersion

_POSITIONS = Struct(">4q")
_VERSION = Struct(">3q")


@attrs.frozen
class TimerCheckPoint:
    """The position of the master's timer wheel; older brokers leave the version out."""

    last_read_ms: int
    last_flushed_position: int
    last_queue_offset: int
    master_queue_offset: int
    data_version: DataVersion | None = None

    def encode(self) -> bytes:
        data = _POSITIONS.pack(
            self.last_read_ms,
            self.last_flushed_position,
            self.last_queue_offset,
            self.master_queue_offset,
        )
        version = self.data_version
        if version is not None:
            data += _VERSION.pack(version.state_version, version.timestamp, version.counter)
        return data

    @classmethod
    def decode(cls, data: bytes) -> "TimerCheckPoint":
        """Return the object in 32 or 56 bytes.

        Raises: RemoteProtocolError for any other number of bytes.
        """
        if len(data) not in (_POSITIONS.size, _POSITIONS.size + _VERSION.size):
            raise RemoteProtocolError(
                f"a timer check point of {len(data)} bytes",
                "send 32 or 56 bytes, as TimerCheckpoint of RocketMQ 5.x does",
            )
        version = None
        if len(data) > _POSITIONS.size:
            version = DataVersion(*_VERSION.unpack_from(data, _POSITIONS.size))
        read, flushed, queue, master = _POSITIONS.unpack_from(data)
        return cls(read, flushed, queue, master, version)


@attrs.frozen(eq=False, repr=False)
class TimedCount(JsonBody):
    count: int = 0
    time_stamp: int = 0


@attrs.frozen(eq=False, repr=False)
class TimerMetrics(JsonBody):
    """Answer to 61: topic -> timed messages that wait."""

    timing_count: dict[str, TimedCount] = attrs.field(factory=dict)
    data_version: DataVersion | None = None
