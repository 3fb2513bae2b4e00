"""The benchmarks beside foreign peers: without those they run to their end or say what to do;
figures, verdicts and signals.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

from batch_load import Ledger  # noqa: E402


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (
        f"{script} {arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


@pytest.mark.nightly
def test_master_and_slave(tmp_path: Path) -> None:
    settings = (
        "--seconds",
        "0.3",
        "--rounds",
        "1",
        "--warm-up",
        "0",
        "--shapes",
        "1x8",
        "--producer-seconds",
        "0",
        "--rate",
        "500",
        "--gib",
        "0.01",
        "--no-java",
    )
    said = run(
        "replication_side_by_side.py", "all", *settings, "--json", str(tmp_path / "found.json")
    )
    content = json.loads((tmp_path / "found.json").read_text())
    found = {row["what"]: row["ours"] for table in content["tables"] for row in table["rows"]}
    for what in ("raw 1 × 8", "rate that was reached", "lag, p50", "log copied, while it copies"):
        assert found[what] > 0
        assert f"| {what} |" in said
    assert (
        content["notes"][0]
        == "ours: with its slave stopped the master did not answer SEND_OK, afterwards it did"
    )


@pytest.mark.nightly
def test_replicas_in_controller_mode(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    settings = ("--seconds", "0.3", "--rounds", "1", "--warm-up", "0", "--shapes", "1x8")
    run("controlled_side_by_side.py", *settings, "--no-java", "--json", str(found))
    content = json.loads(found.read_text())
    rows = [row for table in content["tables"] for row in table["rows"]]
    assert len(rows) == 4, "rates and cost of two copies, and of three"
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows)
    says = "with its slave stopped the master did not answer SEND_OK, afterwards it did"
    assert content["notes"][:2] == [f"controlled: {says}", f"SYNC_MASTER: {says}"]


@pytest.mark.nightly
def test_users_and_rules(tmp_path: Path) -> None:
    short = ("--seconds", "0.3", "--rounds", "1", "--warm-up", "0", "--shapes", "1x8", "--no-java")
    said = run("access_side_by_side.py", *short, "--json", str(tmp_path / "found.json"))
    content = json.loads((tmp_path / "found.json").read_text())
    (table,) = content["tables"]
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in table["rows"])
    assert "| sends, 1 × 8 | msgs/s |" in said


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ((0, 1), "1 cannot be read, and 0 are"),
        ((0, 1, 2, 1), "0 cannot be read, and 1 are there more than once"),
    ],
)
def test_the_ledger_finds_what_is_missing_or_there_twice(found: tuple[int, ...], says: str) -> None:
    ledger = Ledger()
    ledger.note(b"A" * 16, 3)
    ledger.read(b"".join(b"UNIQ_KEY\x01%s%016X\x02" % (b"A" * 16, number) for number in found))
    with pytest.raises(SystemExit, match=says):
        ledger.check()


@pytest.mark.nightly
def test_batches_without_kafka(tmp_path: Path) -> None:
    said = run(
        "kafka_side_by_side.py",
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--sdk-messages",
        "2400",
        "--no-kafka",
        "--json",
        str(tmp_path / "found.json"),
    )
    content = json.loads((tmp_path / "found.json").read_text())
    rates = {
        row["what"]: row["ours"]
        for table in content["tables"]
        for row in table["rows"]
        if row["unit"] == "msgs/s"
    }
    assert set(rates) >= {
        f"{kind}, {what}"
        for kind in ("ordinary topic", "BatchCQ topic")
        for what in ("batch requests of 64 KiB, 1 × 5", "SDK, batch messages", "SDK, polls of 256")
    }
    assert set(rates) >= {"ordinary topic, pulls of 32, 1 × 8", "BatchCQ topic, pulls of 59, 1 × 8"}
    assert said.count("messages was read once") == 2
    assert min(rates.values()) > 0
    assert said.count("| msgs/s |") == len(rates)


@pytest.mark.parametrize(
    ("program", "needed", "says"),
    [
        ("kafka_side_by_side", "need_kafka", r"install_peers\.py --kafka"),
        ("java_programs", "need_peers", "run `make peers`"),
    ],
)
def test_a_missing_peer_is_named_with_what_to_do(
    program: str, needed: str, says: str, tmp_path: Path
) -> None:
    code = (
        f"import pathlib, {program} as bench; bench.processes.PEERS = bench.HOME ="
        f" pathlib.Path({str(tmp_path)!r}); bench.shutil.which = lambda name: name;"
        f" bench.{needed}()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(BENCH)},
    )
    assert done.returncode == 1
    assert re.search(says, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_signal_ends_a_benchmark_and_its_servers(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCH / "replication_side_by_side.py"),
        "lag",
        "--no-java",
        "--producer-seconds",
        "0",
        "--warm-up",
        "0",
        "--seconds",
        "1000",
    ]
    with (tmp_path / "said").open("wb") as output:
        bench = psutil.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    deadline = time.monotonic() + 60
    while len(servers := bench.children(recursive=True)) < 3:
        assert time.monotonic() < deadline, (tmp_path / "said").read_text()
        time.sleep(0.05)
    bench.terminate()
    assert bench.wait(timeout=60) == 1
    gone, alive = psutil.wait_procs(servers, timeout=30)
    assert (len(gone), alive) == (3, [])
    assert "ended by a signal" in (tmp_path / "said").read_text()


def test_rows_meet_or_miss_their_targets(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from verdict_table import Report, Row, read
report = Report("r")
table = report.table("T", "peer")
table.rows += [
    Row("rate", "/s", 120, 100, factor=1.2), Row("slow", "/s", 119, 100, factor=1.2),
    Row("late", "ms", 0.7, 1.4, True, limit=0.6), Row("alone", "ms", 0.5, None, True, factor=1.2),
]
print([(row.met, row.ratio) for row in table.rows])
text = report.markdown()
same = read(report.write(Path("found.json"))).markdown() == text
print(same, text.count("met |"), text.count("missed |"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(BENCH)},
    )
    assert done.stdout.splitlines() == [
        "[(True, 1.2), (False, 1.19), (False, 2.0), (None, None)]",
        "True 1 2",
    ]
