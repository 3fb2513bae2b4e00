"""The two state machines: start rules, cuts, heartbeats, silence, violations of the protocol."""

from __future__ import annotations

import random

import pytest

from triomq.broker.replication.errors import LinkBroken, LinkSilent, LogsDiffer
from triomq.broker.replication.master_link import LinkRules, LogBounds, MasterLink
from triomq.broker.replication.slave_link import SlaveLink
from triomq.broker.replication.transfer import (
    FrameDecoder,
    LogData,
    MasterHello,
    ReportDecoder,
    TablesChanged,
    check_start,
    frame_head,
    hello_frame,
    report,
    tables_changed_frame,
)

SIZE = 1000
RULES = LinkRules(segment_size=SIZE, batch_bytes=300)
HELLO = MasterHello(0, 5_000, 900, 77)


def master(requested: int, bounds: LogBounds, *, hellos: int = 0) -> MasterLink:
    link = MasterLink(RULES, "peer", 0.0)
    link.receive(report(-1) * hellos + report(requested), bounds, 0.0)
    return link


@pytest.mark.parametrize(
    ("requested", "hellos", "bounds", "start"),
    [
        (0, 0, LogBounds(0, 3_700), 3_000),  # Java's rule: the last segment
        (0, 2, LogBounds(0, 3_700), 3_000),  # a slave of TrioMQ with syncFromLastFile
        (0, 1, LogBounds(0, 3_700), 0),  # a slave of TrioMQ: the whole log
        (0, 1, LogBounds(1_000, 3_700), 1_000),
        (0, 0, LogBounds(0, 0), 0),
        (0, 0, LogBounds(0, 999), 0),
        (0, 0, LogBounds(0, 4_000), 4_000),
        (0, 0, LogBounds(4_000, 4_000), 4_000),
        (1_234, 0, LogBounds(0, 3_700), 1_234),
        (1_234, 1, LogBounds(0, 3_700), 1_234),
        (3_700, 0, LogBounds(0, 3_700), 3_700),
    ],
)
def test_where_a_slave_begins(requested: int, hellos: int, bounds: LogBounds, start: int) -> None:
    link = master(requested, bounds, hellos=hellos)
    assert (link.next_offset, link.is_ours) == (start, hellos > 0)


def test_nothing_is_sent_before_the_first_report() -> None:
    link = MasterLink(RULES, "peer", 0.0)
    assert link.take_frames(LogBounds(0, 500), 1.0, 1 << 20) == []
    assert link.next_deadline() == RULES.silence_seconds
    link.receive(report(0)[:5], LogBounds(0, 500), 1.0)
    assert link.next_offset is None
    link.receive(report(0)[5:], LogBounds(0, 500), 1.0)
    assert link.take_frames(LogBounds(0, 500), 1.0, 1 << 20) == [(0, 300), (300, 500)]


def test_frames_end_with_segments_and_never_reach_beyond_the_log() -> None:
    link = master(850, LogBounds(0, 2_120))
    assert link.take_frames(LogBounds(0, 2_120), 0.0, 1 << 20) == [
        (850, 1000),
        (1000, 1300),
        (1300, 1600),
        (1600, 1900),
        (1900, 2000),
        (2000, 2120),
    ]
    assert link.take_frames(LogBounds(0, 2_120), 0.0, 1 << 20) == []
    assert link.take_frames(LogBounds(0, 2_121), 0.0, 1 << 20) == [(2120, 2121)]
    link = master(0, LogBounds(0, 900), hellos=1)
    assert link.take_frames(LogBounds(0, 900), 0.0, 350) == [(0, 300), (300, 350)]


def test_the_master_sends_heartbeats_only_after_a_pause() -> None:
    link = master(10, LogBounds(0, 10))
    assert link.take_frames(LogBounds(0, 10), 4.9, 99) == []
    assert link.next_deadline() == 5.0
    assert link.take_frames(LogBounds(0, 10), 5.0, 99) == [(10, 10)]
    assert link.take_frames(LogBounds(0, 12), 7.0, 99) == [(10, 12)]
    assert link.take_frames(LogBounds(0, 12), 11.9, 99) == []
    assert link.take_frames(LogBounds(0, 12), 12.0, 99) == [(12, 12)]


def test_a_silent_slave_is_given_up() -> None:
    link = master(10, LogBounds(0, 10))
    link.check_silence(19.9)
    link.receive(report(10), LogBounds(0, 10), 19.0)
    link.check_silence(38.9)
    with pytest.raises(LinkSilent, match="nothing for 20 s"):
        link.check_silence(39.0)


def test_a_slave_that_is_ahead_is_refused_with_the_fix() -> None:
    with pytest.raises(LogsDiffer, match=r"ends at 11, ours at 10.*move its store directory away"):
        master(11, LogBounds(0, 10))


def test_a_slave_that_needs_deleted_bytes_gets_heartbeats_only() -> None:
    bounds = LogBounds(2_000, 3_000)
    link = master(1_500, bounds)
    assert link.too_far_behind(bounds)
    assert link.take_frames(bounds, 1.0, 99) == []
    assert link.take_frames(bounds, 5.0, 99) == [(1_500, 1_500)]


@pytest.mark.parametrize("value", [-2, -1, 501, 1 << 62])
def test_impossible_reports_are_refused(value: int) -> None:
    link = master(0, LogBounds(0, 500))
    link.take_frames(LogBounds(0, 500), 0.0, 1 << 20)
    link.receive(report(500), LogBounds(0, 500), 0.0)
    with pytest.raises(LinkBroken):
        link.receive(report(value), LogBounds(0, 500), 0.0)
    with pytest.raises(LinkBroken, match="not a slave"):
        master(-7, LogBounds(0, 500))


def test_only_what_was_sent_can_be_acknowledged() -> None:
    """An offset that was not sent is as wrong before the end of the log as beyond it."""
    log = LogBounds(0, 500)
    link = master(100, log)
    link.take_frames(log, 0.0, 50)
    link.receive(report(150), log, 0.0)
    with pytest.raises(LinkBroken, match="only what lies before 150 was sent"):
        link.receive(report(151), log, 0.0)


def test_a_copy_counts_from_the_first_byte_that_was_sent_here_and_acknowledged() -> None:
    log = LogBounds(0, 3_700)
    for requested, start in ((100, 100), (0, 3_000)):
        link = master(requested, log)
        link.take_frames(log, 0.0, 1 << 20)
        link.receive(report(start), log, 0.0)
        assert (link.acknowledged, link.copied) == (start, 0)
        link.receive(report(start + 1), log, 0.0)
        assert link.copied == start + 1


def test_acknowledgements_never_go_back_and_show_what_is_still_needed() -> None:
    link = master(100, LogBounds(0, 500))
    link.take_frames(LogBounds(0, 500), 0.0, 1 << 20)
    assert link.needs_from() == 100
    link.receive(report(400) + report(300), LogBounds(0, 500), 0.0)
    assert (link.acknowledged, link.needs_from()) == (400, 400)
    assert master(0, LogBounds(0, 3_700)).needs_from() == 3_000


def test_a_slave_of_triomq_names_itself_after_the_hello() -> None:
    link = master(0, LogBounds(0, 0), hellos=1)
    link.receive(report(-99), LogBounds(0, 0), 0.0)
    assert (link.name, link.acknowledged) == (-99, 0)


# --- the slave
# ------------------------------------------------------------------------------------------------


def slave(expected: int | None = 1_000) -> SlaveLink:
    link = SlaveLink(RULES, expected, -9, 0.0)
    link.opening(expected or 0, 0.0)
    return link


def test_a_slave_opens_with_what_java_ignores_and_its_end() -> None:
    link = SlaveLink(RULES, 1_000, -9, 0.0)
    assert ReportDecoder().receive(link.opening(1_000, 0.0)) == [-1, 1_000]
    link = SlaveLink(RULES, None, -9, 0.0, last_segment_only=True)
    assert ReportDecoder().receive(link.opening(0, 0.0)) == [-1, -1, 0]
    assert ReportDecoder().receive(link.introduction()) == [-9]


def test_a_slave_takes_only_what_continues_its_log() -> None:
    link = slave()
    (event,) = link.receive(
        frame_head(1_000, 3) + b"abc" + frame_head(1_003, 0) + frame_head(1_003, 2)[:7], 1.0
    )[:1]
    assert event == LogData(1_000, b"abc")
    assert link.expected == 1_003
    with pytest.raises(LinkBroken, match=r"sends from log offset 1007, but we go on at 1003"):
        slave(1_003).receive(frame_head(1_007, 1) + b"x", 1.0)
    with pytest.raises(LinkBroken, match="is at log offset 999, but we are at 1000"):
        slave().receive(frame_head(999, 0), 1.0)
    assert slave(None).receive(frame_head(0, 0) + frame_head(4_000, 1) + b"x", 1.0)[1] == LogData(
        4_000, b"x"
    )


def test_a_slave_reports_growth_at_once_and_otherwise_every_five_seconds() -> None:
    link = slave()
    assert link.take_report(1_000, 4.9) == b""
    assert link.take_report(1_000, 5.0) == report(1_000)
    assert link.take_report(1_010, 5.1) == report(1_010)
    assert link.take_report(1_010, 10.0) == b""
    assert link.take_report(1_000, 10.1) == report(1_010), "a sign of life takes nothing back"
    with pytest.raises(LinkSilent):
        link.check_silence(20.0)


def test_a_hello_of_a_triomq_master() -> None:
    link = slave()
    (event,) = link.receive(hello_frame(1_000, HELLO), 0.0)
    assert event == HELLO == link.master
    link.check(HELLO, 77)
    with pytest.raises(LogsDiffer, match="bytes of log offset 900 to 1000 are others"):
        link.check(HELLO, 78)
    with pytest.raises(LogsDiffer, match="deleted everything before 2000"):
        slave().receive(hello_frame(1_000, MasterHello(2_000, 5_000, 2_000, 0)), 0.0)
    assert link.receive(tables_changed_frame(1_000), 0.0) == [TablesChanged()]


def test_log_bytes_right_behind_the_hello_are_not_compared() -> None:
    link = slave()
    link.receive(hello_frame(1_000, HELLO) + frame_head(1_000, 300) + bytes(300), 0.0)
    assert (link.hello_at, link.expected) == (1_000, 1_300)


def test_the_compared_bytes_are_in_one_segment() -> None:
    assert check_start(0, SIZE) == 0
    assert check_start(1, SIZE) == 0
    assert check_start(1_000, SIZE) == 0
    assert check_start(1_001, SIZE) == 1_000
    assert check_start(1 << 20, 1 << 20) == (1 << 20) - 4096


def test_both_ends_together_in_any_cuts_and_any_interruptions() -> None:
    """Master and slave link joined by pipes that break now and then: the slave's log is always a
    prefix of the master's.
    """
    for seed in range(200):
        dice = random.Random(seed)
        log = dice.randbytes(dice.randrange(1, 4_000))
        first = dice.choice((0, SIZE)) if len(log) > SIZE else 0
        copy, begin = b"", None
        for _ in range(60):
            up = MasterLink(RULES, "peer", 0.0)
            end = 0 if begin is None else begin + len(copy)
            down = SlaveLink(RULES, None if begin is None else end, -9, 0.0)
            to_master, to_slave = down.opening(end, 0.0), b""
            for _ in range(dice.randrange(1, 12)):
                bounds = LogBounds(
                    first,
                    dice.randrange(max(end, first), len(log) + 1)
                    if dice.random() < 0.5
                    else len(log),
                )
                cut = dice.randrange(len(to_master) + 1)
                up.receive(to_master[:cut], LogBounds(first, len(log)), 0.0)
                to_master = to_master[cut:]
                if up.next_offset is not None and up.next_offset <= bounds.end:
                    for start, stop in up.take_frames(bounds, 0.0, dice.randrange(1, 900)):
                        to_slave += frame_head(start, stop - start) + log[start:stop]
                cut = dice.randrange(len(to_slave) + 1)
                for event in down.receive(to_slave[:cut], 0.0):
                    assert isinstance(event, LogData)
                    begin = event.start if begin is None else begin
                    copy += event.data
                to_slave = to_slave[cut:]
                if begin is not None:
                    assert copy == log[begin : begin + len(copy)]
                    to_master += down.take_report(begin + len(copy), 0.0)
        assert begin in (None, first)
    assert FrameDecoder().receive(b"") == []
