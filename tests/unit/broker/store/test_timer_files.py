"""The timer wheel, the timer log and the check, byte for byte; rules of placing; recall handles."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_data import exchanges

from triomq.broker.services.timers.timer_rules import NotATime, TimerRules, deliver_time, times_of
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.timer.timer_check import DeliveredBound, TimerCheck
from triomq.broker.store.timer.timer_files import TimerPlace, open_timer_files
from triomq.broker.store.timer.timer_record import TimerRecord, decode, end_mark
from triomq.broker.store.timer.wheel import WHEEL_BYTES, TimerWheel
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.command import decode_frame
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader
from triomq.remoting.protocol.message_properties import parse_properties
from triomq.remoting.protocol.recall_handle import RecallHandle

SECOND = 1_700_000_060_000


def test_a_slot_lies_where_java_puts_it() -> None:
    wheel = TimerWheel(1_000)
    wheel.put(SECOND, 0, 1)
    wheel.put(SECOND, 52, 1)
    at = 512_060 * 32
    assert wheel.data[at : at + 32].hex() == (
        "000000006553f13c" + "0000000000000000" + "0000000000000034" + "00000002" + "00000000"
    )
    assert wheel.find(SECOND - 1_209_600_000) is None  # the round before
    assert wheel.take_dirty() == [
        (at // 4096 * 4096, bytes(wheel.data[at // 4096 * 4096 :][:4096]))
    ]
    assert wheel.take_dirty() == []


def test_a_record_is_java_s() -> None:
    record = TimerRecord(-1, 1, SECOND - 3_000, SECOND, 5_000, 300, -7, SECOND + 250)
    data = record.encode()
    assert data.hex() == (
        "00000034" + "f" * 16 + "00000001" + f"{SECOND - 3_000:016x}" + f"{3_000:08x}"
        f"{5_000:016x}" + f"{300:08x}" + "fffffff9" + f"{SECOND + 250:016x}"
    )
    assert decode(data, 0) == record
    assert decode(bytes(52), 0) is None
    assert end_mark(16).hex() == "00000010" + "0" * 16 + "cbd43194"


def test_java_s_send_of_a_timed_message_and_its_answer() -> None:
    """Recorded between an official client and a Java broker 5.5.0."""
    (sent,) = [each for each in exchanges() if b"recallHandle" in (each.response or b"")]
    properties = parse_properties((decode_frame(sent.request[4:]).ext or {})["i"])
    answer = decode_frame((sent.response or b"")[4:]).header(SendMessageResponseHeader)
    handle = RecallHandle.decode(answer.recall_handle or "")
    assert handle == ("GoldTopic", "broker-a", 1_795_295_034_001, properties["UNIQ_KEY"])
    assert handle.encode() == answer.recall_handle
    # 3,000 ms from 1,795,295,031,071 on: our slot is Java's, one ms before its handle.
    rules = TimerRules()
    deliver = deliver_time(properties, 1_795_295_031_071)
    assert deliver is not None
    assert rules.slot_of(deliver) == handle.deliver_ms - 1 == rules.slot_of(handle.deliver_ms)


@pytest.mark.parametrize(
    "text", ["", "x", "djEgVCBiIDUgSw", "djIgVCBiIDUgSw==", "djEgVCBiIHggSw=="]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no recall handle"):
        RecallHandle.decode(text)


def test_slots_and_steps() -> None:
    rules = TimerRules()
    assert [rules.slot_of(time) for time in (SECOND - 1, SECOND, SECOND + 1)] == [
        SECOND - 1_000,
        SECOND - 1_000,
        SECOND,
    ]
    window = rules.window_ms
    assert rules.place(SECOND, SECOND + 5, SECOND - window + 1_000) == (SECOND, 1, SECOND + 5)
    far = rules.place(SECOND, SECOND + 5, SECOND - window)
    assert far == (SECOND - window // 2, 3, SECOND - window // 2 + 1_000)
    farther = rules.place(SECOND, 0, SECOND - 2 * window, deletes=True)
    assert farther[:2] == (SECOND - window, 7)
    assert TimerRules(roll_slots=1).window_ms == 604_740_000
    assert times_of({"TIMER_OUT_MS": str(SECOND)}, 1_000) == (SECOND, SECOND + 1_000)
    assert times_of({"TIMER_OUT_MS": "x"}, 1_000) is None


def test_the_first_property_counts() -> None:
    three = {"TIMER_DELIVER_MS": "7", "TIMER_DELAY_MS": "20", "TIMER_DELAY_SEC": "3"}
    assert deliver_time(three, 100) == 3_100
    del three["TIMER_DELAY_SEC"]
    assert deliver_time(three, 100) == 120
    assert deliver_time({"TIMER_DELIVER_MS": "-7"}, 100) == -7
    assert deliver_time({}, 100) is None
    with pytest.raises(NotATime, match=r"TIMER_DELAY_MS=1\.5"):
        deliver_time({"TIMER_DELAY_MS": "1.5"}, 100)


def test_a_mark_that_java_has_outrun_does_not_count() -> None:
    check = TimerCheck(
        read_ms=SECOND,
        log_end=520,
        queue_offset=10,
        marked=True,
        wheel_end=52,
        delivered=(DeliveredBound(SECOND + 900, 416), DeliveredBound(SECOND - 3_000, 520)),
        passed_ms=SECOND - 3_000,
    )
    data = bytearray(check.encode())
    assert len(data) == 4096
    assert not any(data[56:3016])
    assert TimerCheck.decode(bytes(data)) == check
    data[15] ^= 1
    after_java = TimerCheck.decode(bytes(data))
    assert (after_java.marked, after_java.delivered, after_java.passed_ms) == (False, (), SECOND)
    assert TimerCheck.decode(bytes(data[:56])).queue_offset == 10


def place(slot_ms: int, offset: int) -> TimerPlace:
    return TimerPlace(slot_ms, 1, offset, 300, 0, 0)


async def test_chains_go_over_the_ends_of_files(tmp_path: Path) -> None:
    """Files of 20 records; the wheel is made again from them."""
    files = open_timer_files(Disk(), tmp_path, 1_000, 20 * 52 + 16)
    for number in range(50):
        files.add([place(SECOND, number), place(SECOND + 1_000, -1)], SECOND - 5_000)
    files.write(files.snapshot(TimerCheck(read_ms=SECOND), wheel=True))
    for wheel in (True, False):
        if not wheel:
            (tmp_path / "timerwheel").unlink()
        files.close()
        files = open_timer_files(Disk(), tmp_path, 1_000, 20 * 52 + 16)
        slot = files.wheel.find(SECOND)
        assert slot is not None
        assert slot.messages == 50
        found, position = [], slot.last
        while position >= 0:
            records, position = await files.chain(position, 7)
            found += [record.log_offset for _, record in records]
        assert found == list(reversed(range(50)))
    files.close()
    assert sorted(path.name for path in (tmp_path / "timerlog").iterdir()) == [
        f"{number * 1056:020d}" for number in range(5)
    ]
    (tmp_path / "timerwheel").write_bytes(b"short")
    with pytest.raises(StoreDamaged, match=f"a timer wheel has {WHEEL_BYTES}"):
        open_timer_files(Disk(), tmp_path, 1_000, 20 * 52 + 16)


async def test_what_is_behind_the_check_is_cut(tmp_path: Path) -> None:
    """Records that were not saved come from the topic again; they must not be there twice."""
    files = open_timer_files(Disk(), tmp_path, 1_000, 20 * 52 + 16)
    files.add([place(SECOND, 1)], SECOND)
    files.write(files.snapshot(TimerCheck(read_ms=SECOND), wheel=True))
    files.add([place(SECOND, number) for number in range(2, 30)], SECOND)
    files.write(
        files.snapshot(TimerCheck(read_ms=SECOND), wheel=True)
    )  # then the check goes back to the one before, as after a crash between wheel and check
    check = TimerCheck(read_ms=SECOND, log_end=52, marked=True, wheel_end=52)
    files.close()
    (tmp_path / "config" / "timercheck").write_bytes(check.encode())
    files = open_timer_files(Disk(), tmp_path, 1_000, 20 * 52 + 16)
    slot = files.wheel.find(SECOND)
    assert slot is not None
    assert (slot.first, slot.last, slot.messages) == (0, 0, 1)
    assert files.log.end == 52
    assert len(list((tmp_path / "timerlog").iterdir())) == 1
    files.close()


async def test_after_an_empty_check_no_record_counts(tmp_path: Path) -> None:
    """A power failure in the first save may leave the file with its size alone."""
    files = open_timer_files(Disk(), tmp_path, 1_000, 20 * 52 + 16)
    files.add([place(SECOND, 1)], SECOND)
    files.close()
    (tmp_path / "config" / "timercheck").write_bytes(bytes(4096))
    files = open_timer_files(Disk(), tmp_path, 1_000, 20 * 52 + 16)
    assert files.log.end == 0
    assert files.wheel.find(SECOND) is None
    files.close()
