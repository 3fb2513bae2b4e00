from __future__ import annotations

import errno
import socket

import pytest
import trio

from triomq.remoting.server.boss import Boss
from triomq.remoting.server.sweeper import IdleScan, Sweeper


class Flaky:
    """A listener whose accept() fails as the script says."""

    def __init__(self, listener: socket.socket, failures: list[int]) -> None:
        self.listener = listener
        self.failures = failures

    def fileno(self) -> int:
        return self.listener.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            raise OSError(number := self.failures.pop(0), errno.errorcode[number])
        return self.listener.accept()


async def test_accepting_survives_what_the_system_does(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        dealt: list[int] = []
        failures = [errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.EPERM]

        def deal(number: int, sock: socket.socket) -> None:
            dealt.append(number)
            assert not sock.getblocking()
            sock.close()

        flaky = Flaky(listener, failures)
        boss = Boss(flaky, deal)  # type: ignore[arg-type]
        with socket.create_connection(listener.getsockname()), socket.create_connection(listener.getsockname()):
            nursery.start_soon(boss.run)
            await trio.sleep(1)
        assert dealt == [0, 1]
        assert (boss.accepted, boss.failed) == (2, 4)
        flaky.failures = [errno.EMFILE]
        with socket.create_connection(listener.getsockname()):
            await trio.sleep(1)
        assert dealt == [0, 1, 2]
        nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2  # once for each time that it runs out, not for each try
    assert lines[0] == "cannot accept connections: EMFILE; raise the limit of open files (ulimit -n) or close clients"


class Queue:
    def __init__(self, size: int) -> None:
        self.size = size
        self.sweeps = 0

    def __len__(self) -> int:
        return self.size

    def sweep(self) -> None:
        self.sweeps += 1


async def test_the_sweeper_sleeps_while_there_is_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    queues = [Queue(0), Queue(0)]
    sweeper = Sweeper(queues)  # type: ignore[arg-type]
    sweeper.wake()
    nursery.start_soon(sweeper.run)
    await trio.sleep(1)
    assert queues[0].sweeps == 0
    queues[1].size = 3
    sweeper.wake()
    await trio.sleep(0.105)
    assert queues[0].sweeps == queues[1].sweeps == 10
    queues[1].size = 0
    await trio.sleep(1)
    assert queues[1].sweeps == 11
    nursery.cancel_scope.cancel()


class Line:
    def __init__(self) -> None:
        self.read_count = self.write_count = 0
        self.idle_traffic, self.idle_since = -1, 0.0
        self.peer_text = "10.0.0.1:5"
        self.closed_for = ""

    def close(self, reason: str) -> None:
        self.closed_for = reason


async def test_the_idle_scan(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    silent, reader, writer = Line(), Line(), Line()
    scan = IdleScan(lambda: [line for line in (silent, reader, writer) if not line.closed_for], 100)  # type: ignore[arg-type, return-value]
    nursery.start_soon(scan.run)
    for _ in range(30):
        reader.read_count += 1
        writer.write_count += 1
        await trio.sleep(10)
    assert (silent.closed_for, reader.closed_for, writer.closed_for) == ("idle", "", "")
    assert scan.closed_count == 1
    await trio.sleep(200)
    assert scan.closed_count == 3
    nursery.cancel_scope.cancel()
