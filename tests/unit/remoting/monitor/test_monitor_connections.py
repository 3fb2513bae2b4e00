"""Which connection to the monitor port makes room for a new one."""

from __future__ import annotations

from triomq.remoting.monitor.monitor_connections import MonitorConnection, MonitorConnections


def test_the_oldest_half_request_makes_room_and_then_the_oldest_of_all() -> None:
    closed: list[int] = []

    def connection(number: int) -> MonitorConnection:
        return MonitorConnection(lambda: closed.append(number))

    connections = MonitorConnections(3)
    first, second, third = (connection(number) for number in range(3))
    assert [connections.admit(one) for one in (first, second, third)] == [False, False, False]
    first.asked = third.asked = True
    fourth = connection(3)
    assert connections.admit(fourth)
    assert closed == [1]
    fourth.asked = True
    assert connections.admit(connection(4))
    assert closed == [1, 0]
    assert connections.closed == 2


def test_a_place_that_was_released_is_free() -> None:
    closed: list[str] = []
    connections = MonitorConnections(1)
    first = MonitorConnection(lambda: closed.append("first"))
    connections.admit(first)
    connections.release(first)
    connections.release(first)
    assert not connections.admit(MonitorConnection(lambda: closed.append("second")))
    assert closed == []
