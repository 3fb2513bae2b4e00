"""The soak by hand: ``make soak MINUTES=20 SEED=4711``. Prints the numbers, and ends with 1 if
something was lost or out of order, or if memory grew.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from soaking import new_seed, soak_processes

MINUTES_TO_JUDGE = 10
"""a shorter run says nothing about memory: pools and caches are still being filled"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0, help="0 chooses one")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    seed = arguments.seed or new_seed()
    print(f"soak of {arguments.minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="triomq-soak-") as folder:
        run = trio.run(soak_processes, arguments.minutes * 60, seed, Path(folder))
    print("\n".join(run.report()))
    failures = run.failures(judge_memory=arguments.minutes >= MINUTES_TO_JUDGE)
    for failure in failures:
        print("FAILED", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
