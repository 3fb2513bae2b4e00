"""A source with one rule broken, which the runs must find out."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from triomq.client.spark.columns import check_schema
from triomq.client.spark.options import parse_options
from triomq.client.spark.sources.source import RocketMQDataSource
from triomq.client.spark.stream_reader import RocketMQStreamReader


class ForgetfulReader(RocketMQStreamReader):
    """Does not log where a batch begins: batch 0 begins anew when it is repeated."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        return end if end is start else {key: end[key] for key in end if key != "from"}


class ForgetfulDataSource(RocketMQDataSource):
    """``format("rocketmq-forgetful")``."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-forgetful"

    def streamReader(self, schema: StructType) -> ForgetfulReader:
        options = parse_options(dict(self.options), streaming=True, query="forgetful")
        check_schema(schema)
        return ForgetfulReader(options, schema)
