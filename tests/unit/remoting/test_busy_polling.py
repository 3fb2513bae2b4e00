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


def missed_out(busy: BusyPolling) -> int:
    """Looks in vain until none is worthwhile any more."""
    for count in range(100):
        if not busy.worthwhile:
            return count
        busy.missed()
    raise AssertionError("it looks for ever")


def test_short_sleeps_earn_looks_and_long_ones_do_not() -> None:
    busy = BusyPolling(LIMIT)
    assert not busy.worthwhile, "nothing is known yet"
    for _ in range(100):
        busy.slept(3 * LIMIT)
    assert not busy.worthwhile
    assert earned(busy) == 4
    assert missed_out(busy) == 2


def test_who_finds_more_than_he_misses_goes_on() -> None:
    busy = BusyPolling(LIMIT)
    earned(busy)
    for _ in range(100):
        busy.found(LIMIT)
        busy.found(LIMIT)
        assert busy.worthwhile
        busy.missed()
        assert busy.worthwhile
        busy.slept(1.0)
    assert missed_out(busy) == 7, "however long it went well"


def test_who_misses_pays_twice_as_much_each_time_until_a_look_finds_something() -> None:
    busy = BusyPolling(LIMIT)
    prices = []
    for _ in range(13):
        prices.append(earned(busy))
        missed_out(busy)
    assert prices == [4, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096]
    earned(busy)
    for _ in range(20):
        busy.found(LIMIT)
    missed_out(busy)
    assert earned(busy) == 4


def test_a_look_takes_twice_as_long_as_those_that_find_something() -> None:
    busy = BusyPolling(LIMIT)
    assert busy.patience == LIMIT, "nothing is known yet"
    for _ in range(100):
        busy.found(LIMIT / 4)
    assert 0.99 * LIMIT / 2 < busy.patience < 1.01 * LIMIT / 2
    for _ in range(100):
        busy.found(0.0)
    assert 0.99 * LIMIT / 2 < busy.patience < 1.01 * LIMIT / 2, "what was there already tells nothing"
    for _ in range(100):
        busy.found(LIMIT / 100)
    assert busy.patience == LIMIT / 8, "never shorter"
    for seconds in (LIMIT / 4, LIMIT / 2, LIMIT, LIMIT):
        busy.missed()
        assert busy.patience == seconds, "who misses may have been too quick"
    for _ in range(100):
        busy.found(LIMIT)
    assert busy.patience == LIMIT, "never longer"


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
