"""Which settings and packages does the session of a pipeline need?

A session that exists already, as in a notebook or under ``spark-submit``, is used as it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import attrs
import pyspark
from pyspark.sql import SparkSession

from triomq.client.pipeline.core.errors import SessionError
from triomq.client.pipeline.core.spec import Spec, resolved
from triomq.client.pipeline.tables.parquet import MICROSECONDS, TIMESTAMP_TYPE
from triomq.client.spark.java_runtime import JavaNotFound, prepare_java

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    TIMESTAMP_TYPE: MICROSECONDS,
    # An expression of a rule that cannot be computed is null: one message must not stop a pipeline.
    "spark.sql.ansi.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    # Otherwise a batch fails if the driver's machine is so busy that a result waits for 15 s.
    "spark.python.authenticate.socketTimeout": "2m",
    "spark.ui.showConsoleProgress": "false",
}
"""of every session that this module opens; ``[run] options`` wins"""


@attrs.frozen(kw_only=True)
class FormatPackage:
    """What Spark needs for a kind of table that it does not have itself."""

    coordinates: dict[str, str]
    """Spark's version, as ``4.2`` → the package on Maven Central"""
    settings: dict[str, str]
    """with Spark's extension, the class by which a session is asked whether it has the package"""


SPARK_LEAST = "4.2"
"""which has what ``stream_reader`` needs"""
EXTENSIONS = "spark.sql.extensions"
PACKAGES: dict[str, FormatPackage] = {
    "delta": FormatPackage(
        coordinates={"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"},
        settings={
            EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # VACUUM starts this many tasks to list files, even for two files. Spark's default is
            # 10,000.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
        },
    ),
    "iceberg": FormatPackage(
        coordinates={"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
        settings={
            EXTENSIONS: ("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        },
    ),
}
"""kind of table → its package"""


def formats_of(spec: Spec) -> set[str]:
    """Return the kinds of tables of a pipeline that need a package."""
    tables = [spec.sink, spec.dead_letters, *(window.table for window in spec.windows)]
    kinds: set[str] = {table.kind for table in tables if table is not None}
    return (kinds | {join.format for join in spec.joins}) & set(PACKAGES)


def coordinates_of(kind: str, spark: str) -> str:
    """Return the package of a kind of table for a version of Spark. Raises: SessionError."""
    version = ".".join(spark.split(".")[:2])
    known = PACKAGES[kind].coordinates
    if version in known:
        return known[version]
    text = f"no package of {kind} is known for Spark {version} (known: {' or '.join(known)})"
    if all(numbers(each) < numbers(SPARK_LEAST) for each in known):
        raise SessionError(
            f"{text}, and a pipeline needs Spark {SPARK_LEAST} or newer to read topics; use a table"
            " of kind parquet, or name a package in [run] options as spark.jars.packages"
        )
    raise SessionError(
        f"{text}; install that version of pyspark, or name the package in [run] options as"
        " spark.jars.packages"
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, version.split(".")[:2]))


def session_settings(spec: Spec) -> dict[str, str]:
    """Return the settings of a new session. Raises: SessionError, ValueError."""
    settings = dict(SETTINGS)
    given = resolved(spec.run.options)
    packages = [given["spark.jars.packages"]] if "spark.jars.packages" in given else []
    extensions = []
    for kind in sorted(formats_of(spec)):
        package = PACKAGES[kind]
        try:
            packages.append(coordinates_of(kind, pyspark.__version__))
        except SessionError:
            if not {"spark.jars", "spark.jars.packages"} & set(given):
                raise
        settings |= package.settings
        extensions.append(package.settings[EXTENSIONS])
    if extensions:
        settings[EXTENSIONS] = ",".join(extensions)
    settings |= given
    if packages:
        settings["spark.jars.packages"] = ",".join(packages)
    return settings


def open_session(spec: Spec) -> SparkSession:
    """Return the session that exists, otherwise a new one with the settings of the pipeline.

    Raises: SessionError, ValueError.
    """
    if numbers(pyspark.__version__) < numbers(SPARK_LEAST):
        raise SessionError(
            f"a pipeline needs Spark {SPARK_LEAST} or newer to read topics, and this is PySpark"
            f" {pyspark.__version__}; install a newer one"
        )
    existing = SparkSession.getActiveSession()
    if existing is None:
        try:
            prepare_java(cache_folder() / "java")
        except JavaNotFound as error:
            raise SessionError(str(error)) from None
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(spec.name)
        existing = builder.config(map=dict(session_settings(spec))).getOrCreate()
    check_session(existing, spec)
    return existing


def check_session(session: SparkSession, spec: Spec) -> None:
    """Check that a session has the packages of the tables. Raises: SessionError."""
    for kind in sorted(formats_of(spec)):
        if not has_class(session, PACKAGES[kind].settings[EXTENSIONS]):
            package = coordinates_of(kind, session.version)
            raise SessionError(
                f"the session has no {kind}; start it with --packages {package}, or use a table of"
                " kind parquet"
            )


def has_class(session: SparkSession, name: str) -> bool:
    """Return whether the session's JVM knows a class."""
    try:
        session._jvm.org.apache.spark.util.Utils.classForName(name, False, False)  # type: ignore[union-attr]
    except Exception:  # Py4J has one error for all of Java's
        return False
    return True


def cache_folder() -> Path:
    """Return the folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "triomq"
