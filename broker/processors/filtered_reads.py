"""Reading a queue through a filter over properties: some gets in a row, of which the wanted records are kept.

Tags are compared in the consume queue; properties lie in the log, so each record is looked at.  One request looks at a bounded number and then answers, with nothing
if need be: the consumer goes on behind them at once.  Source: broker/filter/ExpressionMessageFilter.java, store/DefaultMessageStore.java#getMessage.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

from triomq.broker.services.filters import Wanted
from triomq.broker.store.results import GetResult, GetStatus
from triomq.remoting.protocol.message import decode_properties
from triomq.remoting.protocol.record import RecordStatus, check_record

SCANNED_MAX = 800
SCAN_SECONDS = 0.005
"""How many records one request looks at, and for how long: other requests wait meanwhile."""
Get = Callable[[int, int, int], GetResult | None]
"""(offset, messages_max, bytes_max) -> what the store has, None if it lies on the disk"""


def kept(found: GetResult, wanted: Wanted) -> list[bytes]:
    """The wanted records of an answer."""
    data = b"".join(found.chunks)
    records = []
    position = 0
    while position < len(data):
        record = check_record(data, position, len(data), check_crc=False)
        if record.status is not RecordStatus.MESSAGE:
            break  # the store hands out whole records only
        if wanted(decode_properties(record.properties)):
            records.append(data[position : position + record.size])
        position += record.size
    return records


def filtered(found: GetResult, wanted: Wanted) -> GetResult:
    """One answer of the store without the records that are not wanted."""
    if found.status is not GetStatus.FOUND:
        return found
    return _result(found, kept(found, wanted))


def get_filtered(get: Get, offset: int, messages_max: int, bytes_max: int, wanted: Wanted) -> GetResult | None:
    """Up to so many wanted records from an offset on; None if not even the first look was possible without the disk.

    The limits are the request's and the broker's for one answer; the last record may go beyond that of bytes, as without a filter.
    """
    records: list[bytes] = []
    last: GetResult | None = None
    scanned = count = size = 0
    messages_max = max(1, messages_max)
    until = time.perf_counter() + SCAN_SECONDS
    while last is None or (scanned < SCANNED_MAX and count < messages_max and size < bytes_max and time.perf_counter() < until):
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
    return attrs.evolve(last, status=status, chunks=records, count=len(records), size_bytes=sum(map(len, records)))
