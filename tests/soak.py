"""The soak by hand: `make soak MINUTES=20 SEED=4711`.  Prints the numbers, and ends with 1 if something was lost or out of order."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from soaking import new_seed, soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0, help="0 chooses one")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    seed = arguments.seed or new_seed()
    print(f"soak of {arguments.minutes:g} minutes, seed {seed}", flush=True)
    run = trio.run(soak, arguments.minutes * 60, seed)
    print("\n".join(run.report()))
    for failure in run.failures():
        print("FAILED", failure)
    return 1 if run.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
