"""Long polling without a broker: who is woken by what, and when time is up."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from triomq.broker.services import held_pulls
from triomq.broker.services.held_pulls import HeldPull, HeldPulls


def make(resumed: list[object]) -> HeldPulls:
    held = HeldPulls()
    held.resume = resumed.append
    return held


def pull(
    name: str,
    *,
    topic: str = "T",
    queue_id: int = 0,
    offset: int = 5,
    codes: frozenset[int] | None = None,
    deadline: float = 100.0,
    connection: str = "c",
) -> HeldPull:
    return HeldPull(topic, queue_id, offset, codes, deadline, connection, name)


def test_an_arrival_wakes_who_waits_for_that_queue_and_offset() -> None:
    resumed: list[object] = []
    held = make(resumed)
    held.hold(pull("mine"))
    held.hold(pull("other queue", queue_id=1))
    held.hold(pull("other topic", topic="U"))
    held.hold(pull("farther", offset=9))
    held.arrived([("T", 0, 6, 0), ("V", 0, 6, 0)])
    assert resumed == ["mine"]
    held.arrived([("T", 0, 9, 0)])
    assert resumed == ["mine"], "offset 9 is wanted, and 9 is only the end"
    held.arrived([("T", 0, 10, 0)])
    assert resumed == ["mine", "farther"]
    assert held.statistics().held == 2
    assert held.statistics().woken == 2


def test_a_tag_filter_keeps_a_pull_asleep() -> None:
    resumed: list[object] = []
    held = make(resumed)
    held.hold(pull("filtered", codes=frozenset({7, 8})))
    held.hold(pull("nothing at all", codes=frozenset()))
    held.hold(pull("everything", codes=None))
    held.arrived([("T", 0, 6, 99)])
    assert resumed == ["everything"]
    held.arrived([("T", 0, 7, 99), ("T", 0, 8, 8)])
    assert resumed == ["everything", "filtered"]


def test_several_groups_wait_for_one_queue() -> None:
    resumed: list[object] = []
    held = make(resumed)
    for name in ("a", "b", "c"):
        held.hold(pull(name, connection=name))
    held.arrived([("T", 0, 6, 0)])
    assert resumed == ["a", "b", "c"]
    held.arrived([("T", 0, 7, 0)])
    assert resumed == ["a", "b", "c"], "woken once"


def test_a_closed_connection_takes_its_pulls_along() -> None:
    resumed: list[object] = []
    held = make(resumed)
    held.hold(pull("gone", connection="x"))
    held.hold(pull("gone, too", connection="x", queue_id=1))
    held.hold(pull("stays", connection="y"))
    held.forget_connection("x")
    held.forget_connection("unknown")
    held.arrived([("T", 0, 6, 0), ("T", 1, 6, 0)])
    assert resumed == ["stays"]
    assert held.expire(1000.0) == float("inf")
    assert resumed == ["stays"]
    assert held.statistics().dropped == 2


def test_a_changed_topic_wakes_all_its_pulls() -> None:
    resumed: list[object] = []
    held = make(resumed)
    held.hold(pull("a"))
    held.hold(pull("b", queue_id=3))
    held.hold(pull("c", topic="U"))
    held.wake_topic("T")
    assert sorted(map(str, resumed)) == ["a", "b"]


def test_resuming_may_hold_again() -> None:
    """A resumed request may be refused or run in place, and another pull be held while arrivals are still being looked at."""
    held = HeldPulls()
    seen = []

    def resume(request: object) -> None:
        seen.append(request)
        if len(seen) < 4:
            held.hold(pull(f"again {len(seen)}", offset=5 + len(seen)))

    held.resume = resume
    held.hold(pull("first"))
    held.arrived([("T", 0, 6, 0)])
    held.arrived([("T", 0, 7, 0)])
    assert seen == ["first", "again 1"]


def test_resuming_one_may_end_the_other() -> None:
    held = HeldPulls()
    seen: list[object] = []

    def resume(request: object) -> None:
        seen.append(request)
        held.forget_connection("c")

    held.resume = resume
    held.hold(pull("first"))
    held.hold(pull("second"))
    held.arrived([("T", 0, 6, 0)])
    assert seen == ["first"]


def test_woken_pulls_do_not_pile_up() -> None:
    held = make([])
    for number in range(20 * held_pulls.STALE_DEADLINES_MAX):
        held.hold(pull("p", offset=number, deadline=15.0 + number))
        held.arrived([("T", 0, number + 1, 0)])
    assert len(held._deadlines) <= 2 * held_pulls.STALE_DEADLINES_MAX + 2
    assert held._by_queue == {}
    assert held._by_connection == {}


async def test_time_is_up_exactly_then(autojump_clock: trio.testing.MockClock) -> None:
    held = HeldPulls()
    begin = trio.current_time()
    ended: list[tuple[object, float]] = []
    held.resume = lambda request: ended.append((request, round(trio.current_time() - begin, 3)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.run)
        await trio.testing.wait_all_tasks_blocked()
        held.hold(pull("late", deadline=begin + 20))
        held.hold(pull("early", deadline=begin + 0.25))
        await trio.sleep(0.1)
        held.hold(pull("earliest", deadline=begin + 0.125))
        held.hold(pull("woken", deadline=begin + 1, queue_id=9))
        held.arrived([("T", 9, 100, 0)])
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert ended == [("woken", 0.1), ("earliest", 0.125), ("early", 0.25), ("late", 20.0)]
    assert held.statistics().expired == 3


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "HELD_PULLS_MAX", 2)
    held = held_pulls.HeldPulls()
    made = [held_pulls.HeldPull("T", 0, 0, None, 10.0, "connection", number) for number in range(3)]
    assert [held.hold(pull) for pull in made] == [True, True, False]
    assert held.statistics().held == 2
    held.forget_connection("connection")
    assert held.hold(made[2])


@pytest.mark.parametrize("end", ["arrival", "deadline", "connection"])
def test_a_pull_that_has_ended_keeps_no_request(end: str) -> None:
    """Its deadline stays in the heap, and the garbage collector does not look into requests: one of them would keep the whole broker."""
    held = make([])
    waiting = pull("request")
    held.hold(pull("first to be due", queue_id=1, deadline=1.0))
    held.hold(waiting)
    if end == "arrival":
        held.arrived([("T", 0, 6, 0)])
    elif end == "deadline":
        held.expire(100.0)
    else:
        held.forget_connection("c")
    assert waiting.done
    assert waiting.request is None
