"""``make crash-test ROUNDS=200 SEED=1``: kill a broker with SYNC_FLUSH under load, again and again,
and compare what it has with what it acknowledged.

The store and what was acknowledged lie in ``.crash/SEED``; a run that was stopped goes on there.
``--fresh`` begins anew. Exit code 1 when a promise was broken: the directory then has everything as
it was found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import attrs  # noqa: E402
from crash_grpc import GrpcSender  # noqa: E402
from crash_loop import CrashLoop, CrashLoopFailed, Sender  # noqa: E402

WORK = HERE.parent.parent / ".crash"
TELL_ROUNDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/crash", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds",
        type=int,
        default=200,
        help="kills in all, those of an earlier run included (200)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the numbers of every round (0)")
    parser.add_argument(
        "--fresh", action="store_true", help="forget what an earlier run of this seed has left"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    arguments = parser.parse_args()
    folder = WORK / str(arguments.seed)
    if arguments.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    loop = CrashLoop(folder, arguments.seed, senders=(Sender, GrpcSender))
    begun = time.monotonic()
    try:
        while loop.figures.rounds < arguments.rounds:
            loop.run()
            if loop.figures.rounds % TELL_ROUNDS == 0 and not arguments.json:
                figures = loop.figures
                print(
                    f"{figures.rounds} of {arguments.rounds} rounds, {figures.acknowledged}"
                    f" messages acknowledged, {figures.lost} lost, {figures.duplicates} twice;"
                    f" {time.monotonic() - begun:.0f} s",
                    flush=True,
                )
        figures = loop.finish()
    except CrashLoopFailed as error:
        print(f"crash-test: {error}\ncrash-test: the store is in {folder}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(attrs.asdict(figures)))
    else:
        print(
            f"{figures.rounds} kills under load and {figures.killed_while_starting} during"
            f" recovery: {figures.acknowledged} messages acknowledged, {figures.lost} lost,"
            f" {figures.duplicates} twice; {figures.stored_unanswered} more are there whose senders"
            " had no answer"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
