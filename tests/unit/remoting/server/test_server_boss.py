from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from triomq.remoting.core import open_files
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import Places
from triomq.remoting.protocol.framing import FrameBuffer
from triomq.remoting.server.boss import Boss
from triomq.remoting.server.buffer_guard import CLOSED_AT_ONCE_MAX, BufferGuard
from triomq.remoting.server.connection import Outboxes
from triomq.remoting.server.idle_scan import IdleScan
from triomq.remoting.server.pool import Sweeper


class Flaky:
    """A listener whose accept() fails as scripted."""

    def __init__(self, listener: socket.socket, failures: list[int]) -> None:
        self.listener = listener
        self.failures = failures

    def fileno(self) -> int:
        return self.listener.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            raise OSError(number := self.failures.pop(0), errno.errorcode[number])
        return self.listener.accept()


async def test_accepting_survives_errors_of_the_system(
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_files, "limit", lambda: 256)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        dealt: list[int] = []
        failures = [errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.EPERM]

        def deal(number: int, sock: socket.socket) -> None:
            dealt.append(number)
            assert not sock.getblocking()
            sock.close()

        flaky = Flaky(listener, failures)
        now = [0.0]
        boss = Boss(flaky, deal, Places(9), limit=LogLimit(clock=lambda: now[0]))  # type: ignore[arg-type]
        with (
            socket.create_connection(listener.getsockname()),
            socket.create_connection(listener.getsockname()),
        ):
            nursery.start_soon(boss.run)
            await trio.sleep(1)
        assert dealt == [0, 1]
        assert (boss.accepted, flaky.failures, boss.places.failed_accepts) == (2, [], 2)
        flaky.failures = [errno.EMFILE]
        with socket.create_connection(listener.getsockname()):
            await trio.sleep(1)
        assert dealt == [0, 1, 2]
        lines = [record.getMessage() for record in caplog.records]
        # Once in ten seconds, not for each try; the next entry names the suppressed count.
        assert lines == [
            (
                "cannot accept connections for now: EMFILE: this process may have 256 (ulimit -n);"
                " raise that limit, or close connections"
            )
        ]
        now[0] += 10
        flaky.failures = [errno.EMFILE]
        with socket.create_connection(listener.getsockname()):
            await trio.sleep(1)
        assert caplog.records[-1].getMessage().endswith(" (and 2 more like this)")
        assert (len(caplog.records), dealt) == (2, [0, 1, 2, 3])
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await (
                trio.testing.wait_all_tasks_blocked()
            )  # the listener is closed when no task waits for it


class Queue:
    def __init__(self, size: int) -> None:
        self.size = size
        self.sweeps = 0

    def __len__(self) -> int:
        return self.size

    def sweep(self) -> None:
        self.sweeps += 1


async def test_the_sweeper_sleeps_while_no_request_is_queued(
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


class Line:
    def __init__(self) -> None:
        self.traffic = 0
        self.idle_traffic, self.idle_since = -1, 0.0
        self.peer_text = "10.0.0.1:5"
        self.closed_for = ""

    def close(self, reason: str) -> None:
        self.closed_for = reason


async def test_the_idle_scan(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    silent, reader, writer = Line(), Line(), Line()
    scan = IdleScan(lambda: [line for line in (silent, reader, writer) if not line.closed_for], 100)  # type: ignore[arg-type, return-value]
    nursery.start_soon(scan.scan_in_rounds)
    for _ in range(30):
        reader.traffic += 1
        writer.traffic += 1
        await trio.sleep(10)
    assert (silent.closed_for, reader.closed_for, writer.closed_for) == ("idle", "", "")
    assert scan.closed_count == 1
    await trio.sleep(200)
    assert scan.closed_count == 3


@attrs.define(eq=False)
class Hoard:
    """A connection that keeps bytes."""

    outbox_bytes: int
    frames: FrameBuffer = attrs.field(factory=FrameBuffer)
    peer_text: str = "10.0.0.1:5"
    closed: bool = False
    then: Callable[[], None] = lambda: None

    def close_greedy(self, size: int) -> None:
        assert not self.closed
        self.closed = True
        self.then()


async def test_the_guard_sleeps_when_it_has_done_its_work(nursery: trio.Nursery) -> None:
    hoards = [Hoard(100) for _ in range(20)]
    outboxes = Outboxes(high_bytes=10, hard_bytes=1000, total_bytes_max=150)
    guard = BufferGuard(lambda: [hoard for hoard in hoards if not hoard.closed], outboxes)  # type: ignore[arg-type, return-value]
    nursery.start_soon(guard.guard_buffers)
    for turn in (1, 2):
        outboxes.total_bytes = 0
        outboxes.add(100 * sum(not hoard.closed for hoard in hoards))
        assert outboxes.full.is_set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not outboxes.full.is_set(), "it would scan without end, and delay all other tasks"
        assert sum(hoard.closed for hoard in hoards) == 19 * turn
        hoards += [Hoard(100) for _ in range(19)]


async def test_the_guard_skips_connections_that_closed_meanwhile(nursery: trio.Nursery) -> None:
    hoards = [Hoard(100 - number) for number in range(CLOSED_AT_ONCE_MAX + 3)]
    outboxes = Outboxes(high_bytes=10, hard_bytes=1000, total_bytes_max=1)
    guard = BufferGuard(lambda: hoards, outboxes)  # type: ignore[arg-type, return-value]

    hoards[CLOSED_AT_ONCE_MAX - 1].then = lambda: hoards[-1].close_greedy(0)
    nursery.start_soon(guard.guard_buffers)
    outboxes.add(2)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert all(hoard.closed for hoard in hoards)
