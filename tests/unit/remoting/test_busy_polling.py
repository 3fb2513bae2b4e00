"""When a selector looks again instead of going to sleep."""

from triomq.remoting.server.busy_polling import BusyPolling

LIMIT = 100e-6


def earned(busy: BusyPolling) -> int:
    """Short sleeps until a look is worthwhile."""
    for count in range(10_000):
        if busy.worthwhile:
            return count
        busy.slept(LIMIT)
    raise AssertionError("never worthwhile")


def test_short_sleeps_earn_a_look_and_long_ones_cost_it() -> None:
    busy = BusyPolling(LIMIT)
    assert not busy.worthwhile, "nothing is known yet"
    assert earned(busy) == 4
    busy.slept(3 * LIMIT)
    assert not busy.worthwhile
    assert earned(busy) == 1
    for _ in range(100):
        busy.slept(1.0)
    assert earned(busy) == 4, "a long idle time leaves nothing, and no debt"


def test_who_finds_goes_on_and_who_misses_pays_twice_as_much() -> None:
    busy = BusyPolling(LIMIT)
    earned(busy)
    for _ in range(100):
        busy.found()
        assert busy.worthwhile
    prices = []
    for _ in range(14):
        busy.missed()
        prices.append(earned(busy))
    assert prices == [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096, 4096]
    for _ in range(10):
        busy.found()
    busy.missed()
    assert earned(busy) == 8, "looks that found something made it cheap again"


def test_without_a_limit_nobody_looks() -> None:
    busy = BusyPolling(0.0)
    for _ in range(100):
        busy.slept(1e-6)
    assert not busy.worthwhile


def test_the_others_get_their_turn() -> None:
    busy = BusyPolling(LIMIT, turn=0.001)
    assert busy.turn_due(5.0), "at first nobody had one"
    busy.turned(5.0)
    assert not busy.turn_due(5.0009)
    assert busy.turn_due(5.0011)
