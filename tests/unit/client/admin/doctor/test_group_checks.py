"""What holds a group back: each cause is found, and is not found in the same facts without it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from triomq.client.admin.doctor.dead_letter_check import GivenUp, dead_letter_findings
from triomq.client.admin.doctor.group_checks import GroupFacts, OffsetSample, hindrances
from triomq.client.mqadmin.core.lag_alert import GroupBacklog, alerts
from triomq.remoting.core.findings import Level
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.running import ConsumeRates, ConsumerRunning, ProcessQueueState

NOW = 1_795_779_000_000
QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(4)]
RETRY = MessageQueue("%RETRY%billing", "broker-a", 0)


def sample(at: float, **offsets: tuple[int, int]) -> OffsetSample:
    """Return a sample; ``q0=(10, 7)``: queue 0 ends at 10, and 7 are consumed."""
    queues = {f"q{queue.queue_id}": queue for queue in QUEUES} | {"retry": RETRY}
    found = {queues[name]: ConsumeOffset(*pair) for name, pair in offsets.items()}
    return OffsetSample(at=at, offsets=found)


def member(
    *queues: MessageQueue,
    topics: tuple[str, ...] = ("orders",),
    expression: str = "*",
    rates: ConsumeRates | None = None,
    held: ProcessQueueState | None = None,
    **properties: str,
) -> ConsumerRunning:
    return ConsumerRunning(
        properties={"PROP_THREADPOOL_CORE_SIZE": "20", **properties},
        subscriptions=[SubscriptionData(topic=topic, sub_string=expression) for topic in topics],
        queues=dict.fromkeys(queues, held or ProcessQueueState()),
        rates={} if rates is None else {"orders": rates},
    )


GOOD = GroupFacts(
    group="billing",
    now_ms=NOW,
    first=sample(0.0, q0=(100, 60), q1=(100, 60), q2=(100, 60), q3=(100, 60)),
    second=sample(5.0, q0=(110, 80), q1=(110, 80), q2=(110, 80), q3=(110, 80)),
    members={"m1": {"orders": "*"}, "m2": {"orders": "*"}},
    message_model="CLUSTERING",
    running={"m1": member(*QUEUES[:2]), "m2": member(*QUEUES[2:])},
    configs={"broker-a": SubscriptionGroupConfig(group_name="billing")},
    permissions={("orders", "broker-a"): 6},
    broker_permissions={"broker-a": 6},
)
"""A group that is behind and catches up."""


def dead(last_hour: int, consumed: int | None) -> GivenUp:
    return GivenUp(kept=60, last_hour=last_hour, consumed_last_hour=consumed, newest=None)


def held_back(**facts: Any) -> dict[str, str]:
    """Return check → level of the facts with changes."""
    return {one.check: one.level.value for one in hindrances(attrs.evolve(GOOD, **facts))}


def running(**of: Any) -> dict[str, ConsumerRunning]:
    return {"m1": member(*QUEUES[:2], **of), "m2": member(*QUEUES[2:])}


def test_nothing_holds_a_group_back_that_catches_up() -> None:
    assert hindrances(GOOD) == []


FROZEN = sample(5.0, q0=(110, 60), q1=(110, 80), q2=(110, 80), q3=(110, 80))
NO_BACKLOG = sample(5.0, q0=(110, 110), q1=(110, 110), q2=(110, 110), q3=(110, 110))
WITHOUT_GROWTH = sample(5.0, q0=(100, 60), q1=(110, 80), q2=(110, 80), q3=(110, 80))
SKEWED = sample(5.0, q0=(900, 80), q1=(110, 80), q2=(110, 80), q3=(110, 80))
SLOW = ConsumeRates(consume_rt=900.0, consume_ok_tps=20.0)
QUICK = ConsumeRates(consume_rt=9.0, consume_ok_tps=20.0)
OLD = ProcessQueueState(cached_count=3, last_consume_timestamp=NOW - 61_000)
RECENT = ProcessQueueState(cached_count=3, last_consume_timestamp=NOW - 59_000)
FULL = ProcessQueueState(cached_count=950)
HALF_FULL = ProcessQueueState(cached_count=500)
LOCKED = ProcessQueueState(locked=True)
LIMIT = {"pullThresholdForQueue": "1000"}
ORDERED = {"PROP_CONSUMEORDERLY": "true"}
DISABLED = SubscriptionGroupConfig(group_name="billing", consume_enable=False)
NO_BROADCAST = SubscriptionGroupConfig(group_name="billing", consume_broadcast_enable=False)
WITH_RETRIES = sample(5.0, q0=(110, 80), q1=(110, 80), q2=(110, 80), q3=(110, 80), retry=(9, 3))
RETRIED = sample(5.0, q0=(110, 80), q1=(110, 80), q2=(110, 80), q3=(110, 80), retry=(9, 9))


@pytest.mark.parametrize(
    ("check", "level", "facts", "without"),
    [
        (
            "no-member",
            Level.PROBLEM,
            {"members": {}, "running": {}, "silent_brokers": {"broker-b": "no answer"}},
            {"members": {}, "running": {}, "second": NO_BACKLOG},
        ),
        ("dead-letters", Level.PROBLEM, {"dead": dead(50, 50)}, {"dead": dead(0, 50)}),
        ("dead-letters", Level.PROBLEM, {"dead": dead(50, 100)}, {}),
        ("dead-letters", Level.ADVICE, {"dead": dead(49, 100)}, {}),
        ("dead-letters", Level.ADVICE, {"dead": dead(50, None)}, {}),
        ("dead-letters", Level.ADVICE, {"dead": dead(50, 0), "running": running(rates=QUICK)}, {}),
        ("broker-silent", Level.PROBLEM, {"silent_brokers": {"broker-b": "no answer"}}, {}),
        ("member-silent", Level.UNKNOWN, {"silent_members": {"m3": "no answer"}}, {}),
        ("group-disabled", Level.PROBLEM, {"configs": {"broker-a": DISABLED}}, {}),
        (
            "broadcast-disabled",
            Level.PROBLEM,
            {"configs": {"broker-a": NO_BROADCAST}, "message_model": "BROADCASTING"},
            {"configs": {"broker-a": NO_BROADCAST}},
        ),
        (
            "topic-not-readable",
            Level.PROBLEM,
            {"permissions": {("orders", "broker-a"): 2}},
            {"permissions": {("orders", "broker-a"): 4}},
        ),
        (
            "broker-not-readable",
            Level.PROBLEM,
            {"broker_permissions": {"broker-a": 2}},
            {"broker_permissions": {"broker-a": 4}},
        ),
        (
            "subscriptions-differ",
            Level.PROBLEM,
            {"running": running(expression="a")},
            {"running": running(expression="*")},
        ),
        (
            "not-subscribed",
            Level.PROBLEM,
            {"members": {"m1": {"stock": "*"}}, "running": {"m1": member(topics=("stock",))}},
            {"members": {"m1": {"orders": "*"}}, "running": {"m1": member(*QUEUES)}},
        ),
        (
            "queue-without-owner",
            Level.PROBLEM,
            {"running": {"m1": member(*QUEUES[:2])}},
            {"running": {"m1": member(*QUEUES)}},
        ),
        (
            "queue-without-owner",
            Level.PROBLEM,
            {"running": {"m1": member(*QUEUES[:2])}},
            {"running": {"m1": member()}},  # members that pop have no queues
        ),
        ("queue-still", Level.PROBLEM, {"second": FROZEN}, {}),
        ("queue-still", Level.ADVICE, {"second": WITHOUT_GROWTH}, {}),
        (
            "queue-still",
            Level.PROBLEM,
            {"second": FROZEN, "running": running(held=ProcessQueueState(commit_offset=60))},
            {"second": FROZEN, "running": running(held=ProcessQueueState(commit_offset=61))},
        ),
        (
            "handler-slow",
            Level.ADVICE,
            {"running": running(rates=SLOW)},
            {"running": running(rates=QUICK)},
        ),
        (
            "member-hangs",
            Level.PROBLEM,
            {"running": running(held=OLD)},
            {"running": running(held=RECENT)},
        ),
        (
            "queue-not-locked",
            Level.PROBLEM,
            {"running": running(**ORDERED)},
            {"running": running(**ORDERED, held=LOCKED)},
        ),
        (
            "member-full",
            Level.ADVICE,
            {"running": running(**LIMIT, held=FULL)},
            {"running": running(**LIMIT, held=HALF_FULL)},
        ),
        ("retries", Level.ADVICE, {"second": WITH_RETRIES}, {"second": RETRIED}),
        (
            "failures",
            Level.ADVICE,
            {"running": running(rates=ConsumeRates(consume_failed_count=4))},
            {"running": running(rates=ConsumeRates())},
        ),
        ("lag-skewed", Level.ADVICE, {"second": SKEWED}, {}),
    ],
)
def test_a_cause_is_found_and_not_without_it(
    check: str, level: Level, facts: dict[str, Any], without: dict[str, Any]
) -> None:
    assert held_back(**facts).get(check) == level.value
    assert check not in held_back(**without)


def test_a_slow_handler_is_a_problem_when_more_comes_in_than_it_consumes() -> None:
    slow = ConsumeRates(consume_rt=2000.0, consume_ok_tps=5.0)
    assert held_back(running=running(rates=slow))["handler-slow"] == "problem"  # 8/s come in
    quick = attrs.evolve(slow, consume_ok_tps=9.0)
    assert held_back(running=running(rates=quick))["handler-slow"] == "advice"


def test_one_queue_has_most_of_the_lag_only_if_it_is_half_of_a_lag_that_is_not_small() -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(8)]
    owners = {"m1": member(*queues)}

    def of(worst: int, others: int) -> bool:
        lags = [worst, *[others] * 7]
        offsets = {
            queue: ConsumeOffset(1000, 1000 - lag) for queue, lag in zip(queues, lags, strict=True)
        }
        later = OffsetSample(at=5.0, offsets=offsets)
        return "lag-skewed" in held_back(second=later, running=owners)

    assert of(80, 10)
    assert not of(60, 10)
    assert not of(40, 5)
    assert not of(10, 10)


def test_findings_have_figures_and_a_fix() -> None:
    (finding,) = hindrances(attrs.evolve(GOOD, second=SKEWED))
    assert finding.text == "one of 4 queues has 90% of the lag (820 of 910 messages)"
    assert "mqadmin group lag -g billing" in finding.fix
    (finding,) = hindrances(attrs.evolve(GOOD, second=FROZEN))
    assert finding.subject == "orders broker-a 0"
    assert finding.text == (
        "nothing consumed for 5 s in 1 of 4 queues; 50 messages wait, 10 more than before"
    )


def test_groups_above_a_limit_have_a_line_each() -> None:
    lags = [GroupBacklog("a", 5, 3.0), GroupBacklog("b", 50, 1.0), GroupBacklog("c", 0)]
    assert alerts(lags, 10, None) == ["b: 50 messages behind, above 10"]
    assert alerts(lags, None, 2) == ["a: the oldest waits for 3 s, above 2"]
    assert [line[0] for line in alerts(lags, 4, 2)] == ["b", "a"]
    assert alerts(lags, 50, 3) == []


def test_a_rate_of_now_is_not_what_the_group_consumed_in_an_hour() -> None:
    (finding,) = dead_letter_findings("billing", dead(2, 1_800), 17.7)
    assert finding.level is Level.ADVICE
    assert "2 dead letters in the last hour (60 are kept), of 1800 messages" in finding.text
    (unknown,) = dead_letter_findings("billing", dead(2, None), 17.7)
    assert "consumed" not in unknown.text
