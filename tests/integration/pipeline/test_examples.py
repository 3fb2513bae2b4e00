"""The pipelines of examples/pipelines, run as they are but for the address of the name server."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from examples.demo.dataset import flights_file, read_flights
from tests.support.spark_peers import Cluster, cluster, need_spark, open_session
from triomq.client.pipeline.__main__ import main
from triomq.client.spark.sink import delivery
from triomq.client.spark.sink.sink_options import parse_sink_options
from triomq.client.spark.sink.writer import TaskWriter

ROOT = Path(__file__).resolve().parents[3]
DAY_NS = 86_400 * 10**9
FLIGHTS = 500

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    need_spark(folder)
    session = open_session(folder / "local")
    yield session
    session.stop()


@pytest.fixture
def examples(running: Cluster, tmp_path: Path) -> Path:
    """A copy of the folder, for the cluster of the tests."""
    folder = tmp_path / "pipelines"
    shutil.copytree(ROOT / "examples" / "pipelines", folder)
    for file in folder.glob("*.toml"):
        text = file.read_text()
        assert text.count("127.0.0.1:9876") == 1
        file.write_text(text.replace("127.0.0.1:9876", running.namesrv))
    return folder


def run(file: Path) -> None:
    assert main(["run", str(file), "--trigger", "available_now"]) == 0


def send_at(
    monkeypatch: pytest.MonkeyPatch, running: Cluster, bodies: Sequence[bytes], time_ns: int
) -> None:
    """Send from a producer whose clock shows another time."""
    options = parse_sink_options(
        {"nameServer": running.namesrv, "topic": "flights"}, streaming=False
    )
    clock = SimpleNamespace(time_ns=lambda: time_ns, monotonic=time.monotonic, sleep=time.sleep)
    with monkeypatch.context() as patch:
        patch.setattr(delivery, "time", clock)
        batch = pa.RecordBatch.from_pydict({"value": list(bodies)})
        TaskWriter(options, {"value": 0}, "test").write(iter([batch]))


@pytest.mark.loss
@pytest.mark.feature("208a", "205a")
def test_flights_become_a_lake_with_totals_by_day(
    spark: Any, running: Cluster, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.create_topic("flights", 2)
    bodies = [flight.body for flight in read_flights(flights_file(), FLIGHTS)]
    flights = [json.loads(body) for body in bodies]
    yesterday = time.time_ns() // DAY_NS * DAY_NS - DAY_NS // 2
    send_at(monkeypatch, running, bodies, yesterday)
    run(examples / "flights.toml")
    lake = spark.read.parquet(str(examples / "lake" / "flights"))
    wanted = Counter((each["carrier"], each["flight"], each["dep_delay"]) for each in flights)
    assert Counter((row.carrier, row.flight, row.dep_delay) for row in lake.collect()) == wanted
    assert lake.where("delayed").count() == sum((each["dep_delay"] or 0) > 15 for each in flights)

    send_at(monkeypatch, running, bodies[:1], yesterday + 2 * DAY_NS)
    run(examples / "flights.toml")
    daily = spark.read.parquet(str(examples / "lake" / "flights-daily")).collect()
    assert {row.carrier: row.flights for row in daily} == Counter(
        each["carrier"] for each in flights
    )
    assert sum(row.delayed for row in daily) == lake.where("delayed").count() - int(
        (flights[0]["dep_delay"] or 0) > 15
    )


@pytest.mark.loss
@pytest.mark.feature("208a", "205b", "205c", "203b")
def test_orders_have_their_newest_state_and_bad_ones_come_back(
    spark: Any, running: Cluster, examples: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for topic in ("orders", "orders-dead"):
        running.create_topic(topic, 1)
    orders = [
        {"id": 1, "customer": "ada", "state": "new", "amount": 10},
        {"id": 2, "customer": "linus", "state": "new", "amount": -1},
        {"id": 1, "customer": "ada", "state": "paid", "amount": 10},
        {"id": 3, "customer": "grace", "state": "new", "amount": 2.5},
    ]
    for body in (*(json.dumps(order).encode() for order in orders), b"{"):
        running.send("orders", [body])  # two brokers: the store time tells which is newer
        time.sleep(0.005)
    run(examples / "orders.toml")
    table = spark.read.parquet(str(examples / "lake" / "orders")).orderBy("id")
    assert [(row.id, row.state, str(row.amount), row.country) for row in table.collect()] == [
        (1, "paid", "10.00", "GB"),
        (3, "new", "2.50", None),
    ]
    capfd.readouterr()
    where = "mq_reason = 'the amount is positive'"
    assert main(["replay", str(examples / "orders.toml"), "--where", where, "--json"]) == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert told == {"sent": 1, "left_out": 0, "refused": {}}
