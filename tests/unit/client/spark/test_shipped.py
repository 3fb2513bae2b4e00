"""What a Python process of Spark says that lacks the package, and where it looks for it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from triomq.client.spark.batch_reader import RocketMQBatchReader
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.client.spark.zip_file import write_zip

LIBRARIES = [
    str(path) for path in (Path(cloudpickle.__file__).parents[1] / "python/lib").glob("*.zip")
]
LOAD = """
import pickle, sys
sys.path += sys.argv[2:]
print(pickle.loads(bytes.fromhex(sys.argv[1])).__name__)
"""


def load_elsewhere(pickled: bytes, *path: Path) -> subprocess.CompletedProcess[str]:
    """Unpickle in a Python that has nothing but its own library, Spark's, and ``path``."""
    words = [sys.executable, "-I", "-S", "-c", LOAD, pickled.hex(), *LIBRARIES, *map(str, path)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("cls", [RocketMQDataSource, RocketMQBatchReader])
def test_without_the_package_the_error_names_cause_and_fix(cls: type) -> None:
    done = load_elsewhere(cloudpickle.dumps(cls))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: No module named 'triomq': a Python process of Spark")
    for part in (sys.executable, "--py-files", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON changes"):
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
    for cls in (RocketMQDataSource, RocketMQBatchReader):
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cloudpickle.loads(cloudpickle.dumps(cls)) is cls
