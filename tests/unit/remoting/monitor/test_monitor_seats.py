"""Which connection to the monitor port makes room for a new one."""

from __future__ import annotations

from triomq.remoting.monitor.seats import Seat, Seats


def test_the_oldest_half_request_makes_room_and_then_the_oldest_of_all() -> None:
    closed: list[int] = []

    def seat(number: int) -> Seat:
        return Seat(lambda: closed.append(number))

    seats = Seats(3)
    first, second, third = (seat(number) for number in range(3))
    assert [seats.take(one) for one in (first, second, third)] == [False, False, False]
    first.asked = third.asked = True
    fourth = seat(3)
    assert seats.take(fourth)
    assert closed == [1]
    fourth.asked = True
    assert seats.take(seat(4))
    assert closed == [1, 0]
    assert seats.closed == 2


def test_a_seat_that_was_given_back_is_free() -> None:
    closed: list[str] = []
    seats = Seats(1)
    first = Seat(lambda: closed.append("first"))
    seats.take(first)
    seats.leave(first)
    seats.leave(first)
    assert not seats.take(Seat(lambda: closed.append("second")))
    assert closed == []
