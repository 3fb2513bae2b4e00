"""The wall clock of a broker jumps while messages are popped: their invisible times go on by the
steady clock. Time is simulated, so that every bound is exact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from brokers import BrokerPeer
from pop_peer import Popped, acknowledge, pop
from simulated_cluster import BROKER_PORT, SimulatedCluster
from simulated_story import play_story

from triomq.remoting.client.connector import Connector
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.consuming.popped_requests import changed_handle
from triomq.remoting.protocol.headers.pop import (
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
)

DAY = 86_400.0
JUMPS = [-10.0, -3_600.0, 40 * DAY, -40 * DAY]
FAR_JUMPS = [-3_600.0, 40 * DAY]
RESTART_JUMPS = [-3_600.0, 40 * DAY, -40 * DAY]
HIDDEN = 30
"""Seconds for which messages are invisible."""
LATE = 3.0
"""Longest time until a message comes again whose invisible time is over, in seconds."""
BODIES = [b"0", b"1", b"2", b"3"]

Story = Callable[["Scene"], Awaitable[None]]


class Scene:
    """A broker whose clock is set, and a client on another machine."""

    def __init__(self, cluster: SimulatedCluster, connector: Connector) -> None:
        self.cluster = cluster
        address = f"{cluster.services['master'].address}:{BROKER_PORT}"
        self.peer = BrokerPeer(connector, address)

    def jump(self, seconds: float) -> None:
        network = self.cluster.simulation.network
        network.machines[network.address("master")].step_clock(seconds)

    async def take(self, count: int = 32, seconds: float = HIDDEN, **more: object) -> list[Popped]:
        """Pop once, and wait for messages."""
        values = {"poll_ms": 20_000, **more}
        hidden_ms = int(seconds * 1000)
        return (await pop(self.peer, count=count, invisible_ms=hidden_ms, **values))[1]

    async def take_all(self, count: int, **more: object) -> list[bytes]:
        """Pop and acknowledge until ``count`` messages came, for an hour at most."""
        found: list[bytes] = []
        with trio.move_on_after(3_600):
            while len(found) < count:
                for each in await self.take(**more):
                    await acknowledge(self.peer, each)
                    found.append(each.body)
        return sorted(found)

    async def change(self, popped: Popped, seconds: float) -> Popped:
        """Give a message another invisible time; return it with its new handle."""
        handle = popped.handle
        header = ChangeInvisibleTimeHeader(
            "G", popped.topic, handle.queue_id, handle.encode(), handle.offset, int(seconds * 1000)
        )
        answer = await self.peer.call(Code.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == 0, answer.remark
        made = answer.header(ChangeInvisibleTimeResponseHeader)
        return Popped(popped.message, changed_handle(handle, made), popped.topic)

    async def silent(self, **more: object) -> None:
        """Nothing comes for a while."""
        for _ in range(3):
            assert await self.take(**more) == []

    async def restart(self, jump: float = 0.0) -> None:
        await self.cluster.stop("master")
        self.jump(jump)
        self.cluster.start("master")
        await self.until_ready()

    async def until_ready(self) -> None:
        with trio.fail_after(60):
            while True:
                try:
                    await self.peer.create_topic("T", 1)
                    return
                except RemotingError:
                    await trio.sleep(0.5)


def play(story: Story) -> None:
    """Tell a story with a broker and four messages in one queue."""

    def build(cluster: SimulatedCluster) -> None:
        cluster.add_namesrv("namesrv")
        cluster.add_broker("master", brokerId=0, brokerRole="ASYNC_MASTER")

    async def tell(cluster: SimulatedCluster, connector: Connector) -> None:
        scene = Scene(cluster, connector)
        await scene.until_ready()
        for body in BODIES:
            await scene.peer.send("T", body)
        await story(scene)

    play_story(build, tell)


def since(begun: float) -> float:
    return trio.current_time() - begun


@pytest.mark.parametrize("jump", JUMPS)
def test_what_is_not_acknowledged_comes_again_in_time(jump: float) -> None:
    async def story(scene: Scene) -> None:
        begun = trio.current_time()
        first, second, *_ = await scene.take()
        scene.jump(jump)
        await acknowledge(scene.peer, first)
        assert await scene.take() == []
        await acknowledge(scene.peer, second)
        assert await scene.take_all(2) == [b"2", b"3"]
        assert HIDDEN <= since(begun) < HIDDEN + LATE
        scene.jump(-jump)
        await scene.silent()
        await scene.restart()
        await scene.silent()

    play(story)


@pytest.mark.parametrize("jump", FAR_JUMPS)
def test_invisible_times_are_changed(jump: float) -> None:
    async def story(scene: Scene) -> None:
        longer, shorter, done, rest = await scene.take()
        await acknowledge(scene.peer, rest)
        scene.jump(jump)
        begun = trio.current_time()
        longer = await scene.change(longer, 3 * HIDDEN)
        await scene.change(shorter, 5)
        done = await scene.change(done, HIDDEN)
        assert await scene.take_all(1) == [b"1"]
        assert 5 <= since(begun) < 5 + LATE
        await acknowledge(scene.peer, done)
        scene.jump(-jump)
        longer = await scene.change(longer, 2 * HIDDEN)
        changed = trio.current_time()
        assert await scene.take_all(1) == [b"0"]
        assert 2 * HIDDEN <= since(changed) < 2 * HIDDEN + LATE

    play(story)


@pytest.mark.parametrize("jump", FAR_JUMPS)
def test_a_changed_time_is_over_by_the_steady_clock(jump: float) -> None:
    async def story(scene: Scene) -> None:
        first, *rest = await scene.take()
        for each in rest:
            await acknowledge(scene.peer, each)
        await trio.sleep(HIDDEN + LATE)
        scene.jump(jump)
        handle = first.handle
        header = ChangeInvisibleTimeHeader("G", "T", 0, handle.encode(), handle.offset, 60_000)
        answer = await scene.peer.call(Code.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == ResponseCode.NO_MESSAGE
        assert await scene.take_all(1) == [b"0"]

    play(story)


@pytest.mark.parametrize("jump", RESTART_JUMPS)
def test_an_ordered_queue_is_free_in_time(jump: float) -> None:
    async def story(scene: Scene) -> None:
        begun = trio.current_time()
        first, *_ = await scene.take(order=True)
        scene.jump(jump)
        assert await scene.take(order=True) == []
        await acknowledge(scene.peer, first)
        again = await scene.take_all(3, order=True)
        assert HIDDEN <= since(begun) < HIDDEN + LATE
        assert again == [b"1", b"2", b"3"]

    play(story)


@pytest.mark.parametrize("jump", FAR_JUMPS)
def test_an_ordered_queue_whose_time_is_changed(jump: float) -> None:
    async def story(scene: Scene) -> None:
        first, *rest = await scene.take(order=True)
        for each in rest:
            await acknowledge(scene.peer, each)
        scene.jump(jump)
        begun = trio.current_time()
        await scene.change(first, 5)
        assert await scene.take_all(1, order=True) == [b"0"]
        assert 5 <= since(begun) < 5 + LATE

    play(story)


@pytest.mark.parametrize(
    ("jump", "order"),
    [*((jump, False) for jump in RESTART_JUMPS), *((jump, True) for jump in FAR_JUMPS)],
)
def test_what_is_in_flight_outlives_a_restart(jump: float, order: bool) -> None:
    """Nobody knows how long the broker was off: it comes again after its invisible time at the
    latest, and at once if the clock was set ahead.
    """

    async def story(scene: Scene) -> None:
        popped = await scene.take(order=order)
        if not order:
            await acknowledge(scene.peer, popped[0])
        await scene.restart(jump)
        begun = trio.current_time()
        await acknowledge(scene.peer, popped[1])
        over = BODIES[1:] if jump > 0 else BODIES[2:]  # set ahead: all times were over
        left = [b"0", b"2", b"3"] if order else over
        again = await scene.take_all(len(left), order=order)
        assert since(begun) < HIDDEN + LATE
        await scene.silent()
        scene.jump(-jump)
        await scene.silent()
        await scene.restart()
        await scene.silent()
        assert again == left

    play(story)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("pop", 0.0), ("pop", -3_600.0), ("order", 0.0), ("order", -3_600.0), ("level", 0.0)],
)
def test_restarts_let_what_waits_begin_again_once(kind: str, more: float) -> None:
    """However often the broker is restarted: from the first start with a clock behind, all of the
    time counts. If the clock goes back a second time, it is over.
    """

    async def story(scene: Scene) -> None:
        order = kind == "order"
        if kind == "level":
            assert await scene.take_all(4) == BODIES
            for body in BODIES:
                await scene.peer.send("T", body, properties={"DELAY": "4"})
        else:
            assert len(await scene.take(order=order)) == 4
        await scene.restart(-3_600)
        begun = trio.current_time()
        for _ in range(3):
            await trio.sleep(HIDDEN / 5)
            await scene.restart(more)
        assert await scene.take_all(4, order=order) == BODIES
        assert since(begun) < HIDDEN + LATE
        assert since(begun) >= HIDDEN - LATE or more

    play(story)


@pytest.mark.parametrize("jump", FAR_JUMPS)
def test_what_is_popped_after_a_jump_outlives_a_restart(jump: float) -> None:
    async def story(scene: Scene) -> None:
        scene.jump(jump)
        begun = trio.current_time()
        first, second, *_ = await scene.take()
        await acknowledge(scene.peer, first)
        await scene.restart()
        await acknowledge(scene.peer, second)
        assert await scene.take_all(2) == [b"2", b"3"]
        assert HIDDEN <= since(begun) < HIDDEN + LATE
        await scene.silent()

    play(story)


def test_a_time_that_is_changed_at_once_is_another_one() -> None:
    """Both check points may be of one millisecond: the acknowledgement of the first is not for the
    second.
    """

    async def story(scene: Scene) -> None:
        popped = await scene.take(1)
        for _ in range(8):  # the client's network takes less than a millisecond at times
            popped = [await scene.change(popped[0], 5)]
        begun = trio.current_time()
        assert await scene.take(2, queue_id=0) != []
        assert b"0" in await scene.take_all(2)
        assert since(begun) < 5 + LATE

    play(story)
