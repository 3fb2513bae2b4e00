"""The options --alert and --alert-seconds of consumerProgress: groups above a limit, for cron."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.answers import read_body
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.result import Result
from triomq.remoting.protocol.bodies.offsets import ConsumeStats, ConsumeTimeSpans
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.topic import GroupTopicHeader

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


@attrs.frozen
class GroupBacklog:
    """How far a group is behind."""

    group: str
    messages: int
    seconds: float | None = None
    """age of the oldest message that waits; None if it was not asked for, or nothing waits"""


def alerts(
    lags: Iterable[GroupBacklog], messages_max: int | None, seconds_max: int | None
) -> list[str]:
    """Return a line for each group that is above a limit, the largest lag first."""
    lines = []
    for lag in sorted(lags, key=lambda one: (-one.messages, one.group)):
        causes = []
        if messages_max is not None and lag.messages > messages_max:
            causes.append(f"{lag.messages} messages behind, above {messages_max}")
        if seconds_max is not None and lag.seconds is not None and lag.seconds > seconds_max:
            causes.append(f"the oldest waits for {lag.seconds:.0f} s, above {seconds_max}")
        if causes:
            lines.append(f"{lag.group}: {'; '.join(causes)}")
    return lines


async def lag_alert(
    admin: Admin,
    groups: Iterable[str],
    topic: str | None,
    messages_max: int | None,
    seconds_max: int | None,
) -> Result:
    """Return the groups above a limit; they are bad news, which the exit code tells."""
    brokers = await admin.leaders()
    failures: dict[str, str] = {}

    async def backlog_of(group: str) -> GroupBacklog:
        stats = await admin.consume_stats(group, topic)
        failures.update(stats.reasons())
        waiting = _waiting(stats.values)
        seconds = None
        if waiting and seconds_max is not None:
            seconds = await oldest_seconds(admin, group, waiting, brokers, failures)
        return GroupBacklog(group, sum(waiting.values()), seconds)

    answers = await admin.for_each(groups, backlog_of)
    lags = answers.some()
    lines = alerts(lags.values(), messages_max, seconds_max)
    named = {line.partition(":")[0] for line in lines}
    rows: list[dict[str, object]] = [
        {"group": lag.group, "diffTotal": lag.messages, "oldestSeconds": lag.seconds}
        for lag in lags.values()
        if lag.group in named
    ]
    return Result(
        document={"alerts": rows, "checked": len(lags)},
        blocks=lines,
        failures=failures | answers.reasons(),
        asked=len(brokers.keys() | failures.keys()) + len(answers.failures),
        bad_news=bool(lines),
    )


def _waiting(stats: Mapping[str, ConsumeStats]) -> dict[tuple[str, str], int]:
    """Return broker name and topic → number of messages that wait there."""
    found: dict[tuple[str, str], int] = {}
    for broker, table in stats.items():
        for queue, offsets in table.offset_table.items():
            if (lag := offsets.broker_offset - offsets.consumer_offset) > 0:
                key = broker, queue.topic
                found[key] = found.get(key, 0) + lag
    return found


async def oldest_seconds(
    admin: Admin,
    group: str,
    waiting: Iterable[tuple[str, str]],
    brokers: Mapping[str, str],
    failures: dict[str, str],
) -> float | None:
    """Return the age of the oldest message that waits for a group."""
    ages = []
    for broker, topic in waiting:
        header = GroupTopicHeader(topic=topic, group=group)
        code = RequestCode.QUERY_CONSUME_TIME_SPAN
        try:
            answer = await admin.ask(brokers[broker], code, header)
            ages += [span.delay_ms for span in read_body(ConsumeTimeSpans, answer).spans]
        except TrioMQError as error:
            failures.setdefault(broker, str(error))
    return max(ages) / 1000 if ages else None
