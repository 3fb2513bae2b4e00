"""The records of message traces: their text as Java writes it, its limits, and what a reader makes
of it.
"""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from triomq.client.core.trace_records import (
    KEYS_BYTES_MAX,
    KEYS_MAX,
    TEXT_LENGTH_MAX,
    ConsumeOutcome,
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedKind,
    TraceRecord,
    decode_trace,
    encode_trace,
    pack_traces,
    trace_keys,
)
from triomq.client.trace.trace_events import trace_events

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "trace" / "java-5.5.0.jsonl"
"""Trace messages that Java's clients wrote."""

PUB = PubRecord(
    timestamp=1795706006088,
    region="DefaultRegion",
    group="shop",
    topic="Orders",
    message_id="7F0000010001",
    store_host="127.0.0.1:10911",
    body_bytes=26,
    cost_ms=245,
    success=True,
)
TEXTS: list[tuple[TraceRecord, str]] = [
    (
        PUB,
        (
            "Pub|1795706006088|DefaultRegion|shop|Orders|7F0000010001|null|null|127.0.0.1:10911"
            "|26|245|0|null|true"
        ),
    ),
    (
        PubRecord(
            timestamp=1,
            region="R",
            group="shop",
            topic="Orders",
            message_id="ID",
            tag="paid",
            keys="k1 k2",
            store_host="10.0.0.1:10911",
            body_bytes=0,
            cost_ms=0,
            kind=TracedKind.DELAY,
            offset_message_id="0A000001",
            success=False,
            client_host="10.0.0.2",
        ),
        "Pub|1|R|shop|Orders|ID|paid|k1 k2|10.0.0.1:10911|0|0|3|0A000001|false|10.0.0.2",
    ),
    (
        SubBeforeRecord(
            timestamp=1,
            region="R",
            group="billing",
            request_id="REQ",
            message_id="ID",
            retry_times=2,
            keys="k1",
        ),
        "SubBefore|1|R|billing|REQ|ID|2|k1",
    ),
    (
        SubAfterRecord(
            request_id="REQ",
            message_id="ID",
            cost_ms=7,
            success=False,
            outcome=ConsumeOutcome.RAISED,
            timestamp=9,
            group="billing",
        ),
        "SubAfter|REQ|ID|7|false|null|2|9|billing",
    ),
    (
        EndTransactionRecord(
            timestamp=1,
            region="R",
            group="shop",
            topic="Orders",
            message_id="ID",
            tag="paid",
            store_host="10.0.0.1:10911",
            transaction_id="TX",
            state="ROLLBACK_MESSAGE",
            from_check=True,
        ),
        "EndTransaction|1|R|shop|Orders|ID|paid|null|10.0.0.1:10911|2|TX|ROLLBACK_MESSAGE|true",
    ),
    (
        RecallRecord(
            timestamp=1, region="R", group="shop", topic="Orders", message_id="ID", success=True
        ),
        "Recall|1|R|shop|Orders|ID|true",
    ),
]


@pytest.mark.parametrize(("record", "text"), TEXTS, ids=lambda value: type(value).__name__)
def test_texts(record: TraceRecord, text: str) -> None:
    wire = text.replace("|", "\x01") + "\x02"
    assert encode_trace(record) == wire
    assert decode_trace(wire * 2).records == [record, record]


def test_java_s_records_are_read_and_written_again() -> None:
    kinds = set()
    for line in GOLDEN.read_text().splitlines():
        golden = json.loads(line)
        read = decode_trace(golden["body"])
        assert read.unreadable == 0
        assert "".join(map(encode_trace, read.records)) == golden["body"]
        keys = {key for record in read.records for key in trace_keys(record)}
        assert keys == set(golden["keys"].split())
        kinds |= {type(record) for record in read.records}
    assert kinds == {PubRecord, SubBeforeRecord, SubAfterRecord, EndTransactionRecord, RecallRecord}


def test_records_of_old_clients_and_of_the_cloud() -> None:
    old = "Pub|1|R|shop|Orders|ID|null|null|h:1|26|245|0|true"
    cloud = "SubAfter|REQ|ID|7|true|null|0|"
    ancient = "SubAfter|REQ|ID|7|true|null"
    pub, after, oldest = decode_trace(
        "".join(f"{text}\x02".replace("|", "\x01") for text in (old, cloud, ancient))
    ).records
    assert isinstance(pub, PubRecord)
    assert (pub.offset_message_id, pub.success, pub.client_host) == (None, True, None)
    for record in (after, oldest):
        assert isinstance(record, SubAfterRecord)
        assert (record.timestamp, record.group, record.outcome) == (None, None, 0)


@pytest.mark.parametrize(
    "broken", ["Pub|x", "Pub", "Sub|1", "SubBefore|1|R|g|q", "SubAfter|q|i|1|true|k|99", "||", "é"]
)
def test_a_broken_record_costs_no_other(broken: str) -> None:
    read = decode_trace(broken.replace("|", "\x01") + "\x02" + encode_trace(PUB))
    assert (list(read.records), read.unreadable) == ([PUB], 1)


def test_separators_in_foreign_keys_do_not_break_a_record() -> None:
    record = attrs.evolve(TEXTS[2][0], keys="a\x01b\x02c")
    (read,) = decode_trace(encode_trace(record)).records
    assert isinstance(read, SubBeforeRecord)
    assert read.keys == "a b c"


def numbered(count: int, keys: str | None = None) -> list[PubRecord]:
    return [
        attrs.evolve(PUB, timestamp=number, message_id=f"{number:032X}", keys=keys)
        for number in range(count)
    ]


def test_messages_are_cut_at_the_limits_of_text_and_keys() -> None:
    short = numbered(2000)
    wide = numbered(40, keys="x" * 9000)
    many = numbered(6, keys=" ".join(f"k{number}" for number in range(300)))
    for records in (short, wide, many, [*wide, *short]):
        batches = list(pack_traces(records))
        assert len(batches) > 1
        assert sum(batch.records for batch in batches) == len(records)
        assert [
            record for batch in batches for record in decode_trace(batch.text).records
        ] == records
        for batch in batches:
            assert len(batch.text) <= TEXT_LENGTH_MAX
            assert len(batch.keys) <= KEYS_BYTES_MAX
            assert len(batch.keys.split()) <= KEYS_MAX
            found = {
                key for record in decode_trace(batch.text).records for key in trace_keys(record)
            }
            assert set(batch.keys.split()) == found


@pytest.mark.parametrize("keys", ["y" * 30_000, "k " * 999])
def test_keys_that_are_too_long_or_too_many_leave_the_id(keys: str) -> None:
    (batch,) = pack_traces(numbered(1, keys=keys))
    assert batch.keys == f"{0:032X}"
    (read,) = decode_trace(batch.text).records
    assert isinstance(read, PubRecord)
    assert read.keys == keys


def test_events_join_the_two_records_of_a_call() -> None:
    before, after = TEXTS[2][0], TEXTS[3][0]
    other = attrs.evolve(PUB, timestamp=0, message_id="other", keys="ID")
    # In two messages of two hosts, one of them stored twice.
    events = trace_events("ID", [([after], "b"), ([before, other], "a"), ([before], "a")])
    assert [(event.kind, event.message_id) for event in events] == [("Pub", "other"), ("Sub", "ID")]
    call = events[1]
    assert (call.timestamp, call.cost_ms, call.success, call.retry_times, call.group) == (
        1,
        7,
        False,
        2,
        "billing",
    )
    (running,) = trace_events("ID", [([before], "a")])
    assert (running.success, running.cost_ms, running.client_host) == (None, None, "a")
    (ended,) = trace_events("ID", [([after], "b")])
    assert (ended.timestamp, ended.retry_times, ended.client_host) == (9, None, "b")
    assert trace_events("nothing", [([before, after, other], "a")]) == []
