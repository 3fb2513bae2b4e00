"""The benchmark of clients of RocketMQ 5: its rows, its requests, and one run without Java."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.append(str(BENCH))

import bench_messaging  # noqa: E402
import grpc_load  # noqa: E402
import grpc_servers  # noqa: E402

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb  # noqa: E402


@pytest.mark.parametrize(
    ("ordered", "share", "value"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(number) for number in range(1, 101)], 0.99, 99.0),
        ([float(number) for number in range(1, 102)], 0.99, 100.0),
    ],
)
def test_a_percentile_is_a_measured_value(ordered: list[float], share: float, value: float) -> None:
    assert grpc_load.percentile(ordered, share) == value


def test_acknowledgements_name_every_message_once() -> None:
    messages = [
        pb.Message(
            system_properties=pb.SystemProperties(
                message_id=f"{number}", receipt_handle=f"h{number}"
            )
        )
        for number in range(33)
    ]
    requests = [grpc_load.acknowledgement("T", some) for some in grpc_load.chunks(messages, 32)]
    assert [len(request.entries) for request in requests] == [32, 1]
    assert [entry.receipt_handle for request in requests for entry in request.entries] == [
        f"h{number}" for number in range(33)
    ]


def test_sends_have_ids_of_their_own_and_a_kibibyte() -> None:
    sent = [message for _ in range(2) for message in grpc_load.send_request("T", 3).messages]
    assert len({message.system_properties.message_id for message in sent}) == 6
    assert {len(message.body) for message in sent} == {1024}


def test_rows_have_medians_and_say_what_is_better() -> None:
    findings = bench_messaging.Findings()
    for ours, theirs in ((10, 5), (30, 10), (11, 2)):
        findings.note("ours", "sends", "msgs/s", ours)
        findings.note("Java", "sends", "msgs/s", theirs)
    findings.note("ours", "p50", "ms", 2)
    findings.note("Java", "p50", "ms", 1)
    findings.note("ours", "memory", "MB", 40)
    rows = findings.table()
    assert [(row.what, row.ours, row.peer, row.ratio) for row in rows] == [
        ("sends", 11, 5, 2.2),
        ("p50", 2, 1, 0.5),
        ("memory", 40, None, None),
    ]


def test_missing_peers_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_servers, "HOME", tmp_path)
    with pytest.raises(SystemExit, match="run `make peers`"):
        grpc_servers.need_peers()


@pytest.mark.nightly
def test_clients_at_our_broker(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    settings = ("--seconds", "0.2", "--rounds", "1", "--warm-up", "1", "--consumers", "40")
    done = subprocess.run(
        [
            *(sys.executable, str(BENCH / "bench_messaging.py"), "--no-java"),
            *(*settings, "--json", str(found)),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    content = json.loads(found.read_text())
    (table,) = content["tables"]
    figures = {row["what"]: row["ours"] for row in table["rows"]}
    assert set(figures) >= {
        "sends, 256 in flight",
        "sends, 64 in flight, p99",
        "receives of 32, an AckMessage each",
        "receives of 32, an AckMessage for each receive, CPU of the server",
        "anonymous memory with 40 idle consumers",
        "a send beside them, p50",
    }
    assert min(figures.values()) > 0, figures
    assert content["notes"] == []
