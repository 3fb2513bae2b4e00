"""Read a queue through a filter over properties: get records repeatedly, keep those that match.

Tags can be compared in the consume queue; properties are in the log, so each record must be read.
One request reads a limited number of records and is answered even if none matches: the consumer
then pulls the next ones at once. Source: broker/filter/ExpressionMessageFilter.java,
store/DefaultMessageStore.java#getMessage.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

from triomq.broker.services.filters import Wanted
from triomq.broker.store.core.results import GetResult, GetStatus
from triomq.remoting.protocol.record_reader import read_record

SCANNED_MAX = 800
SCAN_SECONDS = 0.005
"""The limits of one request, in records and seconds: the other requests wait for it."""
Get = Callable[[int, int, int], GetResult | None]
"""(offset, messages_max, bytes_max) -> the store's result; None if the disk must be read."""


def kept(found: GetResult, wanted: Wanted) -> list[bytes]:
    """Return the records of a result that match."""
    data = b"".join(found.chunks)
    records = []
    position = 0
    while position < len(data):
        record = read_record(data, position, len(data), check_crc=False)
        if isinstance(record, str):
            break  # the store hands out whole records only
        if wanted(record.properties):
            records.append(data[position : position + record.size])
        position += record.size
    return records


def filtered(found: GetResult, wanted: Wanted) -> GetResult:
    """Return a result of the store without the records that do not match."""
    if found.status is not GetStatus.FOUND:
        return found
    return _result(found, kept(found, wanted))


def get_filtered(
    get: Get, offset: int, messages_max: int, bytes_max: int, wanted: Wanted
) -> GetResult | None:
    """Return up to ``messages_max`` matching records; None if the first are on the disk only.

    The last record may exceed ``bytes_max``, as without a filter.
    """
    records: list[bytes] = []
    last: GetResult | None = None
    scanned = count = size = 0
    messages_max = max(1, messages_max)
    until = time.perf_counter() + SCAN_SECONDS
    while last is None or (
        scanned < SCANNED_MAX
        and count < messages_max
        and size < bytes_max
        and time.perf_counter() < until
    ):
        found = get(offset, messages_max - count, bytes_max - size)
        if found is None or found.status is not GetStatus.FOUND:
            if last is None:
                return found
            break
        last = found
        more = kept(found, wanted)
        records += more
        scanned += found.count
        count += len(more)
        size += sum(map(len, more))
        offset = found.next_offset
    return _result(last, records) if last is not None else None


def _result(last: GetResult, records: list[bytes]) -> GetResult:
    status = GetStatus.FOUND if records else GetStatus.NO_MATCHED_MESSAGE
    return attrs.evolve(
        last, status=status, chunks=records, count=len(records), size_bytes=sum(map(len, records))
    )
