"""What no bulk request tells about topics and groups, and whose turn it is to be read. Pure.

The rate of a topic, the members of a group and its oldest message need a request to each broker.
With thousands of topics a round has a budget of requests: rows on the screen come first, the others
in turn, those with the oldest details first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

REQUESTS_PER_ROUND = 200
"""requests for details in one round, to all brokers together"""
DETAIL_SECONDS_MAX = 300.0
"""age at which a detail is unknown again: each of 2,000 topics on three brokers has its turn once
in two minutes, with rounds of 2 s
"""


@attrs.frozen(kw_only=True)
class TopicDetail:
    """What the counters of a topic's brokers say."""

    put_rate: float
    """messages per second, in the last minute"""
    day_count: int
    """messages of the last 24 hours"""
    whole: bool
    """every broker of the topic has answered"""
    taken_at: float


@attrs.frozen(kw_only=True)
class GroupDetail:
    """What brokers know about the members of a group, and how old its oldest message is."""

    members: int | None
    """None: no broker reported one, and not every broker has answered"""
    oldest_seconds: float | None
    """age of the oldest message that waits; None: nothing waits, or no broker reported it"""
    taken_at: float


def names_to_read(
    shown: Iterable[str],
    known: Iterable[str],
    taken_at: Mapping[str, float],
    requests: Callable[[str], int],
    budget: int,
) -> tuple[list[str], int]:
    """Return the names whose details are to be read now, and what is left of the budget.

    ``shown``: names on the screen, which come first; ``known``: all names; ``taken_at``: when the
    present details were read; ``requests``: what reading one name costs. A name that costs more
    than the whole budget is read alone.
    """
    first = dict.fromkeys(shown)
    others = sorted(
        (name for name in known if name not in first), key=lambda name: taken_at.get(name, 0.0)
    )
    chosen: list[str] = []
    for name in (*first, *others):
        cost = requests(name)
        if cost > budget and chosen:
            break
        if budget <= 0:
            break
        chosen.append(name)
        budget -= cost
    return chosen, max(0, budget)
