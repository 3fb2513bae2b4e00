"""Faults inside the micro-batches of Spark queries: runs of ``make spark-chaos``, one of each kind
(most kinds take turns in CI, by the day of the newest commit), and a stream that is killed five
times while it writes to a topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.pythons import day_of_the_newest_commit
from tests.spark_chaos.broken_source import ForgetfulDataSource
from tests.spark_chaos.chaos_campaign import ChaosCampaign, ChaosFound
from tests.spark_chaos.judge import SentMessage, WrittenRow, complaints, judge_sink
from tests.spark_chaos.plan import KINDS, OF_PIPELINES, DoesNotCount, draw, sink_victims
from tests.spark_chaos.scene import Sender, open_scene
from tests.support.spark_peers import cluster, need_spark
from triomq.client.spark.sources.source import RocketMQDataSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SEED = 0
ROWS_OF_KIND = {
    "driver killed": ("157a", "172b", "172d"),
    "failover": ("172c",),
    "compaction beside a pipeline": ("204a", "204c"),
    "backfill beside a pipeline": ("206b",),
}
ALWAYS = ("driver killed", "failover")
"""The kinds of every run of CI: no other test proves all of their clauses."""
IN_TURNS = tuple(kind for kind in KINDS if kind not in ALWAYS)
IN_TURNS_A_DAY = 2


def kinds_of(day: int) -> tuple[str, ...]:
    """Return the kinds that CI plays on a day; ``make nightly`` plays all."""
    first = IN_TURNS_A_DAY * day
    turn = [IN_TURNS[(first + place) % len(IN_TURNS)] for place in range(IN_TURNS_A_DAY)]
    return *ALWAYS, *turn


OF_TODAY = kinds_of(day_of_the_newest_commit())


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosCampaign]:
    folder = tmp_path_factory.mktemp("chaos")
    need_spark(folder)
    with open_scene(folder / "servers") as scene:
        yield ChaosCampaign(folder, SEED, scene, print)


def run_of(number: int) -> Any:
    kind = draw(SEED, number).kind
    rows = ROWS_OF_KIND.get(kind)
    marks = [pytest.mark.feature(*rows)] if rows else []
    if kind not in OF_TODAY:
        marks.append(pytest.mark.nightly)
    return pytest.param(number, id=kind.replace(" ", "-"), marks=marks)


@pytest.mark.loss
@pytest.mark.slow
@pytest.mark.parametrize("number", [run_of(number) for number in range(len(KINDS))])
def test_a_fault_inside_a_batch_loses_nothing_and_repeats_nothing(
    campaign: ChaosCampaign, number: int
) -> None:
    record = campaign.read(number)
    assert record["complaints"] == []
    assert record["rows"] > 0
    queries = {"pipeline"} if record["kind"] in OF_PIPELINES else {"parquet", "foreach"}
    assert {each["query"] for each in record["inside"]} == queries
    assert all(each["committed"] == each["planned"] - 1 for each in record["inside"])


@pytest.mark.loss
@pytest.mark.slow
@pytest.mark.feature("174b")
def test_a_stream_that_is_killed_five_times_sends_every_row_and_marks_repeats(
    campaign: ChaosCampaign,
) -> None:
    record = campaign.write(kills=5)  # `make spark-chaos` kills ten times
    assert record["complaints"] == []
    assert len(record["kills"]) == 5
    assert {kill["victim"] for kill in record["kills"]} == {"driver", "worker", "broker"}
    assert record["repeats"] > 0, "rows were sent before a kill"


def of_batch(source: RocketMQDataSource, start: dict[str, Any], end: Any) -> list[WrittenRow]:
    reader = source.streamReader(source.schema())
    rows = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns = batch.to_pydict()
            names = ("brokerName", "queueId", "offset", "value")
            for broker, queue, offset, value in zip(*(columns[name] for name in names)):
                rows.append(WrittenRow(value[:12].decode(), broker, queue, offset, 0))
    reader.stop()
    return rows


def test_a_source_that_forgets_where_batch_0_begins_is_found(tmp_path: Path) -> None:
    """Without Spark: batch 0 is planned, its driver dies, and another driver repeats it."""
    with cluster(tmp_path) as running:
        for source_class, found in ((RocketMQDataSource, []), (ForgetfulDataSource, ["lost"])):
            topic = f"topic-{len(found)}"
            running.create_topic(topic, 1)
            options = {"nameServer": running.namesrv, "subscribe": topic, "pollIntervalMs": "1"}
            sender = Sender(running.namesrv, topic, 10, 1)
            sender.send(10)
            reader = source_class(options).streamReader(source_class(options).schema())
            start = reader.initialOffset()
            must = [attrs.evolve(message, checksum=0) for message in sender.send(20)]
            end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
            reader.stop()
            sender.send(5)
            again = source_class(options).streamReader(source_class(options).schema())
            rows = of_batch(source_class(options), again.initialOffset(), end)
            again.stop()
            assert [text.split(" ")[2].rstrip(":") for text in complaints(rows, must)] == found


def message(number: int) -> SentMessage:
    return SentMessage(1, number, "broker-a", 0, number, 7)


def row(number: int, **changes: Any) -> WrittenRow:
    sent = message(number)
    return attrs.evolve(WrittenRow(sent.name, "broker-a", 0, number, 7), **changes)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(0), row(2)], "1 messages lost: 1/000001"),
        ([row(0), row(1), row(2), row(1)], "1 messages twice: 1/000001"),
        ([row(0), row(1), row(2), row(3), row(3)], "1 messages twice: 1/000003"),
        ([row(0), row(1), row(2), row(4)], "1 messages not to be read: 1/000004 at broker-a/0/4"),
        ([row(0), row(1), row(2, checksum=8)], "1 messages with another place or body: 1/000002"),
        ([row(0), row(1, offset=9), row(2)], "1 messages with another place or body: 1/000001"),
        ([row(0), row(1), row(2), row(3)], None),
        ([row(0), row(1), row(2)], None),
    ],
)
def test_the_judge(rows: list[WrittenRow], words: str | None) -> None:
    must, may = [message(0), message(1), message(2)], [message(3)]
    assert complaints(rows, must, may) == ([] if words is None else [words])


@pytest.mark.parametrize(
    ("by_origin", "words"),
    [
        ({"q/1/0/0": ["a", "a"], "q/1/0/1": ["b"]}, None),
        ({"q/1/0/0": ["a"]}, "1 rows lost: b"),
        ({"q/1/0/0": ["a", "b"], "q/1/0/1": ["b"]}, "1 values of __SPARK mean several rows"),
        ({"q/1/0/0": ["a"], "q/1/0/1": ["b"], "q/1/0/2": ["b"]}, "3 rows remain of 2"),
    ],
)
def test_the_judge_of_the_sink(by_origin: dict[str, list[str]], words: str | None) -> None:
    found = judge_sink(["a", "b"], by_origin).complaints
    assert len(found) == (words is not None)
    assert words is None or found[0].startswith(words)


def test_a_week_of_ci_plays_every_kind() -> None:
    played = [kinds_of(day) for day in range(20_000, 20_006)]
    assert {kind for kinds in played for kind in kinds} == set(KINDS)
    assert all(len(set(kinds)) == 4 for kinds in played), "two more than always"


def test_every_variant_of_every_kind_is_drawn() -> None:
    numbers = range(3 * len(KINDS))
    plans = [draw(1, number) for number in numbers]
    assert plans == [draw(1, number) for number in numbers] != [draw(2, n) for n in numbers]
    drawn = {(plan.kind, plan.variant) for plan in plans}
    assert drawn == {(kind, each) for kind, variants in KINDS.items() for each in variants}
    assert set(sink_victims(1, 5)) == {"driver", "worker", "broker"}


def test_a_run_whose_fault_fell_between_batches_is_played_again(tmp_path: Path) -> None:
    told: list[str] = []
    campaign = ChaosCampaign(tmp_path, 3, None, told.append)  # type: ignore[arg-type]
    tries = iter([DoesNotCount("early"), {"complaints": []}, {"complaints": ["1 messages lost"]}])

    def play(folder: Path) -> dict[str, Any]:
        folder.mkdir()
        result = next(tries)
        if isinstance(result, Exception):
            raise result
        return result

    assert campaign._counting("read-0", play)["attempts"] == 2
    assert "between" in told[0] or "early" in told[0]
    with pytest.raises(ChaosFound, match="read-1 of seed 3: 1 messages lost"):
        campaign._counting("read-1", play)
    assert (tmp_path / "read-1-0").exists(), "the folder is left as it is"
    campaign.runs.append({"kind": "x"})
    campaign._save()
    assert ChaosCampaign(tmp_path, 3, None).runs == [{"kind": "x"}]  # type: ignore[arg-type]
