"""``make fault-test SCHEDULES=100 SEED=0``: a cluster in network namespaces, faults under load, and
everything that was acknowledged compared with what is there.

What a run has done lies in ``.faults/SEED``; a run that was stopped goes on there. ``--fresh``
begins anew. Exit code 1 when a promise was broken: the directory then has stores, logs and history
as they were found. ``make fault-matrix`` runs each mode of flush and replication through the same
losses and prints what each survives.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import attrs  # noqa: E402
import fault_clock  # noqa: E402
from fault_campaign import Campaign, PromiseBroken, report  # noqa: E402
from fault_cluster import EndedByItself  # noqa: E402
from fault_controllers import controlled_campaign, has_java  # noqa: E402
from fault_failovers import failover_table, measure_all  # noqa: E402
from fault_matrix import measure, table  # noqa: E402
from fault_network import why_not  # noqa: E402

WORK = HERE.parent.parent / ".faults"
TELL_SCHEDULES = 5


def tell(text: str) -> None:
    print(text, flush=True)


def run_only(campaign: Campaign, number: int) -> int:
    folder = campaign.folder / f"only-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    schedule = campaign.draw(number)
    tell(
        "\n".join(
            f"{step.at:5.2f} s: {step.kind} for {step.seconds:.1f} s ({step.number:g})"
            for step in schedule.steps
        )
    )
    run = campaign.run_one(folder, schedule)
    run.figures.schedules = 1
    tell("\n".join([*report(run.figures), *run.complaints, f"everything is in {folder}"]))
    return 1 if run.complaints else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/faults", description=__doc__.splitlines()[0]
    )
    parser.add_argument("what", choices=("schedules", "matrix", "failovers"))
    parser.add_argument(
        "--schedules", type=int, default=100, help="in all, those of an earlier run included (100)"
    )
    parser.add_argument(
        "--controllers",
        action="store_true",
        help="three controllers and three replicas in place of a name server, a master, a slave",
    )
    parser.add_argument(
        "--only",
        type=int,
        metavar="NUMBER",
        help="this one schedule of the seed, and leave its directory",
    )
    parser.add_argument("--rounds", type=int, default=3, help="for each place of a table (3)")
    parser.add_argument("--seed", type=int, default=0, help="of the numbers of every schedule (0)")
    parser.add_argument(
        "--fresh", action="store_true", help="forget what an earlier run of this seed has left"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    arguments = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(1)
    )  # namespaces are removed on the way out
    missing = why_not()
    if missing:
        print(f"fault-test: {missing}", file=sys.stderr)
        return 2
    if fault_clock.why_not():
        print(f"fault-test: {fault_clock.why_not()}; the others are played", file=sys.stderr)
    if arguments.what == "matrix":
        print("\n".join(table(measure(WORK / "matrix", arguments.rounds, arguments.seed, tell))))
        return 0
    if arguments.what == "failovers":
        print("\n".join(failover_table(measure_all(WORK / "failovers", arguments.rounds, tell))))
        return 0
    folder = WORK / f"{'controllers-' * arguments.controllers}{arguments.seed}"
    if arguments.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    campaign = (
        controlled_campaign(folder, arguments.seed, long=True, tell=tell, java_sender=has_java())
        if arguments.controllers
        else Campaign(folder, arguments.seed, long=True, tell=tell)
    )
    if arguments.only is not None:
        return run_only(campaign, arguments.only)
    begun = time.monotonic()
    try:
        while campaign.figures.schedules < arguments.schedules:
            campaign.run()
            figures = campaign.figures
            if figures.schedules % TELL_SCHEDULES == 0 and not arguments.json:
                tell(
                    f"{figures.schedules} of {arguments.schedules} schedules,"
                    f" {figures.acknowledged} messages acknowledged, {figures.lost} lost,"
                    f" {sum(figures.faults.values())} faults met requests;"
                    f" {time.monotonic() - begun:.0f} s"
                )
    except (PromiseBroken, EndedByItself, AssertionError) as error:
        print(
            f"fault-test: {error}\nfault-test: schedule {campaign.figures.schedules}, everything is"
            f" in {folder}",
            file=sys.stderr,
        )
        return 1
    print(
        json.dumps(attrs.asdict(campaign.figures))
        if arguments.json
        else "\n".join(report(campaign.figures))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
