"""What a slave that acts for its master sends again, of the check points in its log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triomq.broker.services.clock_marks import ClockMarks
from triomq.broker.services.pop.acting_records import open_acting_records
from triomq.broker.services.pop.acting_reviver import ActingReviver
from triomq.broker.services.pop.in_flight import PopsInFlight
from triomq.broker.services.pop.pop_settings import PopSettings
from triomq.broker.store.io.disk import Disk
from triomq.remoting.protocol.bodies.check_point import CheckPoint
from triomq.remoting.protocol.record import StoredMessage, encode_record
from triomq.remoting.protocol.record_reader import decode_records

HOST = b"\x7f\0\0\1\0\0\0\1"
POINT = CheckPoint(
    start_offset=5,
    pop_time=1_000,
    invisible_ms=60_000,
    count=1,
    queue_id=0,
    topic="T",
    group="G",
    differences=[0],
    broker_name="broker-a",
    log_end=10_000,
)
"""Its log ended at 10,000 when the message at offset 5 was popped."""


def stored(queue_offset: int, log_offset: int, tries: int) -> StoredMessage:
    data = encode_record(
        topic="T",
        queue_id=0,
        queue_offset=queue_offset,
        log_offset=log_offset,
        body=b"body",
        properties=b"",
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1,
        store_host=HOST,
        reconsume_times=tries,
    )
    return decode_records(data)[0]


@pytest.mark.parametrize(
    ("found", "known", "comes_again"),
    [
        (stored(5, 9_000, 0), {"G", "T"}, True),
        (stored(5, 10_000, 0), {"G", "T"}, False),
        (stored(5, 12_000, 0), {"G", "T"}, False),
        (stored(6, 9_500, 0), {"G", "T"}, False),
        (None, {"G", "T"}, False),
        (stored(5, 9_000, 0), {"T"}, False),
        (stored(5, 9_000, 0), {"G"}, False),
    ],
    ids=[
        "the message",
        "the first of a new topic",
        "a later one of a new topic",
        "the next one",
        "it is deleted",
        "its group is deleted",
        "its topic is deleted",
    ],
)
async def test_only_the_message_that_was_popped_comes_again(
    tmp_path: Path, found: StoredMessage | None, known: set[str], comes_again: bool
) -> None:
    sent: list[str] = []

    async def message_at(topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        assert (topic, queue_id, offset) == ("T", 0, 5)
        return found

    async def send_to(message: StoredMessage, topic: str, *place: object) -> None:
        sent.append(topic)

    timers = SimpleNamespace(complete_to_ms=lambda: POINT.visible_at + 1, settled=None)
    store, settings = SimpleNamespace(message_at=message_at), PopSettings()
    pops: Any = SimpleNamespace(
        timers=timers, store=store, settings=settings, decided_to_ms=0, in_flight=PopsInFlight()
    )
    topics: Any = SimpleNamespace(find=lambda name: name if name in known else None)
    group = SimpleNamespace(retry_max_times=16)
    groups: Any = SimpleNamespace(find=lambda name: group if name in known else None)
    sender: Any = SimpleNamespace(send_to=send_to)
    records = open_acting_records(tmp_path)
    records.find_point(POINT, 3, read=False)
    reviver = ActingReviver(pops, records, topics, groups, sender, ClockMarks(tmp_path, Disk()))
    for _ in range(2):  # what is decided is decided once
        assert await reviver._revive(sender)
        assert len(sent) == reviver.revived == comes_again
    assert not records.points
    assert records.acks[POINT.key].offsets == {5}, "the master hears of it"
