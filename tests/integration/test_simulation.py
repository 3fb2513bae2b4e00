"""Whole clusters under faults in virtual time: three hundred histories in which every promise is kept, and broken clusters that are found out."""

from __future__ import annotations

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
from simulated_history import play
from simulated_plan import Mode, Plan, Told
from simulated_reading import scratch_folder

ROOT = Path(__file__).resolve().parents[2]
HISTORIES_A_TEST = 50
SEEDS_MAX = 400
"""A broken cluster must be found within so many seeds."""
def alone(plan: Plan) -> bool:
    """The master comes back with its disk, and has acknowledged without a slave."""
    return plan.mode is Mode.SYNC_ASYNC


def promoted(plan: Plan) -> bool:
    """The slave becomes master."""
    return plan.promote


FINDS: dict[str, tuple[int, Callable[[Plan], bool]]] = {
    "acknowledges_before_its_slave": (4, promoted),
    "acknowledges_before_fsync": (41, alone),
    "slave_acknowledges_before_fsync": (4, lambda plan: promoted(plan) and plan.power),
    "readers_see_what_the_disk_lacks": (27, alone),
    "goes_on_after_a_failed_fsync": (0, lambda plan: plan.power),
    "recovery_trusts_the_page_cache": (44, lambda plan: plan.power and not plan.promote),
    "consumers_know_one_broker": (7, lambda plan: plan.second and not plan.promote),
}
"""The seed to begin with, which found it when this was written, and the plans that can show it."""


def simulate(*arguments: object, code: int = 0) -> str:
    """Run the command that people run, as they run it."""
    command = [sys.executable, ROOT / "tests" / "simulate", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def histories(first: int, count: int, jobs: int = 1) -> list[dict[str, Any]]:
    return [json.loads(line) for line in simulate("--seed", first, "--seeds", count, "--jobs", jobs, "--json").splitlines() if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature(181)
@pytest.mark.parametrize("first", range(0, 300, HISTORIES_A_TEST))
def test_every_promise_is_kept(first: int) -> None:
    told = histories(first, HISTORIES_A_TEST, jobs=2)
    assert [history["seed"] for history in told] == list(range(first, first + HISTORIES_A_TEST))
    assert [history["seed"] for history in told if history["broken"]] == []
    assert sum(history["hits"] > 0 for history in told) > HISTORIES_A_TEST // 3  # else the faults would come too late
    assert sum(history["acknowledged"] for history in told) > 30 * HISTORIES_A_TEST
    assert all(history["delivered"] for history in told)


@pytest.mark.feature(181)
def test_one_seed_is_one_history() -> None:
    """To the last byte that was sent, in another process, and whatever was played before."""
    alone, (before, after) = histories(7, 1), histories(6, 2)
    assert alone == [after]
    assert before["digest"] != after["digest"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_cluster_is_found(name: str, quiet: None) -> None:
    first, can_show = FINDS[name]
    for seed in [first, *range(SEEDS_MAX)]:
        plan = Plan.of(seed)
        if not can_show(plan):
            continue
        with pytest.MonkeyPatch.context() as patch:
            BROKEN[name](patch)
            told = played(seed)
        if told.broken:
            assert not played(seed).broken  # the same history without the fault
            break
    else:
        raise AssertionError(f"{name}: {SEEDS_MAX} histories have not found it")


def played(seed: int) -> Told:
    with scratch_folder() as folder:
        return play(seed, folder / "history")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Hundreds of crashes: nobody wants to read what brokers say to them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    simulate("--seeds", 1, "--dir", tmp_path)
    assert "going on after 1 histories" in (told := simulate("--seeds", 2, "--dir", tmp_path))
    assert "2 histories, " in told


def test_a_failing_seed_names_the_command_that_plays_it_again(tmp_path: Path) -> None:
    note = tmp_path / "5.json"
    note.write_text(json.dumps({"played": 1, "broken": [5], "counts": {}}))
    told = simulate("--seeds", 1, "--seed", 5, "--dir", tmp_path, code=1)
    assert told.splitlines()[-1].strip() == "make simulate SEEDS=1 SEED=5 ARGS=--trace"
    trace = simulate("--seeds", 1, "--seed", 5, "--trace")
    assert "fault: " in trace
    assert "bytes" in trace
