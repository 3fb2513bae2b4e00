"""Rows a second of the compose file's pipeline on a standalone cluster, by number of workers.

``python tests/bench/spark_workers.py [--workers 1 2] [--rows 336776]``: brokers, master, workers
and driver are processes of this machine. The rate is that of the last batch, which is warm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from examples.demo.dataset import flights_file, read_flights  # noqa: E402 - needs the path
from examples.demo.produce import Sent, produce  # noqa: E402
from tests.support.spark_peers import cluster, need_spark  # noqa: E402
from tests.support.spark_shipping import standalone  # noqa: E402


def pipeline(folder: Path, name_servers: str, master: str, batch: int) -> Path:
    """Write the pipeline for this machine, without its windows; its file."""
    text = (ROOT / "deploy" / "spark" / "flights.toml").read_text()
    before, _, rest = text.partition("[[windows]]")
    text = before + "[run]" + rest.partition("[run]")[2]
    for old, new in (
        ("namesrv-1:9876;namesrv-2:9876", name_servers),
        ("spark://spark-master:7077", master),
        ('"spark.driver.host" = "spark-job"', '"spark.driver.host" = "127.0.0.1"'),
        ("/var/lib/triomq/spark", str(folder)),
        ("flights.schema.json", str(ROOT / "deploy" / "spark" / "flights.schema.json")),
        ('"100000"', f'"{batch}"'),
    ):
        assert old in text, old
        text = text.replace(old, new)
    file = folder / "flights.toml"
    file.write_text(text)
    return file


def measured(name_servers: str, workers: int, batch: int) -> tuple[int, float]:
    """Return rows and seconds of the last full batch."""
    folder = Path(tempfile.mkdtemp(prefix="triomq-workers-"))
    with standalone(folder, Path(sys.executable), workers) as master:
        file = pipeline(folder, name_servers, master, batch)
        command = [sys.executable, "-m", "triomq.client.pipeline"]
        log = (folder / "run.log").open("w")
        process = subprocess.Popen([*command, "run", str(file)], stdout=log, stderr=log)
        try:
            best = (0, 0.0)
            while process.poll() is None:
                time.sleep(0.5)
                with contextlib.suppress(OSError, ValueError, KeyError):
                    status = json.loads((folder / "checkpoint" / "status.json").read_text())
                    query = status["queries"]["rows"]
                    if query["batch_rows"] >= batch // 2:
                        best = (query["batch_rows"], query["batch_seconds"])
                    if query["lag"] == 0 and query["rows"]:
                        return best
            raise SystemExit((folder / "run.log").read_text()[-3000:])
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows a second by number of workers")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rows", type=int, default=336_776)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="triomq-workers-"))
    need_spark(folder)
    with cluster(folder) as running:
        running.create_topic("flights", 4)
        flights = read_flights(flights_file(), options.rows)
        trio.run(produce, running.namesrv, "flights-producers", "flights", flights, Sent())
        print(f"{options.rows:,} flights; {os.cpu_count()} cores for all processes")
        for workers in options.workers:
            rows, seconds = measured(running.namesrv, workers, options.rows // 3)
            print(f"| {workers} | {rows / seconds:,.0f} | {rows:,} rows in {seconds:.1f} s |")


if __name__ == "__main__":
    main()
