"""Whole clusters under faults in virtual time: histories in which every promise is kept, other
ones each day, and broken clusters that are found out.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_clusters import BROKEN
from ci_rules import STALE_SEED
from simulated_history import play
from simulated_plan import HistoryResult, Mode, Plan
from simulated_reading import scratch_folder

ROOT = Path(__file__).resolve().parents[3]
HISTORIES = 48
PLAYED_BEFORE = 10_000
"""Seeds from 0 on that ``make simulate`` has played; each day's window is some of them."""
SEEDS_MAX = 400
"""A broken cluster must be found within this number of seeds."""


def alone(plan: Plan) -> bool:
    """The master comes back with its disk, and has acknowledged without a slave."""
    return plan.mode is Mode.SYNC_ASYNC


def promoted(plan: Plan) -> bool:
    """The slave becomes master."""
    return plan.promote


def jumped(plan: Plan) -> bool:
    """The clock of a master jumps by an hour or more, with delayed messages."""
    return plan.delays and abs(plan.jump) > 1000


def timed(plan: Plan) -> bool:
    """There are messages with a time of delivery."""
    return plan.timers


def asked(plan: Plan) -> bool:
    """There are requests and replies."""
    return plan.requests


def popped(plan: Plan) -> bool:
    """A topic is popped."""
    return plan.pops


FINDS: dict[str, tuple[int, Callable[[Plan], bool]]] = {
    "acknowledges_before_its_slave": (4, promoted),
    "acknowledges_before_fsync": (9, alone),
    "slave_acknowledges_before_fsync": (18, lambda plan: promoted(plan) and plan.power),
    "readers_see_what_the_disk_lacks": (25, alone),
    "goes_on_after_a_failed_fsync": (19, lambda plan: plan.power),
    "recovery_trusts_the_page_cache": (55, lambda plan: plan.power and not plan.promote),
    "consumers_know_one_broker": (7, lambda plan: plan.second and not plan.promote),
    "levels_wake_before_messages_can_be_read": (19, lambda plan: plan.delays and plan.power),
    "delays_end_by_the_wall_clock": (1, jumped),
    "progress_is_saved_ahead_of_the_copies": (19, lambda plan: plan.stuck),
    "progress_of_delays_counts_without_its_copies": (19, lambda plan: plan.stuck),
    "a_slave_takes_delay_progress_beyond_its_log": (10, lambda plan: plan.detached),
    "a_slave_takes_consumer_offsets_beyond_its_log": (10, lambda plan: plan.detached),
    "progress_of_transactions_is_saved_ahead_of_the_log": (
        144,
        lambda plan: plan.transactions and plan.power,
    ),
    "a_committed_transaction_stays_open": (5, lambda plan: plan.transactions),
    "a_start_forgets_open_transactions": (27, lambda plan: plan.transactions),
    "timed_messages_come_a_slot_early": (0, timed),
    "slots_are_opened_late": (7, timed),
    "a_message_comes_at_the_end_of_the_wheel": (0, timed),
    "a_message_is_dropped_at_the_end_of_the_wheel": (0, timed),
    "recalls_have_no_effect": (0, timed),
    "recalls_of_later_slots_are_forgotten": (0, timed),
    "a_start_skips_what_was_due_meanwhile": (7, timed),
    "a_start_takes_the_wheel_for_complete": (4, timed),
    "progress_of_timers_is_saved_ahead_of_the_log": (90, lambda plan: plan.timers and plan.stuck),
    "progress_of_timers_is_saved_ahead_of_the_timer_log": (
        0,
        lambda plan: plan.timers and plan.power,
    ),
    "a_slave_takes_timer_progress_beyond_its_log": (
        4,
        lambda plan: plan.timers and plan.detached,
    ),
    "a_reply_ends_the_oldest_request": (16, asked),
    "a_reply_names_the_request_before": (18, asked),
    "a_reply_goes_to_any_requester": (16, asked),
    "a_broker_answers_before_the_requester_does": (50, asked),
    "a_request_waits_on_after_its_timeout": (16, asked),
    "a_request_has_twice_its_time": (16, asked),
    "a_start_does_not_restore_positions": (15, popped),
    "messages_come_again_before_their_time": (27, popped),
    "acknowledgements_are_kept_in_memory": (3, popped),
    "invisible_times_end_by_the_wall_clock": (27, lambda plan: plan.pops and plan.jump > 0),
    "positions_are_saved_before_their_check_points": (63, lambda plan: plan.pops and plan.stuck),
    "a_check_point_ends_with_its_first_acknowledgement": (3, popped),
    "progress_of_the_revive_topic_is_what_was_read": (63, popped),
}
"""The first seed, which found it when this was written (with PYTHONHASHSEED=0, as in CI), and the
plans that can show it.
"""
COMPLAINS = {
    "levels_wake_before_messages_can_be_read": "never ",
    "delays_end_by_the_wall_clock": "delayed message",
    "progress_is_saved_ahead_of_the_copies": "was acknowledged, and never came",
    "progress_of_delays_counts_without_its_copies": "was acknowledged, and never came",
    "a_slave_takes_delay_progress_beyond_its_log": "was acknowledged, and never came",
    "a_slave_takes_consumer_offsets_beyond_its_log": "G never got",
    "progress_of_transactions_is_saved_ahead_of_the_log": "its message is not there",
    "a_committed_transaction_stays_open": "was delivered ",
    "a_start_forgets_open_transactions": "its message is not there",
    "timed_messages_come_a_slot_early": "too early",
    "slots_are_opened_late": "too late",
    "a_message_comes_at_the_end_of_the_wheel": "too early",
    "a_message_is_dropped_at_the_end_of_the_wheel": "was acknowledged, and never came",
    "recalls_have_no_effect": "was recalled, and came",
    "recalls_of_later_slots_are_forgotten": "was recalled, and came",
    "a_start_skips_what_was_due_meanwhile": "was acknowledged, and never came",
    "a_start_takes_the_wheel_for_complete": "was acknowledged, and never came",
    "progress_of_timers_is_saved_ahead_of_the_log": "was acknowledged, and never came",
    "progress_of_timers_is_saved_ahead_of_the_timer_log": "was acknowledged, and never came",
    "a_slave_takes_timer_progress_beyond_its_log": "was acknowledged, and never came",
    "a_reply_ends_the_oldest_request": "got the reply",
    "a_reply_names_the_request_before": "got no reply when all was well",
    "a_reply_goes_to_any_requester": "was told that its reply arrived, and it did not",
    "a_broker_answers_before_the_requester_does": "was told that its reply arrived",
    "a_request_waits_on_after_its_timeout": "says RequestStatistics(waiting=",
    "a_request_has_twice_its_time": "and has taken",
    "a_start_does_not_restore_positions": "was acknowledged, and came again",
    "messages_come_again_before_their_time": "was acknowledged, and came again",
    "acknowledgements_are_kept_in_memory": "was acknowledged, and came again",
    "invisible_times_end_by_the_wall_clock": "was acknowledged, and came again",
    "positions_are_saved_before_their_check_points": "came and is lost",
    "a_check_point_ends_with_its_first_acknowledgement": "came and is lost",
    "progress_of_the_revive_topic_is_what_was_read": "came and is lost",
}
"""The complaint about the rule that is broken, if others may come with it."""


def simulate(*arguments: object, code: int = 0) -> str:
    """Run the command of ``make simulate`` as a process."""
    command = [sys.executable, ROOT / "tests" / "simulate", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def histories(first: int, count: int, jobs: int = 1) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in simulate(
            "--seed", first, "--seeds", count, "--jobs", jobs, "--json"
        ).splitlines()
        if line.startswith("{")
    ]


def first_of_the_day() -> int:
    """The first seed of the window that belongs to the day of the newest commit."""
    words = ("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    seconds = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return int(seconds) // 86400 * HISTORIES % PLAYED_BEFORE


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("181b")
def test_every_promise_is_kept() -> None:
    first = first_of_the_day()
    results = histories(first, HISTORIES, jobs=2)
    assert [history["seed"] for history in results] == list(range(first, first + HISTORIES))
    assert [history["seed"] for history in results if history["broken"]] == []
    assert (
        sum(history["hits"] > 0 for history in results) > HISTORIES // 3
    )  # else the faults would come too late
    assert sum(history["acknowledged"] for history in results) > 30 * HISTORIES
    assert all(history["delivered"] for history in results)
    for kind in ("delayed", "given_back", "transactions", "timed", "requests", "popped"):
        assert sum(history[kind] for history in results) > 0, kind


@pytest.mark.feature("181a")
def test_one_seed_is_one_history() -> None:
    """Equal to the last byte that was sent, in another process, and after any other history."""
    alone, (before, after) = histories(7, 1), histories(6, 2)
    assert alone == [after]
    assert before["digest"] != after["digest"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_cluster_is_found(
    name: str, quiet: None, record_property: Callable[[str, object], None]
) -> None:
    first, can_show = FINDS[name]
    for seed in [first, *range(SEEDS_MAX)]:
        plan = Plan.of(seed)
        if not can_show(plan):
            continue
        with pytest.MonkeyPatch.context() as patch:
            BROKEN[name](patch)
            result = played(seed)
        if any(COMPLAINS.get(name, "") in text for text in result.broken):
            assert not broken_without_the_fault(seed)
            if seed != first:
                record_property(STALE_SEED, f"{name} is found by {seed} now, not by {first}")
            break
    else:
        raise AssertionError(f"{name}: {SEEDS_MAX} histories have not found it")


@functools.cache
def broken_without_the_fault(seed: int) -> tuple[str, ...]:
    """Several broken clusters are found by the same history."""
    return tuple(played(seed).broken)


def played(seed: int) -> HistoryResult:
    with scratch_folder() as folder:
        return play(seed, folder / "history")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Hide what brokers log about hundreds of crashes."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    note = tmp_path / "0.json"
    note.write_text(json.dumps({"played": 1, "broken": [], "counts": {}}))
    assert "going on after 1 histories" in (output := simulate("--seeds", 2, "--dir", tmp_path))
    assert "2 histories, " in output
    assert json.loads(note.read_text())["played"] == 2


def test_a_failing_seed_names_the_command_that_plays_it_again(tmp_path: Path) -> None:
    note = tmp_path / "5.json"
    note.write_text(json.dumps({"played": 1, "broken": [5], "counts": {}}))
    output = simulate("--seeds", 1, "--seed", 5, "--dir", tmp_path, code=1)
    assert output.splitlines()[-1].strip() == "make simulate SEEDS=1 SEED=5 ARGS=--trace"
    trace = simulate("--seeds", 1, "--seed", 5, "--trace")
    assert "fault: " in trace
    assert "bytes" in trace
