"""What a Python process of Spark says that lacks the package, and where it looks for it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from triomq.client.spark.errors import SourceError
from triomq.client.spark.partitions import TaskReader
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.client.spark.zip_file import write_zip

LIBRARIES = [
    str(path) for path in (Path(cloudpickle.__file__).parents[1] / "python/lib").glob("*.zip")
]
SOURCE = "RocketMQDataSource"
OF_THE_DRIVER = ("batch_reader", "driver_client", "name_servers", "stream_reader")
OF_A_TASK = ("decode", "pull_window", "task_pull")
OF_A_SINK = ("name_servers", "sink.delivery", "sink.outgoing")
NEEDED_BY_NEITHER = (
    *("difflib", "triomq.remoting.core.settings"),
    "triomq.remoting.protocol.headers.registration",
)
LOAD = """
import pickle, sys
sys.path += sys.argv[2:]
print(pickle.loads(bytes.fromhex(sys.argv[1])).__name__)
"""


def load_elsewhere(pickled: bytes, *path: Path) -> subprocess.CompletedProcess[str]:
    """Unpickle in a Python that has nothing but its own library, Spark's, and ``path``."""
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        LOAD,
        pickled.hex(),
        *LIBRARIES,
        *map(str, path),
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("cls", [RocketMQDataSource, TaskReader])
def test_without_the_package_the_error_names_cause_and_fix(cls: type) -> None:
    done = load_elsewhere(cloudpickle.dumps(cls))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: No module named 'triomq': a Python process of Spark")
    for part in (
        sys.executable,
        "--py-files",
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON changes",
    ):
        assert part in last


def test_the_zip_is_found_beside_the_folder_that_spark_names(tmp_path: Path) -> None:
    """Spark 4.3 names ``streaming_job``, and the zip is above it, or in the folder of a session.

    Without pyarrow the import ends later, inside of the zip.
    """
    (tmp_path / "session").mkdir()
    archive = write_zip(tmp_path / "session" / "triomq-spark.zip")
    wrong = tmp_path / "streaming_job" / archive.name
    done = load_elsewhere(cloudpickle.dumps(RocketMQDataSource), wrong)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: No module named 'pyarrow': a Python process of Spark")
    assert str(archive) in done.stderr


def test_pickles_of_python_name_the_class() -> None:
    for cls in (RocketMQDataSource, TaskReader):
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cloudpickle.loads(cloudpickle.dumps(cls)) is cls


def test_a_stream_names_the_pyspark_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PySpark 4.1 lacks a module; batch queries do not need it."""
    monkeypatch.delitem(sys.modules, "triomq.client.spark.stream_reader", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    source = RocketMQDataSource({"nameServer": "ns1:9876", "subscribe": "orders"})
    with pytest.raises(
        SourceError, match=r"need PySpark 4\.2 or newer, and this is \d+\.\d+\.\d+;"
    ):
        source.streamReader(source.schema())
    assert source.reader(source.schema())


@pytest.mark.parametrize(
    ("kind", "made", "loaded", "unwanted"),
    [
        (
            "TaskReader",
            "list(sent.read(InputPartition(None)))",
            OF_A_TASK,
            OF_THE_DRIVER,
        ),
        (SOURCE, "sent.reader(sent.schema())", OF_THE_DRIVER[:3], OF_A_TASK),
        (SOURCE, "sent.streamReader(sent.schema())", OF_THE_DRIVER[1:], OF_A_TASK),
        (
            SOURCE,
            "sent.writer(BODY, False)",
            ("sink.writer",),
            (*OF_A_TASK, *OF_A_SINK),
        ),
    ],
    ids=["task", "batch", "stream", "sink"],
)
def test_a_task_loads_nothing_of_the_driver_and_the_driver_nothing_of_tasks(
    kind: str, made: str, loaded: tuple[str, ...], unwanted: tuple[str, ...]
) -> None:
    source = RocketMQDataSource({"nameServer": "ns1:9876", "topic": "orders"})
    sent = source.reader(source.schema()) if kind == "TaskReader" else source
    script = (
        "import pickle, sys\n"
        "from pyspark.sql.datasource import InputPartition\n"
        "from pyspark.sql.types import StructType\n"
        "BODY = StructType().add('value', 'binary')\n"
        f"sent = pickle.loads(bytes.fromhex(sys.argv[1]))\nmade = {made}\n"
        "print(type(sent).__name__, *sys.modules)"
    )
    words = [sys.executable, "-c", script, cloudpickle.dumps(sent).hex()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    arrived, *found = done.stdout.split()
    assert arrived == kind
    assert {f"triomq.client.spark.{name}" for name in loaded} <= set(found)
    left_out = (
        *NEEDED_BY_NEITHER,
        *(f"triomq.client.spark.{name}" for name in unwanted),
    )
    assert not [name for name in found if name.startswith(left_out)]
