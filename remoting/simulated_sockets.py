"""Sockets and pollers of a simulation: what programs see of the network between its machines (`simulated_network`).

They behave as those of a Unix system do, and never wait: who wants to, waits for the descriptor, as with real ones.
"""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from triomq.remoting.simulated_network import Machine, SimulatedNetwork, Wire

READABLE, WRITABLE, FAILED = 1, 4, 8
"""The bits of epoll."""


class RealWorld(RuntimeError):
    """Code inside a simulation wanted something of the real system that would end the simulation's determinism."""


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class SimulatedFile:
    """What can be waited for."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.number = network.open(self)
        self.readers: list[trio.lowlevel.Task] = []
        self.writers: list[trio.lowlevel.Task] = []
        self.pollers: list[SimulatedPoller] = []
        self.cut_off: list[trio.lowlevel.Task] = []
        """Those that waited when this was closed, and have not run since."""

    def fileno(self) -> int:
        return self.number

    def events(self) -> int:
        """What is so now, of READABLE, WRITABLE, FAILED."""
        return 0

    async def wait_readable(self) -> None:
        await self._wait(self.readers, READABLE | FAILED)

    async def wait_writable(self) -> None:
        await self._wait(self.writers, WRITABLE | FAILED)

    async def _wait(self, tasks: list[trio.lowlevel.Task], events: int) -> None:
        if tasks:
            raise trio.BusyResourceError("another task waits for this descriptor already")
        if self.events() & events:
            await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        tasks.append(task)

        def give_up(_: object) -> trio.lowlevel.Abort:
            tasks.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if task in self.cut_off:
            self.cut_off.remove(task)
            raise trio.ClosedResourceError("another task closed this descriptor")

    def changed(self) -> None:
        """Wake whoever waits for what is so now."""
        events = self.events()
        if events & (READABLE | FAILED):
            _wake(self.readers)
        if events & (WRITABLE | FAILED):
            _wake(self.writers)
        for poller in self.pollers:
            if poller.watched.get(self.number, 0) & events or events & FAILED:
                poller.changed()

    def notify_closing(self) -> None:
        self.cut_off += self.readers + self.writers
        _wake(self.readers)
        _wake(self.writers)


def _wake(tasks: list[trio.lowlevel.Task]) -> None:
    waiting, tasks[:] = tasks[:], []
    for task in waiting:
        trio.lowlevel.reschedule(task)


class SimulatedPoller(SimulatedFile):
    """``select.epoll``, level-triggered."""

    def __init__(self, network: SimulatedNetwork) -> None:
        super().__init__(network)
        self.watched: dict[int, int] = {}

    def register(self, number: int, events: int) -> None:
        self.watched[number] = events
        self.network.files[number].pollers.append(self)
        self.changed()

    def modify(self, number: int, events: int) -> None:
        self.watched[number] = events
        self.changed()

    def unregister(self, number: int) -> None:
        del self.watched[number]
        self.network.files[number].pollers.remove(self)

    def poll(self, _timeout: float = 0, events_max: int = -1) -> list[tuple[int, int]]:
        ready = []
        for number, wanted in self.watched.items():
            found = self.network.files[number].events() & (wanted | FAILED)
            if found:
                ready.append((number, found))
        self.network.random.shuffle(ready)
        return ready[:events_max] if events_max > 0 else ready

    def events(self) -> int:
        return READABLE if any(self.network.files[number].events() & (wanted | FAILED) for number, wanted in self.watched.items()) else 0

    def close(self) -> None:
        for number in self.watched:
            self.network.files[number].pollers.remove(self)
        self.watched.clear()
        self.network.files.pop(self.number, None)


class SimulatedSocket(SimulatedFile):
    """``socket.socket``: TCP, and as much of UDP as asking for one's own address takes. Never waits."""

    def __init__(self, network: SimulatedNetwork, family: int, kind: int, fileno: int | None, machine: Machine | None = None) -> None:
        if fileno is not None:
            raise RealWorld("a socket was made of a real descriptor inside a simulation")
        super().__init__(network)
        self.machine = machine or network.asking()
        self.machine.sockets[self.number] = self
        self.family = socket.AF_INET if family == -1 else family
        self.type = socket.SOCK_STREAM if kind == -1 else kind
        self.proto = 0
        self.local: tuple[str, int] = ("0.0.0.0", 0)
        self.remote: tuple[str, int] | None = None
        self.backlog: deque[SimulatedSocket] | None = None
        self.peer: SimulatedSocket | None = None
        self.wire: Wire | None = None
        self.established = False
        self.received = bytearray()
        self.ended = False
        """The peer has said its last word."""
        self.error = 0
        self.broken = False
        self.outstanding = 0
        """Bytes that were sent and that the peer has not read."""
        self.window = network.window()
        self._lingers = True
        self._shut = False
        if self.family != socket.AF_INET:
            raise _os_error(errno.EAFNOSUPPORT)

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Settings

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        self._check_open()
        if option == socket.SO_LINGER and level == socket.SOL_SOCKET:
            self._lingers = False

    def getsockopt(self, level: int, option: int, _size: int = 0) -> int:
        self._check_open()
        if option == socket.SO_ERROR and level == socket.SOL_SOCKET:
            number, self.error = self.error, 0
            return number
        return int(self.backlog is not None) if option == socket.SO_ACCEPTCONN else 0

    def getsockname(self) -> tuple[str, int]:
        self._check_open()
        return self.local

    def getpeername(self) -> tuple[str, int]:
        self._check_open()
        if self.remote is None or self.broken:
            raise _os_error(errno.ENOTCONN)
        return self.remote

    # Connecting

    def bind(self, address: tuple[str, int]) -> None:
        self._check_open()
        host, port = address[:2]
        if host not in ("0.0.0.0", self.machine.address) and not host.startswith("127."):
            raise _os_error(errno.EADDRNOTAVAIL)
        if port and port in self.machine.listeners:
            raise _os_error(errno.EADDRINUSE)
        self.local = (host, port or self.network.free_port())

    def listen(self, _backlog: int = 0) -> None:
        self._check_open()
        if self.local[1] in self.machine.listeners:
            raise _os_error(errno.EADDRINUSE)
        self.backlog = deque()
        if self.machine.up:
            self.machine.listeners[self.local[1]] = self

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        self._check_open()
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        found = self.backlog.popleft()
        assert found.remote is not None
        return found, found.remote

    def connect(self, address: tuple[str, int]) -> None:
        self._check_open()
        host, port = address[:2]
        if not self.machine.up:
            raise _os_error(errno.ENETUNREACH)
        here = self.machine.address
        if self.type == socket.SOCK_DGRAM:
            self.local, self.remote = (here, self.network.ephemeral_port()), (host, port)
            return
        target = here if host.startswith("127.") else host
        self.local, self.remote = (here, self.network.ephemeral_port()), (target, port)
        self.wire = self.network.wire(self.machine, target)
        self.wire.put(f"connect {port}", lambda: self._knock(target, port))
        raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))

    def _knock(self, target: str, port: int) -> None:
        """The first packet arrives at the other machine."""
        machine = self.network.machines[target]
        listener = machine.listeners.get(port)
        back = self.network.wire(machine, self.machine.address)
        if listener is None:
            back.put("refused", lambda: self.fail(errno.ECONNREFUSED))
            return
        child = self.network.accepted(machine)
        child.local, child.remote = (target, port), self.local
        child.wire, child.peer, child.established = back, self, True
        back.put("accepts", lambda: self._welcome(child, listener))

    def _welcome(self, child: SimulatedSocket, listener: SimulatedSocket) -> None:
        """The answer arrives here; the third packet goes out ahead of all data."""
        if self.number == -1 or self.wire is None or not self.machine.up:
            child._forget()
            return
        self.peer, self.established = child, True
        self.wire.put("connected", lambda: listener._take(child))
        self.changed()

    def _take(self, child: SimulatedSocket) -> None:
        if self.number == -1 or not self.machine.up or self.backlog is None:
            child.refuse()
            return
        self.backlog.append(child)
        self.changed()

    # Bytes

    def send(self, data: Any, _flags: int = 0) -> int:
        self._check_open()
        if self.error:
            number, self.error = self.error, 0
            raise _os_error(number)
        if self.broken or self._shut:
            raise _os_error(errno.EPIPE)
        if not self.established or self.wire is None:
            raise _os_error(errno.ENOTCONN) if self.remote is None else BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        taken = bytes(memoryview(data)[: max(0, self.window - self.outstanding)])
        if not taken:
            if len(data):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return 0
        self.outstanding += len(taken)
        for start, end in self.network.pieces(len(taken)):
            self._send_piece(taken[start:end])
        return len(taken)

    def sendmsg(self, pieces: Iterable[Any]) -> int:
        return self.send(b"".join(pieces))

    def _send_piece(self, piece: bytes) -> None:
        assert self.wire is not None
        peer = self.peer
        assert peer is not None
        self.wire.put(f"{len(piece)} bytes {zlib.crc32(piece):08x} to {peer.local[1]}", lambda: peer._arrive(piece))

    def _arrive(self, piece: bytes) -> None:
        if self.number == -1 or self.broken or not self.machine.up:
            self._answer_reset()
            return
        self.received += piece
        self.changed()

    def recv(self, size: int, _flags: int = 0) -> bytes:
        self._check_open()
        if self.received:
            data = bytes(self.received[:size])
            del self.received[:size]
            peer = self.peer
            if peer is not None:
                peer.outstanding -= len(data)
                peer.changed()
            return data
        if self.error:
            number, self.error = self.error, 0
            raise _os_error(number)
        if self.ended or self.broken:
            return b""
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def recv_into(self, buffer: Any, size: int = 0, _flags: int = 0) -> int:
        data = self.recv(size or len(buffer))
        memoryview(buffer)[: len(data)] = data
        return len(data)

    def events(self) -> int:
        if self.backlog is not None:
            return READABLE if self.backlog else 0
        found = READABLE if self.received or self.ended or self.error or self.broken else 0
        if self.established and self.outstanding < self.window:
            found |= WRITABLE
        return found | FAILED if self.error or self.broken else found

    # The end

    def shutdown(self, _how: int) -> None:
        """Say the last word (the only half that anybody ends alone)."""
        self._check_open()
        if not self.established:
            raise _os_error(errno.ENOTCONN)
        self._end_wire()

    def detach(self) -> int:
        raise RealWorld("a simulated socket has no descriptor to give away")

    def close(self) -> None:
        if self.number == -1:
            return
        self.say_goodbye()
        self._forget()

    def refuse(self) -> None:
        """Nobody will ever take this connection."""
        self._lingers = False
        self.close()

    def say_goodbye(self) -> None:
        """What the system tells the other side when a descriptor is closed, or its program killed."""
        if self.backlog is not None:
            if self.machine.listeners.get(self.local[1]) is self:
                del self.machine.listeners[self.local[1]]
            for child in self.backlog:
                child.refuse()
            self.backlog.clear()
        elif self.established and not self.broken and self.machine.powered and self.wire is not None:
            if self.received or not self._lingers:
                self.wire.packets.clear()
                self._answer_reset(self.wire)
            else:
                self._end_wire()

    def vanish(self) -> None:
        """Its program is gone: nothing that what is left of it does has an effect any more."""
        self.broken, self.error, self.established = True, errno.ECONNRESET, False
        self.received.clear()
        if self.backlog is not None:
            self.backlog.clear()
        self.changed()

    def fail(self, number: int) -> None:
        """The connection broke, or never came about."""
        if self.number == -1 or self.broken:
            return
        self.error, self.broken = number, True
        self.changed()

    def _end_wire(self) -> None:
        peer, wire = self.peer, self.wire
        if not self._shut and wire is not None and peer is not None:
            self._shut = True
            wire.put("end", peer._hear_end)

    def _hear_end(self) -> None:
        if self.number != -1:
            self.ended = True
            self.changed()

    def _answer_reset(self, wire: Wire | None = None) -> None:
        """Tell the other side that there is nobody here."""
        peer = self.peer
        if peer is None or peer.number == -1:
            return
        wire = wire or self.network.wire(self.network.machines[self.machine.address], peer.machine.address)
        wire.put("reset", lambda: peer.fail(errno.ECONNRESET))

    def _check_open(self) -> None:
        if self.number == -1:
            raise _os_error(errno.EBADF)

    def _forget(self) -> None:
        self.machine.sockets.pop(self.number, None)
        self.network.files.pop(self.number, None)
        self.notify_closing()
        self.number = -1
