"""The plan of a backfill and its record, without Spark: steps without gap and overlap, and where
the live query begins.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from stores import SteppingClock, draft, tiny_config

from tests.support.object_store import Crash, ObjectStore, end_before
from tests.support.store_reads import BROKER, rows_of_store
from triomq.broker.store.opening import open_store
from triomq.client.pipeline.backfill import (
    Backfill,
    BackfillStep,
    plan_backfill,
    read_backfill,
    store_options,
    write_record,
)
from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.core.spec import SourceSpec
from triomq.client.spark.offset_options import parse_start
from triomq.client.spark.offsets import Queue, nested

SOURCE = SourceSpec(name_server="ns:9876", topics=("Orders",))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with open_store(tiny_config(tmp_path / "store"), SteppingClock()) as opened:
            for number in range(200):
                opened.append([draft(b"x" * (number * 13 % 400), "Orders", number % 3)])

    trio.run(fill)
    return tmp_path / "store"


@pytest.mark.parametrize("step_bytes", [4096, 10_000, 1 << 30])
def test_steps_follow_each_other(store: Path, step_bytes: int) -> None:
    planned = plan_backfill({BROKER: str(store)}, {"subscribe": "Orders"}, step_bytes)
    assert (len(planned.steps) > 5) == (step_bytes < 1 << 20)
    assert set(planned.steps[0].begins.values()) == {0}
    for before, step in zip(planned.steps, planned.steps[1:], strict=False):
        assert step.begins == before.ends
    rows = rows_of_store(store, subscribe="Orders")
    by_step: list[Any] = []
    for step in planned.steps:
        found = rows_of_store(
            store,
            subscribe="Orders",
            startingOffsets=json.dumps(nested(step.begins)),
            endingOffsets=json.dumps(nested(step.ends)),
        )
        by_step += found
        assert sum(row["storeSize"] for row in found) <= step_bytes
    key = lambda row: row["commitLogOffset"]  # noqa: E731
    assert sorted(by_step, key=key) == sorted(rows, key=key)


def test_the_live_query_begins_behind_the_last_step(store: Path) -> None:
    """Queues that the store does not have begin at their first message."""
    planned = plan_backfill({BROKER: str(store)}, {"subscribe": "Orders"}, 4096)
    start = parse_start(planned.starting_offsets())
    ends = planned.steps[-1].ends
    assert {queue: start.of(queue) for queue in ends} == ends
    assert sum(ends.values()) == 200
    for queue in (("Orders", BROKER, 3), ("Orders", "broker-b", 0), ("Other", BROKER, 0)):
        assert start.of(Queue(*queue)) == -2


def test_two_stores(store: Path) -> None:
    planned = plan_backfill({"b": str(store), "a": str(store)}, {"subscribe": "Orders"}, 1 << 30)
    assert [step.broker for step in planned.steps] == ["a", "b"]
    assert planned.brokers == {"a", "b"}
    start = parse_start(planned.starting_offsets())
    assert start.of(Queue("Orders", "a", 0)) == start.of(Queue("Orders", "b", 0)) == 67


def test_the_record_is_read_as_it_was_written() -> None:
    queue = Queue("Orders", "a", 0)
    step = BackfillStep(broker="a", begins={queue: 0}, ends={queue: 7})
    known = Backfill(steps=(step, step), done=1, good=5, bad=2)
    assert not known.is_complete
    files = ObjectStore()
    assert read_backfill(files, "/c") is None
    write_record(files, "/c", known)
    assert read_backfill(files, "/c") == known
    for _ in range(2):  # a step that is repeated after a crash may differ in its counts
        write_record(files, "/c", attrs.evolve(known, done=2))
        found = read_backfill(files, "/c")
        assert found is not None
        assert found.is_complete
    assert len(files.objects) == 1
    for text in ("", "{}", "[]", '{"v": 2}', '{"v": 1, "steps": [{}]}'):
        files = ObjectStore({"/c/backfill/steps-000001.json": text})
        with pytest.raises(PipelineError, match="is not the record of a backfill"):
            read_backfill(files, "/c")


def test_a_backfill_that_ends_while_it_writes_its_record_goes_on_from_a_step() -> None:
    known = Backfill(steps=(BackfillStep(broker="a", begins={}, ends={}),) * 2, done=1)
    steps = ["create /c/backfill/steps-000002.json", "delete /c/backfill/steps-000001.json"]
    for number, done in enumerate((1, 2)):
        files = ObjectStore()
        write_record(files, "/c", known)
        files.steps.clear()
        end_before(files, number)
        with pytest.raises(Crash):
            write_record(files, "/c", attrs.evolve(known, done=2))
        assert files.steps == steps[:number]
        assert read_backfill(files, "/c") == attrs.evolve(known, done=done)
        files = ObjectStore(files.objects)
        write_record(files, "/c", attrs.evolve(known, done=2))
        assert list(files.objects) == ["/c/backfill/steps-000002.json"]


def test_what_a_store_reads_for_a_source() -> None:
    assert store_options(SOURCE) == {"subscribe": "Orders"}
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    source = attrs.evolve(
        SOURCE, start=moment, options={"Tags": "A || B", "groupId": "g", "useTls": "true"}
    )
    assert store_options(source) == {
        "subscribe": "Orders",
        "tags": "A || B",
        "startingTimestamp": "1769817600000",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    by_pattern = SourceSpec(name_server="ns:9876", pattern="Or.*")
    assert store_options(by_pattern) == {"subscribePattern": "Or.*"}
    for wrong in (
        {"start": "latest"},
        {"start": {"Orders": {}}},
        {"options": {"filterSql": "a=1"}},
    ):
        with pytest.raises(PipelineError, match="backfill"):
            store_options(attrs.evolve(SOURCE, **wrong))
