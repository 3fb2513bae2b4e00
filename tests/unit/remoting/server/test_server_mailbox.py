from __future__ import annotations

import trio

from triomq.remoting.server.mailbox import Mailbox


async def test_items_come_in_order_and_idle_means_asleep_and_empty() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    taken: list[int] = []

    async def consume() -> None:
        while True:
            taken.append(await mailbox.take())

    assert not mailbox.idle  # no task consumes yet
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked()
        assert mailbox.idle
        mailbox.put(1)
        assert not mailbox.idle  # woken, not yet run
        mailbox.put(2)
        assert mailbox.full
        assert len(mailbox) == 2
        with trio.fail_after(5):
            await mailbox.room()
        await trio.testing.wait_all_tasks_blocked()
        assert taken == [1, 2]
        assert mailbox.idle
        nursery.cancel_scope.cancel()


async def test_a_consumer_that_works_is_not_idle() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    go_on = trio.Event()

    async def consume() -> None:
        while await mailbox.take():
            await go_on.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        for item in (1, 0):
            await trio.testing.wait_all_tasks_blocked()
            assert mailbox.idle
            mailbox.put(item)
            await trio.testing.wait_all_tasks_blocked()
            assert not mailbox.idle, "it works, or has ended"
            go_on.set()


async def test_producers_wait_for_room() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    mailbox.put(0)
    done: list[int] = []

    async def produce(number: int) -> None:
        await mailbox.room()
        mailbox.put(number)
        done.append(number)

    async with trio.open_nursery() as nursery:
        for number in (1, 2, 3):
            nursery.start_soon(produce, number)
        await trio.testing.wait_all_tasks_blocked()
        assert done == []
        seen = []
        for _ in range(4):
            seen.append(await mailbox.take())
            await trio.testing.wait_all_tasks_blocked()
        assert sorted(seen) == [0, 1, 2, 3]
        assert sorted(done) == [1, 2, 3]


async def test_a_task_that_waits_until_it_is_emptied_goes_on_when_the_last_item_is_taken() -> None:
    mailbox: Mailbox[int] = Mailbox(4)
    await mailbox.emptied()  # at once
    mailbox.put(1)
    mailbox.put(2)
    gone_on: list[int] = []

    async def wait() -> None:
        await mailbox.emptied()
        gone_on.append(len(mailbox))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert await mailbox.take() == 1
        await trio.testing.wait_all_tasks_blocked()
        assert gone_on == []
        assert mailbox.take_nowait() == 2
        await trio.testing.wait_all_tasks_blocked()
        assert gone_on == [0]
