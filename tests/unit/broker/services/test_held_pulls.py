"""Long polling without a broker: which pulls an event wakes, and when their time is up."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from triomq.broker.services import held_pulls
from triomq.broker.services.held_pulls import HeldPull, HeldPulls
from triomq.broker.services.held_requests import STALE_DEADLINES_MAX


def pull(
    resumed: list[object],
    name: str,
    *,
    topic: str = "T",
    queue_id: int = 0,
    offset: int = 5,
    codes: frozenset[int] | None = None,
    deadline: float = 100.0,
    connection: str = "c",
) -> HeldPull:
    """Return a pull that adds its name to ``resumed`` when it is resumed."""
    resume = partial(resumed.append, name)
    return HeldPull(topic, queue_id, offset, codes, deadline, connection, resume)


def test_an_arrival_wakes_pulls_of_that_queue_and_offset() -> None:
    resumed: list[object] = []
    held = HeldPulls()
    held.hold(pull(resumed, "mine"))
    held.hold(pull(resumed, "other queue", queue_id=1))
    held.hold(pull(resumed, "other topic", topic="U"))
    held.hold(pull(resumed, "farther", offset=9))
    held.arrived([("T", 0, 6, 0), ("V", 0, 6, 0)])
    assert resumed == ["mine"]
    held.arrived([("T", 0, 9, 0)])
    assert resumed == ["mine"], "offset 9 is wanted, and 9 is only the end"
    held.arrived([("T", 0, 10, 0)])
    assert resumed == ["mine", "farther"]
    assert held.count == 2


def test_a_tag_filter_keeps_a_pull_asleep() -> None:
    resumed: list[object] = []
    held = HeldPulls()
    held.hold(pull(resumed, "filtered", codes=frozenset({7, 8})))
    held.hold(pull(resumed, "nothing at all", codes=frozenset()))
    held.hold(pull(resumed, "everything", codes=None))
    held.arrived([("T", 0, 6, 99)])
    assert resumed == ["everything"]
    held.arrived([("T", 0, 7, 99), ("T", 0, 8, 8)])
    assert resumed == ["everything", "filtered"]


def test_several_groups_wait_for_one_queue() -> None:
    resumed: list[object] = []
    held = HeldPulls()
    for name in ("a", "b", "c"):
        held.hold(pull(resumed, name, connection=name))
    held.arrived([("T", 0, 6, 0)])
    assert resumed == ["a", "b", "c"]
    held.arrived([("T", 0, 7, 0)])
    assert resumed == ["a", "b", "c"], "woken once"


def test_a_closed_connection_takes_its_pulls_along() -> None:
    resumed: list[object] = []
    held = HeldPulls()
    held.hold(pull(resumed, "gone", connection="x"))
    held.hold(pull(resumed, "gone, too", connection="x", queue_id=1))
    held.hold(pull(resumed, "stays", connection="y"))
    held.forget_connection("x")
    held.forget_connection("unknown")
    held.arrived([("T", 0, 6, 0), ("T", 1, 6, 0)])
    assert resumed == ["stays"]
    assert held.expire(1000.0) == float("inf")
    assert resumed == ["stays"]
    assert held.count == 0


def test_a_changed_topic_wakes_all_its_pulls() -> None:
    resumed: list[object] = []
    held = HeldPulls()
    held.hold(pull(resumed, "a"))
    held.hold(pull(resumed, "b", queue_id=3))
    held.hold(pull(resumed, "c", topic="U"))
    held.wake_topic("T")
    assert sorted(map(str, resumed)) == ["a", "b"]


def test_resuming_may_hold_again() -> None:
    """A resumed request may be refused or run in place, and another pull be held while arrivals are
    still processed.
    """
    held = HeldPulls()
    seen: list[str] = []

    def hold(name: str) -> None:
        def resume() -> None:
            seen.append(name)
            if len(seen) < 4:
                hold(f"again {len(seen)}")

        held.hold(HeldPull("T", 0, 5 + len(seen), None, 100.0, "c", resume))

    hold("first")
    held.arrived([("T", 0, 6, 0)])
    held.arrived([("T", 0, 7, 0)])
    assert seen == ["first", "again 1"]


def test_resuming_one_may_end_the_other() -> None:
    held = HeldPulls()
    seen: list[str] = []

    def resume(name: str) -> None:
        seen.append(name)
        held.forget_connection("c")

    for name in ("first", "second"):
        held.hold(HeldPull("T", 0, 5, None, 100.0, "c", partial(resume, name)))
    held.arrived([("T", 0, 6, 0)])
    assert seen == ["first"]


def test_woken_pulls_do_not_pile_up() -> None:
    held, resumed = HeldPulls(), list[object]()
    for number in range(20 * STALE_DEADLINES_MAX):
        held.hold(pull(resumed, "p", offset=number, deadline=15.0 + number))
        held.arrived([("T", 0, number + 1, 0)])
    assert len(held._deadlines) <= 2 * STALE_DEADLINES_MAX + 2
    assert held._by_queue == {}
    assert held._by_connection == {}


async def test_time_is_up_exactly_then(autojump_clock: trio.testing.MockClock) -> None:
    held = HeldPulls()
    begin = trio.current_time()
    ended: list[tuple[str, float]] = []

    def waiting(name: str, seconds: float, queue_id: int = 0) -> HeldPull:
        def resume() -> None:
            ended.append((name, round(trio.current_time() - begin, 3)))

        return HeldPull("T", queue_id, 5, None, begin + seconds, "c", resume)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.run)
        await trio.testing.wait_all_tasks_blocked()
        held.hold(waiting("late", 20))
        held.hold(waiting("early", 0.25))
        await trio.sleep(0.1)
        held.hold(waiting("earliest", 0.125))
        held.hold(waiting("woken", 1, queue_id=9))
        held.arrived([("T", 9, 100, 0)])
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert ended == [("woken", 0.1), ("earliest", 0.125), ("early", 0.25), ("late", 20.0)]
    assert held.count == 0


def test_one_pull_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "HELD_PULLS_MAX", 2)
    held, resumed = HeldPulls(), list[object]()
    made = [pull(resumed, str(number), connection="connection") for number in range(3)]
    assert [held.hold(pull) for pull in made] == [True, True, False]
    assert held.count == 2
    held.forget_connection("connection")
    assert held.hold(made[2])


@pytest.mark.parametrize("end", ["arrival", "deadline", "connection"])
def test_a_pull_that_has_ended_keeps_no_request(end: str) -> None:
    """Its deadline stays in the heap, and the garbage collector does not look into requests: a
    request that is kept would keep the whole broker.
    """
    held, resumed = HeldPulls(), list[object]()
    waiting = pull(resumed, "request")
    held.hold(pull(resumed, "first to be due", queue_id=1, deadline=1.0))
    held.hold(waiting)
    if end == "arrival":
        held.arrived([("T", 0, 6, 0)])
    elif end == "deadline":
        held.expire(100.0)
    else:
        held.forget_connection("c")
    assert waiting.resume is None


async def test_a_short_wait_ends_in_its_time_although_long_ones_were_there_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ended: list[tuple[str, float]] = []
    held = HeldPulls()

    def hold(name: str, seconds: float) -> None:
        one = pull([], name, deadline=trio.current_time() + seconds)
        one.resume = lambda: ended.append((name, trio.current_time()))
        held.hold(one)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        hold("long", 30)
        nursery.start_soon(held.run)
        await trio.testing.wait_all_tasks_blocked()
        hold("longer", 40)
        hold("short", 2)
        await trio.testing.wait_all_tasks_blocked()
        hold("shorter", 1)
        await trio.sleep(50)
        nursery.cancel_scope.cancel()
    waits = [(name, at - began) for name, at in ended]
    assert waits == [("shorter", 1), ("short", 2), ("long", 30), ("longer", 40)]


def test_deadlines_stay_in_their_order_when_stale_ones_are_removed() -> None:
    """Thousands of pulls are woken long before their time is up, and few are left."""
    resumed: list[object] = []
    held = HeldPulls()
    deadlines = [(number * 7919) % 10_007 for number in range(6_000)]
    for number, deadline in enumerate(deadlines):
        name = f"{deadline:05}"
        held.hold(pull(resumed, name, queue_id=number % 5, deadline=float(deadline)))
    held.arrived([("T", queue_id, 100, 0) for queue_id in range(4)])
    assert len(resumed) == 4_800
    assert len(held._deadlines) < 6_000
    resumed.clear()
    left = sorted(deadlines[4::5])
    for deadline in left:
        assert held.expire(deadline - 0.5) == deadline
        held.expire(deadline)
    assert resumed == [f"{deadline:05}" for deadline in left]
