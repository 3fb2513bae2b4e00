"""The HA stream and the files of controller mode, against bytes of RocketMQ 5.5.0."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from golden_data import GOLDEN

from triomq.broker.replication.epoch_file import NAME, EpochFile, forget_epochs
from triomq.broker.replication.epoch_frames import (
    EpochFrameDecoder,
    Join,
    SlaveFrames,
    epochs_frame,
    report_frame,
    transfer_head,
)
from triomq.broker.replication.epoch_master_link import NO_EPOCH, EpochMasterLink
from triomq.broker.replication.epoch_slave_link import EpochSlaveLink
from triomq.broker.replication.epochs import Epoch, EpochHistory
from triomq.broker.replication.errors import LinkBroken, LogsParted, TailDiffers
from triomq.broker.replication.master_link import LinkRules, LogBounds
from triomq.broker.replication.transfer import EpochBegins, Event, Heartbeat, LogData, MasterEpochs
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.atomic_file import SystemFiles

RULES = LinkRules(segment_size=1024, batch_bytes=100)


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / "controller" / name).read_text().splitlines()]


def packets() -> list[dict[str, Any]]:
    return [row for row in rows("ha-autoswitch.jsonl") if row.get("body_in_hex", True)]


def encoded(row: dict[str, Any]) -> bytes:
    """What we would send in its place."""
    fields, kind = row["fields"], row["kind"]
    if kind == "ack":
        return report_frame(fields["maxOffset"])
    if row["dir"] == "slave->master":
        return Join(
            fields["brokerId"], bool(fields["syncFromLastFile"]), bool(fields["asyncLearner"])
        ).encode()
    if kind == "handshake":
        history = EpochHistory.of(tuple(entry) for entry in fields["entries"])
        return epochs_frame(history, fields["maxOffset"])
    epoch = Epoch(fields["epoch"], fields["epochStartOffset"])
    head = transfer_head(fields["offset"], fields["bodySize"], epoch, fields["confirmOffset"])
    return head + bytes.fromhex(row["hex"])[len(head) :]


def test_packets_are_those_of_java() -> None:
    kinds = set()
    for row in packets():
        assert encoded(row).hex() == row["hex"], row
        kinds.add((row["dir"], row["kind"]))
    assert len(kinds) == 5, kinds


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_streams_of_java_are_read(step: int) -> None:
    streams: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in packets():
        streams[row["conn"], row["dir"]].append(row)
    read = 0
    for (_, direction), found in streams.items():
        data = b"".join(bytes.fromhex(row["hex"]) for row in found)
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        if direction == "slave->master":
            slave = SlaveFrames()
            reports = [end for piece in pieces for end in slave.receive(piece)]
            acks = [row["fields"]["maxOffset"] for row in found if row["kind"] == "ack"]
            assert reports == acks
            assert slave.join is not None
            read += len(reports)
            continue
        master = EpochFrameDecoder()
        events: list[Event] = [event for piece in pieces for event in master.receive(piece)]
        assert master.fault is None
        sizes = sum(row["fields"]["bodySize"] for row in found if row["kind"] == "transfer")
        assert sum(len(event.data) for event in events if isinstance(event, LogData)) == sizes
        epochs = [event for event in events if isinstance(event, EpochBegins)]
        told = {row["fields"]["epoch"] for row in found if row["fields"].get("offset", -1) >= 0}
        assert {event.number for event in epochs} == told
        hello = next(event for event in events if isinstance(event, MasterEpochs))
        entries = found[0]["fields"]["entries"]
        assert [[one.number, one.start] for one in hello.history.entries] == entries
        confirmed = [row["fields"].get("confirmOffset", 0) for row in found]
        assert master.confirmed == max(confirmed)
        read += sizes
    assert read > 1000


def test_the_epoch_file_is_that_of_java(tmp_path: Path) -> None:
    texts = [row for row in rows("files.jsonl") if row["file"].startswith("epoch")]
    assert len(texts) == 2
    for number, row in enumerate(texts):
        content = bytes.fromhex(row["hex"])
        file = EpochFile(tmp_path / f"epochs{number}", SystemFiles())
        file.save(EpochHistory.decode(content))
        assert file.path.read_bytes() == content
        assert EpochFile(file.path, SystemFiles()).history == file.history


def test_a_damaged_epoch_file_ends_the_start(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "epochs", SystemFiles())
    file.begin(1, 0)
    file.begin(2, 500)
    data = file.path.read_bytes()
    file.path.write_bytes(data.replace(b"500", b"501"))
    with pytest.raises(StoreDamaged, match="the epochs of the log: the CRC"):
        EpochFile(file.path, SystemFiles())
    file.path.unlink()  # a crash between two renames
    assert EpochFile(file.path, SystemFiles()).history == EpochHistory.of([(1, 0)])


def slave_link(
    end: int | None, *epochs: tuple[int, int], shown: int = 0, tail: bytes = b""
) -> EpochSlaveLink:
    history = EpochHistory.of(epochs)
    return EpochSlaveLink(RULES, end, 2, 0.0, history=history, epoch=1, shown=shown, tail=tail)


def master_link(*epochs: tuple[int, int]) -> EpochMasterLink:
    return EpochMasterLink(
        RULES, "slave", 0.0, history=EpochHistory.of(epochs), confirmed=lambda: 120
    )


def test_a_slave_reports_once_its_log_is_known_to_begin_the_masters() -> None:
    slave, master, bounds = (
        slave_link(150, (1, 0)),
        master_link((1, 0), (3, 250)),
        LogBounds(0, 400),
    )
    master.receive(slave.opening(150, 0.0), bounds, 0.0)
    assert slave.take_report(150, 0.0) == b""
    greeting = master.take_greeting(bounds)
    assert (master.take_greeting(bounds), master.next_offset, master.broker_id) == (b"", None, 2)
    slave.receive(greeting, 0.0)
    master.receive(slave.take_report(150, 0.0), bounds, 0.0)
    frames = master.take_frames(bounds, 0.0, 10_000)
    assert frames == [(150, 250), (250, 350), (350, 400)]  # none crosses the epoch's start
    events = []
    for start, end in frames:
        data = master.head(start, end - start) + bytes(end - start)
        events += slave.receive(data, 1.0)
    assert [event for event in events if isinstance(event, EpochBegins)] == [
        EpochBegins(1, 0),
        EpochBegins(3, 250),
    ]
    assert slave.confirmed == 120
    master.receive(slave.take_report(400, 1.0), bounds, 1.0)
    assert master.copied == 400


def test_a_slave_with_another_tail_cuts_it_first() -> None:
    slave = slave_link(400, (1, 0), (2, 300))
    with pytest.raises(TailDiffers) as cut:
        slave.receive(epochs_frame(EpochHistory.of([(1, 0), (3, 350)]), 900), 0.0)
    assert cut.value.end == 300
    assert slave.take_report(400, 9.0) == b""
    with pytest.raises(LogsParted, match="nothing in common"):
        slave_link(400, (2, 300)).receive(epochs_frame(EpochHistory.of([(1, 0)]), 900), 0.0)
    other = epochs_frame(EpochHistory.of([(7, 0)]), 900)
    with pytest.raises(TailDiffers, match="equal up to 0"):
        slave_link(400, (1, 0)).receive(other, 0.0)
    with pytest.raises(LogsParted, match="nothing in common"):  # an emptied master empties nobody
        slave_link(400, (1, 0), shown=1).receive(other, 0.0)
    slave_link(None).receive(epochs_frame(EpochHistory.of([(1, 0)]), 900), 0.0)


@pytest.mark.parametrize("epochs", [(), ((1, 0), (2, 300))], ids=["none", "of before"])
@pytest.mark.parametrize("steps", [1, 7, 64])
def test_a_slave_without_a_common_epoch_has_its_tail_sent_again(
    epochs: tuple[tuple[int, int], ...], steps: int
) -> None:
    """The log of a master that classic mode has written: it begins its epoch at the end."""
    log, tail = bytes(range(200)) * 3, 64
    slave = slave_link(400, *epochs, tail=log[400 - tail : 400])
    master, bounds = master_link((3, 500)), LogBounds(0, len(log))
    master.receive(slave.opening(400, 0.0), bounds, 0.0)
    slave.receive(master.take_greeting(bounds), 0.0)
    master.receive(slave.take_report(400, 0.0), bounds, 0.0)
    events = []
    for start, end in master.take_frames(bounds, 0.0, 10_000):
        data = master.head(start, end - start) + log[start:end]
        for at in range(0, len(data), steps):
            events += slave.receive(data[at : at + steps], 1.0)
            if slave.expected is not None and slave.expected < 400:
                assert slave.confirmed is None
                assert not slave.take_report(400, 0.0) or slave.reported == slave.expected
    assert slave.confirmed == 120
    new = [event for event in events if isinstance(event, LogData)]
    assert new[0].start == 400
    assert b"".join(bytes(event.data) for event in new) == log[400:]
    assert EpochBegins(3, 500) in events


def test_a_slave_whose_tail_is_another_one_does_not_follow() -> None:
    slave = slave_link(400, tail=b"x" * 64)
    slave.receive(epochs_frame(EpochHistory.of([(1, 400)]), 900), 0.0)
    slave.take_report(400, 0.0)
    with pytest.raises(LogsParted, match="offset 336 to 356 are others"):
        slave.receive(transfer_head(336, 20, NO_EPOCH, 400) + b"x" * 19 + b"y", 0.0)
    with pytest.raises(LogsParted, match="nothing in common"):  # it is longer
        slave_link(901, tail=b"x" * 64).receive(epochs_frame(EpochHistory.of([(1, 400)]), 900), 0.0)


def test_classic_mode_forgets_the_epochs(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / NAME, SystemFiles())
    file.begin(1, 0)
    file.begin(2, 500)
    forget_epochs(tmp_path, Disk())
    assert list(tmp_path.iterdir()) == []
    forget_epochs(tmp_path, Disk())
    assert EpochFile(tmp_path / NAME, SystemFiles()).history == EpochHistory()


def test_others_are_refused() -> None:
    with pytest.raises(LinkBroken, match="which a slave in controller mode never sends"):
        SlaveFrames().receive(bytes(16))  # a slave of classic mode
    with pytest.raises(LinkBroken, match="packet of state 0"):
        slave_link(0).receive(bytes(40), 0.0)
    link = master_link((1, 0))
    with pytest.raises(LinkBroken, match="only what lies before 0 was sent"):
        link.receive(Join(2).encode() + report_frame(0) + report_frame(5), LogBounds(0, 0), 0.0)


def test_an_empty_master_sends_heartbeats_only() -> None:
    slave = slave_link(None)
    slave.receive(epochs_frame(EpochHistory.of([(1, 0)]), 0), 0.0)
    assert slave.receive(transfer_head(-1, 0, Epoch(1, 0), 0), 0.0) == []
    beat = transfer_head(0, 0, Epoch(1, 0), 0)
    assert slave.receive(beat, 0.0) == [EpochBegins(1, 0)]
    assert slave.receive(beat, 0.0) == [Heartbeat(0)]
