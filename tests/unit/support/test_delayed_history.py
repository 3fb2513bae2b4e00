"""The checker of delayed messages finds each kind of broken promise, and nothing in a history
without one.
"""

from __future__ import annotations

import attrs
import pytest
from delayed_history import Arrival, BrokerStart, Delayed, DelayHistory, delay_violations

KEPT = DelayHistory(
    sent=[
        Delayed("d1", acknowledged=True, sent=10.0, delay=5.0),
        Delayed("d2", acknowledged=False, sent=11.0, delay=5.0),
        Delayed("d3", acknowledged=False, sent=12.0, delay=1.0),
        Delayed("d1", acknowledged=False, sent=15.1, delay=10.0, again=True),
    ],
    stored=["d1", "d2"],
    arrivals=[
        Arrival("d1", 15.1, done=False),
        Arrival("d2", 15.0, done=True),
        Arrival("d1", 25.2, done=True, again=True),
    ],
)


def test_a_history_without_fault() -> None:
    assert delay_violations(KEPT) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stored": ["d2"]}, "the delayed message d1 was acknowledged, and never came"),
        ({"stored": ["d1", "d2", "d9"]}, "d9 came, and it was never sent"),
        ({"arrivals": [Arrival("d1", 13.8, done=True), *KEPT.arrivals]},
        "d1 came at 13.800, and not before 13.900 it was due"),
        ({"arrivals": [*KEPT.arrivals, Arrival("d1", 23.9, done=True, again=True)]},
        "d1, given back, came at 23.900"),
        ({"arrivals": KEPT.arrivals[:2]}, "the group never got d1 again"),
        ({"arrivals": [KEPT.arrivals[0], KEPT.arrivals[2]]}, "the group never got d2"),
    ],
)  # fmt: skip
def test_each_broken_promise_is_found(change: dict[str, object], words: str) -> None:
    found = delay_violations(attrs.evolve(KEPT, **change))  # type: ignore[arg-type]
    assert [text for text in found if words in text], found


def test_the_earliest_try_counts() -> None:
    tries = [*KEPT.sent, Delayed("d1", acknowledged=False, sent=5.0, delay=5.0)]
    assert (
        delay_violations(
            attrs.evolve(
                KEPT, sent=tries, arrivals=[Arrival("d1", 9.0, done=False), *KEPT.arrivals]
            )
        )
        == []
    )


def test_what_the_group_may_miss() -> None:
    assert (
        delay_violations(attrs.evolve(KEPT, arrivals=KEPT.arrivals[:2], excused=frozenset({"d1"})))
        == []
    )


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (BrokerStart(12.0, 3600.0), 0),
        (BrokerStart(12.0, 1.0), 1),
        (BrokerStart(9.0, 3600.0), 1),
        (BrokerStart(14.0, 3600.0), 1),
    ],
    ids=["ahead", "not far enough", "before it was sent", "after it came"],
)
def test_a_broker_that_starts_with_a_clock_that_is_ahead_may_be_early(
    start: BrokerStart, found: int
) -> None:
    history = attrs.evolve(
        KEPT, arrivals=[Arrival("d1", 12.5, done=False), *KEPT.arrivals], starts=[start]
    )
    assert len(delay_violations(history)) == found


def test_clocks_that_were_ahead_already_when_it_was_sent_make_nothing_early() -> None:
    sent = [attrs.evolve(one, wall=3600.0) for one in KEPT.sent]
    history = attrs.evolve(
        KEPT,
        sent=sent,
        arrivals=[Arrival("d1", 12.5, done=False), *KEPT.arrivals],
        starts=[BrokerStart(12.0, 3600.0)],
    )
    assert len(delay_violations(history)) == 1
