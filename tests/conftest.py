"""What every test shares: the rules of CI, time limits, and the records of what a run proves."""

import sys
from collections.abc import Iterator

import pytest

pytest_plugins = ("ci_rules", "compatibility_record", "feature_record", "time_limits")


@pytest.fixture(autouse=True)
def sound_source(request: pytest.FixtureRequest) -> Iterator[None]:
    """Register the source again after each test with Spark.

    Two queries of one source that start at once may spoil a Java map of its registration (a fault
    of Spark's, see ``SPARK_FAULTS``). Spark discovers a source once for each process, so every
    later query of the process would fail, too.
    """
    yield
    if request.node.get_closest_marker("spark") is None or "pyspark.sql" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        from triomq.spark import RocketMQDataSource

        session.dataSource.register(RocketMQDataSource)


@pytest.fixture
def roomy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers of the test's process find 30 % of their disk in use: doctor tells of one above
    75 %, and that of the machine may be.
    """
    from triomq.broker.store.core.disk_space import Usage
    from triomq.broker.store.io.disk import Disk

    monkeypatch.setattr(Disk, "usage", lambda disk, path: Usage(used=60 << 30, free=140 << 30))
