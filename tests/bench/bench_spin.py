"""What busy polling is worth with one send in flight: sends to two brokers, each with and without
spinning, from clients with and without, in turns.

    .venv/bin/python tests/bench/bench_spin.py [--turns 5] [--seconds 2]

Measure on a quiet machine with at least two CPUs: on a busy machine spins fail and stop.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median

import trio

from triomq import ClientSettings, Producer, ProducerSettings
from triomq.client.admin.admin import Admin
from triomq.remoting.core.busy_poll import SPIN_SECONDS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from processes import our_broker, our_name_server

BODY = b"x" * 1024


async def rate(producer: Producer, seconds: float) -> float:
    """Return messages a second, one after the other."""
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        await producer.send("Bench", BODY)
        count += 1
    return count / (time.perf_counter() - begun)


async def bench(name_servers: dict[bool, str], turns: int, seconds: float) -> None:
    """Measure each combination (broker spins, client spins) in turns, and print medians."""
    rates: dict[tuple[bool, bool], list[float]] = {}
    async with AsyncExitStack() as stack:
        producers = {}
        for broker_spins, namesrv in name_servers.items():
            async with Admin(namesrv) as admin:
                await admin.create_topic("Bench", queues=8)
            for client_spins in (False, True):
                client = ClientSettings(busy_poll=client_spins)
                group, settings = f"bench-{client_spins}", ProducerSettings(client=client)
                producer = Producer(namesrv, group=group, settings=settings)
                producers[broker_spins, client_spins] = await stack.enter_async_context(producer)
        for producer in producers.values():
            await rate(producer, seconds)
        for _ in range(turns):
            for key, producer in producers.items():
                rates.setdefault(key, []).append(await rate(producer, seconds))
    base = median(rates[False, False])
    for (broker_spins, client_spins), found in rates.items():
        sides = ("the broker" * broker_spins, "the client" * client_spins)
        name = " and ".join(filter(None, sides)) or "neither"
        share = median(found) / base
        print(f"{name:<26} spins: {median(found):>7,.0f} msg/s, {share:.2f} of neither")


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        name_servers = {}
        for spins in (False, True):
            place = Path(folder) / str(spins)
            place.mkdir()
            name_servers[spins] = stack.enter_context(our_name_server(place))
            micros = round(SPIN_SECONDS * 1e6) if spins else 0
            broker = our_broker(place, "broker-a", name_servers[spins], serverBusyPollMicros=micros)
            stack.enter_context(broker)
        trio.run(bench, name_servers, options.turns, options.seconds)


if __name__ == "__main__":
    main()
