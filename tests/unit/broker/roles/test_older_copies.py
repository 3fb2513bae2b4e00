"""A slave pulls the copies of a compaction topic that are older than its log from its master."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import trio

from triomq.broker.roles.older_copies import OlderCopiesOfMaster
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, response_to
from triomq.remoting.protocol.headers.pull import PullMessageHeader, PullMessageResponseHeader
from triomq.remoting.protocol.record import encode_record

LOG_MIN = 20
HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])


@attrs.define
class Copies:
    """A queue of which the slave's log has the messages from 20 on."""

    key: tuple[str, int] = ("T", 0)
    log_min: int = LOG_MIN
    log_end: int = 30
    deleted: bool = False
    kept: list[int] = attrs.field(factory=list)
    on_disk: list[int] = attrs.field(factory=list)
    _filled: bool = False

    @property
    def copies(self) -> SimpleNamespace:
        return SimpleNamespace(end_offset=self.kept[-1] + 1 if self.kept else 0)

    async def append(self, records: list[bytes]) -> None:
        await trio.lowlevel.checkpoint()
        self.kept += [int.from_bytes(record[20:28], "big") for record in records]

    async def sync(self) -> None:
        await trio.lowlevel.checkpoint()
        self.on_disk = [*self.kept]

    @property
    def filled(self) -> bool:
        return self._filled

    @filled.setter
    def filled(self, value: bool) -> None:
        assert self.on_disk == self.kept, "after a loss of power copies would be missing for ever"
        self._filled = value


def record(offset: int) -> bytes:
    return encode_record(
        topic="T",
        queue_id=0,
        queue_offset=offset,
        log_offset=offset * 100,
        body=b"body",
        properties=b"",
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1,
        store_host=HOST,
    )


async def test_a_queue_is_filled_when_the_disk_has_its_older_copies() -> None:
    """The master has copies of offsets 4, 9 and 12; the log begins at 20."""
    asked: list[int] = []

    async def invoke(address: str, command: Command, *, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        offset = command.header(PullMessageHeader).queue_offset
        asked.append(offset)
        found = next((each for each in (4, 9, 12) if each >= offset), None)
        if found is None:
            code, body, following = ResponseCode.PULL_OFFSET_MOVED, b"", LOG_MIN
        else:
            code, body, following = ResponseCode.SUCCESS, record(found), found + 1
        header = PullMessageResponseHeader(0, following, 0, 30)
        return response_to(command, code, header=header, body=body)

    master: Any = SimpleNamespace(remoting="master:1")
    caller: Any = SimpleNamespace(invoke=invoke)
    queue: Any = Copies()
    await OlderCopiesOfMaster(caller, master, SimpleNamespace()).fill(queue)  # type: ignore[arg-type]
    assert asked == [0, 5, 10, 13]
    assert queue.filled
    assert queue.kept == [4, 9, 12]
