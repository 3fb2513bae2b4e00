"""What a slave reports to its master of its time as acting master, and what it then forgets."""

from __future__ import annotations

from pathlib import Path

import trio

from triomq.broker.roles.pop_handover import PopHandover
from triomq.broker.services.pop.acting_records import ActingAcks, ActingPoint, ActingRecords
from triomq.remoting.protocol.bodies.check_point import CheckPoint
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, response_to

QUEUE = ("G", "T", 0)


class Master:
    """Takes every request; its log ends at 100."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    async def invoke(self, address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        self.sent.append(command)
        return response_to(command)

    async def log_end(self) -> int:
        await trio.lowlevel.checkpoint()
        return 100


async def test_a_position_that_moved_since_its_report_is_kept_and_reported_again(
    tmp_path: Path,
) -> None:
    master = Master()
    records, end = ActingRecords(tmp_path / "acting"), 0
    handover = PopHandover(master, records, "c", lambda: end)
    records.positions[QUEUE] = 5
    await handover.report("master:1", master.log_end)
    records.positions[QUEUE] = 7
    end = 100
    handover.forget_reported()
    assert records.positions == {QUEUE: 7}
    await handover.report("master:1", master.log_end)
    assert len(master.sent) == 2
    assert records.positions == {}


async def test_a_report_has_no_point_that_an_earlier_one_had(tmp_path: Path) -> None:
    """Until the slave's own log has them, a master that asks again would store them twice."""
    master, records = Master(), ActingRecords(tmp_path / "acting")
    handover = PopHandover(master, records, "c", lambda: 0)
    for start in (0, 10, 20):
        point = CheckPoint(
            start_offset=start,
            pop_time=1_000,
            invisible_ms=60_000,
            count=1,
            queue_id=0,
            topic="T",
            group="G",
        )
        records.points[point.key] = ActingPoint(point, {start}, 0, own=True)
        await handover.report("master:1", master.log_end)
    assert [command.code for command in master.sent] == [RequestCode.SEND_MESSAGE_V2] * 3
    bodies = [CheckPoint.decode(bytes(command.body)) for command in master.sent]
    assert [body.start_offset for body in bodies] == [0, 10, 20]


async def test_acknowledgements_since_a_report_are_kept_and_reported(tmp_path: Path) -> None:
    master, records, end = Master(), ActingRecords(tmp_path / "acting"), 0
    handover = PopHandover(master, records, "c", lambda: end)
    key = ("T", "G", 0, 5, 1_000, "broker-a")
    records.acks[key] = ActingAcks(61_000, 0, {5})
    await handover.report("master:1", master.log_end)
    records.acks[key].offsets.add(6)
    end = 100
    handover.forget_reported()
    assert records.acks[key].offsets == {5, 6}
    await handover.report("master:1", master.log_end)
    assert [command.code for command in master.sent] == [RequestCode.BATCH_ACK_MESSAGE] * 2
    assert not records.acks
