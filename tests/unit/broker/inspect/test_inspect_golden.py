"""mqstore on stores of Java brokers: no damage, every message as Java's decoder reads it, and no
byte changed.
"""

from __future__ import annotations

import base64
import json
import shutil
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from golden_data import GOLDEN, RELEASES, logged_messages

from triomq.broker.inspect.__main__ import main

RELEASE = pytest.mark.parametrize("release", RELEASES)


def unpacked(release: str, directory: Path) -> Path:
    with tarfile.open(GOLDEN / "store" / f"java-{release}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / f"java-{release}"


def state_of(root: Path) -> dict[Path, tuple[int, int, bytes]]:
    """Return all properties of every file and folder that a program could change (the system
    changes access times).
    """
    return {
        path: (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [root, *root.rglob("*")]
    }


def expected_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Java's decoder with the dump's keys; bodies are compared separately, since
    the dump inflates them.
    """
    return {
        "topic": row["topic"],
        "queueId": row["queueId"],
        "queueOffset": row["queueOffset"],
        "offsetMsgId": row["offsetMsgId"],
        "properties": row["properties"],
        "bodyCRC": row["bodyCRC"],
        "bornTimestamp": row["bornTimestamp"],
        "bornHost": row["bornHost"].removeprefix("/"),
        "storeTimestamp": row["storeTimestamp"],
        "storeHost": row["storeHost"].removeprefix("/"),
        "commitLogOffset": row["offset"],
        "storeSize": row["size"],
        "sysFlag": row["sysFlag"],
        "flag": row["flag"],
        "reconsumeTimes": row["reconsumeTimes"],
        "preparedTransactionOffset": row["preparedTransactionOffset"],
    }


@RELEASE
@pytest.mark.feature("29b", 39, "44a", "186b")
def test_a_java_store_is_clean(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = unpacked(release, tmp_path)
    before = state_of(root)
    assert main(["verify", "--json", str(root)]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = [row for row in logged_messages(release) if "blank" not in row]
    assert document["verdict"] == "clean"
    assert document["findings"] == []
    assert (document["log"]["records"], document["queues"]["entries"]) == (len(rows), len(rows))
    assert document["index"]["entries"] == {"5.5.0": 902, "4.9.4": 204}[release]
    assert main(["verify", str(root)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verdict  clean"
    assert state_of(root) == before


@RELEASE
@pytest.mark.parametrize("by", ["queues", "log", "no queues"])
@pytest.mark.feature("186d")
def test_a_dump_is_what_java_s_decoder_reads(
    release: str, by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = unpacked(release, tmp_path)
    if by == "no queues":
        shutil.rmtree(root / "consumequeue")
    before = state_of(root)
    by_topic = defaultdict(list)
    for row in logged_messages(release):
        if "blank" not in row:
            by_topic[row["topic"]].append(row)
    for topic, rows in by_topic.items():
        assert (
            main(
                [
                    "dump",
                    "--json",
                    "--count",
                    "0",
                    "--topic",
                    topic,
                    str(root),
                    *(["--log"] if by == "log" else []),
                ]
            )
            == 0
        )
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        if by == "queues":
            rows = sorted(rows, key=lambda row: (row["queueId"], row["queueOffset"]))
        assert len(found) == len(rows)
        for document, row in zip(found, rows, strict=True):
            assert {name: document[name] for name in expected_document(row)} == expected_document(
                row
            )
            if not row["sysFlag"] & 1:
                body = (
                    base64.b64decode(document["bodyBase64"])
                    if document["body"] is None
                    else document["body"].encode()
                )
                assert body.hex() == row["body"]
    assert state_of(root) == before


@pytest.mark.feature("186d")
def test_the_choice_of_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(unpacked("5.5.0", tmp_path))

    def offsets(*words: str) -> list[tuple[int, int]]:
        assert main(["dump", root, "--json", "--topic", "GoldTopic", *words]) == 0
        return [
            (document["queueId"], document["queueOffset"])
            for document in map(json.loads, capsys.readouterr().out.splitlines())
        ]

    everything = offsets("--count", "0")
    assert offsets("--queue", "2", "--from", "3", "--count", "2") == [(2, 3), (2, 4)]
    assert offsets("--count", "1") == everything[:1]
    rows = [
        row
        for row in logged_messages("5.5.0")
        if row.get("topic") == "GoldTopic"
        and "key1" in row["properties"].get("KEYS", "").split(" ")
    ]
    assert set(offsets("--key", "key1")) == {(row["queueId"], row["queueOffset"]) for row in rows}
    unique = rows[0]["properties"]["UNIQ_KEY"]
    assert offsets("--key", unique) == [(rows[0]["queueId"], rows[0]["queueOffset"])]
    assert main(["dump", root, "--topic", "GoldTopic", "--key", unique]) == 0
    text = capsys.readouterr().out
    assert unique in text
    assert bytes.fromhex(rows[0]["body"]).decode() in text


@RELEASE
def test_sizes_are_found_or_given(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = unpacked(release, tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=1200\nmaxHashSlotNum=200\nmaxIndexNum=60\nlistenPort=1\n"
    )
    assert main(["verify", "-c", str(conf), str(root)]) == 0
    assert main(["verify", "-D", "maxHashSlotNum=205", "-D", "maxIndexNum=59", str(root)]) == 1
    assert "slot" in capsys.readouterr().out
    moved = tmp_path / "elsewhere"
    (root / "commitlog").rename(moved)
    assert main(["verify", "-D", f"storePathCommitLog={moved}", str(root)]) == 0
