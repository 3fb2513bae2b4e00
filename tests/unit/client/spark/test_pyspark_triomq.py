"""The module that Spark imports by its name must import in any environment: with and without Spark,
and with broken packages.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_spark_finds_the_source_by_name(tmp_path: Path) -> None:
    code = (
        "import pyspark_triomq as p; from pyspark.sql.datasource import DataSource; assert"
        " issubclass(p.DefaultSource, DataSource); print(p.DefaultSource.name())"
    )
    done = run(code, tmp_path)
    assert done.stdout == "rocketmq\n", done.stderr[-2000:]


def test_tasks_do_not_load_what_few_of_them_need(tmp_path: Path) -> None:
    done = run(
        "import pyspark_triomq, sys; print(sorted({'trio', 'rich', 'cryptography', 'pandas',"
        " 'pyarrow.compute'} & set(sys.modules)))",
        tmp_path,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "numpy", "attrs"])
@pytest.mark.parametrize(
    "fault", ["raise ImportError('not here')", "raise RuntimeError('broken build')"]
)
def test_a_missing_or_broken_package_is_silent(tmp_path: Path, name: str, fault: str) -> None:
    """An exception would hide every Python data source of the environment from Spark."""
    (tmp_path / f"{name}.py").write_text(fault + "\n")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pyspark_triomq;"
                " print(hasattr(pyspark_triomq, 'DefaultSource'))"
            ),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
