"""What the clients of a fault test write down of delayed messages becomes the checker's history;
clocks and losses of brokers excuse what they must, and nothing else.
"""

from __future__ import annotations

import pytest
import trio
from crash_loop import body_of
from delayed_history import BrokerStart, delay_violations
from fault_delays import DelayedClients, name_of
from fault_history import Clocks, Events
from fault_schedules import draw
from history import violations

LINES: list[list[object]] = [
    ["delayed", 10.0, 10.2, "d0.0", 3.0, "acknowledged", False],
    ["delayed", 10.5, 10.6, "d0.1", 2.0, "refused", False],
    ["delayed", 11.0, 13.0, "d0.2", 2.0, "doubtful", False],
    ["delayed", 12.0, 12.1, "d0.3", 2.0, "stored", False],
    ["arrived", 13.1, "d0.0", False, False],
    ["delayed", 13.1, 13.1, "d0.0", 2.0, "doubtful", True],
    ["arrived", 15.3, "d0.0", True, True],
    ["delivered", "master", "d0.0"],
]
CLOCKS = Clocks([(0.0, "master", 0.0), (0.0, "slave", 0.0)])


def complaints(
    lines: list[list[object]],
    clocks: Clocks = CLOCKS,
    losses: tuple[float, ...] = (),
    promoted_at: float = 0.0,
) -> list[str]:
    events = Events()
    for line in lines:
        events.add(line)
    return delay_violations(events.delay_history("master", clocks, losses, promoted_at))


def test_a_history_that_keeps_all_promises() -> None:
    assert complaints(LINES) == []


@pytest.mark.parametrize(
    ("index", "line", "words"),
    [
        (7, ["note", 20.0, "lost"], "d0.0 was acknowledged, and never came"),
        (7, ["delivered", "slave", "d0.0"], "d0.0 was acknowledged, and never came"),
        (7, ["delivered", "master", "d0.1"], "d0.1 came, and it was never sent"),
        (4, ["arrived", 11.5, "d0.0", False, False], "d0.0 came at 11.500"),
        (6, ["arrived", 13.2, "d0.0", True, True], "d0.0, given back, came at 13.200"),
        (6, ["note", 20.0, "missed"], "the group never got d0.0 again"),
    ],
)
def test_each_broken_promise_is_noticed(index: int, line: list[object], words: str) -> None:
    lines = [*LINES[:index], line, *LINES[index + 1 :]]
    assert any(words in complaint for complaint in complaints(lines)), complaints(lines)


@pytest.mark.parametrize(
    ("losses", "promoted_at", "found"),
    [
        ((), 0.0, 1),
        ((13.2,), 0.0, 0),
        ((13.0,), 0.0, 1),
        ((30.0,), 0.0, 1),
        ((), 40.0, 0),
        ((), 13.0, 1),
    ],
    ids=[
        "no loss",
        "power after it was given back",
        "before",
        "long after",
        "promoted",
        "promoted before",
    ],
)
def test_what_was_given_back_may_be_lost_with_the_power_or_the_master(
    losses: tuple[float, ...], promoted_at: float, found: int
) -> None:
    missed = [line for line in LINES if line[:2] != ["arrived", 15.3]]
    assert len(complaints(missed, losses=losses, promoted_at=promoted_at)) == found


def test_a_broker_that_starts_with_a_clock_that_was_set_forward_may_be_early() -> None:
    lines = [["arrived", 11.5, "d0.0", False, False], *LINES]
    settings = [(0.0, "master", 0.0), (0.0, "slave", 0.0), (10.9, "master", 3600.0)]
    assert len(complaints(lines, Clocks(settings, [BrokerStart(11.0, 3600.0)]))) == 0
    assert len(complaints(lines, Clocks(settings, [BrokerStart(9.0, 3600.0)]))) == 1


def test_the_clock_that_was_least_ahead() -> None:
    clocks = Clocks(
        [
            (0.0, "master", 0.0),
            (0.0, "slave", 0.0),
            (10.0, "master", 60.0),
            (10.0, "slave", 90.0),
            (20.0, "master", -5.0),
            (30.0, "slave", -9.0),
        ]
    )
    assert [
        clocks.least_ahead(*span)
        for span in ((5.0, 6.0), (9.0, 11.0), (11.0, 12.0), (11.0, 21.0), (21.0, 22.0))
    ] == [0.0, 0.0, 60.0, -5.0, -5.0]


def test_what_only_the_lost_master_had_is_in_doubt_after_a_promotion() -> None:
    events = Events()
    for line in [
        ["begin", 1.0, "0.0", 0],
        ["end", 2.0, "0.0", 0, "stored", 3, 0, 100],
        ["seen", 2.1, "g", 3, 0, "0.0"],
        ["bounds", "slave", 3, 0, 0],
    ]:
        events.add(line)
    assert violations(events.history("slave", ["g"], promoted=True)) == []
    assert len(violations(events.history("slave", ["g"]))) == 2


def test_a_body_that_is_not_whole_gets_another_name() -> None:
    body = body_of("d2.7", 20).encode()
    assert name_of(body) == "d2.7"
    assert name_of(body[:-1]) == "?d2.7"


def test_clients_wait_for_what_was_acknowledged_and_for_what_the_group_has_not_handled() -> None:
    clients = DelayedClients(
        "", 1, print, trio.Event(), acknowledged={"a", "b"}, done={"a"}, given_back={"c"}
    )
    assert [
        clients.missing(delivered)
        for delivered in (["a", "b", "c"], ["a"], ["a", "b"], ["a", "c", "x"])
    ] == [1, 1, 1, 2]


def test_some_schedules_have_delayed_messages_and_some_of_those_end_with_a_new_master() -> None:
    drawn = [draw(1, number) for number in range(40)]
    assert 5 < sum(schedule.delays for schedule in drawn) < 35
    assert 2 < sum(schedule.promotes for schedule in drawn) < 20
    assert all(schedule.delays for schedule in drawn if schedule.promotes)
    assert {host for schedule in drawn for host in schedule.few_files} == {
        "names",
        "master",
        "slave",
    }
