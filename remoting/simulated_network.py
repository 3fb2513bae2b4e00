"""The network of a simulation: machines, their sockets, and what lies between them. `triomq.remoting.testing` is the door.

Sockets behave as TCP sockets of a Unix system do: bytes come in order or not at all, in other pieces than they were sent in; a peer that ends says so, one
that loses power says nothing; what a cut holds back is sent again when it is over. Each direction of each connection takes its own time, so connections
overtake each other. There are IPv4 addresses only, given out as 10.0.0.1, 10.0.0.2 …
"""

from __future__ import annotations

import contextvars
import errno
import heapq
import itertools
import random
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

import attrs
import trio

from triomq.remoting.simulated_sockets import RealWorld, SimulatedFile, SimulatedSocket

_FIRST_DESCRIPTOR = 1_000_000  # above every real one
_EPHEMERAL, _FREE_PORT = 40_000, 20_000
_WINDOWS = (1500, 16_384, 262_144)
_MEMBERS_MAX = 10_000


@attrs.define(eq=False)
class Machine:
    """From being switched on to the end of its power; its successor has the same name and address."""

    network: SimulatedNetwork
    name: str
    address: str
    clock_offset_ns: int = 0
    up: bool = True
    """Its programs run."""
    powered: bool = True
    """Its system runs, and says at least that nobody listens."""
    paused: bool = False
    """Its programs stand still (SIGSTOP); its system goes on, takes what arrives and keeps it for them."""
    waiting: list[Any] = attrs.field(factory=list)
    """Tasks of it that would run if it did not stand still."""
    sockets: dict[int, SimulatedSocket] = attrs.field(factory=dict)
    listeners: dict[int, SimulatedSocket] = attrs.field(factory=dict)

    def start(self, nursery: trio.Nursery, run: Callable[..., Awaitable[object]], *arguments: Any, name: str | None = None) -> None:
        """``nursery.start_soon`` on this machine: the task, and all that it starts, have its address and its clock."""
        context = contextvars.copy_context()
        context.run(self.network.current.set, self)
        context.run(lambda: nursery.start_soon(run, *arguments, name=name))

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back. No checkpoint."""
        self.network.note(f"{self.name}: its clock jumps by {seconds:g} s")
        self.clock_offset_ns += int(seconds * 1e9)

    def pause(self) -> None:
        """Let its programs stand still as SIGSTOP does, while time goes on. No checkpoint. A pause ends with ``go_on`` or ``kill``: nothing cancels tasks that stand still."""
        self.network.note(f"{self.name}: stands still")
        self.paused = True

    def go_on(self) -> None:
        """End a pause. No checkpoint."""
        if self.paused:
            self.network.note(f"{self.name}: goes on")
            self.paused = False
            waiting, self.waiting = self.waiting, []
            for task in waiting:
                self.network.ready(task)

    def kill(self) -> None:
        """End all its programs as ``kill -9`` does: the system closes their connections. No checkpoint; whoever owns the tasks cancels them."""
        self.go_on()
        self.network.note(f"{self.name}: killed")
        self.up = False
        self.listeners.clear()
        for sock in list(self.sockets.values()):
            sock.say_goodbye()
            sock.vanish()

    def lose_power(self) -> None:
        """Stop at once: nobody is told. No checkpoint; whoever owns the tasks cancels them."""
        self.go_on()
        self.network.note(f"{self.name}: lost power")
        self.up = self.powered = False
        for sock in list(self.sockets.values()):
            if sock.wire is not None and sock.wire.held:
                sock.wire.packets.clear()  # nobody sends it again
            sock.vanish()


@attrs.define(eq=False)
class Wire:
    """One direction of one connection: what is under way, in order."""

    network: SimulatedNetwork
    source: Machine
    target: str
    packets: deque[tuple[float, str, Callable[[], None]]] = attrs.field(factory=deque)
    due: float = 0.0
    """When the youngest packet arrives."""
    held: bool = False
    """A cut holds it back, or the target has no power."""

    def put(self, text: str, arrive: Callable[[], None]) -> None:
        network = self.network
        self.due = max(self.due, trio.current_time() + network.delay(self.source.address, self.target))
        self.packets.append((self.due, text, arrive))
        if not self.held:
            network.at(self.due, self.look)

    def look(self) -> None:
        """Let arrive what is due."""
        while self.packets and not self.held:
            due, text, arrive = self.packets[0]
            if due > trio.current_time():
                return
            if self.network.holds(self):
                self.held = True
                self.network.held.append(self)
                return
            self.packets.popleft()
            self.network.note(f"{self.network.names[self.source.address]} > {self.network.names.get(self.target, self.target)} {text}")
            arrive()

    def release(self) -> None:
        """The way is free: what was held is sent again."""
        self.held = False
        again = trio.current_time() + self.network.random.uniform(0.01, 1.0)
        self.packets = deque((max(due, again), text, arrive) for due, text, arrive in self.packets)
        self.due = max(self.due, again)
        for due, _, _ in self.packets:
            self.network.at(due, self.look)


@attrs.define(eq=False)
class SimulatedNetwork:
    """All machines, and what is under way between them. Faults are its methods; none of them has a checkpoint."""

    random: random.Random
    current: ContextVar[Machine]
    note: Callable[[str], None]
    delays: tuple[float, float] = (0.0002, 0.004)
    """Seconds from machine to machine: shortest and longest."""
    slow: dict[tuple[str, str], float] = attrs.field(factory=dict)
    """Longest extra delay of a direction (addresses)."""
    machines: dict[str, Machine] = attrs.field(factory=dict)
    """By address: the one that is on, or was last."""
    names: dict[str, str] = attrs.field(factory=dict)
    held: list[Wire] = attrs.field(factory=list)
    cuts: dict[tuple[str, str], bool] = attrs.field(factory=dict)
    files: dict[int, SimulatedFile] = attrs.field(factory=dict)
    ready: Callable[[Any], object] = attrs.field(default=lambda task: None)
    """Lets a task run that stood still."""
    socket_type: type[SimulatedSocket] = attrs.field(factory=lambda: SimulatedSocket)
    _events: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list, init=False)
    _order: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _descriptors: itertools.count[int] = attrs.field(factory=lambda: itertools.count(_FIRST_DESCRIPTOR), init=False)
    _ports: itertools.count[int] = attrs.field(factory=lambda: itertools.count(_EPHEMERAL), init=False)
    _free_ports: itertools.count[int] = attrs.field(factory=lambda: itertools.count(_FREE_PORT), init=False)
    _sleep: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def machine(self, name: str) -> Machine:
        """Switch a machine on."""
        address = next((address for address, known in self.names.items() if known == name), "")
        if not address:
            number = len(self.names)
            if number >= _MEMBERS_MAX:
                raise RealWorld(f"a simulated network has at most {_MEMBERS_MAX} machines: {name} would be one more; give machines that are off their names again")
            address = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"
        before = self.machines.get(address)
        if before is not None and before.up:
            raise RealWorld(f"{name} is on already: end it first (`kill`, `lose_power`)")
        self.names[address] = name
        machine = self.machines[address] = Machine(self, name, address, before.clock_offset_ns if before is not None else 0)
        self.note(f"{name}: switched on")
        self._release()
        return machine

    def asking(self) -> Machine:
        """The machine whose program runs now; outside of every machine there is one more."""
        found = self.current.get(None)
        if found is None:
            address = next((address for address, name in self.names.items() if name == "nowhere"), None)
            found = self.machine("nowhere") if address is None else self.machines[address]
        return found

    # Faults

    def cut(self, source: str, target: str) -> None:
        """From now on nothing that *source* says reaches *target*; the other direction stays."""
        self.note(f"cut: {source} > {target}")
        self.cuts[self._link(source, target)] = True

    def heal(self, source: str, target: str) -> None:
        """End a cut: what was sent meanwhile comes late."""
        if self.cuts.pop(self._link(source, target), False):
            self.note(f"healed: {source} > {target}")
            self._release()

    def delay_more(self, source: str, target: str, seconds: float) -> None:
        """Everything from *source* to *target* takes up to so much longer; 0 ends it."""
        self.note(f"slow: {source} > {target}, {seconds:g} s")
        self.slow[self._link(source, target)] = seconds

    def heal_all(self) -> None:
        """End all cuts, delays and pauses."""
        self.note("healed: everything")
        self.cuts.clear()
        self.slow.clear()
        for machine in self.machines.values():
            machine.go_on()
        self._release()

    def reset(self, one: str, other: str) -> int:
        """Break all connections between two machines, as a box on the way does; what is under way is lost. How many there were."""
        pair = {self.address(one), self.address(other)}
        found = [sock for sock in self.files.values() if isinstance(sock, SimulatedSocket) and sock.wire is not None]
        broken = [sock for sock in found if sock.wire is not None and {sock.wire.source.address, sock.wire.target} == pair]
        self.note(f"reset: {one} - {other}, {len(broken)} ends")
        for sock in broken:
            if sock.wire is not None:
                sock.wire.packets.clear()
            sock.fail(errno.ECONNRESET)
        return len(broken)

    # What goes on

    async def run(self) -> None:
        """The task that lets things arrive, until cancelled."""
        while True:
            deadline = self._events[0][0] if self._events else float("inf")
            with trio.CancelScope(deadline=deadline) as self._sleep:
                await trio.sleep_forever()
            while self._events and self._events[0][0] <= trio.current_time():
                heapq.heappop(self._events)[2]()

    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), call))
        if when < self._sleep.deadline:
            self._sleep.deadline = when

    def delay(self, source: str, target: str) -> float:
        if source == target:
            return 0.00002
        seconds = self.random.uniform(*self.delays)
        if self.random.random() < 0.01:  # a packet is lost and sent again
            seconds += self.random.uniform(0.05, 0.3)
        return seconds + self.random.uniform(0, self.slow.get((source, target), 0.0))

    def holds(self, wire: Wire) -> bool:
        target = self.machines.get(wire.target)
        return (wire.source.address, wire.target) in self.cuts or target is None or not target.powered

    def pieces(self, size: int) -> Iterable[tuple[int, int]]:
        """How a send is cut up on its way."""
        start = 0
        while size - start > 1 and self.random.random() < 0.15:
            end = self.random.randint(start + 1, size)
            yield start, end
            start = end
        if start < size:
            yield start, size

    def window(self) -> int:
        return self.random.choice(_WINDOWS)

    def _release(self) -> None:
        held, self.held = self.held, []
        for wire in held:
            if self.holds(wire):
                self.held.append(wire)
            else:
                wire.release()

    def address(self, name: str) -> str:
        """Of a machine; KeyError for an unknown one."""
        for address, known in self.names.items():
            if known == name:
                return address
        raise KeyError(f"there is no machine {name!r}; there are {', '.join(self.names.values())}")

    def _link(self, source: str, target: str) -> tuple[str, str]:
        return self.address(source), self.address(target)

    # Descriptors

    def accepted(self, machine: Machine) -> SimulatedSocket:
        """A socket for a connection that comes in. Trio wants the very type that ``socket.socket`` is."""
        sock = self.socket_type.__new__(self.socket_type)
        SimulatedSocket.__init__(sock, self, socket.AF_INET, socket.SOCK_STREAM, None, machine)
        return sock

    def open(self, file: SimulatedFile) -> int:
        number = next(self._descriptors)
        self.files[number] = file
        return number

    def file(self, file: Any) -> SimulatedFile:
        number = file if isinstance(file, int) else file.fileno()
        if number == -1:
            raise trio.ClosedResourceError("this descriptor is closed")
        found = self.files.get(number)
        if found is None:
            raise RealWorld(f"descriptor {number} is a real one: nothing in a simulation may wait for it")
        return found

    def wire(self, source: Machine, target: str) -> Wire:
        return Wire(self, source, target)

    def ephemeral_port(self) -> int:
        return next(self._ports)

    def free_port(self) -> int:
        return next(self._free_ports)
