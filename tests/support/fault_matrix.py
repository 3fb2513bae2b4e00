"""What each mode of flush and replication survives, measured: messages are acknowledged under load,
one failure follows, and the lost messages are counted.

The master's network has 2 Mbit/s (less if its senders do not fill that) and an fsync takes 5 ms, so
that a slave may be behind and messages can be lost. A power loss takes everything that was not
synced. The rest is read by pulls from the broker that goes on: the master, started again, or, if
its disk is lost, the slave, started as master. Delayed messages are counted, too, when all of them
are due.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import attrs
from fault_clients import read_into
from fault_cluster import BROKERS, FaultCluster, Mode, log_part
from fault_delays import DELAYS
from fault_history import DELAYED_TOPIC, TOPIC, FoundMessage, missing
from fault_process import start

MODES = tuple(
    Mode(flush, replication)
    for replication in ("ASYNC_MASTER", "SYNC_MASTER")
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")
)
LOSSES = ("master killed", "master loses power", "master's disk lost", "both lose power")
KILOBITS, KILOBITS_LEAST = 2000, 100
LAG_SECONDS = 5
LAG_LEAST_BYTES = 16 * 1024
"""A busy machine may send no faster than the slow link takes it; then nothing could be lost, and
nothing would be shown.
"""
SYNC_SECONDS = 0.005
LOAD_LEAST = 200
LOAD_SECONDS = 1.2
READ_SECONDS = 60
LATE_SECONDS = 2.0
"""After the longest delay."""


@attrs.frozen
class Cell:
    """Of how many acknowledged messages how many were lost."""

    acknowledged: int = 0
    lost: int = 0
    delayed: int = 0
    delayed_lost: int = 0

    def __add__(self, other: Cell) -> Cell:
        return Cell(
            *(
                mine + theirs
                for mine, theirs in zip(attrs.astuple(self), attrs.astuple(other), strict=True)
            )
        )


def measure(
    folder: Path, rounds: int, seed: int, tell: Callable[[str], None] = lambda text: None
) -> dict[tuple[Mode, str], Cell]:
    """Measure every mode with every loss, ``rounds`` times."""
    found: dict[tuple[Mode, str], Cell] = {}
    for mode in MODES:
        for loss in LOSSES:
            cell = Cell()
            for number in range(rounds):
                shutil.rmtree(folder, ignore_errors=True)
                cell += measure_one(folder, mode, loss, f"{seed}/{number}", delays=True)
            found[mode, loss] = cell
            tell(
                f"{mode}, {loss}: {cell.lost} of {cell.acknowledged} lost, {cell.delayed_lost} of"
                f" {cell.delayed} delayed ones"
            )
    shutil.rmtree(folder, ignore_errors=True)
    return found


def measure_one(folder: Path, mode: Mode, loss: str, seed: str, *, delays: bool = False) -> Cell:
    """Play one loss. ``delays``: there are delayed messages, too."""
    with FaultCluster(
        folder,
        mode=mode,
        sync_seconds=SYNC_SECONDS,
        consumers=False,
        pause_seconds=0.0,
        delays=delays,
    ) as cluster:
        cluster.wait_acknowledged(LOAD_LEAST, "load")
        end = log_part(cluster.store("master")).end
        cluster.wait("the slave follows", lambda: log_part(cluster.store("slave")).end >= end)
        kilobits = KILOBITS
        cluster.network.slow("master", kilobits)
        begun = time.monotonic()
        cluster.wait_acknowledged(LOAD_LEAST, "load over a slow link")
        time.sleep(max(0.0, begun + LOAD_SECONDS - time.monotonic()))

        def is_ahead() -> bool:
            ends = [log_part(cluster.store(host)).end for host in ("slave", "master")]
            return ends[1] > ends[0] + LAG_LEAST_BYTES

        if mode.replication == "ASYNC_MASTER":
            while not cluster.holds(is_ahead, LAG_SECONDS):
                kilobits //= 2
                assert kilobits >= KILOBITS_LEAST, (
                    f"the slave is not behind, although the network takes {kilobits * 2} kbit/s"
                )
                cluster.network.slow("master", kilobits)
        struck = BROKERS if loss.startswith("both") else ("master",)
        if loss == "master's disk lost":
            cluster.network.cut(
                "master", "slave"
            )  # with the machine, and what its kernel had still to send
            if mode.replication == "ASYNC_MASTER":  # the slave may have caught up until the cut
                cluster.wait("the master is ahead", is_ahead)
        for host in struck:
            cluster.signal(host, signal.SIGSTOP)  # at one moment
        for host in struck:
            if "power" in loss:
                cluster.lose_power(host, seed, everything=True)
            else:
                cluster.kill(host)
        survivor = "master"
        if loss == "master's disk lost":
            survivor = "slave"
            shutil.rmtree(cluster.store("master"))
            cluster.stop_in_order("slave")
            cluster.promoted = True
        cluster.kill("clients")
        cluster.network.heal()
        acknowledged = cluster.events().acknowledged()
        delayed = {one.key for _, one in cluster.events().delayed if one.acknowledged}
        cluster.start(survivor)
        lost = missing(acknowledged, read_from(cluster, survivor, TOPIC))
        came = set[str]()
        if delays:
            time.sleep(max(DELAYS) + LATE_SECONDS)
            came = {one.name for one in read_from(cluster, survivor, DELAYED_TOPIC)}
        return Cell(len(acknowledged), len(lost), len(delayed), len(delayed - came))


def read_from(cluster: FaultCluster, host: str, topic: str) -> list[FoundMessage]:
    """By pulls, from the clients' side of the network."""
    target = cluster.folder / f"{topic}.json"
    process = start(
        cluster.network.name("clients"),
        cluster.folder / "reader.log",
        read_into,
        f"{cluster.network.address(host)}:10911",
        topic,
        target,
    )
    process.join(READ_SECONDS)
    process.kill()
    process.join()
    assert target.exists(), (cluster.folder / "reader.log").read_text()
    return [FoundMessage(*fields) for fields in json.loads(target.read_text())]


def table(found: dict[tuple[Mode, str], Cell]) -> list[str]:
    """As it goes into docs/replication.md: lost of acknowledged messages, and the same of delayed
    ones.
    """
    lines = [
        "| flush | replication | " + " | ".join(LOSSES) + " |",
        "|---|---|" + "---|" * len(LOSSES),
    ]
    for mode in MODES:
        cells = [found[mode, loss] for loss in LOSSES]
        texts = [
            f"{cell.lost} of {cell.acknowledged}, {cell.delayed_lost} of {cell.delayed}"
            for cell in cells
        ]
        lines.append(f"| `{mode.flush}` | `{mode.replication}` | {' | '.join(texts)} |")
    return lines
