"""A steady rate of sends to one broker, as a process of its own: it prints what it reached.

    python tests/bench/paced_load.py 127.0.0.1:10911 --topic Paced --rate 50000 --seconds 8

One connection, 1 KiB bodies, sent every two milliseconds, whatever is due by then. The messages say
WAIT=false: their answers do not wait for slaves or disks, so that a slave can be seen to lag.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time

from bench_broker import Templates, connect, count_responses

TICK_SECONDS = 0.002
CHUNK = 256
IN_FLIGHT_MAX = 4096


def run_paced(address: str, topic: str, rate: float, seconds: float) -> tuple[int, int, float]:
    """(acknowledged messages, refused ones, seconds). A broker that is overloaded may refuse."""
    templates = Templates(
        topic,
        os.urandom(512).hex().encode(),
        CHUNK,
        f"{os.getpid():08X}{int(time.time()) & 0xFFFFFFFF:08X}",
        wait=False,
    )
    sent = received = refused = 0
    rest = b""
    with connect(address) as sock:
        begin = time.perf_counter()
        while (now := time.perf_counter() - begin) < seconds or (
            received < sent and now < seconds + 30
        ):
            due = (
                min(int(rate * now) - sent, IN_FLIGHT_MAX - (sent - received))
                if now < seconds
                else 0
            )
            while due > 0:
                count = min(due, CHUNK)
                sock.sendall(templates.take(sent, count))
                sent += count
                due -= count
            readable, _, _ = select.select([sock], [], [], TICK_SECONDS)
            if readable:
                piece = sock.recv(1 << 20)
                if not piece:
                    raise SystemExit("the broker closed the connection")
                data = rest + piece
                frames, failed, used = count_responses(data)
                rest = data[used:]
                received += frames
                refused += failed
                time.sleep(max(0.0, TICK_SECONDS - (time.perf_counter() - begin - now)))
        if received < sent:
            raise SystemExit(f"{sent - received} of {sent} requests were never answered")
        return received - refused, refused, time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, default=50_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    messages, refused, seconds = run_paced(
        options.address, options.topic, options.rate, options.seconds
    )
    print(f"PACED\t{messages}\t{refused}\t{seconds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
