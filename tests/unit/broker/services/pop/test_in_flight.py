"""Check points in flight: whose acknowledgements need not be read again."""

from __future__ import annotations

import pytest

from triomq.broker.services.pop.in_flight import KEEP_SECONDS, PopsInFlight
from triomq.remoting.protocol.bodies.check_point import CheckPoint


@pytest.mark.parametrize("acknowledged", [1, 2])
def test_acknowledgements_go_the_way_of_their_check_point(acknowledged: int) -> None:
    flights = PopsInFlight()
    point = CheckPoint(
        start_offset=5,
        pop_time=1_000,
        invisible_ms=60_000,
        count=2,
        queue_id=0,
        topic="T",
        group="G",
        differences=[0, 1],
    )
    flights.begin(point, 100.0)
    flights.acknowledge(point.key, range(5, 5 + acknowledged))
    dropped = acknowledged == 2
    assert not flights.dropped(point.key), "it is not due yet"
    assert flights.drops(point.key) is dropped
    assert flights.dropped(point.key) is dropped
    assert flights.over(159.9) is None
    over = flights.over(160.0)
    assert (over is None) is dropped
    if over is not None:
        assert flights.over(999.0) is over, "until all of it is acknowledged"
        assert flights.acknowledge(point.key, over.offsets) == [6]
    assert flights.over(159.9 + KEEP_SECONDS) is None
    assert point.key in flights
    assert flights.over(160.0 + KEEP_SECONDS) is None
    assert point.key not in flights
    assert not flights.dropped(point.key)
    assert (len(flights), flights.of_group("G")) == (0, 0)


def test_queues_that_are_taken_away_leave_the_flights_of_the_others() -> None:
    flights = PopsInFlight()
    for queue_id in range(3):
        point = CheckPoint(
            start_offset=5,
            pop_time=1_000,
            invisible_ms=60_000,
            count=1,
            queue_id=queue_id,
            topic="T",
            group="G",
        )
        flights.begin(point, 100.0)
    flights.forget(group="G", topic="T", queue_ids={0, 2})
    assert [flights.of_queue(("G", "T", queue_id)) for queue_id in range(3)] == [0, 1, 0]
    assert flights.of_group("G") == 1
