"""Recorded streams of real HA ports, both directions, replayed through TrioMQ's two sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.replication.master_link import LinkRules, LogBounds, MasterLink
from triomq.broker.replication.slave_link import SlaveLink
from triomq.broker.replication.transfer import (
    FRAME,
    Heartbeat,
    LogData,
    ReportDecoder,
    frame_head,
    report,
)
from triomq.remoting.protocol.record_reader import decode_records

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "ha"
RULES = LinkRules(segment_size=65_536)
NAMES = ("r494-JSON-1", "r550-JSON-1", "r550-ROLL-1")


def frames_of(name: str) -> list[tuple[int, bytes]]:
    """Return the master's frames, decoded by hand."""
    data = (GOLDEN / f"{name}-master-to-slave.bin").read_bytes()
    frames, at = [], 0
    while at < len(data):
        start, size = FRAME.unpack_from(data, at)
        frames.append((start, data[at + 12 : at + 12 + size]))
        at += 12 + size
    assert at == len(data)
    return frames


def reports_of(name: str) -> list[int]:
    return ReportDecoder().receive((GOLDEN / f"{name}-slave-to-master.bin").read_bytes())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", [1, 13, 4096, 1 << 20])
def test_our_slave_understands_a_java_master(name: str, cut: int) -> None:
    """However the stream is cut: the same log, and a report wherever Java's slave sent one."""
    data = (GOLDEN / f"{name}-master-to-slave.bin").read_bytes()
    link = SlaveLink(RULES, None, -5, 0.0)
    assert ReportDecoder().receive(link.opening(0, 0.0)) == [-1, 0]
    log, begin = b"", -1
    for at in range(0, len(data), cut):
        for event in link.receive(data[at : at + cut], 0.0):
            if isinstance(event, LogData):
                begin = event.start if begin < 0 else begin
                assert event.start == begin + len(log)
                log += event.data
            else:
                assert isinstance(event, Heartbeat)
    assert link.expected == begin + len(log)
    assert log == b"".join(body for _, body in frames_of(name))
    assert decode_records(log, check_crc=True)[0].log_offset == begin
    assert link.master is None


@pytest.mark.parametrize("name", NAMES)
def test_our_slave_reports_as_a_java_slave(name: str) -> None:
    """One report for each frame, none for a heartbeat; Java's repetitions are signs of life."""
    link = SlaveLink(RULES, None, -5, 0.0)
    link.opening(0, 0.0)
    ours = [0]
    for start, body in frames_of(name):
        link.receive(frame_head(start, len(body)) + body, 1.0)
        ours += ReportDecoder().receive(link.take_report(start + len(body), 1.0))
    assert ours == sorted(set(reports_of(name)))


@pytest.mark.parametrize("name", NAMES)
def test_our_master_sends_what_java_s_sent(name: str) -> None:
    """With the reports of a Java slave and a log that grows in the same way, the bytes are the
    same.
    """
    frames = frames_of(name)
    link = MasterLink(RULES, "golden", 0.0)
    roll = name == "r550-ROLL-1"
    end = max(start + len(body) for start, body in frames) if roll else 0
    link.receive(report(reports_of(name)[0]), LogBounds(0, end), 0.0)
    now, sent = 0.0, b""
    for start, body in frames:
        end = max(end, start + len(body))
        now += 0.0 if body else RULES.heartbeat_seconds
        for begin, stop in link.take_frames(LogBounds(0, end), now, len(body) if roll else 1 << 20):
            sent += frame_head(begin, stop - begin) + body
    assert sent == (GOLDEN / f"{name}-master-to-slave.bin").read_bytes()
    for value in reports_of(name)[1:]:
        link.receive(report(value), LogBounds(0, end), now)
    assert link.acknowledged == reports_of(name)[-1]


def test_the_whole_roll_stream_comes_out_of_one_call() -> None:
    frames = frames_of("r550-ROLL-1")
    link = MasterLink(RULES, "golden", 0.0)
    bounds = LogBounds(0, frames[-1][0] + len(frames[-1][1]))
    link.receive(report(0), bounds, 0.0)
    assert link.take_frames(bounds, 0.0, 1 << 20) == [
        (start, start + len(body)) for start, body in frames
    ]


def test_a_wrong_byte_would_be_seen() -> None:
    data = bytearray((GOLDEN / "r550-JSON-1-master-to-slave.bin").read_bytes())
    data[8] ^= 0x80  # the size, which comes out negative
    with pytest.raises(Exception, match="not the HA port of a master"):
        SlaveLink(RULES, None, -5, 0.0).receive(bytes(data), 0.0)
