"""A real broker with SYNC_FLUSH, killed under load by both protocols again and again: nothing
acknowledged is lost, nothing is there twice. ``make crash-test`` does it 200 times.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from crash_grpc import GrpcSender
from crash_loop import CrashLoop, CrashLoopFailed, Sender

BROKEN = Path(__file__).resolve().parents[2] / "support" / "broken_broker.py"


@pytest.mark.slow
@pytest.mark.feature("42b", "51a", "51b", "197c")
def test_ten_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    loop = CrashLoop(tmp_path, 1, senders=(Sender, GrpcSender))
    for _ in range(5):
        loop.run()
    loop = CrashLoop(
        tmp_path, 1, senders=(Sender, GrpcSender)
    )  # the run was interrupted, and goes on
    assert loop.figures.rounds == 5
    for _ in range(5):
        loop.run()
    figures = loop.finish()
    assert (figures.rounds, figures.lost, figures.duplicates) == (10, 0, 0)
    assert figures.stored >= figures.acknowledged > 500
    assert sum(figures.queue_ends) == figures.stored


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "kind", "words"),
    [
        ("acknowledge-before-write", GrpcSender, r"[1-9]\d* acknowledged messages lost"),
        ("store-twice", Sender, r"[1-9]\d* (duplicates|faults of POP)|gaps"),
        ("pop-again", Sender, r"[1-9]\d* faults of POP"),
    ],
)
def test_a_broker_with_one_rule_broken_is_found_out(
    tmp_path: Path, rule: str, kind: type[Sender], words: str
) -> None:
    loop = CrashLoop(
        tmp_path,
        1,
        command=(sys.executable, str(BROKEN), rule),
        senders=(kind,),
        load_seconds=(0.3, 0.5),
    )

    def rounds() -> None:
        for _ in range(12):  # on a busy machine a kill may find nothing unfinished
            loop.run()

    with pytest.raises(CrashLoopFailed, match=words):
        rounds()
    assert loop.figures.lost or loop.figures.duplicates or loop.popped.wrong


def test_another_seed_needs_another_directory(tmp_path: Path) -> None:
    CrashLoop(tmp_path, 1)._save()
    with pytest.raises(ValueError, match="belongs to seed 1"):
        CrashLoop(tmp_path, 2)
