"""What a route lookup costs a name server that knows thousands of topics, and what many clients see
that ask at once.

    python tests/bench/bench_namesrv.py [--topics 5000] [--brokers 8] [--clients 200]
        [--rate 1000] [--seconds 3] [--change 10]

Two parts. The handler alone: first lookup (encodes), further ones (cached), and a lookup right
after a broker has left (everything is encoded again). Then name server and clients in one process
over real sockets: every client looks topics up in an order of its own, ``--rate`` a second all
together (2,000 clients of 15 topics ask 1,000 times a second; 0: as fast as it goes, then it is
waiting that is measured), while a broker registers changed topics ``--change`` times a second; the
latencies are those that the clients see, their own share included.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import trio

from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.broker_registration import BrokerRegistration
from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.routes import RouteTable
from triomq.remoting.client.connector import Connector
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.registration import RegisterBrokerHeader
from triomq.remoting.protocol.headers.route import GetRouteHeader

WARM_UP_SECONDS = 1.0
"""clients that all begin at the same moment wait for each other at first"""


def table(names: list[str], version: int = 1, queues: int = 8) -> TopicTable:
    configs = {
        name: TopicConfig(topic_name=name, read_queue_count=queues, write_queue_count=queues)
        for name in names
    }
    return TopicTable(configs, DataVersion(0, 0, version))


def registration(number: int, names: list[str]) -> BrokerRegistration:
    return BrokerRegistration(
        cluster="C",
        broker_name=f"broker-{number}",
        broker_id=0,
        address=f"10.0.0.{number}:10911",
        ha_address=f"10.0.0.{number}:10912",
        table=table(names),
    )


def show(what: str, seconds: list[float]) -> None:
    seconds.sort()
    p50, p99 = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)]
    print(
        f"{what:52} mean {statistics.fmean(seconds) * 1e6:8.1f}  p50 {p50 * 1e6:8.1f}  p99"
        f" {p99 * 1e6:8.1f}  max {seconds[-1] * 1e6:9.1f} µs"
    )


def timed(routes: RouteTable, names: list[str]) -> list[float]:
    found = []
    for name in names:
        begin = perf_counter()
        body = routes.encoded_route(name, standard=True)
        found.append(perf_counter() - begin)
        assert body
    return found


def handler_alone(names: list[str], brokers: int) -> None:
    routes = RouteTable()
    for number in range(brokers):
        routes.register(registration(number, names), number, 0)
    show("first lookup of each topic", timed(routes, names))
    show("every further one", timed(routes, names))
    begin = perf_counter()
    routes.lost(0)
    print(f"{'a broker with all these topics leaves':52} {(perf_counter() - begin) * 1e3:.1f} ms")
    show("first lookup after that", timed(routes, names))


async def over_sockets(names: list[str], arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = NamesrvConfig(
            listen_host="127.0.0.1", listen_port=0, kv_path=Path(folder) / "kv.json"
        )
        async with trio.open_nursery() as nursery:
            ready: NamesrvReady = await nursery.start(
                lambda task_status: run_namesrv(config, task_status=task_status)
            )
            address = f"127.0.0.1:{ready.port}"
            latencies: list[float] = []
            async with Connector() as registrar, trio.open_nursery() as load:
                for number in range(arguments.brokers):
                    await register(registrar, address, number, table(names))
                with trio.move_on_after(arguments.seconds + WARM_UP_SECONDS):
                    async with trio.open_nursery() as clients:
                        clients.start_soon(
                            keep_changing, registrar, address, names, arguments.change
                        )
                        for seed in range(arguments.clients):
                            clients.start_soon(
                                look_up,
                                address,
                                names,
                                seed,
                                arguments.clients / arguments.rate if arguments.rate else 0.0,
                                latencies,
                            )
                load.cancel_scope.cancel()
            show(
                f"{arguments.clients} clients at once, {len(latencies) / arguments.seconds:,.0f}"
                " lookups a second",
                latencies,
            )
            nursery.cancel_scope.cancel()


async def register(connector: Connector, address: str, number: int, topics: TopicTable) -> None:
    header = RegisterBrokerHeader(
        broker_name=f"broker-{number}",
        broker_addr=f"10.0.0.{number}:10911",
        cluster_name="C",
        ha_server_addr=f"10.0.0.{number}:10912",
        broker_id=0,
    )
    answer = await connector.invoke(
        address,
        request(RequestCode.REGISTER_BROKER, header, RegisterBrokerBody(topics).encode()),
        timeout=30,
    )
    assert answer.code == 0, answer.remark


async def keep_changing(
    connector: Connector, address: str, names: list[str], per_second: int
) -> None:
    version = 1
    while per_second:
        await trio.sleep(1 / per_second)
        version += 1
        await register(
            connector, address, 0, table(random.sample(names, 2), version, queues=4 + version % 8)
        )


async def look_up(
    address: str, names: list[str], seed: int, pause: float, latencies: list[float]
) -> None:
    await trio.sleep(random.random() * pause)
    counts_from = trio.current_time() + WARM_UP_SECONDS
    order = random.Random(seed).sample(names, len(names))
    async with Connector() as connector:
        while True:
            for name in order:
                await trio.sleep(random.expovariate(1 / pause) if pause else 0)
                command: Command = request(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC,
                    GetRouteHeader(name, accept_standard_json_only=True),
                )
                begin = perf_counter()
                answer = await connector.invoke(address, command, timeout=30)
                if trio.current_time() > counts_from:
                    latencies.append(perf_counter() - begin)
                assert answer.code == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--brokers", type=int, default=8)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument(
        "--rate",
        type=int,
        default=1000,
        help="lookups a second of all clients together, 0 for no limit",
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--change", type=int, default=10, help="registrations of two changed topics, a second"
    )
    arguments = parser.parse_args()
    names = [f"topic-{number:05}" for number in range(arguments.topics)]
    print(f"{arguments.topics} topics on {arguments.brokers} brokers")
    handler_alone(names, arguments.brokers)
    trio.run(over_sockets, names, arguments)


if __name__ == "__main__":
    main()
