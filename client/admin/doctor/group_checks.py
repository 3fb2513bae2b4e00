"""Judge what holds a consumer group back, from two samples of its offsets and its members. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import attrs

from triomq.client.admin.doctor.dead_letter_check import GivenUp, dead_letter_findings
from triomq.client.admin.documents import count_of
from triomq.remoting.core.findings import Finding, advice, problem, unknown
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.heartbeat import BROADCASTING
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset
from triomq.remoting.protocol.bodies.route import PERM_READ, MessageQueue
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.names import RETRY_PREFIX

SKEW_SHARE, SKEW_LAG_MIN = 0.5, 100
"""a queue with this share of the lag is named, if the lag is not small"""
BUSY_SHARE = 0.7
"""handlers that work for so much of the time are the bottleneck"""
SLOW_MS = 1000.0
STUCK_MS = 60_000
"""messages in a member's memory of which none was consumed for so long: its handlers hang"""
CACHE_SHARE = 0.9
"""a member that has this share of the messages that it may hold pulls no more"""
NAMED_MAX = 5
"""queues that a finding names"""


@attrs.frozen(kw_only=True)
class OffsetSample:
    """The offsets of the group at one time."""

    at: float
    """seconds of any clock"""
    offsets: Mapping[MessageQueue, ConsumeOffset]

    def lag(self, queue: MessageQueue) -> int:
        known = self.offsets.get(queue)
        return 0 if known is None else max(0, known.broker_offset - known.consumer_offset)


@attrs.frozen(kw_only=True)
class GroupFacts:
    """What was read about a group."""

    group: str
    first: OffsetSample
    second: OffsetSample
    now_ms: int
    members: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """client id → topic → subscription, as the brokers know it"""
    message_model: str | None = None
    running: Mapping[str, ConsumerRunning] = attrs.field(factory=dict)
    """client id → its state, of the members that answered"""
    silent_members: Mapping[str, str] = attrs.field(factory=dict)
    """client id → why it did not answer"""
    configs: Mapping[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    """broker name → the group's settings there"""
    permissions: Mapping[tuple[str, str], int] = attrs.field(factory=dict)
    """topic and broker name → permission in the route"""
    broker_permissions: Mapping[str, int] = attrs.field(factory=dict)
    """broker name → its setting ``brokerPermission``"""
    silent_brokers: Mapping[str, str] = attrs.field(factory=dict)
    """broker name → why it did not answer"""
    dead: GivenUp | None = None
    asked: int = 1
    """number of brokers that were asked"""

    @property
    def seconds(self) -> float:
        return max(self.second.at - self.first.at, 0.001)

    @property
    def lagging(self) -> list[MessageQueue]:
        """Return the queues with lag in the second sample, the largest lag first."""
        behind = [queue for queue in self.second.offsets if self.second.lag(queue)]
        return sorted(behind, key=lambda queue: (-self.second.lag(queue), queue))

    @property
    def lag(self) -> int:
        return sum(map(self.second.lag, self.lagging))


def hindrances(facts: GroupFacts) -> list[Finding]:
    """Return what holds the group back, the causes that stop it first."""
    checks = (
        _silent_brokers,
        _disabled,
        _permissions,
        _offline,
        _silent_members,
        _subscriptions,
        _without_subscription,
        _without_owner,
        _still,
        _slow,
        _hanging,
        _locks,
        _full_caches,
        _retries,
        _dead_letters,
        _skew,
    )
    return [finding for check in checks for finding in check(facts)]


def _silent_brokers(facts: GroupFacts) -> Iterator[Finding]:
    for broker, reason in sorted(facts.silent_brokers.items()):
        yield problem(
            broker,
            "broker-silent",
            " ".join(reason.split()),
            "see its process and its log; `mqadmin cluster list` shows the others",
            "its queues are not consumed, and their lag is unknown here",
        )


def _disabled(facts: GroupFacts) -> Iterator[Finding]:
    for broker, config in sorted(facts.configs.items()):
        if not config.consume_enable:
            yield problem(
                broker,
                "group-disabled",
                "consumeEnable=false: the broker refuses its pulls",
                f"`mqadmin group update -g {facts.group} -s true -c CLUSTER`",
            )
        elif facts.message_model == BROADCASTING and not config.consume_broadcast_enable:
            yield problem(
                broker,
                "broadcast-disabled",
                "the members broadcast, and consumeBroadcastEnable=false",
                f"`mqadmin group update -g {facts.group} -d true -c CLUSTER`",
            )


def _permissions(facts: GroupFacts) -> Iterator[Finding]:
    for (topic, broker), permission in sorted(facts.permissions.items()):
        if not permission & PERM_READ:
            yield problem(
                f"{topic} at {broker}",
                "topic-not-readable",
                f"permission {permission}: it cannot be read",
                f"`mqadmin topic permission -t {topic} -c CLUSTER -p {permission | PERM_READ}`",
            )
    for broker, permission in sorted(facts.broker_permissions.items()):
        if not permission & PERM_READ:
            yield problem(
                broker,
                "broker-not-readable",
                f"brokerPermission={permission}: no group can read",
                f"`mqadmin broker set -k brokerPermission -v {permission | PERM_READ}`",
            )


def _offline(facts: GroupFacts) -> Iterator[Finding]:
    """Find messages that wait for a group without members.

    A member registers at every broker that it reaches, so one that answers knows all members.
    """
    if facts.members or not facts.lag:
        return
    where = " at the brokers that answer" if facts.silent_brokers else ""
    yield problem(
        facts.group,
        "no-member",
        f"no member is online{where}; {_messages(facts.lag)} wait",
        "start a consumer of the group, and see its log for the reason why it ended",
    )


def _silent_members(facts: GroupFacts) -> Iterator[Finding]:
    for client_id, reason in sorted(facts.silent_members.items()):
        yield unknown(client_id, "member-silent", " ".join(reason.split()))


def _subscriptions(facts: GroupFacts) -> Iterator[Finding]:
    """Find members that subscribe to different things: brokers keep the subscription of one."""
    of_members = {
        client_id: {one.topic: one.sub_string for one in state.subscriptions}
        for client_id, state in facts.running.items()
    }
    if len({tuple(sorted(one.items())) for one in of_members.values()}) < 2:
        return
    topics = sorted({topic for one in of_members.values() for topic in one})
    for topic in topics:
        members: dict[str | None, list[str]] = defaultdict(list)
        for client_id, one in sorted(of_members.items()):
            members[one.get(topic)].append(client_id)
        if len(members) > 1:
            found = "; ".join(
                f"{'nothing' if expression is None else repr(expression)} by"
                f" {_some(names, 'member')}"
                for expression, names in members.items()
            )
            yield problem(
                topic,
                "subscriptions-differ",
                found,
                "give all members of the group the same subscriptions, or another group name",
                "a broker keeps the subscription of the last heartbeat, so messages are skipped",
            )


def _without_subscription(facts: GroupFacts) -> Iterator[Finding]:
    """Find topics with lag that no member subscribes to."""
    subscribed = {topic for one in facts.members.values() for topic in one}
    subscribed |= {one.topic for state in facts.running.values() for one in state.subscriptions}
    if not subscribed:
        return
    for topic in sorted({queue.topic for queue in facts.lagging}):
        if topic in subscribed or topic.startswith(RETRY_PREFIX):
            continue
        lag = sum(facts.second.lag(queue) for queue in facts.lagging if queue.topic == topic)
        yield problem(
            topic,
            "not-subscribed",
            f"{_messages(lag)} wait, and no member subscribes to it",
            f"subscribe to it, or `mqadmin group skip -g {facts.group} -t {topic}`",
        )


def _without_owner(facts: GroupFacts) -> Iterator[Finding]:
    """Find queues with lag that no member has, of topics of which members have other queues.

    Members that pop have no queues at all.
    """
    if not facts.running or facts.silent_members or facts.message_model == BROADCASTING:
        return
    owned = {queue for state in facts.running.values() for queue in state.queues}
    divided = {queue.topic for queue in owned}
    alone = [
        queue
        for queue in facts.lagging
        if queue not in owned
        and queue.topic in divided
        and facts.permissions.get((queue.topic, queue.broker_name), PERM_READ) & PERM_READ
    ]
    if alone:
        lag = sum(map(facts.second.lag, alone))
        yield problem(
            _queues(alone),
            "queue-without-owner",
            f"{len(facts.running)} members are online, and none has"
            f" {'these queues' if len(alone) > 1 else 'this queue'}, in which {_messages(lag)}"
            " wait",
            "wait 20 s for a rebalance and repeat the command; then let all members allocate by"
            " the same strategy, and see whether all reach this broker",
        )


def _still(facts: GroupFacts) -> Iterator[Finding]:
    """Find queues whose offset stands still while messages wait."""
    if not facts.members:
        return
    # Members store their offsets every 5 s, and tell their own at once.
    own = {
        queue: held.commit_offset
        for state in facts.running.values()
        for queue, held in state.queues.items()
    }
    still = [
        queue
        for queue in facts.lagging
        if queue in facts.first.offsets
        and facts.first.lag(queue)
        and facts.first.offsets[queue].consumer_offset
        == facts.second.offsets[queue].consumer_offset
        >= own.get(queue, 0)
    ]
    growing = [queue for queue in still if facts.second.lag(queue) > facts.first.lag(queue)]
    if not still:
        return
    more = sum(facts.second.lag(queue) - facts.first.lag(queue) for queue in growing)
    lag = sum(map(facts.second.lag, still))
    found = (
        f"nothing consumed for {facts.seconds:.0f} s in {len(still)} of"
        f" {len(facts.second.offsets)} queues; {_messages(lag)} wait"
        + (f", {more} more than before" if more else "")
    )
    fix = (
        f"see what the handlers do: `mqadmin group status -g {facts.group} -i CLIENT -s` shows"
        " their stacks; with slow handlers, repeat with more --seconds"
    )
    make = problem if growing else advice
    yield make(_queues(growing or still), "queue-still", found, fix)


def _slow(facts: GroupFacts) -> Iterator[Finding]:
    """Find topics whose handlers are the bottleneck, by the rates that members report."""
    topics = {queue.topic for queue in facts.lagging}
    for topic in sorted(topics):
        rates = [
            (state.rates[topic], _threads(state))
            for state in facts.running.values()
            if topic in state.rates
        ]
        done = sum(rate.consume_ok_tps + rate.consume_failed_tps for rate, _ in rates)
        if not done:
            continue
        mean = (
            sum(
                rate.consume_rt * (rate.consume_ok_tps + rate.consume_failed_tps)
                for rate, _ in rates
            )
            / done
        )
        handlers = sum(count for _, count in rates)
        busy = done * mean / 1000 / handlers if handlers else 0.0
        if busy < BUSY_SHARE and mean < SLOW_MS:
            continue
        coming = _coming(facts, topic)
        able = handlers * 1000 / mean
        make = problem if coming > done else advice
        yield make(
            topic,
            "handler-slow",
            f"a message takes {mean:.0f} ms; {handlers} handlers consume {done:.1f}/s (busy"
            f" {min(busy, 1):.0%}, at most {able:.1f}/s), and {coming:.1f}/s come in",
            "make the handler faster, let more run at the same time, or start more members (at"
            " most one for each queue)",
        )


def _threads(state: ConsumerRunning) -> int:
    """Return how many handlers of a member run at the same time."""
    text = state.properties.get("PROP_THREADPOOL_CORE_SIZE", "")
    return int(text) if text.isdecimal() else 0


def _coming(facts: GroupFacts, topic: str) -> float:
    """Return the rate at which a topic grows, in messages per second."""
    grown = sum(
        facts.second.offsets[queue].broker_offset - before.broker_offset
        for queue, before in facts.first.offsets.items()
        if queue.topic == topic and queue in facts.second.offsets
    )
    return max(0, grown) / facts.seconds


def _hanging(facts: GroupFacts) -> Iterator[Finding]:
    """Find members that hold messages and consumed none of them for a minute."""
    for client_id, state in sorted(facts.running.items()):
        stuck = [
            queue
            for queue, held in state.queues.items()
            if held.cached_count and 0 < held.last_consume_timestamp < facts.now_ms - STUCK_MS
        ]
        if stuck:
            count = sum(state.queues[queue].cached_count for queue in stuck)
            oldest = min(state.queues[queue].last_consume_timestamp for queue in stuck)
            yield problem(
                client_id,
                "member-hangs",
                f"holds {_messages(count)} of {_queues(stuck)}, and consumed the last one"
                f" {(facts.now_ms - oldest) / 1000:.0f} s ago",
                f"`mqadmin group status -g {facts.group} -i {client_id} -s` shows where it hangs;"
                " restart it",
            )


def _locks(facts: GroupFacts) -> Iterator[Finding]:
    """Find queues of ordered consumers that their member has not locked at the broker."""
    for client_id, state in sorted(facts.running.items()):
        if state.properties.get("PROP_CONSUMEORDERLY") != "true":
            continue
        unlocked = [
            queue
            for queue, held in state.queues.items()
            if not held.locked and not held.dropped and facts.second.lag(queue)
        ]
        if unlocked:
            yield problem(
                client_id,
                "queue-not-locked",
                f"{_queues(unlocked)}: the member has the queue, but not its lock at the broker,"
                " so it does not consume in order",
                "another member that had the queue keeps its lock until it gives the queue up, or"
                " 60 s after it died; wait, then restart that member",
            )


def _full_caches(facts: GroupFacts) -> Iterator[Finding]:
    """Find members that pause their pulls, because they hold as many messages as they may."""
    for client_id, state in sorted(facts.running.items()):
        limit_text = state.properties.get("pullThresholdForQueue", "")
        limit = int(limit_text) if limit_text.isdecimal() else 0
        full = [
            queue
            for queue, held in state.queues.items()
            if limit and held.cached_count >= limit * CACHE_SHARE
        ]
        if full:
            count = sum(state.queues[queue].cached_count for queue in full)
            yield advice(
                client_id,
                "member-full",
                f"holds {_messages(count)} of {_queues(full)}, of {limit} allowed per queue"
                " (pullThresholdForQueue), and pulls no more until some are consumed",
                "its handlers are the bottleneck, not the broker; see handler-slow or queue-still",
            )


def _retries(facts: GroupFacts) -> Iterator[Finding]:
    """Find a retry topic that fills up: handlers fail."""
    failed = sum(
        rate.consume_failed_count
        for state in facts.running.values()
        for rate in state.rates.values()
    )
    for topic in sorted({queue.topic for queue in facts.second.offsets}):
        if not topic.startswith(RETRY_PREFIX):
            continue
        lag = sum(facts.second.lag(queue) for queue in facts.second.offsets if queue.topic == topic)
        coming = _coming(facts, topic)
        if lag or coming:
            yield advice(
                topic,
                "retries",
                f"{_messages(lag)} wait to be repeated, {coming:.1f}/s come in"
                + (
                    f"; handlers failed {count_of(failed, 'time')} in the last hour"
                    if failed
                    else ""
                ),
                "see the members' logs for the reason why handlers fail; `mqadmin message print -t"
                f" '{topic}'` shows the messages",
                f"after their last retry they go to %DLQ%{facts.group}",
            )
            failed = 0
    if failed and facts.lag:
        yield advice(
            facts.group,
            "failures",
            f"handlers failed {count_of(failed, 'time')} in the last hour",
            f"`mqadmin message print -t '{RETRY_PREFIX}{facts.group}'` shows the messages that"
            " come again, `mqadmin message explain ID` the last error of one, which our SDK tells",
            "each failed message comes again later, and takes a handler's time again",
        )


def _dead_letters(facts: GroupFacts) -> Iterator[Finding]:
    rates = [rate for state in facts.running.values() for rate in state.rates.values()]
    succeeding = sum(rate.consume_ok_tps for rate in rates)
    yield from dead_letter_findings(facts.group, facts.dead, succeeding)


def _skew(facts: GroupFacts) -> Iterator[Finding]:
    """Find a queue that has most of the lag, although the topic has several."""
    counts: dict[str, int] = defaultdict(int)
    for queue in facts.second.offsets:
        counts[queue.topic] += 1
    if facts.lag < SKEW_LAG_MIN or not facts.members:
        return
    worst = facts.lagging[0]
    share = facts.second.lag(worst) / facts.lag
    count = counts[worst.topic]
    if count > 1 and share >= SKEW_SHARE and share >= 2 / count:
        yield advice(
            _queues([worst]),
            "lag-skewed",
            f"one of {count} queues has {share:.0%} of the lag ({facts.second.lag(worst)} of"
            f" {facts.lag} messages)",
            "its member is slow, or its sharding key is hot: `mqadmin group lag"
            f" -g {facts.group} -s true` shows the member of each queue",
        )


def _messages(count: int) -> str:
    return count_of(count, "message")


def _some(names: Sequence[str], word: str) -> str:
    return f"{word}{'s' if len(names) > 1 else ''} {_first(names)}"


def _queues(queues: Sequence[MessageQueue]) -> str:
    return _first([f"{queue.topic} {queue.broker_name} {queue.queue_id}" for queue in queues])


def _first(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
