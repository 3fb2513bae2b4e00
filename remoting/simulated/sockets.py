"""Sockets of a simulation: what programs see of the network between its machines.

They behave as TCP sockets of a Unix system do, and never block.
"""

from __future__ import annotations

import errno
import os
import socket
import zlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from triomq.remoting.simulated.descriptors import (
    FAILED,
    READABLE,
    WRITABLE,
    RealWorld,
    SimulatedFile,
)
from triomq.remoting.simulated.network import Machine, SimulatedNetwork, Wire

_WINDOWS = (1500, 16_384, 262_144)


def _os_error(number: int) -> OSError:
    """Return the error of a number; that of EAGAIN and EINPROGRESS is a BlockingIOError."""
    return OSError(number, os.strerror(number))


class SimulatedSocket(SimulatedFile):
    """``socket.socket``: TCP, and of UDP only what finding one's own address needs."""

    def __init__(
        self,
        network: SimulatedNetwork,
        family: int,
        kind: int,
        fileno: int | None,
        machine: Machine | None = None,
    ) -> None:
        if fileno is not None:
            raise RealWorld("a socket was made of a real descriptor inside a simulation")
        super().__init__(network.descriptors)
        self.network = network
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
        """The peer closed its sending side."""
        self.error = 0
        self.broken = False
        self.outstanding = 0
        """Bytes that were sent and that the peer has not read yet."""
        self.window = network.random.choice(_WINDOWS)
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
        """Do nothing: a simulated socket never blocks."""

    def setsockopt(self, level: int, option: int, value: object) -> None:
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
        self.local = (host, port or next(self.network.free_ports))

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
            raise _os_error(errno.EAGAIN)
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
            self.local, self.remote = (here, next(self.network.ephemeral_ports)), (host, port)
            return
        target = here if host.startswith("127.") else host
        self.local, self.remote = (here, next(self.network.ephemeral_ports)), (target, port)
        self.wire = Wire(self.network, self.machine, target)
        self.wire.put(f"connect {port}", lambda: self._knock(target, port))
        raise _os_error(errno.EINPROGRESS)

    def _knock(self, target: str, port: int) -> None:
        """Handle the first packet, at the other machine."""
        machine = self.network.machines[target]
        listener = machine.listeners.get(port)
        back = Wire(self.network, machine, self.machine.address)
        if listener is None:
            back.put("refused", lambda: self.fail(errno.ECONNREFUSED))
            return
        child = self._accepted(machine)
        child.local, child.remote = (target, port), self.local
        child.wire, child.peer, child.established = back, self, True
        back.put("accepts", lambda: self._welcome(child, listener))

    def _accepted(self, machine: Machine) -> SimulatedSocket:
        """Return a socket that *machine* accepts, of the very type that Trio requires."""
        sock = type(self).__new__(type(self))
        SimulatedSocket.__init__(
            sock, self.network, socket.AF_INET, socket.SOCK_STREAM, None, machine
        )
        return sock

    def _welcome(self, child: SimulatedSocket, listener: SimulatedSocket) -> None:
        """Handle the answer, here; the third packet goes out ahead of all data."""
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
        self._raise_error()
        if self.broken or self._shut:
            raise _os_error(errno.EPIPE)
        if not self.established or self.wire is None:
            raise _os_error(errno.ENOTCONN if self.remote is None else errno.EAGAIN)
        taken = bytes(memoryview(data)[: max(0, self.window - self.outstanding)])
        if not taken:
            if len(data):
                raise _os_error(errno.EAGAIN)
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
        self.wire.put(
            f"{len(piece)} bytes {zlib.crc32(piece):08x} to {peer.local[1]}",
            lambda: peer._arrive(piece),
        )

    def _arrive(self, piece: bytes) -> None:
        if self.number == -1 or self.broken or not self.machine.up:
            self._answer_reset()
            return
        self.received += piece
        self.changed()

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check_open()
        if self.received:
            data = bytes(self.received[:size])
            if flags & socket.MSG_PEEK:
                return data
            del self.received[:size]
            peer = self.peer
            if peer is not None:
                peer.outstanding -= len(data)
                peer.changed()
            return data
        self._raise_error()
        if self.ended or self.broken:
            return b""
        raise _os_error(errno.EAGAIN)

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
        """Close the sending side, the only side that programs close alone."""
        self._check_open()
        if not self.established:
            raise _os_error(errno.ENOTCONN)
        self._end_wire()

    def detach(self) -> int:
        raise RealWorld("a simulated socket has no descriptor to give away")

    def close(self) -> None:
        if self.number == -1:
            return
        self.send_close()
        self._forget()

    def refuse(self) -> None:
        """Close a connection that no program will accept."""
        self._lingers = False
        self.close()

    def send_close(self) -> None:
        """Send what the system sends when a descriptor is closed, or its program killed."""
        if self.backlog is not None:
            if self.machine.listeners.get(self.local[1]) is self:
                del self.machine.listeners[self.local[1]]
            for child in self.backlog:
                child.refuse()
            self.backlog.clear()
        elif (
            self.established and not self.broken and self.machine.powered and self.wire is not None
        ):
            if self.received or not self._lingers:
                self.wire.packets.clear()
                self._answer_reset(self.wire)
            else:
                self._end_wire()

    def abort(self) -> None:
        """Break the socket of a program that has ended: no later call has an effect."""
        self.broken, self.error, self.established = True, errno.ECONNRESET, False
        self.received.clear()
        if self.backlog is not None:
            self.backlog.clear()
        self.changed()

    def fail(self, number: int) -> None:
        """Break the connection with this error number."""
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
        """Tell the other side that no program reads here any more."""
        peer = self.peer
        if peer is None or peer.number == -1:
            return
        wire = wire or Wire(
            self.network, self.network.machines[self.machine.address], peer.machine.address
        )
        wire.put("reset", lambda: peer.fail(errno.ECONNRESET))

    def ask_for_room(self, lost: Machine) -> None:
        """Hear that a machine has lost this connection, if it has left no room to send more.

        The program sends nothing then, but its system asks for room from time to time.
        """
        peer = self.peer
        if peer is not None and peer.machine is lost and self.outstanding >= self.window:
            peer._answer_reset()

    def _raise_error(self) -> None:
        number, self.error = self.error, 0
        if number:
            raise _os_error(number)

    def _check_open(self) -> None:
        if self.number == -1:
            raise _os_error(errno.EBADF)

    def _forget(self) -> None:
        self.machine.sockets.pop(self.number, None)
        self.descriptors.files.pop(self.number, None)
        self.notify_closing()
        self.number = -1
