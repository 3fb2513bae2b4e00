"""The module that Spark discovers: it imports every installed top-level module named ``pyspark_*``
and registers its ``DefaultSource``.

Importing this module never fails: an exception in any such module hides *all* Python data sources
from Spark, also those of other packages. So without working pyspark, pyarrow and numpy it offers no
source, and logs that at debug level.
"""

import logging

try:
    import numpy  # noqa: F401 - tasks need it

    from triomq.client.spark.sources.source import RocketMQDataSource as DefaultSource
except Exception as error:  # a broken environment must not hide other sources
    logging.getLogger(__name__).debug("the rocketmq source is not available: %s", error)
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
