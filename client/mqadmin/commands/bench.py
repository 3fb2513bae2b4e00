"""The commands benchProducer and benchConsumer: load with percentiles."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.times import request_seconds
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.result import Document, Result
from triomq.client.mqadmin.core.sending import SEND_SECONDS
from triomq.remoting.core.printable import printable

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.mqadmin.bench.bench_places import OwnTopic
    from triomq.client.mqadmin.bench.load_plan import LoadPlan
    from triomq.client.mqadmin.bench.send_bench import MessageShape

ASSIGN_SECONDS = 10
"""how long a consumer waits for its share of the queues, less if ``--timeout`` is short"""
BENCH_GROUP = "TOOLS_BENCH"
DURATION_SECONDS, COUNTED_SECONDS = 10, 600
"""duration without --duration: without and with --count"""
END_SECONDS = 30
"""for the first share of the queues, the last answers, the drain, the clean-up: 10 + 3 + 3 + 10"""
BATCH_BYTES_MAX = 1 << 20
"""bodies of one request; the producer would cut a larger batch into several requests"""
CONSUME_RATE = 1000
"""messages per second of the load that ``bench consume`` sends without a topic"""


def tell_stderr(line: str) -> None:
    """Print a line about the progress; the result does not contain it."""
    print(printable(line), file=sys.stderr, flush=True)


def warn_stderr(line: str) -> None:
    """Print a warning at once: after Ctrl-C there may be no result."""
    tell_stderr(f"mqadmin: warning: {line}")


def seconds_of(options: Values) -> int:
    """Return the longest time of the load."""
    counted = "count" in options
    return options.maybe_number("duration") or (COUNTED_SECONDS if counted else DURATION_SECONDS)


def beyond(options: Values) -> int:
    """Return what the command may take beside ``--timeout``."""
    return seconds_of(options) + END_SECONDS


def positive(maximum: float) -> Callable[[str], float]:
    """Return a reader of numbers above 0."""

    def positive_number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= maximum:
            raise ValueError(f"use a number above 0, at most {maximum:,.0f}")
        return value

    return positive_number


def shape_of(options: Values) -> MessageShape:
    """Return what the messages are like. Raises: UsageError."""
    from triomq.client.mqadmin.bench.send_bench import MessageShape  # not for the help

    shape = MessageShape(
        size=options.number("size"),
        batch=options.number("batch"),
        keys=options.number("keys"),
        tag=options.maybe_text("tags"),
        delay_seconds=options.value("delay"),
    )
    if shape.batch > 1 and shape.delay_seconds is not None:
        raise UsageError("--batch and --delay exclude each other: batches cannot be delayed")
    if shape.batch > 1 and shape.batch * shape.size > BATCH_BYTES_MAX:
        raise UsageError(
            f"--batch {shape.batch} of --size {shape.size} is more than {BATCH_BYTES_MAX} bytes in"
            f" a request: give at most --batch {max(1, BATCH_BYTES_MAX // shape.size)}"
        )
    return shape


def load_plan(options: Values, batch: int, rate: float | None) -> LoadPlan:
    """Return the load in requests; ``rate``: messages per second."""
    from triomq.client.mqadmin.bench.load_plan import LoadPlan  # not for the help

    count = options.maybe_number("count")
    if count is not None and count % batch:
        raise UsageError(
            f"--count {count} is not a multiple of --batch {batch}: give --count"
            f" {count + batch - count % batch}"
        )
    return LoadPlan(
        seconds=seconds_of(options),
        requests_max=None if count is None else count // batch,
        in_flight_max=options.number("in-flight"),
        rate=None if rate is None else rate / batch,
    )


async def bench_producer(admin: Admin, options: Values) -> Result:
    import trio  # not for the help: start-up time

    from triomq.client.mqadmin.bench import bench_places, bench_report  # likewise
    from triomq.client.mqadmin.bench.send_bench import run_send_bench  # likewise
    from triomq.client.mqadmin.core.sending import tools_producer  # likewise

    shape = shape_of(options)
    plan = load_plan(options, shape.batch, options.value("rate"))
    topic = options.maybe_text("topic")
    missing: Mapping[str, str] = {}
    async with AsyncExitStack() as stack:
        if topic is None:
            own = await stack.enter_async_context(new_topic(admin, options))
            topic, missing = own.name, own.missing
        elif not options.flag("yes"):
            await bench_places.check_writable(admin, topic)
        producer = await stack.enter_async_context(
            tools_producer(admin, options, BENCH_GROUP, repeat=False, compress=False)
        )
        counts, seen, interrupted = await run_send_bench(
            producer, topic, plan, shape, teller(options)
        )
        now = trio.current_time()
    document = bench_report.send_document(
        topic, counts, shape.size, interrupted=interrupted, now=now
    )
    lines, failures = bench_report.send_lines(document, counts), {**missing, **seen.reasons}
    return finished(document, lines, failures, worked=bool(seen.sent))


def new_topic(admin: Admin, options: Values) -> AbstractAsyncContextManager[OwnTopic]:
    """Return the block in which the benchmark's own topic exists."""
    from triomq.client.mqadmin.bench.bench_places import own_topic  # not for the help

    queues, keep = options.number("queues"), options.flag("keep")
    return own_topic(admin, queues, warn_stderr, keep=keep)


def teller(options: Values) -> Callable[[str], object]:
    """Return what prints the line of each second, or nothing with --quiet."""
    return (lambda line: None) if options.flag("quiet") else tell_stderr


def finished(
    document: Document,
    lines: list[str],
    failures: Mapping[str, str],
    *,
    worked: bool,
    notes: tuple[str, ...] = (),
) -> Result:
    """Return the result.

    ``failures``: server → why; the exit code is 3 with them if some messages ``worked``, otherwise
    1.
    """
    if document["interrupted"]:
        notes = (*notes, "the run was ended by a signal; the figures are those until then")
    return Result(
        document=document,
        blocks=lines,
        failures=failures,
        asked=len(failures) + int(worked),
        notes=notes,
    )


async def bench_consumer(admin: Admin, options: Values) -> Result:
    from triomq.client.admin.access import given_access  # not for the help: start-up time
    from triomq.client.core.config import ClientSettings, ConsumerSettings  # likewise
    from triomq.client.mqadmin.bench import bench_places, bench_report  # likewise
    from triomq.client.mqadmin.bench.consume_bench import ConsumePlan, ConsumeRun  # likewise
    from triomq.client.mqadmin.core.sending import tools_producer  # likewise

    topic, group = options.maybe_text("topic"), options.maybe_text("group")
    rate = options.value("rate")
    if topic is not None and rate is not None:
        raise UsageError(
            "--rate is for the benchmark's own load, without -t; `mqadmin bench send -t` fills a"
            " topic"
        )
    shape = shape_of(options)
    load = load_plan(options, shape.batch, CONSUME_RATE if rate is None else rate)
    tls, credentials = given_access(options)
    step = min(SEND_SECONDS, request_seconds(options.number("timeout")))
    client = ClientSettings(
        tls=tls, credentials=credentials, request_timeout=step, route_timeout=step
    )
    async with AsyncExitStack() as stack:
        if group is not None and not options.flag("yes"):
            await bench_places.check_group_free(admin, group)
        producer = None
        failures: dict[str, str] = {}
        if topic is None:
            own = await stack.enter_async_context(new_topic(admin, options))
            topic, failures = own.name, dict(own.missing)
            producer = await stack.enter_async_context(
                tools_producer(admin, options, BENCH_GROUP, repeat=False, compress=False)
            )
        else:
            await admin.route(topic)  # fails if the topic does not exist
        if group is None:
            group = await stack.enter_async_context(bench_places.own_group(admin, warn_stderr))
        run = ConsumeRun(
            list(admin.namesrv_addresses),
            group,
            topic,
            ConsumePlan(
                seconds=seconds_of(options),
                messages_max=None if producer is not None else options.maybe_number("count"),
                concurrency=options.number("in-flight"),
                start=options.value("from"),
                assign_seconds=min(ASSIGN_SECONDS, options.number("timeout")),
            ),
            ConsumerSettings(client=client),
        )
        await run.consume(teller(options), producer, load, shape)
        stats = await admin.consume_stats(group, topic)
    behind = [
        max(0, offset.broker_offset - offset.consumer_offset)
        for table in stats.values.values()
        for offset in table.offset_table.values()
    ]
    received = run.received
    megabytes = received.size_bytes / bench_report.MB
    document = {
        "topic": topic,
        "group": group,
        "interrupted": run.interrupted,
        "seconds": round(run.seconds, 3),
        "received": received.received,
        "duplicates": received.duplicates,
        "rate": bench_report.per_second(received.received, run.seconds),
        "mbPerSecond": bench_report.per_second(megabytes, run.seconds, 3),
        "lag": None if stats.failures or not behind else sum(behind),
        "sent": None if run.load is None else run.load.sent,
        "failed": None if run.load is None else run.load.failed.total(),
        "overdue": None if run.load is None else run.load.overdue,
        **bench_report.latency_fields("storeLatency", received.since_stored),
        **bench_report.latency_fields("bornLatency", received.since_born),
    }
    failures |= run.failures.reasons | stats.reasons()
    worked = received.received > 0 or bool(stats.values)
    notes = () if run.assigned else ("the consumer did not get its share of the queues in time",)
    lines = bench_report.consume_lines(document, run.load)
    return finished(document, lines, failures, worked=worked, notes=notes)


def first_or_last(text: str) -> str:
    """Read ``first`` or ``last``."""
    if (place := text.strip().lower()) not in ("first", "last"):
        raise ValueError("use first or last")
    return place


RATE_MAX, IN_FLIGHT_MAX = 1_000_000, 1024
LOAD_OPTIONS = (
    Option(
        "--duration SECONDS",
        f"length of the load in seconds (without it: {DURATION_SECONDS}, with --count at most"
        f" {COUNTED_SECONDS})",
        whole(1, 86_400),
    ),
    Option("--count N", "end after this number of messages", whole(1, 1_000_000_000)),
    Option("-s, --size BYTES", "bytes of each body", whole(0, 4 << 20), default=128),
    Option("--batch N", "messages of each request", whole(1, 1024), default=1),
    Option("--keys N", "keys of each message", whole(0, 16), default=0),
    Option("--tags TAG", "tag of the messages"),
    Option("--delay SECONDS", "delay of the messages' delivery in seconds", positive(259_200)),
    Option("--queues N", "queues on each broker of the own topic", whole(1, 1024), default=8),
    Option("--keep", "do not delete the own topic"),
    Option("--quiet", "print no line each second"),
)

COMMANDS = (
    AdminCommand(
        "benchProducer", bench_producer, effect=Effect.ACTS, beyond_seconds=beyond
    ).with_options(
        Option("-t, --topic TOPIC", "send to this topic (without it: to a new one, BENCH_…)"),
        Option(
            "--in-flight N",
            "requests that wait for their answers at most",
            whole(1, IN_FLIGHT_MAX),
            default=64,
        ),
        Option(
            "--rate N",
            "messages per second, sent at their times whatever the brokers do (without it: as"
            " fast as --in-flight allows)",
            positive(RATE_MAX),
        ),
        *LOAD_OPTIONS,
        Option("-y, --yes", "send to a topic although groups consume it"),
    ),
    AdminCommand(
        "benchConsumer", bench_consumer, effect=Effect.ACTS, beyond_seconds=beyond
    ).with_options(
        Option(
            "-t, --topic TOPIC",
            "consume this topic (without it: a new one, BENCH_…, which the benchmark fills)",
        ),
        Option("-g, --group GROUP", "consume as this group (without it: a new one, BENCH_…)"),
        Option(
            "--in-flight N",
            "batches that are handled at the same time, and requests of the own load",
            whole(1, IN_FLIGHT_MAX),
            default=20,
        ),
        Option(
            "--rate N",
            f"messages per second of the own load (default {CONSUME_RATE})",
            positive(RATE_MAX),
        ),
        Option(
            "--from PLACE",
            "where a new group begins: first or last",
            first_or_last,
            default="first",
        ),
        *LOAD_OPTIONS,
        Option("-y, --yes", "consume as a group that exists"),
    ),
)
