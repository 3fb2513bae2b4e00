"""The properties that rows have themselves, as texts: a column at a time, by Arrow."""

from collections.abc import Iterable, Mapping
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from triomq.remoting.protocol.message_properties import (
    DELAY,
    KEYS,
    RESERVED_PROPERTIES,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
)

ORIGIN = "__SPARK"
"""property: ``queryId/batchId/partition/row``, equal for a row that a repeated task sends again"""
NOT_HEADERS = RESERVED_PROPERTIES | {ORIGIN}
PROPERTY_COLUMNS = {
    "headers": "",
    "tags": TAGS,
    "key": KEYS,
    "shardingKey": SHARDING_KEY,
    "delayLevel": DELAY,
    "deliverTimestamp": TIMER_DELIVER_MS,
}
"""column → its property, in the order of a text"""
DAMAGED = "\x01\x01"
"""in place of a property with a separator; no text has it otherwise"""


def property_texts(batch: pa.RecordBatch, places: Mapping[str, int]) -> Iterable[str | None]:
    """Return the text of each row's properties; None for one with a separator in it.

    ``places``: column → position.
    """
    parts = [
        texts_of_headers(batch.column(places[column]))
        if column == "headers"
        else property_column(name, values_of(column, batch.column(places[column])))
        for column, name in PROPERTY_COLUMNS.items()
        if column in places
    ]
    if not parts:
        return repeat("")
    texts = pc.binary_join_element_wise(*parts, "")
    damaged = pc.match_substring(texts, DAMAGED)
    return pc.if_else(damaged, None, texts).to_pylist()  # type: ignore[no-any-return]


def texts_of_headers(headers: pa.MapArray) -> pa.Array:
    """Return the text of each row's headers, without those that RocketMQ sets itself: the source's
    column ``headers`` has these, too. Headers with an empty name or an empty value are left out.
    """
    names, values = headers.keys.cast(pa.string()), headers.items.cast(pa.string())
    wanted = pc.and_(pc.not_equal(names, ""), pc.not_equal(values, ""))
    wanted = pc.and_(wanted, pc.invert(pc.is_in(names, pa.array(sorted(NOT_HEADERS)))))
    single = property_column(names, pc.if_else(wanted, values, None))
    texts = pc.binary_join(pa.ListArray.from_arrays(headers.offsets, single), "")
    return pc.if_else(headers.is_null(), "", texts)


def values_of(column: str, cells: pa.Array) -> pa.Array:
    """Return a column as texts; null where a row has no such property."""
    if column == "deliverTimestamp":
        micros = cells.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return pc.divide(pc.add(micros, 500), 1000).cast(pa.string())
    if column == "delayLevel":
        return pc.if_else(pc.not_equal(cells, 0), cells, None).cast(pa.string())
    if pa.types.is_binary(cells.type) or pa.types.is_large_binary(cells.type):
        found = cells.to_pylist()
        cells = pa.array([cell and cell.decode("utf-8", "replace") for cell in found], pa.string())
    texts = cells.cast(pa.string())
    return texts if column == "shardingKey" else pc.if_else(pc.not_equal(texts, ""), texts, None)


def property_column(name: str | pa.Array, values: pa.Array) -> pa.Array:
    """Return one property for each value, empty where that is null."""
    texts = pc.binary_join_element_wise(name, "\x01", values, "\x02", "")
    damaged = pc.or_(*(pc.greater(pc.count_substring(texts, each), 1) for each in "\x01\x02"))
    return pc.fill_null(pc.if_else(damaged, DAMAGED, texts), "")
