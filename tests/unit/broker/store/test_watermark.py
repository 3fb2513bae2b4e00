"""Watermark: only grows, and wakes only the tasks whose goal is reached."""

from __future__ import annotations

import trio
import trio.testing

from triomq.broker.store.core.watermark import Watermark


async def test_only_tasks_whose_goal_is_reached_are_woken() -> None:
    mark = Watermark()
    woken: list[int] = []

    async def wait(goal: int) -> None:
        await mark.wait_reached(goal)
        woken.append(goal)

    async with trio.open_nursery() as nursery:
        for goal in (3, 1, 2):
            nursery.start_soon(wait, goal)
        await trio.testing.wait_all_tasks_blocked()
        assert mark.waiting == 3
        mark.advance(2)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(woken) == [1, 2]
        mark.advance(3)
    assert woken[-1] == 3
    assert mark.waiting == 0


async def test_never_goes_back() -> None:
    mark = Watermark(5)
    mark.advance(4)
    assert mark.value == 5


async def test_a_reached_goal_does_not_wait_but_is_a_checkpoint() -> None:
    mark = Watermark(5)
    with trio.testing.assert_checkpoints():
        await mark.wait_reached(5)
    with trio.testing.assert_checkpoints():
        await mark.wait_beyond(4)


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    mark = Watermark()
    with trio.move_on_after(0):
        await mark.wait_beyond(0)
    assert mark.waiting == 0
    mark.advance(1)
