"""Run the demo: start the cluster, send, consume with two consumers and with Spark, compare.

The exit code is 0 if every number agrees, 1 if one differs or something failed, and 2 if something
is missing.
"""

import argparse
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import trio

from examples.demo.cluster import ROOT, DemoFailed, Worker, local_cluster, module, running
from examples.demo.dataset import DatasetMissing, flights_file, read_flights
from examples.demo.display import progress, say
from examples.demo.produce import Sent, produce
from examples.demo.report import Check, checks, consumed, truth, worst_months
from triomq.client.admin.admin import Admin
from triomq.client.spark.java_runtime import JavaNotFound, prepare_java

TOPIC = "flights"
PRODUCERS, CONSUMERS, SPARK = "flights-producers", "flights-consumers", "flights-spark"
QUEUES_PER_BROKER = 4
QUIET_SECONDS_MAX = 45.0
"""The demo ends, and reports what is missing, after this time without progress."""


@attrs.define(eq=False)
class Run:
    """One run and what it measured."""

    folder: Path
    file: Path
    rows: int | None
    total: int
    sent: Sent = attrs.field(factory=Sent)
    stored: int = 0
    lags: dict[str, int] = attrs.field(factory=dict)
    seconds: dict[str, float] = attrs.field(factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with these command-line arguments and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="TrioMQ's main job on real data, with all numbers checked.",
    )
    parser.add_argument(
        "--rows", type=int, help="number of flights to send, the first ones of the file"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=ROOT / ".demo",
        help="folder of everything that the demo writes; wiped at the start (default: .demo)",
    )
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    try:
        file = flights_file()
        if importlib.util.find_spec("pyspark") is None:
            raise DemoFailed("PySpark is missing; run `pip install 'triomq[demo]'`, or `make demo`")
        folder = wiped(options.dir.resolve())
        java = prepare_java(folder / "java")
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        say(f"Java {java.version}: {java.origin}")
        wanted = truth(file, options.rows)
        run = Run(folder, file, options.rows, int(wanted["flights"].sum()))
        trio.run(perform, run)
    except (DatasetMissing, JavaNotFound) as error:
        say(f"demo: {error}")
        return 2
    except DemoFailed as error:
        say(f"demo: {error}")
        return 1
    consumers = [folder / "consumer-1.csv", folder / "consumer-2.csv"]
    found = checks(
        wanted, len(run.sent.keys), run.sent.messages, run.stored, folder, consumers, run.lags
    )
    print_result(run, found, consumed(consumers)[2], worst_months(wanted), time.monotonic() - begin)
    return 0 if all(check.good for check in found) else 1


def wiped(folder: Path) -> Path:
    """Make ``folder`` empty.

    Raises: ``DemoFailed`` if it holds files that are not the demo's.
    """
    mark = folder / ".triomq-demo"
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise DemoFailed(
            f"{folder} is not empty and not from an earlier demo; choose another folder with --dir"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()
    return folder


async def perform(run: Run) -> None:
    """Run the processes of the demo from start to end.

    Raises: ``DemoFailed``.
    """
    try:
        await with_processes(run)
    except* DemoFailed as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise DemoFailed(str(error)) from group


async def with_processes(run: Run) -> None:
    folder, begin = run.folder, time.monotonic()
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())

        async def start(name: str, command: Sequence[str]) -> Worker:
            worker = await stack.enter_async_context(running(name, command, folder))
            nursery.start_soon(worker.listen)
            return worker

        cluster = await start("cluster", local_cluster(folder))
        namesrv = str(await cluster.until("namesrvAddr"))
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
        run.seconds["cluster"] = time.monotonic() - begin
        say(f"Two name servers and two brokers run ({run.seconds['cluster']:.1f} s): {namesrv}")
        spark = await start(
            "spark", module("examples.demo.spark_job", namesrv, SPARK, TOPIC, str(folder))
        )
        consumers = [
            await start(
                f"consumer-{n}",
                module(
                    "examples.demo.consume",
                    namesrv,
                    CONSUMERS,
                    TOPIC,
                    str(folder / f"consumer-{n}.csv"),
                ),
            )
            for n in (1, 2)
        ]
        await both_have_queues(*consumers)
        counters = {
            "sent": lambda: run.sent.messages,
            "consumed": lambda: sum(consumer.said.get("messages", 0) for consumer in consumers),
            "Spark": lambda: int(spark.said.get("messages", 0)),
        }
        async with progress(run.total, counters):
            await send_all(run, namesrv)
            await spark.send_line(str(run.total))
            await complete_or_quiet(run.total, counters["consumed"])
            run.seconds["consumed"] = time.monotonic() - begin
            await spark.until("done")
            run.seconds["spark"] = time.monotonic() - begin
        for consumer in consumers:
            await consumer.send_line("")
        for consumer in consumers:
            await consumer.until("done")
            await consumer.process.wait()
        await read_broker_numbers(run, namesrv)
        nursery.cancel_scope.cancel()


async def both_have_queues(one: Worker, other: Worker) -> None:
    """Wait until the group has divided the queues.

    A message of a queue that changes hands later may be delivered twice. The first consumer begins
    with all queues; both own some of the group's retry topic, too.
    """
    while not other.said.get("queues") or one.said.get("queues") != other.said["queues"]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first_of, one.changed, nursery.cancel_scope)
            nursery.start_soon(first_of, other.changed, nursery.cancel_scope)


async def first_of(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def send_all(run: Run, namesrv: str) -> None:
    begin = time.monotonic()
    await produce(namesrv, PRODUCERS, TOPIC, read_flights(run.file, run.rows), run.sent)
    run.seconds["sending"] = time.monotonic() - begin


async def complete_or_quiet(total: int, count: Callable[[], int]) -> None:
    """Wait until the consumers have all messages, or until no message came for a while.

    The report then says what is missing.
    """
    last, since = -1, trio.current_time()
    while last < total and trio.current_time() - since < QUIET_SECONDS_MAX:
        if (now := count()) != last:
            last, since = now, trio.current_time()
        await trio.sleep(0.1)


async def read_broker_numbers(run: Run, namesrv: str) -> None:
    """Ask the brokers how many messages they have and how far the two groups are."""
    async with Admin(namesrv) as admin:
        stats = await admin.topic_stats(TOPIC)
        run.stored = sum(
            offset.max_offset - offset.min_offset
            for broker in stats.values.values()
            for offset in broker.offset_table.values()
        )
        for group in (CONSUMERS, SPARK):
            progress_of = await admin.consume_stats(group, TOPIC)
            offsets = [
                offset
                for broker in progress_of.values.values()
                for offset in broker.offset_table.values()
            ]
            run.lags[group] = (
                sum(offset.broker_offset - max(0, offset.consumer_offset) for offset in offsets)
                if offsets
                else run.total
            )


def print_result(
    run: Run, found: Sequence[Check], again: int, taste: Sequence[str], seconds: float
) -> None:
    """Print the report."""
    say()
    for check in found:
        say(
            f"  {'ok ' if check.good else 'NO '} {check.what}: {check.found:,}"
            + ("" if check.good else f", wanted {check.wanted:,}")
        )
    say()
    if run.seconds.get("sending"):
        rate = run.sent.messages / run.seconds["sending"]
        say(
            f"Sent {run.sent.messages:,} messages ({run.sent.payload_bytes / 1e6:.0f} MB) in"
            f" {run.seconds['sending']:.1f} s: {rate:,.0f} messages/s, while both readers ran."
        )
    for reader, name in (("consumed", "the two consumers"), ("spark", "Spark")):
        if reader in run.seconds:
            say(
                f"Everything was read by {name} {run.seconds[reader]:.1f} s after the start of the"
                " cluster."
            )
    if again:
        say(
            f"{again:,} messages were delivered twice (at-least-once delivery when a queue changes"
            " hands) and counted once."
        )
    for line in taste:
        say(f"  {line}")
    say(f"The whole demo took {seconds:.1f} s.")
    good = all(check.good for check in found)
    say(
        "All numbers agree: differences 0, lag 0."
        if good
        else "Some numbers differ: see the lines marked NO above, and the logs."
    )
    folder = run.folder
    say()
    say(
        f"Files:  {folder}/cluster (messages, configuration, logs), {folder}/logs,"
        f" {folder}/spark.json, {folder}/checkpoint"
    )
    say("Try next, with the same messages:")
    bin_folder = Path(sys.executable).parent
    say(f"  {bin_folder}/mqlocal --namesrvs 2 --brokers 2 --dir {folder}/cluster")
    say(f"  {bin_folder}/mqadmin topic status -n 127.0.0.1:9876 -t {TOPIC}")
    say(f"  {bin_folder}/mqadmin group lag -n 127.0.0.1:9876 -g {SPARK} -t {TOPIC}")
    say("  docs/spark.md tells how to use the Spark source in your own job.")


if __name__ == "__main__":
    sys.exit(main())
