"""Whole controllers in virtual time, one history for each seed; one with a broken rule is found.

``CONTROLLER_SEEDS=1000 pytest tests/property/test_controller_simulation.py -k histories`` plays
more.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from controller_cluster import ControllerBroken, play_controllers
from simulated_disk import SimulatedDisk

from triomq.namesrv.controller.command_log import CommandLog
from triomq.namesrv.controller.replicated_state import ReplicatedState, _decoder
from triomq.namesrv.controller.transitions import Applied, apply
from triomq.remoting.core.settings import ConfigError

SEEDS = int(os.environ.get("CONTROLLER_SEEDS", "6"))
_take = ReplicatedState._take


@pytest.mark.parametrize("part", range(2))
def test_histories_keep_every_promise(part: int, tmp_path: Path) -> None:
    played = [play_controllers(seed, tmp_path) for seed in range(part, SEEDS, 2)]
    assert sum(len(one.terms) for one in played) > 2 * len(played)
    assert sum(one.taken for one in played) > 10 * len(played)
    assert sum(one.read for one in played) > 20 * len(played)


async def _asks_nobody(log: CommandLog) -> None:
    """Any controller answers from what it has."""


def _answers_when_appended(self: Any, event: Any, now: float, result: Any) -> None:
    _take(self, event, now, result)
    for place, request in list(self._proposals.items()):
        entry = self.node.log.between(place[0], place[0])
        if entry:
            result.answers[request] = Applied(apply(self.state, _decode(entry[0].data)).state)


def _decode(data: bytes) -> Any:
    return _decoder.decode(data)


MUTANTS: dict[str, tuple[type, str, Any]] = {
    "an fsync is skipped": (SimulatedDisk, "sync", lambda disk, fd: None),
    "a command is answered before it is committed": (
        ReplicatedState,
        "_take",
        _answers_when_appended,
    ),
    "a follower answers": (CommandLog, "confirm_lead", _asks_nobody),
}
"""Broken rule -> what is broken how."""
FOUND_WITHIN = 10
"""Seeds. What a power failure leaves depends on the order in which a folder lists its files."""


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_broken_rule_is_found(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, broken = MUTANTS[rule]
    monkeypatch.setattr(owner, attribute, broken)
    assert any(_is_found(seed, tmp_path) for seed in range(FOUND_WITHIN))


def _is_found(seed: int, folder: Path) -> bool:
    found = False
    try:
        play_controllers(seed, folder)
    except* (ControllerBroken, ConfigError):  # the second: a log that has lost what was durable
        found = True
    return found
