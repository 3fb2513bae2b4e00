"""The simulated network, clock and threads behave as real ones as far as programs can tell."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable

import pytest
import trio

from triomq.remoting.simulated.simulate import RealWorld, Simulation, simulate

Main = Callable[[Simulation], Awaitable[None]]
PORT = 4000


def simulated(main: Main) -> Callable[[], None]:
    """Run a test with some seeds, each twice with the same trace."""

    def test() -> None:
        for seed in range(8):
            traces: list[list[str]] = [[], []]
            for trace in traces:
                simulate(seed, main, tell=trace.append)
            assert traces[0] == traces[1]

    test.__name__ = main.__name__
    test.__doc__ = main.__doc__
    return test


async def connected(
    simulation: Simulation, nursery: trio.Nursery
) -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return a stream from machine "client" to machine "server", and its other end."""
    server, client = simulation.machine("server"), simulation.machine("client")
    ends: dict[str, trio.SocketStream] = {}
    done = trio.Event()

    async def listen() -> None:
        listeners = await trio.open_tcp_listeners(PORT, host="0.0.0.0")
        ends["server"] = await listeners[0].accept()
        if len(ends) == 2:
            done.set()

    async def connect() -> None:
        await trio.sleep(1)
        ends["client"] = await trio.open_tcp_stream(server.address, PORT)
        if len(ends) == 2:
            done.set()

    server.start(nursery, listen)
    client.start(nursery, connect)
    await done.wait()
    return ends["client"], ends["server"]


async def read_exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await stream.receive_some(count - len(data))
        assert piece, "it ended too soon"
        data += piece
    return data


@simulated
async def test_bytes_come_in_order_and_the_end_after_them(simulation: Simulation) -> None:
    async with trio.open_nursery() as nursery:
        one, other = await connected(simulation, nursery)
        sent = bytes(range(256)) * 2000

        async def send() -> None:
            for start in range(0, len(sent), 10_000):
                await one.send_all(sent[start : start + 10_000])
            await one.send_eof()

        nursery.start_soon(send)
        assert await read_exactly(other, len(sent)) == sent
        assert await other.receive_some(10) == b""
        await other.send_all(b"the other direction is open still")
        assert await read_exactly(one, 33) == b"the other direction is open still"


@simulated
async def test_a_cut_is_one_way_and_held_packets_come_late(simulation: Simulation) -> None:
    async with trio.open_nursery() as nursery:
        one, other = await connected(simulation, nursery)
        simulation.network.cut("client", "server")
        await one.send_all(b"held")
        with trio.move_on_after(60) as waiting:
            await other.receive_some(4)
        assert waiting.cancelled_caught
        await other.send_all(b"heard")
        assert await read_exactly(one, 5) == b"heard"
        simulation.network.heal("client", "server")
        with trio.fail_after(2):
            assert await read_exactly(other, 4) == b"held"


@simulated
async def test_a_killed_program_closes_its_connections_and_lost_power_does_not(
    simulation: Simulation,
) -> None:
    async with trio.open_nursery() as nursery:
        one, other = await connected(simulation, nursery)
        assert other.socket.fileno() > 0
        simulation.network.machines[simulation.network.address("server")].kill()
        with trio.fail_after(1):
            assert await one.receive_some(1) == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream(simulation.network.address("server"), PORT)
    async with trio.open_nursery() as nursery:
        machine = simulation.machine("server")
        machine.kill()
        simulation.network.machines[simulation.network.address("client")].kill()
        one, _ = await connected(simulation, nursery)
        simulation.network.machines[simulation.network.address("server")].lose_power()
        with trio.move_on_after(600) as waiting:
            await one.receive_some(1)
        assert waiting.cancelled_caught
        await one.send_all(b"?")
        simulation.machine("server")
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(2):
            await one.receive_some(1)


@simulated
async def test_a_connection_without_room_ends_when_its_lost_peer_is_back(
    simulation: Simulation,
) -> None:
    """The program can send nothing, but its system asks the other one for room."""
    async with trio.open_nursery() as nursery:
        one, _ = await connected(simulation, nursery)
        with trio.move_on_after(5) as filling:
            while True:
                await one.send_all(bytes(10_000))
        assert filling.cancelled_caught
        simulation.network.machines[simulation.network.address("server")].lose_power()
        simulation.machine("server")
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(2):
            await one.receive_some(1)


@simulated
async def test_a_reset_loses_packets_in_flight(simulation: Simulation) -> None:
    async with trio.open_nursery() as nursery:
        one, other = await connected(simulation, nursery)
        await one.send_all(b"lost")
        assert simulation.network.reset("server", "client") == 2
        for end in (one, other):
            with pytest.raises(trio.BrokenResourceError):
                await end.receive_some(4)


@simulated
async def test_a_paused_machine_goes_on_where_it_was(simulation: Simulation) -> None:
    async with trio.open_nursery() as nursery:
        one, other = await connected(simulation, nursery)
        server = simulation.network.machines[simulation.network.address("server")]
        begun = trio.current_time()
        ticks: list[float] = []
        heard: list[float] = []

        async def tick() -> None:
            while True:
                await trio.sleep(1)
                ticks.append(trio.current_time() - begun)

        async def listen() -> None:
            await read_exactly(other, 4)
            heard.append(trio.current_time() - begun)

        with trio.CancelScope() as scope:
            server.start(nursery, tick)
            server.start(nursery, listen)
            await trio.sleep(3.5)
            server.pause()
            await one.send_all(b"held")
            await trio.sleep(10)
            assert (ticks, heard) == (pytest.approx([1, 2, 3]), [])
            server.go_on()
            await trio.sleep(1.5)
            assert ticks[3:] == pytest.approx([13.5, 14.5])  # at once, and then a second later
            assert heard == pytest.approx([13.5])
            server.pause()
            server.kill()  # as a stopped process is killed
            scope.cancel()
        nursery.cancel_scope.cancel()


@simulated
async def test_clocks_threads_and_addresses(simulation: Simulation) -> None:
    begun, now = time.time(), time.monotonic()
    machine = simulation.machine("late")
    machine.step_clock(3600)
    times: list[float] = []

    async def look() -> None:
        times.append(time.time())

    async with trio.open_nursery() as nursery:
        machine.start(nursery, look)
    assert times == [pytest.approx(begun + 3600)]
    assert await trio.to_thread.run_sync(sum, (1, 2)) == 3
    assert 0 < time.monotonic() - now < 1
    with pytest.raises(RealWorld):
        threading.Thread(target=print).start()
    with trio.socket.socket() as sock:
        with pytest.raises(OSError) as caught:
            await sock.bind(("192.0.2.1", 80))
        assert caught.value.errno == errno.EADDRNOTAVAIL


def test_another_seed_is_another_run() -> None:
    async def main(simulation: Simulation) -> str:
        async with trio.open_nursery() as nursery:
            one, other = await connected(simulation, nursery)
            await one.send_all(b"x" * 1000)
            await read_exactly(other, 1000)
        return simulation.trace.digest

    assert simulate(1, main) == simulate(1, main)
    assert simulate(1, main) != simulate(2, main)


def test_the_real_system_is_back_afterwards() -> None:
    before = time.time()

    async def fail(_: Simulation) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        simulate(0, fail)
    assert 0 <= time.time() - before < 60
    assert isinstance(trio.run(trio.to_thread.run_sync, threading.get_ident), int)


@simulated
async def test_hundreds_of_names_and_a_machine_that_is_switched_on_again_among_them(
    simulation: Simulation,
) -> None:
    await trio.lowlevel.checkpoint()
    machines = [simulation.machine(f"m{number}") for number in range(600)]
    assert len({machine.address for machine in machines}) == 600
    machines[0].kill()
    assert simulation.machine("m0").address == machines[0].address


@simulated
async def test_the_system_s_random_numbers_are_those_of_the_seed(simulation: Simulation) -> None:
    simulation.trace.note(f"{uuid.uuid4()} {os.urandom(8).hex()}")


def test_another_thread_sees_the_real_clock_and_leaves_no_trace() -> None:
    """One that an earlier test has left."""
    seen: list[float] = []
    lines: list[str] = []
    ended = threading.Event()

    def read_clock() -> None:
        while not ended.wait(0.001):
            seen.append(time.time())

    async def main(simulation: Simulation) -> None:
        count = len(seen)
        while len(seen) < count + 10:
            await trio.sleep(1)
        assert time.time() - seen[-1] < -1e7, "the simulated clock"

    before = time.time()
    other = threading.Thread(target=read_clock)
    other.start()
    try:
        simulate(1, main, tell=lines.append)
    finally:
        ended.set()
        other.join()
    assert all(before <= each <= time.time() for each in seen)
    assert len([line for line in lines if "switched on" in line]) == 1, "the program's own"
