"""What the store costs, our broker and the Java broker 5.5.0 in one run: ``make bench-store``, or
one part of it.

    python tests/bench/store_side_by_side.py sync|pulls|query|recovery|cold-reader|all
        [--seconds 3] [--rounds 3] [--warm-up 40] [--mib 1024] [--no-java]

sync         sends with SYNC_FLUSH, raw: connections x in flight
pulls        pulls of 32 messages of 1 KiB: from the page cache, and after it dropped the store (the
             brokers are started anew first)
query        by unique key, one after the other: p50 and p99; warm and cold
recovery     how long a start takes: after a clean stop, after kill -9, and after kill -9 without
             queues, key index and checkpoint, until every queue has its end again
cold-reader  sends and pulls of the newest messages, with and without a client that reads the log
             from its beginning, cold, at the same time

The load goes to one broker at a time, in turns; Java is warmed up first. Cells are medians of the
rounds. ``bench_queues.py`` has the runs from 1 to 50,000 queues.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench_broker import PULL_COUNT, PULL_OFFSETS, call, connect, frame, parse_shapes, run_shape
from broker_pair import GIB, TOPIC, Broker, broker_pair, key_of, warm_up
from side_by_side import Load, print_table

SYNC_SHAPES = "1x1,1x64,1x256,64x1"
PULL_SHAPES = "1x1,1x8,8x4"
RECORD_BYTES = 1200
"""About what a message of 1 KiB takes in the log."""


def messages_of(mib: int, *, pulled: bool = False) -> int:
    """So many messages fill a log of this size; ``pulled``: enough for queues that can be
    pulled.
    """
    return max(
        mib * (1 << 20) // RECORD_BYTES,
        8 * (PULL_OFFSETS.start + 4 * PULL_COUNT) if pulled else 1000,
    )


def wait_indexed(broker: Broker, messages: int) -> None:
    deadline = time.monotonic() + 600
    while sum(broker.end_offsets()) < messages:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{broker.name} shows {sum(broker.end_offsets())} of {messages} acknowledged"
                " messages"
            )
        time.sleep(0.01)


def compare(
    brokers: list[Broker],
    loads: list[Load],
    title: str,
    options: argparse.Namespace,
    before: Callable[[Broker], None] | None = None,
    once: bool = False,
) -> None:
    """All loads in turns, and their table. ``before`` each measurement; ``once``: a queue is read
    from end to end and no further.
    """
    for broker in brokers:
        broker.side.results.clear()
    for _ in range(options.rounds):
        for load in loads:
            for broker in brokers:
                if before is not None:
                    before(broker)
                steps = (
                    (min(broker.end_offsets()[0], PULL_OFFSETS.stop) - PULL_OFFSETS.start)
                    // PULL_COUNT
                    - 1
                    if once
                    else None
                )
                broker.side.measure(load, options.seconds, requests_max=steps)
                time.sleep(0.1)
    print(f"\n{title}", flush=True)
    if len(brokers) == 2:
        print_table(loads, brokers[0].side, brokers[1].side, markdown=options.markdown)
        return
    for load in loads:
        side = brokers[0].side
        print(
            f"{load!s:>9} {side.median(load, lambda result: result.rate):>10,.0f} /s  "
            f" {side.cpu(load):.2f} s of CPU for 100k",
            flush=True,
        )


def measure_sync(options: argparse.Namespace) -> None:
    with broker_pair(with_java=not options.no_java, flushDiskType="SYNC_FLUSH") as brokers:
        warm_up(brokers, options.warm_up)
        compare(
            brokers,
            [Load(*shape) for shape in parse_shapes(options.shapes or SYNC_SHAPES)],
            "SEND_MESSAGE_V2, 1 KiB, SYNC_FLUSH",
            options,
        )


def measure_pulls(options: argparse.Namespace) -> None:
    pulls = [Load(*shape, "pull") for shape in parse_shapes(options.shapes or PULL_SHAPES)]
    with broker_pair(with_java=not options.no_java) as brokers:
        warm_up(brokers, options.warm_up / 2)
        for broker in brokers:
            wait_indexed(broker, broker.fill(messages_of(options.mib, pulled=True)))
            for load in pulls if options.warm_up and broker.name == "Java" else ():
                run_shape(
                    broker.address,
                    TOPIC,
                    load.connections,
                    load.in_flight,
                    options.warm_up / 6,
                    request="pull",
                )
        compare(
            brokers,
            pulls,
            f"PULL_MESSAGE, {PULL_COUNT} of 1 KiB, from the page cache, in messages",
            options,
        )

        def make_cold(broker: Broker) -> None:
            broker.stop()
            broker.start()
            broker.drop_cache()

        compare(
            brokers,
            pulls,
            f"PULL_MESSAGE, {PULL_COUNT} of 1 KiB, cold, right after a start (Java without its"
            " warm-up), in messages",
            options,
            make_cold,
            once=True,
        )


def query_times(broker: Broker, count: int, messages: int, seed: int) -> list[float]:
    """Seconds of so many queries by the unique keys of messages chosen at random, each of which
    must be found.
    """
    times = []
    numbers = random.Random(seed).choices(range(messages), k=count)
    with connect(broker.address) as sock:
        for number in numbers:
            key = key_of(number)
            request = frame(
                12,
                {
                    "topic": TOPIC,
                    "key": key,
                    "maxNum": "32",
                    "beginTimestamp": "0",
                    "endTimestamp": str(1 << 60),
                    "_UNIQUE_KEY_QUERY": "true",
                },
            )
            begun = time.perf_counter()
            header, body = call(sock, request)
            times.append(time.perf_counter() - begun)
            if header["code"] != 0 or key.encode() not in body:
                raise SystemExit(
                    f"{broker.name} does not find message {number} by its key: {header}"
                )
    return sorted(times)


def measure_query(options: argparse.Namespace) -> None:
    count = max(20, int(options.seconds * 1000))
    with broker_pair(with_java=not options.no_java) as brokers:
        messages = messages_of(options.mib)
        for broker in brokers:
            wait_indexed(broker, broker.fill(messages))
            query_times(
                broker,
                int(count * options.warm_up / 10) if broker.name == "Java" else 10,
                messages,
                0,
            )
        print(
            f"\nQUERY_MESSAGE by unique key, one after the other, {count} of {messages:,} messages,"
            " in ms"
        )
        for state in ("warm", "cold"):
            for broker in brokers:
                found = []
                for number in range(options.rounds):
                    if state == "cold":
                        broker.drop_cache()
                    found.append(query_times(broker, count, messages, number + 1))
                p50, p99 = (
                    statistics.median(times[len(times) * percent // 100] for times in found) * 1000
                    for percent in (50, 99)
                )
                print(f"{state:5} {broker.name:5} p50 {p50:7.3f}  p99 {p99:7.3f}", flush=True)


def measure_recovery(options: argparse.Namespace) -> None:
    with broker_pair(with_java=not options.no_java) as brokers:
        warm_up(brokers, min(options.warm_up, 10))
        print(
            "\nSeconds from the start of the process until all queues of a log of"
            f" {options.mib / 1024:.2f} GiB have their ends again",
            flush=True,
        )
        for broker in brokers:
            broker.fill(messages_of(options.mib))
            for kind in ("clean stop", "kill -9", "kill -9, queues and indexes deleted"):
                times = []
                for _ in range(options.rounds):
                    run_shape(broker.address, TOPIC, 1, 64, min(1.0, options.seconds))
                    expected = sum(broker.end_offsets())
                    if kind == "clean stop":
                        broker.stop()
                    else:
                        broker.kill()
                    if "deleted" in kind:
                        for name in ("consumequeue", "index"):
                            shutil.rmtree(broker.store / name)
                        (broker.store / "checkpoint").unlink()
                    begun = time.perf_counter()
                    broker.start()
                    wait_indexed(broker, expected)
                    times.append(time.perf_counter() - begun)
                seconds = statistics.median(times)
                gib = expected * RECORD_BYTES / GIB
                print(
                    f"{broker.name:5} {kind:36} {seconds:7.2f} s   {seconds / gib:6.2f} s a GiB  "
                    f" {gib * 1024 / seconds:7.0f} MiB/s (start included)",
                    flush=True,
                )


def measure_cold_reader(options: argparse.Namespace) -> None:
    reader = Path(__file__).resolve().parent / "bench_broker.py"
    with broker_pair(with_java=not options.no_java) as brokers:
        warm_up(brokers, options.warm_up)
        for broker in brokers:
            wait_indexed(broker, broker.fill(messages_of(options.mib, pulled=True)))
        print(
            "\nOne connection, 8 sends in flight, with and without a reader of the oldest messages,"
            " cold, on 2 connections"
        )
        for broker in brokers:
            for cold in (False, True):
                runs = []
                for _ in range(options.rounds):
                    broker.drop_cache()
                    command = [
                        sys.executable,
                        str(reader),
                        broker.address,
                        "--topic",
                        TOPIC,
                        "--request",
                        "pull",
                        "--shapes",
                        "2x1",
                        "--seconds",
                        str(options.seconds + 1),
                    ]
                    other = (
                        subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                        if cold
                        else None
                    )
                    time.sleep(0.5)
                    result = run_shape(broker.address, TOPIC, 1, 8, options.seconds)
                    line = ""
                    if other is not None:
                        line = other.communicate(timeout=120)[0].strip()
                    runs.append((result, line))
                medians = [
                    statistics.median(getattr(result, name) for result, _ in runs)
                    for name in ("rate", "p50_ms", "p99_ms", "p999_ms")
                ]
                print(
                    f"{broker.name:5} {'with' if cold else 'without':8} {medians[0]:9,.0f} sends/s "
                    f" p50 {medians[1]:.2f}  p99 {medians[2]:.2f}  p99.9 {medians[3]:.2f} ms  "
                    f" reader: {runs[-1][1] or '-'}",
                    flush=True,
                )


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "sync": measure_sync,
    "pulls": measure_pulls,
    "query": measure_query,
    "recovery": measure_recovery,
    "cold-reader": measure_cold_reader,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--warm-up", type=float, default=40.0, help="seconds of load before Java is measured"
    )
    parser.add_argument(
        "--mib", type=int, default=1024, help="size of the log that is read or recovered"
    )
    parser.add_argument("--shapes", help="connections x in flight, for sync and pulls")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--no-java", action="store_true", help="our broker alone")
    options = parser.parse_args(argv)
    for name in PARTS if options.part == "all" else (options.part,):
        PARTS[name](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
