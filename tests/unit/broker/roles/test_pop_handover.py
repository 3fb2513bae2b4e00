"""What a slave reports to its master of its time as acting master, and what it then forgets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from triomq.broker.roles.pop_handover import PopHandover
from triomq.broker.services.pop.acting_records import ActingRecords
from triomq.remoting.protocol.command import Command, response_to

QUEUE = ("G", "T", 0)


async def test_a_position_that_moved_since_its_report_is_kept_and_reported_again(
    tmp_path: Path,
) -> None:
    sent: list[Command] = []

    async def invoke(address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        sent.append(command)
        return response_to(command)

    async def end_of_the_master() -> int:
        await trio.lowlevel.checkpoint()
        return 100

    caller: Any = SimpleNamespace(invoke=invoke)
    records, end = ActingRecords(tmp_path / "acting"), 0
    handover = PopHandover(caller, records, "c", lambda: end)
    records.positions[QUEUE] = 5
    await handover.report("master:1", end_of_the_master)
    records.positions[QUEUE] = 7
    end = 100
    handover.forget_reported()
    assert records.positions == {QUEUE: 7}
    await handover.report("master:1", end_of_the_master)
    assert len(sent) == 2
    assert records.positions == {}
