"""``make spark-chaos RUNS=39 SEED=0``: faults inside the micro-batches of Spark queries that read
and write topics; everything that was sent is compared with what was written.

What has been done lies in ``.spark-chaos/SEED``; a campaign that was stopped goes on there.
``--fresh`` begins anew. Exit code 1 when a promise was broken: the folder then has checkpoints,
output, stores and logs as they were found.
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
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "support")]

from tests.spark_chaos.chaos_campaign import ChaosCampaign, ChaosFound, report  # noqa: E402
from tests.spark_chaos.plan import DoesNotCount  # noqa: E402
from tests.spark_chaos.scene import open_scene  # noqa: E402
from triomq.client.spark.java_runtime import JavaNotFound, prepare_java  # noqa: E402

WORK = HERE.parents[1] / ".spark-chaos"


def tell(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/spark_chaos", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--runs", type=int, default=39, help="in all, those of an earlier start included (39)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the numbers of every run (0)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this one run of the seed")
    parser.add_argument(
        "--lake",
        choices=("parquet", "delta"),
        default="parquet",
        help="the tables of pipelines; delta: only runs with pipelines (parquet)",
    )
    parser.add_argument(
        "--broken",
        action="store_true",
        help="with --only: the driver breaks a rule, which the run must find",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget what an earlier start of this seed has left"
    )
    parser.add_argument("--json", action="store_true", help="print all records as one JSON object")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # the servers end, too
    words = [str(arguments.seed), arguments.lake, "only" if arguments.only is not None else ""]
    folder = WORK / "-".join(word for word in words if word not in ("", "parquet"))
    if arguments.fresh or arguments.only is not None:
        shutil.rmtree(folder, ignore_errors=True)
    servers = folder / "servers"
    shutil.rmtree(servers, ignore_errors=True)
    begun = time.monotonic()
    try:
        prepare_java(folder / "java")
        with open_scene(servers, arguments.lake) as scene:
            campaign = ChaosCampaign(
                folder, arguments.seed, scene, (lambda text: None) if arguments.json else tell
            )
            if arguments.only is not None:
                record = campaign.read(arguments.only, broken=arguments.broken)
                tell(json.dumps(record, indent=2))
                return 0
            while len(campaign.runs) < arguments.runs:
                campaign.read_next()
            if arguments.lake == "parquet":
                campaign.write()
    except JavaNotFound as error:
        print(f"spark-chaos: {error}", file=sys.stderr)
        return 2
    except (ChaosFound, DoesNotCount, AssertionError) as error:
        print(f"spark-chaos: {error}\nspark-chaos: everything is in {folder}", file=sys.stderr)
        return 1
    if arguments.json:
        tell(json.dumps({"runs": campaign.runs, "sink": campaign.sink}))
    else:
        tell("\n".join([*report(campaign), f"{time.monotonic() - begun:.0f} s"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
