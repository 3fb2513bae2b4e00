"""What controller mode costs: ours, Java's of 5.5.0 with the same promise, and our SYNC_MASTER, in
one run: ``make bench-controlled``.

    python tests/bench/controlled_side_by_side.py [--copies 2,3] [--seconds 3] [--rounds 3]
        [--warm-up 20] [--json FILE] [--no-java]

Each side has one controller in its name server. "The same promise": ``SEND_OK`` only when every
member of the sync state set has the message (``allAckInSyncStateSet=true``), and at least two
copies. Before it is measured, a group of two has its slave stopped (SIGSTOP): an answer of
``SEND_OK`` meanwhile ends the run. All brokers run at the same time; the load goes to one group at
a time, in turns. Flushing is ASYNC_FLUSH, all else the default.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_broker import create_topic, parse_shapes, run_shape
from broker_pair import TOPIC, Broker, java_server, our_server, processes, telling_of_the_dead
from java_programs import need_peers, route_known
from replication_side_by_side import Pair, answered, prove_waiting, row, wait_for
from side_by_side import cpu_seconds
from verdict_table import Report, surely_ending

SHAPES = "1x1,1x64,1x256,64x1"
CONTROLLED, CLASSIC, JAVA = "controlled", "SYNC_MASTER", "Java"
GOAL = 0.95
SECONDS_MAX = 1800


@dataclass
class Group:
    """A master and its slaves."""

    name: str
    brokers: list[Broker]

    @property
    def master(self) -> Broker:
        return self.brokers[0]

    @property
    def cpu(self) -> float:
        return sum(cpu_seconds(broker.side.pid) for broker in self.brokers)

    def follows(self) -> bool:
        ends = [broker.end_offsets() for broker in self.brokers]
        return ends.count(ends[0]) == len(ends)

    @property
    def pair(self) -> Pair:
        return Pair(self.name, self.brokers[0], self.brokers[1])


def name_server(stack: ExitStack, folder: Path, *, java: bool) -> tuple[str, str]:
    """Start one with a controller; return both addresses."""
    controller = f"127.0.0.1:{processes.free_port()}"
    settings = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-{controller}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": folder / "controller",
    }
    if java:
        address = stack.enter_context(processes.java_name_server("5.5.0", folder, **settings))
    else:
        lines = [f"{key}={value}" for key, value in settings.items()]
        address = stack.enter_context(processes.our_name_server(folder, define=lines))
    return address, controller


@contextmanager
def groups(copies: int, *, with_java: bool) -> Iterator[list[Group]]:
    """Started, the slaves following; everything is ended and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="controlled-", dir=os.environ.get("BENCH_DIR")))
    try:
        with ExitStack() as stack:
            found = []
            for name in (CONTROLLED, CLASSIC, *([JAVA] if with_java else [])):
                home = folder / name
                home.mkdir()
                address, controller = name_server(stack, home, java=name == JAVA)
                settings: dict[str, object] = {
                    "enableControllerMode": "true",
                    "controllerAddr": controller,
                    "allAckInSyncStateSet": "true",
                    "minInSyncReplicas": 2,
                }
                make = java_server if name == JAVA else our_server
                brokers = []
                for number in range(copies):
                    if name == CLASSIC:
                        settings = {
                            "brokerId": number,
                            "brokerRole": "SLAVE" if number else "SYNC_MASTER",
                            "inSyncReplicas": copies,
                        }
                    broker = make(home / f"broker-{number}", address, f"group-{name}", **settings)
                    stack.callback(broker.stop)
                    broker.start()  # the first one that asks the controller is the master
                    brokers.append(broker)
                group = Group(name, brokers)
                found.append(group)
                create_topic(group.master.address, TOPIC)
                route_known(group.master, TOPIC)
            for group in found:
                wait_for(lambda group=group: answered(group.pair), f"{group.name} to take messages")
                wait_for(group.follows, f"the slaves of {group.name} to follow")
            with telling_of_the_dead([broker for group in found for broker in group.brokers]):
                yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(copies: int, options: argparse.Namespace, report: Report) -> None:
    with groups(copies, with_java=not options.no_java) as found:
        if copies == 2:
            report.notes += [prove_waiting(group.pair) for group in found]
        for group in found:
            seconds = options.warm_up if group.name == JAVA else options.warm_up / 10
            if seconds:
                run_shape(group.master.address, TOPIC, 8, 8, seconds)
        figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
        shapes = parse_shapes(options.shapes)
        for _ in range(options.rounds):
            for shape in shapes:
                for group in found:
                    cpu = group.cpu
                    result = run_shape(group.master.address, TOPIC, *shape, options.seconds)
                    if result.failed:
                        raise SystemExit(
                            f"{group.name}: {result.failed} sends were not answered SEND_OK"
                        )
                    cost = (group.cpu - cpu) / max(result.messages, 1) * 1e6
                    what = f"raw {shape[0]} × {shape[1]}"
                    figures.setdefault((what, group.name), []).append((result.rate, cost))
                    print(f"{group.name:12} {what}: {result.rate:,.0f} /s, {cost:.1f} µs")
        for group in found:
            wait_for(group.follows, f"the slaves of {group.name} to have everything")
    for peer in (JAVA, CLASSIC) if not options.no_java else (CLASSIC,):
        title = "Java 5.5.0" if peer == JAVA else "our SYNC_MASTER"
        table = report.table(f"Controller mode with a set of {copies}, ASYNC_FLUSH, 1 KiB", title)
        for what in dict.fromkeys(what for what, _ in figures):
            rates, costs = (
                [
                    statistics.median(run[place] for run in figures[what, name])
                    for name in (CONTROLLED, peer)
                ]
                for place in (0, 1)
            )
            table.rows.append(row(what, "msgs/s", rates, factor=GOAL if peer == CLASSIC else 1))
            table.rows.append(
                row(f"{what}, CPU of all brokers", "µs a message", costs, less_is_better=True)
            )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--copies", default="2,3", help="brokers of a group")
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of load for Java")
    parser.add_argument("--shapes", default=SHAPES, help="connections x in flight")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--no-java", action="store_true", help="our brokers alone")
    options = parser.parse_args(argv)
    if not options.no_java:
        need_peers()
    report = Report("controlled")
    with surely_ending(SECONDS_MAX):
        for copies in options.copies.split(","):
            measure(int(copies), options, report)
        report.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
