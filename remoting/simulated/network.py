"""The network of a simulation: its machines, and the packets under way between them.

Bytes arrive in order or not at all, in other pieces than they were sent in. A program that ends
closes its connections; a machine that loses power sends nothing. Packets that a cut holds back are
sent again when the cut ends. Each direction of each connection has its own delays, so connections
overtake each other. All addresses are IPv4: 10.0.0.1, 10.0.0.2 …
"""

from __future__ import annotations

import contextvars
import errno
import heapq
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol

import attrs
import trio

from triomq.remoting.simulated.descriptors import Descriptors, RealWorld

_MACHINES_MAX = 10_000


class Socket(Protocol):
    """A socket as seen from the network."""

    wire: Wire | None

    def send_close(self) -> None:
        """Send what the system sends when a program ends."""

    def abort(self) -> None:
        """Break the socket of a program that has ended."""

    def ask_for_room(self, lost: Machine) -> None:
        """Hear that a machine has lost this connection, if there is no room to send more."""


@attrs.define(eq=False, repr=False)
class Machine:
    """A machine until it is killed or loses power; its successor has its name and address."""

    network: SimulatedNetwork
    name: str
    address: str
    clock_offset_ns: int = 0
    up: bool = True
    """Whether its programs run."""
    powered: bool = True
    """Whether its system runs, which at least refuses connections."""
    paused: bool = False
    """Whether its programs are stopped (SIGSTOP); its system goes on and keeps what arrives."""
    waiting: list[object] = attrs.field(factory=list)
    """Its tasks that would run if it were not paused."""
    sockets: dict[int, Socket] = attrs.field(factory=dict)
    listeners: dict[int, Any] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return f"<machine {self.name}, {self.address}>"

    def start(
        self,
        nursery: trio.Nursery,
        run: Callable[..., Awaitable[object]],
        *arguments: object,
        name: str | None = None,
    ) -> None:
        """Start a task as ``nursery.start_soon`` does, with the machine's address and clock.

        Tasks that it starts have them too.
        """
        context = contextvars.copy_context()
        context.run(self.network.current.set, self)
        context.run(lambda: nursery.start_soon(run, *arguments, name=name))

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back. Checkpoint: never."""
        self.network.note(f"{self.name}: its clock jumps by {seconds:g} s")
        self.clock_offset_ns += int(seconds * 1e9)

    def pause(self) -> None:
        """Stop its programs as SIGSTOP does, until ``go_on`` or ``kill``; time goes on.

        Paused tasks cannot be cancelled. Checkpoint: never.
        """
        self.network.note(f"{self.name}: stands still")
        self.paused = True

    def go_on(self) -> None:
        """End a pause. Checkpoint: never."""
        if self.paused:
            self.network.note(f"{self.name}: goes on")
            self.paused = False
            waiting, self.waiting = self.waiting, []
            for task in waiting:
                self.network.ready(task)

    def kill(self) -> None:
        """End its programs as ``kill -9`` does: the system closes their connections.

        The owner of the tasks must cancel them. Checkpoint: never.
        """
        self.go_on()
        self.network.note(f"{self.name}: killed")
        self.up = False
        self.listeners.clear()
        for sock in list(self.sockets.values()):
            sock.send_close()
            sock.abort()

    def lose_power(self) -> None:
        """Stop at once and send nothing; the owner must cancel the tasks. Checkpoint: never."""
        self.go_on()
        self.network.note(f"{self.name}: lost power")
        self.up = self.powered = False
        for sock in list(self.sockets.values()):
            if sock.wire is not None and sock.wire.held:
                sock.wire.packets.clear()  # no system is left to send them again
            sock.abort()


@attrs.define(eq=False)
class Wire:
    """One direction of one connection, with its packets under way in order."""

    network: SimulatedNetwork
    source: Machine
    target: str
    packets: deque[tuple[float, str, Callable[[], None]]] = attrs.field(factory=deque)
    due: float = 0.0
    """When the youngest packet arrives."""
    held: bool = False
    """Whether a cut holds the packets back, or the target has no power."""

    def put(self, text: str, arrive: Callable[[], None]) -> None:
        network = self.network
        self.due = max(
            self.due, trio.current_time() + network.delay(self.source.address, self.target)
        )
        self.packets.append((self.due, text, arrive))
        if not self.held:
            network.at(self.due, self.deliver)

    def deliver(self) -> None:
        """Let the packets arrive that are due."""
        while self.packets and not self.held:
            due, text, arrive = self.packets[0]
            if due > trio.current_time():
                return
            if self.network.holds(self):
                self.held = True
                self.network.held.append(self)
                return
            self.packets.popleft()
            self.network.note(
                f"{self.network.names[self.source.address]} >"
                f" {self.network.names.get(self.target, self.target)} {text}"
            )
            arrive()

    def release(self) -> None:
        """Send again what was held: the way is free."""
        self.held = False
        again = trio.current_time() + self.network.random.uniform(0.01, 1.0)
        self.packets = deque((max(due, again), text, arrive) for due, text, arrive in self.packets)
        self.due = max(self.due, again)
        for due, _, _ in self.packets:
            self.network.at(due, self.deliver)


@attrs.define(eq=False, repr=False)
class SimulatedNetwork:
    """All machines, and the packets under way between them. Its methods make faults.

    Checkpoint: never.
    """

    random: random.Random
    current: ContextVar[Machine]
    note: Callable[[str], None]
    delays: tuple[float, float] = (0.0002, 0.004)
    """Seconds from machine to machine: shortest and longest."""
    slow: dict[tuple[str, str], float] = attrs.field(factory=dict)
    """Longest extra delay, in seconds, of a direction (addresses)."""
    machines: dict[str, Machine] = attrs.field(factory=dict)
    """By address: the machine that is on, or was on last."""
    names: dict[str, str] = attrs.field(factory=dict)
    held: list[Wire] = attrs.field(factory=list)
    cuts: dict[tuple[str, str], bool] = attrs.field(factory=dict)
    descriptors: Descriptors = attrs.field(init=False)
    ready: Callable[[object], object] = attrs.field(default=lambda task: None)
    """Lets a paused task run."""
    ephemeral_ports: itertools.count[int] = attrs.field(
        factory=lambda: itertools.count(40_000), init=False
    )
    free_ports: itertools.count[int] = attrs.field(
        factory=lambda: itertools.count(20_000), init=False
    )
    _events: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list, init=False)
    _order: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _sleep: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.descriptors = Descriptors(self.random)

    def __repr__(self) -> str:
        return f"<simulated network of {len(self.machines)} machines>"

    def machine(self, name: str) -> Machine:
        """Switch a machine on and return it."""
        address = self._find(name)
        if address is None:
            number = len(self.names)
            if number >= _MACHINES_MAX:
                raise RealWorld(
                    f"a simulated network has at most {_MACHINES_MAX} machines: {name} would be one"
                    " more; give machines that are off their names again"
                )
            address = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"
        before = self.machines.get(address)
        if before is not None and before.up:
            raise RealWorld(f"{name} is on already: end it first (`kill`, `lose_power`)")
        self.names[address] = name
        machine = self.machines[address] = Machine(
            self, name, address, before.clock_offset_ns if before is not None else 0
        )
        self.note(f"{name}: switched on")
        self._release()
        if before is not None:
            for other in self.machines.values():
                for sock in other.sockets.values():
                    sock.ask_for_room(before)
        return machine

    def asking(self) -> Machine:
        """Return the machine whose program runs now; code of no machine runs on "nowhere"."""
        found = self.current.get(None)
        if found is None:
            address = self._find("nowhere")
            found = self.machine("nowhere") if address is None else self.machines[address]
        return found

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Hold back all packets from *source* to *target*; the other direction stays open."""
        self.note(f"cut: {source} > {target}")
        self.cuts[self._link(source, target)] = True

    def heal(self, source: str, target: str) -> None:
        """End a cut: the packets that it held back arrive late."""
        if self.cuts.pop(self._link(source, target), False):
            self.note(f"healed: {source} > {target}")
            self._release()

    def delay_more(self, source: str, target: str, seconds: float) -> None:
        """Delay packets from *source* to *target* by up to *seconds* more; 0 ends that."""
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
        """Break all connections between two machines, as a firewall may; lose packets under way.

        Returns: how many ends were broken.
        """
        pair = {self.address(one), self.address(other)}
        broken: list[Any] = []
        for file in self.descriptors.files.values():
            wire = getattr(file, "wire", None)
            if wire is not None and {wire.source.address, wire.target} == pair:
                broken.append(file)
        self.note(f"reset: {one} - {other}, {len(broken)} ends")
        for sock in broken:
            sock.wire.packets.clear()
            sock.fail(errno.ECONNRESET)
        return len(broken)

    # What goes on

    async def run(self) -> None:
        """Deliver packets until cancelled."""
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
        return (
            (wire.source.address, wire.target) in self.cuts or target is None or not target.powered
        )

    def pieces(self, size: int) -> Iterable[tuple[int, int]]:
        """Yield the (start, end) of the pieces that a send arrives in."""
        start = 0
        while size - start > 1 and self.random.random() < 0.15:
            end = self.random.randint(start + 1, size)
            yield start, end
            start = end
        if start < size:
            yield start, size

    def _release(self) -> None:
        held, self.held = self.held, []
        for wire in held:
            if self.holds(wire):
                self.held.append(wire)
            else:
                wire.release()

    def address(self, name: str) -> str:
        """Return the address of a machine. Raises: KeyError."""
        address = self._find(name)
        if address is None:
            known = ", ".join(self.names.values())
            raise KeyError(f"there is no machine {name!r}; there are {known}")
        return address

    def _find(self, name: str) -> str | None:
        return next((address for address, known in self.names.items() if known == name), None)

    def _link(self, source: str, target: str) -> tuple[str, str]:
        return self.address(source), self.address(target)
