"""What the store costs per message: ``python tests/bench/bench_store.py [--profile]``.

Appends of 1 KiB messages in batches of 1, 8 and 64, each with CRC, queue entry and key index (a
unique key; then a tag, too; then a tag and a key), and gets of 32 messages: of one queue that lies
in one piece, and scattered over eight queues. Best of several rounds, in µs a message; the store
runs as in a broker, flusher and all, and the time in which its other tasks run is not counted. The
floor a whole broker is built on: see docs/performance.md.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import trio
import trio.lowlevel

from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.draft import Draft
from triomq.broker.store.opening import open_store
from triomq.broker.store.store import MessageStore

BODY = os.urandom(1024)
QUEUES = 8
ROUNDS = 15
MESSAGES_A_ROUND = 6_400
HOST = bytes([127, 0, 0, 1, 0, 0, 0xD4, 0x31])
GIVEN = {"key": (None, None), "key+tag": ("TagA", None), "key+tag+keys": ("TagA", "order-{:07d}")}


def make_drafts(count: int, tags: str | None, keys: str | None, start: int) -> list[Draft]:
    drafts = []
    for number in range(start, start + count):
        unique_key = f"7F0000010D5A3B6A{number:016X}"
        word = keys.format(number) if keys is not None else None
        properties = (
            f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02MSG_REGION\x01DefaultRegion\x02"
            "TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
        )
        properties += f"TAGS\x01{tags}\x02" if tags else ""
        properties += f"KEYS\x01{word}\x02" if word else ""
        drafts.append(
            Draft(
                "TopicTest",
                number % QUEUES,
                BODY,
                properties.encode(),
                0,
                0,
                1_700_000_000_000,
                HOST,
                tags=tags,
                unique_key=unique_key,
                keys=word,
            )
        )
    return drafts


async def appends(
    store: MessageStore, batch_size: int, tags: str | None, keys: str | None
) -> float:
    best = float("inf")
    for number in range(ROUNDS):
        drafts = make_drafts(MESSAGES_A_ROUND, tags, keys, number * MESSAGES_A_ROUND)
        batches = [drafts[at : at + batch_size] for at in range(0, len(drafts), batch_size)]
        begun = time.thread_time()
        for batch in batches:
            store.append(batch)
        best = min(best, time.thread_time() - begun)
        await trio.sleep(0.02)
    return best / MESSAGES_A_ROUND * 1e6


async def gets(
    store: MessageStore, topic: str, queue_id: int, tag_codes: frozenset[int] | None
) -> float:
    best = float("inf")
    last = store.max_offset(topic, queue_id) - 32
    for _ in range(ROUNDS):
        begun = time.thread_time()
        for offset in range(max(0, last - 6_400), last, 32):
            result = store.get(
                topic, queue_id, offset, messages_max=32, bytes_max=1 << 20, tag_codes=tag_codes
            )
            assert result is not None
            assert result.count == 32
            b"".join(result.chunks)
        best = min(best, time.thread_time() - begun)
        await trio.lowlevel.checkpoint()
    return best / 6_400 * 1e6


async def run(directory: Path, flush_mode: FlushMode, report: Callable[[str], None]) -> None:
    async with open_store(StoreConfig(root=directory, flush_mode=flush_mode)) as store:
        for given, (tags, keys) in GIVEN.items():
            for batch_size in (1, 8, 64):
                report(
                    f"append, batches of {batch_size:2}, {given:13}"
                    f" {await appends(store, batch_size, tags, keys):6.2f} µs a message"
                )
        single = [
            Draft(
                "OneQueue",
                0,
                BODY,
                b"",
                0,
                0,
                1_700_000_000_000,
                HOST,
                unique_key=f"7F0000010D5A3B6A{number:016X}",
            )
            for number in range(6_500)
        ]
        store.append(single)
        await trio.sleep(1.5)  # entries leave memory
        report(
            f"get of 32, one piece                  {await gets(store, 'OneQueue', 0, None):6.2f}"
            " µs a message"
        )
        report(
            f"get of 32, scattered over 8 queues    {await gets(store, 'TopicTest', 0, None):6.2f}"
            " µs a message"
        )
        report(
            "get of 32, scattered, by tag         "
            f" {await gets(store, 'TopicTest', 0, frozenset([2598919])):6.2f} µs a message"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument(
        "--sync",
        action="store_true",
        help="SYNC_FLUSH: what readers see comes after the flush, so indexes are not in the time",
    )
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="triomq-bench-"))
    profile = cProfile.Profile()
    try:
        if arguments.profile:
            profile.enable()
        trio.run(run, directory, FlushMode.SYNC if arguments.sync else FlushMode.ASYNC, print)
    finally:
        profile.disable()
        shutil.rmtree(directory)
    if arguments.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
