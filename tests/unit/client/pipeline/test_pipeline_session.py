"""Which settings and packages a session of a pipeline gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyspark
import pytest

from triomq.client.pipeline.core.errors import SessionError
from triomq.client.pipeline.core.spec import (
    DecodeSpec,
    JoinSpec,
    RunSpec,
    SourceSpec,
    Spec,
    TableSpec,
)
from triomq.client.pipeline.session import SETTINGS, check_session, open_session, session_settings


def spec(
    kind: str = "parquet", options: Mapping[str, str] | None = None, joined: str = "parquet"
) -> Spec:
    return Spec(
        name="orders",
        source=SourceSpec(name_server="a:1", topics=("orders",)),
        decode=DecodeSpec(format="bytes"),
        joins=(JoinSpec(path="x", on=("mq_key",), format=joined),),  # type: ignore[arg-type]
        sink=TableSpec(path="lake", kind=kind),  # type: ignore[arg-type]
        run=RunSpec(checkpoint="checkpoint", options=options or {}),
    )


def test_plain_tables_need_no_package() -> None:
    assert session_settings(spec()) == SETTINGS
    given = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.shuffle.partitions": "2"}
    assert session_settings(spec(options=given)) == SETTINGS | given


def test_the_package_fits_the_version_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    found = session_settings(spec("delta", {"spark.jars.packages": "a:b:1"}))
    assert found["spark.jars.packages"] == "a:b:1,io.delta:delta-spark_4.2_2.13:4.4.0"
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert session_settings(spec(joined="delta")) == session_settings(spec("delta"))
    monkeypatch.setattr(pyspark, "__version__", "9.9.0")
    with pytest.raises(
        SessionError, match=r"no package of delta is known for Spark 9\.9 \(known: "
    ):
        session_settings(spec("delta"))
    own = session_settings(spec("delta", {"spark.jars": "/jars/delta.jar"}))
    assert "spark.jars.packages" not in own
    assert own["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"


class NoPackages:
    """A session of a version, whose JVM has none of the classes."""

    def __init__(self, version: str) -> None:
        self.version = version


@pytest.mark.parametrize(
    ("kind", "version", "said"),
    [
        ("delta", "4.2.1", "start it with --packages io.delta:delta-spark_4.2_2.13:4.4.0, or"),
        ("delta", "4.3.0", r"no package of delta is known for Spark 4\.3 \(known: 4\.2\); install"),
        ("iceberg", "4.2.0", r"\(known: 4\.1\), and a pipeline needs Spark 4\.2 or newer"),
    ],
)
def test_a_session_is_told_only_what_its_spark_can_load(kind: str, version: str, said: str) -> None:
    session: Any = NoPackages(version)
    with pytest.raises(SessionError, match=said):
        check_session(session, spec(kind))


def test_check_and_run_refuse_a_spark_that_cannot_read_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both take their session from here; no Java begins."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(SessionError, match=r"needs Spark 4\.2 or newer .* this is PySpark 4\.1\.2"):
        open_session(spec())
