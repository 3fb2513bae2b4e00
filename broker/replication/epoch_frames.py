"""Bytes of the HA stream in controller mode (RocketMQ's auto-switch mode). SANS-IO.

All numbers are big-endian; each packet begins with a state, HANDSHAKE (1) or TRANSFER (2).

===================  =========================================================================
slave, handshake     i4 1, i2 from the last segment only, i2 never joins the set, i8 broker id
slave, report        i4 2, i8 end of the slave's log
master, handshake    i4 1, i4 size of the entries, i8 end of the log, i4 last epoch,
                     then for each epoch i4 number, i8 start
master, transfer     i4 2, i4 size, i8 offset, i4 epoch, i8 its start, i8 confirmed offset,
                     then the bytes of the log; size 0: a heartbeat
===================  =========================================================================

A transfer never crosses the start of an epoch. A master with an empty log sends offset -1. Source:
store/…/ha/autoswitch/AutoSwitchHAConnection.java, AutoSwitchHAClient.java.
"""

from __future__ import annotations

import struct

import attrs

from triomq.broker.replication.epochs import Epoch, EpochHistory
from triomq.broker.replication.errors import LinkBroken
from triomq.broker.replication.transfer import (
    FRAME_BYTES_MAX,
    EpochBegins,
    Event,
    FrameDecoder,
    Heartbeat,
    MasterEpochs,
)

HANDSHAKE, TRANSFER = 1, 2
STATE = struct.Struct(">i")
JOIN = struct.Struct(">ihhq")
REPORT = struct.Struct(">iq")
EPOCHS = struct.Struct(">iiqi")
ENTRY = struct.Struct(">iq")
HEAD = struct.Struct(">iiqiqq")
EPOCHS_MAX = 100_000


@attrs.frozen
class Join:
    """The handshake of a slave: who it is, and where an empty log begins."""

    broker_id: int
    last_segment_only: bool = False
    learner: bool = False

    def encode(self) -> bytes:
        return JOIN.pack(HANDSHAKE, self.last_segment_only, self.learner, self.broker_id)


def report_frame(end: int) -> bytes:
    return REPORT.pack(TRANSFER, end)


def epochs_frame(history: EpochHistory, log_end: int) -> bytes:
    """Return the handshake of a master."""
    entries = b"".join(ENTRY.pack(entry.number, entry.start) for entry in history.entries)
    return EPOCHS.pack(HANDSHAKE, len(entries), log_end, history.last_number) + entries


def transfer_head(start: int, size: int, epoch: Epoch, confirmed: int) -> bytes:
    """Return what precedes the log bytes of a transfer; ``size`` 0: a heartbeat."""
    return HEAD.pack(TRANSFER, size, start, epoch.number, epoch.start, confirmed)


@attrs.define(eq=False)
class SlaveFrames:
    """Bytes of a slave in, its handshake and then its reports out."""

    join: Join | None = attrs.field(default=None, init=False)
    _rest: bytes = attrs.field(default=b"", init=False)

    def receive(self, data: bytes | memoryview) -> list[int]:
        """Return the reports. Raises: LinkBroken."""
        data = self._rest + data
        at = 0
        reports = []
        while at + REPORT.size <= len(data):
            (state,) = STATE.unpack_from(data, at)
            if state == HANDSHAKE:  # Java's slave repeats it after a pause
                if at + JOIN.size > len(data):
                    break
                _, last_only, learner, broker_id = JOIN.unpack_from(data, at)
                join = Join(broker_id, bool(last_only), bool(learner))
                if broker_id < 0 or self.join not in (None, join):
                    raise LinkBroken(f"its handshake says {join}, was {self.join}")
                self.join = join
                at += JOIN.size
            elif state == TRANSFER and self.join is not None:
                reports.append(REPORT.unpack_from(data, at)[1])
                at += REPORT.size
            else:
                raise LinkBroken(
                    f"it sent state {state}, which a slave in controller mode never sends"
                )
        self._rest = bytes(data[at:])
        return reports


@attrs.define(eq=False)
class EpochFrameDecoder(FrameDecoder):
    """Bytes of a master in, events out; see ``FrameDecoder``."""

    confirmed: int = attrs.field(default=0, init=False)
    """The newest confirmed offset that the master has told."""
    _epoch: Epoch | None = attrs.field(default=None, init=False)

    def _read_head(self, data: memoryview, at: int) -> tuple[int, Event | None]:
        if at + STATE.size > len(data):
            return 0, None
        (state,) = STATE.unpack_from(data, at)
        if state == HANDSHAKE:
            return self._read_epochs(data, at)
        if state != TRANSFER:
            raise LinkBroken(
                f"a packet of state {state}: this is not the HA port of a master in controller mode"
            )
        end = at + HEAD.size
        if end > len(data):
            return 0, None
        _, size, offset, number, start, confirmed = HEAD.unpack_from(data, at)
        if not 0 <= size <= FRAME_BYTES_MAX or offset < (0 if size else -1):
            raise LinkBroken(f"a transfer for log offset {offset} with {size} bytes")
        self.confirmed = max(self.confirmed, confirmed)
        epoch = Epoch(number, start)
        self._next, self._left = offset, size
        if offset >= 0 and epoch != self._epoch:
            self._epoch = epoch
            return end, EpochBegins(number, start)
        return end, None if size or offset < 0 else Heartbeat(offset)

    def _read_epochs(self, data: memoryview, at: int) -> tuple[int, Event | None]:
        begin = at + EPOCHS.size
        if begin > len(data):
            return 0, None
        _, size, log_end, _ = EPOCHS.unpack_from(data, at)
        if size % ENTRY.size or not 0 <= size <= EPOCHS_MAX * ENTRY.size:
            raise LinkBroken(f"a handshake with {size} bytes of epochs")
        if begin + size > len(data):
            return 0, None
        try:
            history = EpochHistory.of(ENTRY.iter_unpack(data[begin : begin + size]))
        except ValueError as error:
            raise LinkBroken(f"a handshake with {error}") from None
        return begin + size, MasterEpochs(history, log_end)
