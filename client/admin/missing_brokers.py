"""Brokers that were registered and are not any more, and the failures that stand for them. Pure.

``missing_broker_search.py`` asks the name servers for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import attrs

from triomq.client.admin.answers import Answers
from triomq.client.core.errors import TrioMQError

T = TypeVar("T")
UNREGISTERED = "unregistered"
"""how a broker left that was stopped in order"""
DISPLACED = "displaced"
"""it lives, but in the routes another one with its name and id takes its place again and again"""


@attrs.frozen(order=True)
class MissingBroker:
    """A broker process that was registered in the last day and is not in the routes now."""

    cluster: str
    name: str
    id: int
    address: str
    leave: str
    """``unregistered``, ``connection lost``, ``silent`` or ``displaced``"""
    seconds: int
    """since it left, or was displaced"""

    @property
    def since(self) -> str:
        """Return how and when it left: ``connection lost 3 min ago``."""
        for unit, size in (("h", 3600), ("min", 60)):
            if self.seconds >= 2 * size:
                return f"{self.leave} {self.seconds // size} {unit} ago"
        return f"{self.leave} {self.seconds} s ago"


@attrs.define(repr=False, slots=False)
class BrokerLeft(TrioMQError):
    """A broker that should have been asked is not registered any more."""

    broker: MissingBroker

    def __str__(self) -> str:
        broker = self.broker
        if broker.leave == DISPLACED:
            return (
                f"two brokers {broker.name}:{broker.id} live, and clients reach one of them at a"
                f" time: stop the one at {broker.address}, or the other"
            )
        return (
            f"broker {broker.name}:{broker.id} is missing ({broker.since}): start it again, or, if"
            f" it is gone for good, `mqadmin broker forget {broker.name}`"
        )


def names_beside(
    present: Collection[str], missing: Iterable[MissingBroker] | None
) -> dict[str, MissingBroker]:
    """Return the names of which no process is left, or too many are."""
    return {
        one.name: one for one in missing or () if one.name not in present or one.leave == DISPLACED
    }


def with_missing(answers: Answers[T], missing: Mapping[str, MissingBroker]) -> Answers[T]:
    """Return the answers with a failure for each missing broker, by its label."""
    lost = {label: BrokerLeft(broker) for label, broker in missing.items()}
    return Answers(answers.values, {**answers.failures, **lost})
