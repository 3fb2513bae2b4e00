"""mqstore and stores with batch consume queues and light queues, sound and damaged."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import trio
from batch_stores import TOPIC, batch_config, inner_batch, single
from stores import SteppingClock, draft, tiny_config

from triomq.broker.inspect.__main__ import main
from triomq.broker.store.opening import open_store

ENTRY_BYTES = 46


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store: fifteen records of three messages and five single messages, in three queue
    files; light queues, an ordinary queue.
    """
    root = tmp_path / "store"

    async def fill() -> None:
        async with open_store(
            batch_config(root, multi_dispatch=True), SteppingClock(), batch_topics=lambda: {TOPIC}
        ) as opened:
            for number in range(5):
                opened.append([inner_batch(3, f"{number}{letter}") for letter in "abc"])
                opened.append(
                    [
                        single(f"s{number}"),
                        draft("x", special=True, extra={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}),
                    ]
                )

    trio.run(fill)
    return root


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    out = capsys.readouterr().out
    return code, [json.loads(line) for line in out.splitlines()] if arguments[
        0
    ] == "dump" else json.loads(out)


def verify(capsys: pytest.CaptureFixture[str], root: Path) -> tuple[int, set[str], Any]:
    code, found = run(capsys, "verify", str(root))
    return (
        code,
        {finding["kind"] for finding in found["findings"]}
        - {"config-missing", "index-missing-files"},
        found,
    )


def damage(root: Path, number: int, at: int, data: bytes) -> None:
    """Overwrite part of an entry."""
    base, position = divmod(number * ENTRY_BYTES, 460)
    with (root / "batchconsumequeue" / TOPIC / "0" / f"{base * 460:020d}").open("r+b") as file:
        file.seek(position + at)
        file.write(data)


@pytest.mark.feature("186a")
def test_a_sound_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, kinds, found = verify(capsys, store)
    assert (code, kinds) == (0, set())
    assert found["queues"]["batchQueues"] == 1
    assert found["queues"]["queues"] == 4
    assert found["queues"]["entries"] == 20 + 5 * 3


@pytest.mark.feature("186a")
@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (0, struct.pack(">q", 5), "where no record of this queue starts"),
        (8, struct.pack(">i", 7), "has the size 7"),
        (12, struct.pack(">q", 7), "has the tags code 7"),
        (20, struct.pack(">q", 7), "has the store time 7"),
        (28, struct.pack(">q", 7), "has the first queue offset 7"),
        (36, struct.pack(">h", 9), "has the number of messages 9"),
    ],
)
def test_a_damaged_entry(
    store: Path, capsys: pytest.CaptureFixture[str], at: int, data: bytes, words: str
) -> None:
    damage(store, 12, at, data)
    code, kinds, found = verify(capsys, store)
    assert (code, "queue-entry" in kinds) == (1, True)
    assert any(
        words in finding["what"] and "entry 12" in finding["what"] for finding in found["findings"]
    )


def test_entries_that_are_missing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "batchconsumequeue" / TOPIC / "0" / f"{460:020d}").unlink()
    code, kinds, _ = verify(capsys, store)
    assert (code, kinds) == (1, {"queue-behind"})


async def test_the_advice_works(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without both folders and the checkpoint, the next start rebuilds all queues."""
    before = {
        path.relative_to(store): path.read_bytes()
        for folder in ("consumequeue", "batchconsumequeue")
        for path in (store / folder).rglob("0*")
        if path.is_file()
    }
    damage(store, 3, 28, b"\1")
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(store / folder)
    (store / "checkpoint").unlink()
    async with open_store(
        batch_config(store, multi_dispatch=True), SteppingClock(), batch_topics=lambda: {TOPIC}
    ):
        pass
    assert {path: (store / path).read_bytes() for path in before} == before
    assert verify(capsys, store)[:2] == (0, set())


async def test_only_the_ordinary_queues_are_gone(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(store / "consumequeue")
    (store / "checkpoint").unlink()
    async with open_store(
        batch_config(store, multi_dispatch=True), SteppingClock(), batch_topics=lambda: {TOPIC}
    ) as opened:
        assert opened.max_offset("T", 0) == opened.max_offset("%LMQ%a", 0) == 5
    assert verify(capsys, store)[:2] == (0, set())


@pytest.mark.feature("186c")
@pytest.mark.parametrize("by_log", [False, True])
def test_dump_takes_batches_apart(
    store: Path, capsys: pytest.CaptureFixture[str], by_log: bool
) -> None:
    if by_log:
        shutil.rmtree(store / "batchconsumequeue")
    code, messages = run(capsys, "dump", str(store), "--topic", TOPIC, "--from", "4")
    assert code == 0
    assert [message["queueOffset"] for message in messages] == list(range(4, 50))
    assert [message["body"] for message in messages[:6]] == [
        "0b1",
        "0b2",
        "0c0",
        "0c1",
        "0c2",
        "s0",
    ]


def test_dump_of_a_light_queue(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, messages = run(capsys, "dump", str(store), "--topic", "%LMQ%b")
    assert (code, len(messages)) == (0, 5)


async def test_messages_that_java_stores_without_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Java's broker stores a single message to such a topic as a record without entry."""
    root = tmp_path / "store"
    async with open_store(
        batch_config(root), SteppingClock(), batch_topics=lambda: {TOPIC}
    ) as opened:
        opened.append([inner_batch(2)])
        opened.append_unindexed([draft("lost", TOPIC)])
        opened.indexer.index_offered()
    damage(root, 1, 0, bytes(ENTRY_BYTES))
    code, kinds, _ = verify(capsys, root)
    assert (code, kinds) == (0, {"unnumbered"})


@pytest.mark.feature("186c")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_no_message_controls_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    root, body = tmp_path / "store", "a\x9b31m\u202eb"

    async def fill() -> None:
        async with open_store(tiny_config(root), SteppingClock()) as opened:
            opened.append([draft(body)])

    trio.run(fill)
    assert main(["dump", str(root), "--topic", "T", *options]) == 0
    out = capsys.readouterr().out
    assert not {"\x9b", "\u202e"} & set(out)
    assert json.loads(out)["body"] == body if options else r"a\x9b31m\u202eb" in out
