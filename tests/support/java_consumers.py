"""Official Java consumers that run beside ours: what they get, and which queues they own at the
moment.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from processes import java_command, java_home


@attrs.define(eq=False)
class JavaConsumer:
    """A running ``ConsumerPeer``; ``got`` are its lines: queue id, queue offset, reconsume times,
    body.
    """

    process: trio.Process
    client_id: str = ""
    got: list[tuple[int, int, int, str]] = attrs.field(factory=list)
    _owned: list[list[tuple[str, int]]] = attrs.field(factory=list)
    _started: trio.Event = attrs.field(factory=trio.Event)

    async def owned(self) -> set[tuple[str, int]]:
        """Ask which queues it owns: broker name and queue id."""
        before = len(self._owned)
        assert self.process.stdin is not None
        await self.process.stdin.send_all(b"owned\n")
        with trio.fail_after(20):
            while len(self._owned) == before:
                await trio.sleep(0.01)
        return set(self._owned[-1])

    async def read(self) -> None:
        """Take in what it prints."""
        assert self.process.stdout is not None
        rest = b""
        async for chunk in self.process.stdout:
            *lines, rest = (rest + bytes(chunk)).split(b"\n")
            for line in lines:
                self._take(line.decode().split("\t"))

    def _take(self, fields: list[str]) -> None:
        match fields:
            case ["STARTED", client_id]:
                self.client_id = client_id
                self._started.set()
            case ["GOT", queue_id, offset, times, body]:
                self.got.append((int(queue_id), int(offset), int(times), body))
            case ["OWNED", *queues]:
                self._owned.append(
                    [(name.rpartition(":")[0], int(name.rpartition(":")[2])) for name in queues]
                )

    async def wait_started(self) -> bool:
        """Wait until it says so; False if it ended instead."""
        with trio.fail_after(60):
            while not self._started.is_set():
                if self.process.poll() is not None:
                    return False
                await trio.sleep(0.02)
        return True


@asynccontextmanager
async def java_consumer(
    version: str,
    namesrv: str,
    topic: str,
    group: str,
    *,
    mode: str = "concurrent",
    strategy: str = "AVG",
    work_ms: int = 0,
    define: Sequence[str] = (),
) -> AsyncIterator[JavaConsumer]:
    """Run one for the block; at its end it shuts down in order."""
    if java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")
    command = java_command(
        version,
        "ConsumerPeer",
        namesrv,
        topic,
        group,
        mode,
        strategy,
        str(work_ms),
        heap="256m",
        define=define,
    )
    async with trio.open_nursery() as nursery:
        for attempt in range(3):
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            consumer = JavaConsumer(process)
            nursery.start_soon(consumer.read)
            if await consumer.wait_started():
                break
            # Now and then a JVM finds no address of its machine at that moment and dies of it.
            assert attempt < 2, (
                f"a Java consumer ended with {process.returncode} before it had started, three"
                " times"
            )
        try:
            yield consumer
            assert process.stdin is not None
            await process.stdin.send_all(b"stop\n")
            with trio.fail_after(30):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
