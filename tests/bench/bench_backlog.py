"""What a backlog costs: two brokers of ours, one with millions of unread messages,
one with none; sends and reads at the tail, in turns.

    python tests/bench/bench_backlog.py [--messages 2000000] [--seconds 3] [--rounds 5]
        [--reads 300]

The backlog is of 100 bytes a message in the eight queues of a topic of its own. Sends are of 1 KiB,
64 in flight on one connection. A read at the tail is a long poll that waits at the end of a queue
when the message is sent by another connection; its latency is from the send to the answer of the
pull.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench_broker import call, connect, create_topic, frame, run_shape
from broker_pair import TOPIC, Broker, end_offset_of, our_server, telling_of_the_dead
from figures import add_record_option, record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import processes

BACKLOG = "Backlog"
TAIL = "Tail"


def tail_latencies(broker: Broker, count: int) -> list[float]:
    """Milliseconds from a send to the answer of the pull that waited for it."""
    fields = {
        "a": "bench",
        "b": TAIL,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "0",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    send = frame(310, fields, b"x" * 100)
    found = []
    with connect(broker.address) as reader, connect(broker.address) as writer:
        offset = end_offset_of(writer, TAIL, 0)
        for _ in range(count):
            pull = {
                "consumerGroup": "bench",
                "topic": TAIL,
                "queueId": "0",
                "queueOffset": str(offset),
                "maxMsgNums": "1",
                "sysFlag": "6",
                "commitOffset": "0",
                "suspendTimeoutMillis": "20000",
            }
            reader.sendall(
                frame(11, {**pull, "subscription": "*", "subVersion": "0", "expressionType": "TAG"})
            )
            time.sleep(0.002)  # the pull is parked
            begun = time.perf_counter()
            writer.sendall(send)
            header, _ = call(reader, b"")
            found.append((time.perf_counter() - begun) * 1000)
            sent, _ = call(writer, b"")
            if header["code"] != 0 or sent["code"] != 0:
                raise SystemExit(f"the pull was answered with {header}, the send with {sent}")
            offset += 1
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a backlog costs.")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=300, help="at the tail, in each round")
    add_record_option(parser)
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="backlog-"))
    try:
        with ExitStack() as stack:
            namesrv = stack.enter_context(processes.our_name_server(folder))
            empty, full = (
                our_server(folder / name, namesrv, f"broker-{name}") for name in ("empty", "full")
            )
            for broker in (empty, full):
                stack.callback(broker.stop)
                broker.start()
                for topic in (TOPIC, TAIL, BACKLOG):
                    create_topic(broker.address, topic)
            stack.enter_context(telling_of_the_dead([empty, full]))
            unread = run_shape(
                full.address, BACKLOG, 1, 256, 3600, body_size=100, requests_max=options.messages
            ).messages
            print(f"{unread:,} messages wait; now sends and reads", file=sys.stderr, flush=True)
            rates: dict[str, list[float]] = {"empty": [], "full": []}
            reads: dict[str, list[float]] = {"empty": [], "full": []}
            for number in range(options.rounds):
                for name, broker in (
                    (("empty", empty), ("full", full))
                    if number % 2
                    else (("full", full), ("empty", empty))
                ):
                    rates[name].append(
                        run_shape(broker.address, TOPIC, 1, 64, options.seconds).rate
                    )
                    reads[name] += tail_latencies(broker, options.reads)
            if sum(full.end_offsets(BACKLOG)) != unread:
                raise SystemExit("the backlog is not what was acknowledged")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rate = {name: statistics.median(found) for name, found in rates.items()}
    p50 = {name: statistics.median(found) for name, found in reads.items()}
    print(f"| | nothing unread | {unread:,} unread | ratio |\n|---|---:|---:|---:|")
    print(
        f"| sends a second, median of {options.rounds} rounds | {rate['empty']:,.0f} |"
        f" {rate['full']:,.0f} | {rate['full'] / rate['empty']:.2f} |"
    )
    print(
        f"| read at the tail, p50 ms | {p50['empty']:.2f} | {p50['full']:.2f} |"
        f" {p50['full'] / p50['empty']:.2f} |"
    )
    record(
        options.record,
        "55a",
        min(rate["full"] / rate["empty"], p50["empty"] / p50["full"]),
        f"{rate['full']:,.0f} sends a second with {unread:,} unread messages, {rate['empty']:,.0f}"
        f" with none; reads at the tail {p50['full']:.2f} ms (p50) and {p50['empty']:.2f} ms",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
