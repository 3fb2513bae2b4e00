"""Many schedules of faults after each other, and what they came to. A campaign belongs to a seed
and a directory, and goes on there after an interruption.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import fault_clock
from fault_cluster import FaultCluster
from fault_schedules import KINDS, SERVERS, Figures, Schedule, ScheduleRun, draw

ATTEMPTS_MAX = 5
STOP_SECONDS, LONG_STOP_SECONDS = 3.0, 30.0


class PromiseBroken(AssertionError):
    """A schedule found something; its directory is left as it is."""


@attrs.define
class Campaign:
    """``run`` does the next schedule that is missing."""

    folder: Path
    seed: int
    long: bool = False
    """Whether some stopped processes stay so for half a minute."""
    tell: Callable[[str], None] = lambda text: None
    run_one: Callable[[Path, Schedule], ScheduleRun] = attrs.field(
        default=lambda folder, schedule: run_schedule(folder, schedule)
    )
    deck: Sequence[str] = KINDS
    servers: Sequence[str] = SERVERS
    figures: Figures = attrs.field(factory=Figures, init=False)

    def __attrs_post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._state.exists():
            saved = json.loads(self._state.read_text())
            if saved["seed"] != self.seed:
                raise ValueError(
                    f"{self.folder} belongs to seed {saved['seed']}; take that one, or another"
                    " directory"
                )
            self.figures = Figures(**saved["figures"])

    @property
    def _state(self) -> Path:
        return self.folder / "faults.json"

    def _save(self) -> None:
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps({"seed": self.seed, "figures": attrs.asdict(self.figures)}))
        os.replace(fresh, self._state)

    def draw(self, number: int, attempt: int = 0) -> Schedule:
        return draw(
            self.seed,
            number,
            attempt,
            stop_seconds=LONG_STOP_SECONDS if self.long else STOP_SECONDS,
            deck=self.deck,
            servers=self.servers,
        )

    def run(self) -> ScheduleRun:
        """The next schedule; one in which no fault met a request is repeated with other numbers.
        Raises PromiseBroken, and whatever a server ends with.
        """
        number = self.figures.schedules
        for attempt in range(ATTEMPTS_MAX):
            schedule = self.draw(number, attempt)
            folder = self.folder / f"schedule-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            run = self.run_one(folder, schedule)
            if run.complaints:
                raise PromiseBroken(
                    f"schedule {number} of seed {self.seed},"
                    f" {[step.kind for step in schedule.steps]}: " + "; ".join(run.complaints)
                )
            shutil.rmtree(folder)
            if run.counts:
                self.figures.add(run.figures)
                self.figures.schedules += 1
                self._save()
                return run
            self.figures.repeated += 1
            self.tell(
                f"schedule {number}: no fault has met a request, it does not count and is drawn"
                " again"
            )
        raise PromiseBroken(
            f"schedule {number} of seed {self.seed}: in {ATTEMPTS_MAX} attempts no fault has met a"
            " request"
        )


def run_schedule(
    folder: Path, schedule: Schedule, rules: dict[str, str] | None = None
) -> ScheduleRun:
    with FaultCluster(
        folder,
        rules=rules or {},
        sync_seconds=schedule.sync_seconds,
        relayed=schedule.relayed,
        acting=schedule.acting,
        small=schedule.small,
        few_files=schedule.few_files,
        delays=schedule.delays,
        seed=schedule.seed,
    ) as cluster:
        run = ScheduleRun(cluster, schedule)
        run.run()
        return run


def report(figures: Figures) -> list[str]:
    """For people."""
    lines = [
        *filter(None, [fault_clock.why_not()]),
        (
            f"{figures.schedules} schedules ({figures.repeated} more had no fault that met a"
            f" request): {figures.sent} sends, {figures.acknowledged} acknowledged, {figures.lost}"
            " of them lost"
        ),
        (
            f"{figures.stored} stored on the master alone, {figures.doubtful} in doubt,"
            f" {figures.refused} refused or without a broker; {figures.copies} messages are there"
            " more than once"
        ),
        (
            f"{figures.delayed} delayed messages acknowledged, {figures.given_back} given back by"
            f" consumers; {figures.promotions} slaves became master"
        ),
        (
            f"{figures.seen} messages handed to consumers; {figures.power_lost_bytes} bytes lost"
            " with the power"
        ),
        (
            f"faults that met requests: {sum(figures.faults.values())} (and {figures.missed} that"
            " met none)"
        ),
    ]
    return lines + [
        f"  {kind:24} {times:4} times, {figures.hits[kind]:6} sends in flight"
        for kind, times in sorted(figures.faults.items())
    ]
