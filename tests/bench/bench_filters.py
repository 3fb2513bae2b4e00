"""What RocketMQ's bit maps of SQL92 filters would gain: ``python tests/bench/bench_filters.py``.

    python tests/bench/bench_filters.py [--messages 8000] [--rounds 5] [--body 256]

With ``enableCalcFilterBitMap`` a Java broker evaluates the filters of all groups when it stores a
message, and writes Bloom filter bits of those that match beside the queue entry; a pull skips
messages without its group's bits. Here the same messages are read in both ways, by groups that
each want 1 % or 50 % of them. Without bit maps that is the broker's own code. The bit maps are a
sketch that does only what cannot be left out (no limits, no locks, no recovery), so its figures are
lower bounds. CPU time, least of several rounds, in µs for each message that is stored.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import trio

from triomq.broker.filters.bloom import BITS, bloom_positions
from triomq.broker.filters.sql92 import compile_filter
from triomq.broker.services.filtered_reads import get_filtered
from triomq.broker.services.filters import Wanted
from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.core.results import GetStatus
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore
from triomq.remoting.protocol.message_properties import decode_properties
from triomq.remoting.protocol.record_reader import read_record

TOPIC = "Offers"
HOST = bytes([127, 0, 0, 1, 0, 0, 0xD4, 0x31])
CITIES = ("Hangzhou", "Beijing", "Shanghai", "Shenzhen")
SHARES = (0.01, 0.5)
GROUPS = (1, 4, 16)
BATCH = 32
UNIT = struct.Struct(f">hqqh{BITS // 8}s")
"""An entry of the extension file: size, tag code, time, length of the bits, the bits."""
ENTRY = struct.Struct(">qiq")
SCAN = 800


def expression(share: float, group: int) -> str:
    """Return a filter that wants this share of the messages, another part for each group."""
    first = group * 61 % 1000
    last = first + int(share * 1000) - 1
    inside = (
        f"price BETWEEN {first} AND {last}"
        if last < 1000
        else f"(price >= {first} OR price <= {last - 1000})"
    )
    return f"region IN ('Hangzhou', 'Beijing', 'Shanghai', 'Shenzhen') AND {inside}"


def make_drafts(count: int, body_bytes: int) -> list[Draft]:
    chance = random.Random(7)
    body = os.urandom(body_bytes)
    drafts = []
    for number in range(count):
        unique_key = f"7F0000010D5A3B6A{number:016X}"
        properties = (
            f"region\x01{chance.choice(CITIES)}\x02price\x01{chance.randrange(1000)}\x02"
            f"kind\x01flat\x02UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02"
            "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
        )
        drafts.append(
            Draft(TOPIC, 0, body, properties.encode(), 0, 0, 0, HOST, unique_key=unique_key)
        )
    return drafts


class BitMaps:
    """The sketch: files of entries, of bits and of records, read and written by plain calls."""

    def __init__(self, directory: Path, filters: list[Wanted]) -> None:
        self._filters = [
            (wanted, sum(1 << bit for bit in bloom_positions(f"group-{number}#{TOPIC}")))
            for number, wanted in enumerate(filters)
        ]
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._bits = os.open(directory / "bits", flags)
        self._entries = os.open(directory / "entries", flags)
        self._log = os.open(directory / "log", flags)
        self.count = 0

    def close(self) -> None:
        for descriptor in (self._bits, self._entries, self._log):
            os.close(descriptor)

    def store_records(self, records: Iterable[bytes]) -> None:
        """Store what is stored without bit maps, too; not measured."""
        position = 0
        entries = bytearray()
        for record in records:
            os.pwrite(self._log, record, position)
            entries += ENTRY.pack(position, len(record), 0)
            position += len(record)
        os.pwrite(self._entries, entries, 0)
        self.count = len(entries) // ENTRY.size

    def store_bits(self, drafts: list[Draft]) -> None:
        """Evaluate all filters for each message; write the bits, a batch with one call."""
        position = 0
        for start in range(0, len(drafts), BATCH):
            units = bytearray()
            for draft in drafts[start : start + BATCH]:
                properties = decode_properties(draft.properties)
                bits = 0
                for wanted, mask in self._filters:
                    if wanted(properties):
                        bits |= mask
                units += UNIT.pack(UNIT.size, 0, 0, BITS // 8, bits.to_bytes(BITS // 8, "little"))
            position += os.pwrite(self._bits, units, position)

    def read(self, group: int) -> int:
        """Read the whole queue for a group; return the number of messages that match."""
        wanted, mask = self._filters[group]
        found = 0
        for start in range(0, self.count, SCAN):
            units = os.pread(self._bits, SCAN * UNIT.size, start * UNIT.size)
            entries = os.pread(self._entries, SCAN * ENTRY.size, start * ENTRY.size)
            for unit, entry in zip(UNIT.iter_unpack(units), ENTRY.iter_unpack(entries)):
                if int.from_bytes(unit[4], "little") & mask == mask:
                    data = os.pread(self._log, entry[1], entry[0])
                    record = read_record(data, 0, len(data), check_crc=False)
                    found += not isinstance(record, str) and wanted(record.properties)
        return found


def read_plainly(store: MessageStore, wanted: Wanted, count: int) -> int:
    """Read the whole queue as pulls do; return the number of messages that match."""

    def get(offset: int, messages_max: int, bytes_max: int) -> object:
        return store.get(TOPIC, 0, offset, messages_max=messages_max, bytes_max=bytes_max)

    offset = found = 0
    while offset < count:
        result = get_filtered(get, offset, BATCH, 262_144, wanted)  # type: ignore[arg-type]
        assert result is not None
        if result.status is GetStatus.FOUND:
            found += result.count
        offset = result.next_offset
    return found


def least(rounds: int, work: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        begun = time.thread_time()
        work()
        best = min(best, time.thread_time() - begun)
    return best


async def run(directory: Path, options: argparse.Namespace) -> None:
    drafts = make_drafts(options.messages, options.body)
    micro = 1e6 / options.messages
    async with open_store(StoreConfig(root=directory / "store")) as store:
        begun = time.thread_time()
        for start in range(0, len(drafts), BATCH):
            store.append(drafts[start : start + BATCH])
        appended = (time.thread_time() - begun) * micro
        print(f"{options.messages} messages, bodies of {options.body} bytes; append {appended:.1f}")
        print("wanted  groups   without   with: bits at the send + reads   = all")
        records: list[bytes] = []
        while len(records) < options.messages:
            found = store.get(TOPIC, 0, len(records), messages_max=BATCH, bytes_max=1 << 22)
            assert found is not None
            data = b"".join(found.chunks)
            position = 0
            while position < len(data):
                size = int.from_bytes(data[position : position + 4], "big")
                records.append(data[position : position + size])
                position += size
        for share in SHARES:
            for groups in GROUPS:
                filters = [compile_filter(expression(share, group)) for group in range(groups)]
                maps = BitMaps(directory, filters)
                maps.store_records(records)
                write = least(options.rounds, partial(maps.store_bits, drafts)) * micro
                plain = read = 0.0
                for group, wanted in enumerate(filters):
                    expected = read_plainly(store, wanted, options.messages)
                    assert maps.read(group) == expected
                    plain += least(
                        options.rounds, partial(read_plainly, store, wanted, options.messages)
                    )
                    read += least(options.rounds, partial(maps.read, group))
                maps.close()
                plain, read = plain * micro, read * micro
                print(
                    f"{share:6.0%} {groups:7} {plain:9.1f}   {write:21.1f} {read:7.1f}"
                    f" {write + read:7.1f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--body", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        trio.run(run, Path(directory), options)


if __name__ == "__main__":
    main()
