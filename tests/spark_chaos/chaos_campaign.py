"""Many runs after each other, and what they found. A campaign belongs to a seed and a folder, and
goes on there after an interruption.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tests.spark_chaos.pipelines import PipelinesRun
from tests.spark_chaos.plan import KINDS, OF_PIPELINES, DoesNotCount, draw, sink_victims
from tests.spark_chaos.reading import ReadingRun
from tests.spark_chaos.scene import Scene
from tests.spark_chaos.writing import WritingRun

ATTEMPTS_MAX = 3
SINK_KILLS = 10


class ChaosFound(AssertionError):
    """A run broke a promise; its folder is left as it is."""


@attrs.define(eq=False)
class ChaosCampaign:
    """``read_next`` and ``write`` do what is missing."""

    folder: Path
    seed: int
    scene: Scene
    tell: Callable[[str], None] = lambda text: None
    runs: list[dict[str, Any]] = attrs.field(factory=list, init=False)
    sink: dict[str, Any] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._state.exists():
            saved = json.loads(self._state.read_text())
            self.runs, self.sink = saved["runs"], saved["sink"]

    @property
    def _state(self) -> Path:
        return self.folder / "chaos.json"

    def _save(self) -> None:
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps({"seed": self.seed, "runs": self.runs, "sink": self.sink}))
        os.replace(fresh, self._state)

    def read_next(self) -> dict[str, Any]:
        """Do the next reading run. Raises: ChaosFound, DoesNotCount."""
        record = self.read(len(self.runs))
        self.runs.append(record)
        self._save()
        return record

    def read(self, number: int, *, broken: bool = False) -> dict[str, Any]:
        """Do a reading run; with ``broken`` one rule is broken that it must find. Where pipelines
        write to Delta or Iceberg, all runs have pipelines. Raises: ChaosFound, DoesNotCount.
        """
        of_all = self.scene.host.lake == "parquet"
        plan = draw(self.seed, number, tuple(KINDS) if of_all else OF_PIPELINES)

        def play(folder: Path) -> dict[str, Any]:
            if plan.kind in OF_PIPELINES:
                return PipelinesRun(self.scene, plan, folder, broken).play()
            source = "rocketmq-forgetful" if broken else "rocketmq"
            return ReadingRun(self.scene, plan, folder, source).play()

        record = self._counting(f"read-{number}", play)
        self.tell(
            f"{number}: {plan.kind} ({plan.variant}) in batch {plan.batch}: {record['sent']} sent,"
            f" {record['rows']} rows judged; {record['seconds']} s"
        )
        return record

    def write(self, kills: int = SINK_KILLS) -> dict[str, Any]:
        """Do the writing run, if it is missing. Raises: ChaosFound, DoesNotCount."""
        if self.sink is None:
            victims = sink_victims(self.seed, kills)
            record = self._counting(
                "write", lambda folder: WritingRun(self.scene, folder, victims).play()
            )
            self.sink = record
            self._save()
        return self.sink

    def _counting(self, name: str, play: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Play a run until its faults fell inside batches."""
        for attempt in range(ATTEMPTS_MAX):
            folder = self.folder / f"{name}-{attempt}"
            shutil.rmtree(folder, ignore_errors=True)
            try:
                record = play(folder)
            except DoesNotCount as error:
                self.tell(f"{name} does not count and is played again: {error}")
                continue
            if record["complaints"]:
                raise ChaosFound(f"{name} of seed {self.seed}: {'; '.join(record['complaints'])}")
            shutil.rmtree(folder)
            return record | {"attempts": attempt + 1}
        raise DoesNotCount(f"{name} of seed {self.seed}: none of {ATTEMPTS_MAX} attempts counts")


def report(campaign: ChaosCampaign) -> list[str]:
    """For people."""
    runs = campaign.runs
    kinds = Counter(f"{run['kind']}, {run['variant']}" for run in runs)
    lines = [
        (
            f"{len(runs)} runs, each with its fault inside a batch of both queries: 0 lost, 0 twice"
            f" in {sum(run['rows'] for run in runs)} rows of"
            f" {sum(run['sent'] for run in runs)} messages"
            f" ({sum(run['attempts'] - 1 for run in runs)} further attempts did not count)"
        ),
        *(f"  {count} x {kind}" for kind, count in sorted(kinds.items())),
    ]
    if campaign.sink is not None:
        sink = campaign.sink
        victims = Counter(kill["victim"] for kill in sink["kills"])
        killed = ", ".join(f"{count} x {victim}" for victim, count in sorted(victims.items()))
        lines.append(
            f"sink: {len(sink['kills'])} kills inside batches ({killed}): {sink['sent']} rows, 0"
            f" lost; {sink['repeats']} repeats, all known by __SPARK"
        )
    return lines
