"""Places of queues: as in the sorted list of all writable ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.messaging.writable_queues import WritableQueues
from triomq.remoting.protocol.bodies.route import BrokerData, QueueData, TopicRoute


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(st.integers(0, 3), st.sampled_from([0, 2, 4, 6]), st.booleans()),
    )
)
def test_places_are_those_in_the_list_of_all(brokers: dict[str, tuple[int, int, bool]]) -> None:
    route = TopicRoute(
        [QueueData(name, 9, count, perm) for name, (count, perm, _) in brokers.items()],
        [
            BrokerData("C", name, {0 if master else 1: "address"})
            for name, (_, _, master) in brokers.items()
        ],
    )
    wanted = sorted(
        (name, number)
        for name, (count, perm, master) in brokers.items()
        if master and perm & 2
        for number in range(count)
    )
    queues = WritableQueues.of(route)
    assert [queues.at(place) for place in range(len(queues))] == wanted
    with pytest.raises(IndexError):
        queues.at(len(queues))
    left = queues.without("a")
    assert [left.at(place) for place in range(len(left))] == [
        each for each in wanted if each[0] != "a"
    ]
