"""The pure parts of POP on the consumer's side: handles, turns, limits, renewals, delays."""

from __future__ import annotations

import datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq import SettingsError
from triomq.client.receiving.pop.durations import check_duration, check_invisible, retry_seconds
from triomq.client.receiving.pop.hold_limit import SOON_SECONDS, HoldLimit
from triomq.client.receiving.pop.lease_times import Lease, LeaseTimes
from triomq.client.receiving.pop.source_turns import PAUSE_MAX, PopSource, SourceTurns
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.consuming.popped_records import decode_counts, popped_records
from triomq.remoting.protocol.headers.pop import PopMessageResponseHeader
from triomq.remoting.protocol.receipt_handle import (
    NORMAL,
    ORDERED_QUEUE,
    RETRY_V1,
    ReceiptHandle,
    encode_counts,
    encode_offsets,
    encode_starts,
)
from triomq.remoting.protocol.record import encode_host, encode_record

A, B, C = (PopSource("T", f"broker-{name}") for name in "abc")


def record(queue_id: int, offset: int, properties: str = "") -> bytes:
    host = encode_host(bytes(4), 1)
    return bytes(
        encode_record(
            topic="T",
            queue_id=queue_id,
            queue_offset=offset,
            log_offset=1000 + offset,
            body=b"b",
            properties=properties.encode(),
            born_timestamp=0,
            born_host=host,
            store_timestamp=0,
            store_host=host,
        )
    )


def answer(
    starts: dict[tuple[int, int], int],
    offsets: dict[tuple[int, int], list[int]],
    counts: str | None = None,
) -> PopMessageResponseHeader:
    return PopMessageResponseHeader(
        5_000, 30_000, 3, 0, encode_starts(starts), encode_offsets(offsets), counts
    )


# Handles


def test_handles_are_made_of_the_header() -> None:
    header = answer({(0, 0): 4, (0, 2): 9}, {(0, 0): [4, 6], (0, 2): [9]})
    body = record(0, 4) + record(0, 6) + record(2, 9)
    found = popped_records(header, body, "broker-a")
    assert [each.handle for each in found] == [
        ReceiptHandle(4, 5_000, 30_000, 3, NORMAL, "broker-a", 0, 4),
        ReceiptHandle(4, 5_000, 30_000, 3, NORMAL, "broker-a", 0, 6),
        ReceiptHandle(9, 5_000, 30_000, 3, NORMAL, "broker-a", 2, 9),
    ]


def test_a_message_of_a_retry_topic_brings_its_handle() -> None:
    own = ReceiptHandle(2, 5_000, 30_000, 3, RETRY_V1, "broker-a", 0, 2)
    header = answer({(1, 0): 2}, {(1, 0): [2]})
    (found,) = popped_records(header, record(0, 2, f"POP_CK\x01{own.encode()}\x02"), "broker-a")
    assert found.handle == own


@pytest.mark.parametrize(
    "copied",
    [
        ReceiptHandle(2, 1, 30_000, 3, NORMAL, "broker-a", 0, 2),
        ReceiptHandle(2, 1, 30_000, 3, RETRY_V1, "broker-b", 0, 2),
        ReceiptHandle(2, 1, 30_000, 3, RETRY_V1, "broker-a", 0, 3),
    ],
)
def test_a_property_that_a_producer_copied_is_not_believed(copied: ReceiptHandle) -> None:
    header = answer({(0, 0): 2}, {(0, 0): [2]})
    (found,) = popped_records(header, record(0, 2, f"POP_CK\x01{copied.encode()}\x02"), "broker-a")
    assert found.handle == ReceiptHandle(2, 5_000, 30_000, 3, NORMAL, "broker-a", 0, 2)


def test_earlier_deliveries_of_an_orderly_group_are_counted() -> None:
    counts = encode_counts([((0, 1), 8, 3)]) + ";0 1 2"  # the second form is for old clients
    header = answer({(0, 1): 7}, {(0, 1): [7, 8]}, counts)
    found = popped_records(header, record(1, 7) + record(1, 8), "broker-a")
    assert [each.record.reconsume_times for each in found] == [0, 3]


@pytest.mark.parametrize("text", ["0", "0 qo1 2", "x qo1%2 3", "0 qo1%2 3 4", "0 qoa%2 3", ";"])
def test_garbage_instead_of_counts_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_counts(text)


def test_an_answer_must_list_its_messages() -> None:
    with pytest.raises(RemoteProtocolError, match="offset 5 of queue 0"):
        popped_records(answer({(0, 0): 4}, {(0, 0): [4]}), record(0, 5), "broker-a")


# Turns


def test_each_source_has_its_turn() -> None:
    turns = SourceTurns()
    turns.update([A, B, C])
    asked = []
    for _ in range(6):
        source = turns.order()[0]
        asked.append(source)
        turns.asked(source, found=True)
    assert asked == [A, B, C, A, B, C]


def test_a_source_that_rang_comes_first() -> None:
    turns = SourceTurns()
    turns.update([A, B, C])
    turns.ring(C)
    assert turns.rang
    assert turns.order() == [C, A, B]
    turns.asked(C, found=True)
    assert not turns.rang
    assert turns.order() == [A, B, C]


def test_sources_come_and_go() -> None:
    turns = SourceTurns()
    turns.update([A, B])
    turns.asked(A, found=False)
    turns.ring(A)
    turns.update([B, C])
    assert turns.order() == [C, B]
    assert not turns.rang
    turns.ring(A)  # a late ring of a broker that left
    turns.asked(A, found=False)
    assert turns.order() == [C, B]


def test_rings_without_messages_are_believed_less() -> None:
    turns = SourceTurns()
    turns.update([A])
    turns.asked(A, found=False)
    assert turns.pause(A) == 0  # nobody rang
    pauses = []
    for _ in range(12):
        turns.ring(A)
        turns.asked(A, found=False)
        pauses.append(turns.pause(A))
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[1]
    assert pauses[-1] == PAUSE_MAX
    turns.quiet(A)
    assert turns.pause(A) == 0


# What is held, and renewed


def lease(ends: float = 10.0, revive_queue: int = 0) -> Lease:
    return Lease("T", ReceiptHandle(0, 0, 10_000, revive_queue, 0, "broker-a", 0, 0), ends)


def test_leases_are_due_after_their_period() -> None:
    times = LeaseTimes[str](period=5.0, retry=1.0)
    assert times.next_due() == inf
    times.keep("a", 0.0)
    times.keep("b", 1.0)
    assert (times.next_due(), len(times)) == (5.0, 2)
    assert times.take_due(4.9) == []
    assert times.take_due(5.0) == ["a"]
    times.failed("a", 5.0)
    assert "a" in times
    assert times.take_due(6.0) == ["b", "a"]
    times.keep("a", 6.0)
    times.drop("a")
    assert (times.next_due(), len(times)) == (inf, 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["keep", "failed", "drop", "due"]))))
def test_a_lease_is_due_once_and_never_forgotten(steps: list[tuple[int, str]]) -> None:
    times, model = LeaseTimes[int](period=5.0, retry=1.0), dict[int, float]()
    for now, (name, step) in enumerate(steps):
        if step == "due":
            assert sorted(times.take_due(now)) == sorted(
                n for n, due in model.items() if due <= now
            )
            model = {n: due for n, due in model.items() if due > now}
        else:
            getattr(times, step)(*((name,) if step == "drop" else (name, float(now))))
            model.pop(name, None)
            if step != "drop":
                model[name] = now + (5.0 if step == "keep" else 1.0)
        assert times.next_due() == min(model.values(), default=inf)
        assert len(times) == len(model)


def test_a_handle_says_whether_its_group_is_orderly() -> None:
    assert lease(revive_queue=ORDERED_QUEUE).ordered
    assert not lease().ordered


def test_a_fast_member_holds_more_and_a_slow_one_what_it_handles() -> None:
    limit = HoldLimit(most=96, least=2)
    assert limit.value == 2
    for _ in range(200):
        limit.settled(0.01)
    assert limit.value == 96
    for _ in range(10):
        limit.settled(SOON_SECONDS + 1)
    assert limit.value == 2
    limit.set_least(500)
    assert limit.value == 96


# Delays and durations


def test_delays_grow_with_each_delivery() -> None:
    assert [retry_seconds(0, times) for times in (0, 1, 2, 15, 99)] == [10, 30, 60, 7200, 7200]
    assert [retry_seconds(level, 7) for level in (1, 3, 18, 99)] == [1, 10, 7200, 7200]


def test_durations_are_seconds_or_timedeltas() -> None:
    assert check_duration("d", datetime.timedelta(minutes=2)) == 120
    assert check_duration("d", 0) == 0
    for wrong in (None, -1, "3", True, float("nan"), datetime.timedelta(seconds=-1)):
        with pytest.raises(SettingsError, match="d must be"):
            check_duration("d", wrong)
    for wrong in (0, 12 * 3600 + 1, datetime.timedelta(days=1)):
        with pytest.raises(SettingsError, match="change_invisible"):
            check_invisible("d", wrong, least=0.01)
