"""``make simulate SEEDS=10000 SEED=0``: histories of a simulated cluster under faults, one for each
seed, compared with what was promised.

What has been played is noted in ``.simulate``, so a run that was stopped goes on; ``--fresh`` plays
all again. Exit code 1 when a promise was broken: the last line is the command that plays the first
such seed again and prints all that happened.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from traceback import format_exception

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import attrs  # noqa: E402

WORK = HERE.parent.parent / ".simulate"
TELL_SEEDS, SAVE_SEEDS = 100, 10


@attrs.define
class Sum:
    """Of all histories of a run."""

    played: int = 0
    broken: list[int] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)


def play_one(seed: int, *, trace: bool = False, controllers: bool = False) -> dict[str, object]:
    """Play a seed; return what the history found, as plain values."""
    from simulated_failover import play_controlled
    from simulated_history import play
    from simulated_plan import Plan
    from simulated_reading import (
        scratch_folder,
    )  # not at the start: `--help` must not load a broker

    logging.getLogger().setLevel(logging.INFO if trace else logging.CRITICAL)
    with scratch_folder() as folder:
        try:
            play_seed = play_controlled if controllers else play
            result = play_seed(seed, folder / str(seed), tell=print if trace else None)
        except Exception as error:
            return {
                "seed": seed,
                "plan": str(Plan.controlled(seed) if controllers else Plan.of(seed)),
                "broken": ["".join(format_exception(error))],
                "digest": "",
            }
    return {**attrs.asdict(result), "plan": str(result.plan)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/simulate", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--seeds", type=int, default=300, help="how many, those of an earlier run included (300)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first one (0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument(
        "--dir", type=Path, default=WORK, help="where it is noted what has been played (.simulate)"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="forget what an earlier run from this seed on has played",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="print everything that happens, with times, and the programs' logs",
    )
    parser.add_argument(
        "--controllers", action="store_true", help="groups in controller mode, whose masters fail"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each seed")
    arguments = parser.parse_args()
    if (
        os.environ.get("PYTHONHASHSEED") != "0"
    ):  # else sets would be walked through in another order by each process
        os.execve(
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    if arguments.trace:
        logging.basicConfig(format="             %(levelname)s %(name)s: %(message)s")
    kind = "controllers-" if arguments.controllers else ""
    note = arguments.dir / f"{kind}{arguments.seed}.json"
    resumable = not arguments.trace and not arguments.json
    found = Sum()
    if resumable and not arguments.fresh and note.exists():
        kept = json.loads(note.read_text())
        found = Sum(kept["played"], kept["broken"], Counter(kept["counts"]))
        print(f"going on after {found.played} histories of an earlier run", flush=True)
    begun = time.monotonic()
    seeds = range(arguments.seed + found.played, arguments.seed + arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs) if arguments.jobs > 1 else _InThisProcess() as pool:
        for number, result in enumerate(
            pool.map(
                partial(play_one, trace=arguments.trace, controllers=arguments.controllers), seeds
            ),
            1,
        ):
            found.played += 1
            found.counts.update(
                {
                    name: value
                    for name, value in result.items()
                    if isinstance(value, int) and name != "seed"
                }
            )
            if arguments.json:
                print(json.dumps(result), flush=True)
            if result["broken"]:
                found.broken.append(int(str(result["seed"])))
                print(
                    f"seed {result['seed']} ({result['plan']}):",
                    *result["broken"],
                    sep="\n  ",
                    file=sys.stderr,
                    flush=True,
                )
            if not resumable:
                continue
            telling = number % TELL_SEEDS == 0 or bool(result["broken"]) or number == len(seeds)
            if telling or number % SAVE_SEEDS == 0:
                arguments.dir.mkdir(parents=True, exist_ok=True)
                fresh = note.with_suffix(".new")
                fresh.write_text(
                    json.dumps(
                        {"played": found.played, "broken": found.broken, "counts": found.counts}
                    )
                )
                fresh.replace(note)
            if telling:
                print(
                    f"{found.played} of {arguments.seeds} histories, {len(found.broken)} broken;"
                    f" {time.monotonic() - begun:.0f} s",
                    flush=True,
                )
    if not arguments.json:
        counts = found.counts
        print(
            f"{found.played} histories, {counts['faults']} faults, {counts['hits']} of them with a"
            f" request in flight; {counts['acknowledged']} messages acknowledged,"
            f" {counts['unknown']} tries of unknown outcome, {counts['refused']} refused,"
            f" {counts['delivered']} deliveries"
        )
    if found.broken:
        print(
            f"{len(found.broken)} broken histories; the first one again:\n  make simulate SEEDS=1"
            f" SEED={found.broken[0]} ARGS="
            + ('"--controllers --trace"' if arguments.controllers else "--trace")
        )
    return 1 if found.broken else 0


class _InThisProcess:
    """A pool of no processes."""

    map = staticmethod(map)

    def __enter__(self) -> _InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        return


if __name__ == "__main__":
    sys.exit(main())
