"""How fast a store comes back: ``python tests/bench/bench_recovery.py [--mib 256] [--rounds 5]
[--profile]``.

A log of 1 KiB messages, each with a unique key and a tag, eight queues, in this process. Three ways
to lose what can be made again from it: the queues after a clean stop; queues, key index and
checkpoint after a crash; and a crash that lost nothing but the memory, so that only what the last
checkpoint does not cover is read. Best of several rounds, in MiB/s of log (the machine's page cache
as it is; ``--cold`` drops the log from it first).
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import os
import pstats
import shutil
import tempfile
import time
from pathlib import Path

import attrs
import trio
from bench_store import GIVEN, make_drafts

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.opening import open_store

MIB = 1 << 20
LOST = ("queues", "queues+index", "nothing")


@attrs.frozen
class Recovery:
    """One measurement: seconds from the lock to a store that could serve, and how much of the log
    was read.
    """

    seconds: float
    cpu_seconds: float
    mib: float
    records: int

    @property
    def rate(self) -> float:
        return self.mib / self.seconds


async def fill(root: Path, mib: int) -> None:
    tags, keys = GIVEN["key+tag"]
    drafts = make_drafts(16_384, tags, keys, 0)
    batches = [drafts[at : at + 64] for at in range(0, len(drafts), 64)]
    async with open_store(StoreConfig(root=root)) as store:
        while store.appended.value < mib * MIB:
            for batch in batches:
                store.append(batch)
                if store.appended.value >= mib * MIB:
                    break
            await trio.sleep(0.01)


def lose(root: Path, lost: str, cold: bool) -> None:
    """Make the directory what a stop of that kind leaves behind."""
    if lost != "nothing":
        shutil.rmtree(root / "consumequeue")
    if lost == "queues+index":
        shutil.rmtree(root / "index")
        (root / "checkpoint").unlink()
    if lost == "queues":
        (root / "abort").unlink(missing_ok=True)
    else:
        (root / "abort").touch()
    if cold:
        os.sync()
        for path in (root / "commitlog").iterdir():
            Disk().drop_cache(path)


async def recover(root: Path, profile: cProfile.Profile | None) -> Recovery:
    if profile is not None:
        profile.enable()
    begun, cpu_begun = time.perf_counter(), time.thread_time()
    async with open_store(StoreConfig(root=root)) as store:
        seconds, cpu = time.perf_counter() - begun, time.thread_time() - cpu_begun
        if profile is not None:
            profile.disable()
        found = store.recovered
    return Recovery(seconds, cpu, (found.end - found.scanned_from) / MIB, found.records)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256, help="size of the log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--lost", choices=LOST, action="append", help="what is missing (all of them in turn)"
    )
    parser.add_argument(
        "--cold", action="store_true", help="drop the log from the page cache before each round"
    )
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    root = Path(tempfile.mkdtemp(prefix="bench-recovery-", dir=os.environ.get("BENCH_DIR")))
    profile = cProfile.Profile() if options.profile else None
    try:
        trio.run(fill, root, options.mib)
        for lost in options.lost or LOST:
            rounds = []
            for _ in range(options.rounds):
                lose(root, lost, options.cold)
                rounds.append(trio.run(recover, root, profile))
            best = min(rounds, key=lambda result: result.seconds)
            print(
                f"lost: {lost:12} read {best.mib:7.0f} MiB, {best.records:9,} records in"
                f" {best.seconds:6.2f} s: {best.rate:6.0f} MiB/s,"
                f" {best.seconds / max(1, best.records) * 1e6:5.2f} µs a record"
                f" ({best.cpu_seconds:.2f} s of CPU)",
                flush=True,
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
