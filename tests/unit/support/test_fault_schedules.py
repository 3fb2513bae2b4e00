"""Schedules of faults are drawn from their seed; what clients write down becomes the checker's
history; what did not hit anything does not count.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import fault_controllers
import pytest
from crash_loop import body_of
from fault_campaign import ATTEMPTS_MAX, Campaign, PromiseBroken, report
from fault_cluster import FaultCluster
from fault_delays import name_of
from fault_failovers import Failovers
from fault_history import Attempt, Events, FoundMessage, Group, Outcome, missing, read_events
from fault_schedules import KINDS, STEPS, WINDOW_SECONDS, Came, Schedule, ScheduleRun, draw
from history import violations

LINES: list[list[object]] = [
    ["begin", 1.0, "0.0", 0],
    ["end", 2.0, "0.0", 0, "acknowledged", 3, 0, 100],
    ["begin", 1.5, "1.0", 0],
    ["end", 3.5, "1.0", 0, "doubtful", -1, -1, -1],
    ["begin", 3.6, "1.0", 1],
    ["end", 4.0, "1.0", 1, "stored", 3, 2, 300],
    ["begin", 5.0, "0.1", 0],
    ["end", 5.1, "0.1", 0, "unsent", -1, -1, -1],
    ["begin", 5.2, "0.1", 1],
    ["end", 5.3, "0.1", 1, "refused", -1, -1, -1],
    ["seen", 2.1, "ordered", 3, 0, "0.0"],
    ["seen", 3.1, "ordered", 3, 1, "1.0"],
    ["seen", 4.1, "ordered", 3, 2, "1.0"],
    ["read", "master", 3, 0, 100, "0.0"],
    ["read", "master", 3, 1, 200, "1.0"],
    ["read", "master", 3, 2, 300, "1.0"],
    ["bounds", "master", 3, 0, 3],
    ["note", 6.0, "end"],
]


def events_of(lines: list[list[object]]) -> Events:
    events = Events()
    for line in lines:
        events.add(line)
    return events


def complaints(lines: list[list[object]]) -> list[str]:
    return violations(events_of(lines).history("master", ["ordered"], ["ordered"]))


def test_a_history_that_keeps_all_promises(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES) + '["begin", 7.0, "0.')
    assert violations(read_events(path).history("master", ["ordered"], ["ordered"])) == []


@pytest.mark.parametrize(
    ("index", "line", "words"),
    [
        (13, ["note", 6.0, "lost"], "0.0 was acknowledged at"),
        (13, ["read", "master", 3, 0, 101, "0.0"], "acknowledged at log offset 100, it is at 101"),
        (15, ["read", "master", 3, 2, 300, "0.1"], "1.0 was acknowledged at"),
        (3, ["end", 3.5, "1.0", 0, "refused", -1, -1, -1], "1.0 is stored 2 times"),
        (3, ["end", 3.5, "1.0", 0, "unsent", -1, -1, -1], "1.0 is stored 2 times"),
        (14, ["read", "master", 3, 1, 200, "9.9"], "9.9 is stored, and it was never sent"),
        (14, ["read", "master", 3, 1, 200, "?1.0"], "it was never sent"),
        (14, ["note", 6.0, "gap"], "holds 0 to 1, 2 to 3"),
        (16, ["bounds", "master", 3, 0, 4], "names offsets 0 to 4"),
        (11, ["note", 6.0, "missed"], "ordered got"),
        (12, ["note", 6.0, "missed"], "ordered never got"),
        (12, ["seen", 4.1, "ordered", 3, 2, "0.0"], "ordered got 0.0 at"),
    ],
)
def test_each_broken_promise_is_noticed(index: int, line: list[object], words: str) -> None:
    lines = [*LINES[:index], line, *LINES[index + 1 :]]
    assert any(words in complaint for complaint in complaints(lines)), complaints(lines)


def test_what_lies_in_a_log_and_what_should() -> None:
    promised = {"a": Attempt(0.0, 1.0, Outcome.ACKNOWLEDGED, 0, 5, 900)}
    assert missing(promised, [FoundMessage(0, 5, 900, "a")]) == []
    for other in (
        FoundMessage(0, 6, 900, "a"),
        FoundMessage(1, 5, 900, "a"),
        FoundMessage(0, 5, 901, "a"),
        FoundMessage(0, 5, 900, "b"),
    ):
        assert missing(promised, [other]) == ["a"]


def test_sends_in_flight() -> None:
    events = events_of([*LINES, ["begin", 9.0, "5.0", 0]])
    assert [events.in_flight(at, at) for at in (0.5, 1.2, 1.7, 3.0, 5.05, 5.25, 9.5)] == [
        0,
        1,
        2,
        1,
        0,
        1,
        1,
    ]
    assert events.in_flight(0.5, 4.5) == 3


def test_a_body_that_is_not_whole_gets_another_name() -> None:
    body = body_of("2.7", 40).encode()
    assert name_of(body) == "2.7"
    assert name_of(body[:-1]) == "?2.7"
    assert name_of(b"2.7") == "?2.7"


def test_the_same_seed_draws_the_same_schedule() -> None:
    assert draw(7, 3) == draw(7, 3)
    assert len({draw(7, 3), draw(7, 4), draw(8, 3), draw(7, 3, 1)}) == 4
    assert [step.kind for step in draw(7, 3, 1).steps] == [step.kind for step in draw(7, 3).steps]


def test_every_kind_comes_before_any_comes_again() -> None:
    count = len(KINDS)
    kinds = [step.kind for number in range(count) for step in draw(5, number).steps]
    dealt = [kinds[number * STEPS : (number + 1) * STEPS] for number in range(count)]
    assert Counter(kind for hand in dealt for kind in hand) == Counter(dict.fromkeys(KINDS, STEPS))
    steps = [step for number in range(count) for step in draw(5, number, stop_seconds=30.0).steps]
    assert all(0 < step.at < WINDOW_SECONDS for step in steps)
    assert max(step.seconds for step in steps if step.kind.startswith("stop")) == 30.0
    assert all(hasattr(ScheduleRun, f"_{kind.split()[0]}") for kind in KINDS)


def test_schedules_in_a_row_have_every_kind_of_fault_of_controllers() -> None:
    schedule = fault_controllers.in_a_row(5, 10)
    assert {step.kind for step in schedule.steps} == set(fault_controllers.KINDS)
    assert [step.at for step in schedule.steps] == sorted(step.at for step in schedule.steps)
    assert all(
        hasattr(fault_controllers.ControlledRun, f"_{step.kind.split()[0]}")
        for step in schedule.steps
    )


def test_the_time_without_a_master_ends_with_a_send_that_began_after_the_fault() -> None:
    events = events_of(LINES)  # an answer at 2.0 was on its way when the fault came at 1.6
    groups = [Group(1.0, "n0", "b1", 1), Group(1.8, "n0", "", 2), Group(1.9, "n0", "b2", 2)]
    events.attempts["2.0"] = [Attempt(2.1, 2.6, Outcome.ACKNOWLEDGED)]
    found = Failovers("ours", "kill")
    found.count([(1.6, 1)], groups, events)
    assert (found.rounds, found.acknowledged) == (1, 2)
    assert [*found.elected, *found.taken] == pytest.approx([0.3, 1.0])
    assert found.row() == "| ours | kill | 1 | 2 | 0 | 0.30 s | 0.30 s | 1.00 s | 1.00 s |"


def played(folder: Path, schedule: Schedule, *, hits: bool, complaint: str = "") -> ScheduleRun:
    """A run in which nothing happened but what is asked for."""
    folder.mkdir(parents=True)
    run = ScheduleRun(FaultCluster(folder), schedule)
    events = events_of(LINES)
    run.applied = [
        Came("kill master", 1.2) if hits else Came("kill master", 0.2),
        Came("kill brokers at the end", 1.7),
    ]
    run.count(events)
    run.complaints = [complaint] if complaint else []
    return run


def test_a_schedule_that_hit_nothing_is_repeated(tmp_path: Path) -> None:
    lines: list[str] = []
    attempts: list[int] = []

    def run_one(folder: Path, schedule: Schedule) -> ScheduleRun:
        attempts.append(schedule.attempt)
        return played(folder, schedule, hits=schedule.attempt == 2)

    campaign = Campaign(tmp_path, 1, tell=lines.append, run_one=run_one)
    campaign.run()
    figures = campaign.figures
    assert (attempts, figures.schedules, figures.repeated, len(lines)) == ([0, 1, 2], 1, 2, 2)
    assert (figures.faults, figures.hits) == (
        {"kill master": 1, "kill brokers at the end": 1},
        {"kill master": 1, "kill brokers at the end": 2},
    )
    assert (
        figures.sent,
        figures.acknowledged,
        figures.stored,
        figures.doubtful,
        figures.refused,
        figures.copies,
    ) == (5, 1, 1, 1, 2, 1)
    assert any("1 acknowledged, 0 of them lost" in line for line in report(figures))
    assert Campaign(tmp_path, 1).figures == figures, "it goes on where it was"
    with pytest.raises(ValueError, match="belongs to seed 1"):
        Campaign(tmp_path, 2)


def test_schedules_that_never_hit_anything_are_an_error(tmp_path: Path) -> None:
    campaign = Campaign(
        tmp_path, 1, run_one=lambda folder, schedule: played(folder, schedule, hits=False)
    )
    with pytest.raises(PromiseBroken, match=f"in {ATTEMPTS_MAX} attempts no fault"):
        campaign.run()


def test_a_broken_promise_ends_the_campaign_and_leaves_everything(tmp_path: Path) -> None:
    campaign = Campaign(
        tmp_path,
        1,
        run_one=lambda folder, schedule: played(
            folder, schedule, hits=True, complaint="something is lost"
        ),
    )
    with pytest.raises(PromiseBroken, match=r"schedule 0 of seed 1.*something is lost"):
        campaign.run()
    assert (tmp_path / "schedule-0").is_dir()
    assert campaign.figures.schedules == 0
