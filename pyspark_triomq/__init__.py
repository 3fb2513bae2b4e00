"""What Spark finds: it imports every installed top-level module named `pyspark_*` and registers its `DefaultSource`.

The law of this file: importing it never fails.  One exception in any such module hides *all* Python data sources from Spark, those of
other packages included; so without pyspark, pyarrow or numpy (or with broken ones) it offers nothing, and says so at debug level.
"""

import logging

try:
    from triomq.client.spark.source import RocketMQDataSource as DefaultSource
except Exception as error:  # whatever is wrong with the environment must not spoil other sources
    logging.getLogger(__name__).debug("the rocketmq source is not offered: %s", error)
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
