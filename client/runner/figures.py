"""The figures of producers and consumers for Prometheus, and whether they are ready."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import trio

from triomq.client.core.message_hooks import SendContext
from triomq.client.receiving.membership import Membership
from triomq.client.receiving.pop.pop_membership import PopMembership
from triomq.client.receiving.rates import TopicCounts
from triomq.client.sdk.group_consumer import Consumer
from triomq.client.sdk.producer import Producer
from triomq.remoting.monitor.metrics import Family, Histogram, Sample, family

AnyClient = Consumer[Any] | Producer

SEND_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""seconds"""


@attrs.define(eq=False)
class SendFigures:
    """A send hook that counts the attempts of one producer."""

    group: str
    counts: list[int] = attrs.field(factory=lambda: [0] * (len(SEND_EDGES) + 1), init=False)
    seconds: float = attrs.field(default=0.0, init=False)
    failed: int = attrs.field(default=0, init=False)
    in_flight: int = attrs.field(default=0, init=False)

    def before_send(self, context: SendContext) -> None:
        self.in_flight += 1
        context.attributes["figures"] = trio.current_time()

    def after_send(self, context: SendContext) -> None:
        self.in_flight -= 1
        seconds = trio.current_time() - context.attributes["figures"]
        self.counts[bisect_left(SEND_EDGES, seconds)] += 1
        self.seconds += seconds
        self.failed += context.error is not None


@attrs.define(eq=False)
class ClientFigures:
    """What ``/ready``, ``/status`` and ``/metrics`` tell of some producers and consumers.

    It reads copies: the objects may run in the loops of other threads (``triomq.sync`` and
    ``triomq.aio``).
    """

    clients: tuple[AnyClient, ...]
    _sends: dict[int, SendFigures] = attrs.field(factory=dict, init=False)

    @property
    def consumers(self) -> list[Consumer[Any]]:
        return [each for each in self.clients if not isinstance(each, Producer)]

    async def refresh(self, series_max: int) -> None:
        """Watch the sends of producers that run by now. Checkpoint: always."""
        for client in self.clients:
            if isinstance(client, Producer):
                self._watch(client)
        await trio.lowlevel.checkpoint()

    def _watch(self, producer: Producer) -> None:
        sender = producer._sender
        if sender is not None and id(producer) not in self._sends:
            figures = self._sends[id(producer)] = SendFigures(producer.group)
            sender.add_hook(figures)

    def labels(self) -> Mapping[str, str]:
        return {}

    def not_ready(self) -> str | None:
        """Return why an object does not do its work now; None if all do."""
        for client in self.clients:
            reason = _not_ready(client)
            if reason is not None:
                return f"{type(client).__name__} of group {client.group} {reason}"
        return None

    def status(self) -> Mapping[str, object]:
        return {"clients": [repr(client) for client in self.clients]}

    def figures(self) -> Iterator[Family]:
        yield from self._topic_figures()
        yield from self._consumer_figures()
        yield from self._send_figures()

    def _topic_figures(self) -> Iterator[Family]:
        table = [
            ({"group": consumer.group, "topic": topic}, counts)
            for consumer in self.consumers
            if (membership := consumer._membership) is not None
            for topic, counts in membership.fetcher.counts.topics.copy().items()
        ]
        kinds: list[tuple[str, Callable[[TopicCounts], float]]] = [
            ("messages_pulled", lambda one: one.pulled),
            ("messages_done", lambda one: one.done),
            ("messages_failed", lambda one: one.failed),
            ("pulls", lambda one: one.pulls),
            ("pull_seconds", lambda one: one.pull_seconds),
            ("handling_seconds", lambda one: one.done_seconds),
        ]
        for name, read in kinds:
            samples = [Sample(read(counts), labels) for labels, counts in table]
            yield family(f"triomq_consumer_{name}_total", samples)

    def _consumer_figures(self) -> Iterator[Family]:
        running = [
            ({"group": consumer.group}, consumer, membership)
            for consumer in self.consumers
            if (membership := consumer._membership) is not None
        ]
        unsettled = [Sample(member.unsettled(), labels) for labels, _, member in running]
        yield family("triomq_consumer_messages_in_flight", unsettled)
        waiting = [
            Sample(len(delivery.inbox), labels)
            for labels, consumer, _ in running
            if (delivery := getattr(consumer, "_delivery", None)) is not None
        ]
        yield family("triomq_consumer_messages_waiting", waiting)
        queues = [
            Sample(len(member.fetcher.assignments), labels)
            for labels, _, member in running
            if isinstance(member, Membership)
        ]
        yield family("triomq_consumer_queues", queues)
        lag: dict[tuple[str, str], int] = {}
        for labels, _, member in running:
            for assignment in list(member.fetcher.assignments.values()):
                if assignment.end >= 0:
                    key = labels["group"], assignment.queue.topic
                    behind = max(0, assignment.end - assignment.held.committed)
                    lag[key] = lag.get(key, 0) + behind
        yield family(
            "triomq_consumer_lag_messages",
            [
                Sample(value, {"group": group, "topic": topic})
                for (group, topic), value in lag.items()
            ],
        )

        ready: dict[tuple[str, str], int] = {}
        for labels, _, member in running:
            if isinstance(member, PopMembership):
                current = set(member.fetcher.current())
                for source, count in list(member.fetcher.calls.ready.items()):
                    key = labels["group"], source.topic
                    ready[key] = ready.get(key, 0) + (count if source in current else 0)
        yield family(
            "triomq_consumer_ready_messages",
            [
                Sample(value, {"group": group, "topic": topic})
                for (group, topic), value in ready.items()
            ],
        )

    def _send_figures(self) -> Iterator[Family]:
        sends = list(self._sends.values())
        yield family(
            "triomq_producer_send_seconds",
            [
                Histogram({"group": one.group}, SEND_EDGES, tuple(one.counts), one.seconds)
                for one in sends
            ],
        )
        yield family(
            "triomq_producer_sends_failed_total",
            [Sample(one.failed, {"group": one.group}) for one in sends],
        )
        yield family(
            "triomq_producer_sends_in_flight",
            [Sample(one.in_flight, {"group": one.group}) for one in sends],
        )


def _not_ready(client: AnyClient) -> str | None:
    if isinstance(client, Producer):
        return "is not running" if client._sender is None else None
    membership = client._membership
    if membership is None:
        return "is not running"
    wants = membership.spec.subscriptions or membership.fetcher.assignments
    if wants and not membership.session.heartbeats.registered:
        return "has reached no broker"
    if isinstance(membership, Membership) and not membership.has_share:
        return "has no share of the queues yet"
    return None
