"""Waits between attempts, in virtual time."""

from __future__ import annotations

from math import inf

import trio
import trio.testing

from triomq.client.core.back_off import LEAST_SECONDS, wait_for_server


async def test_what_ends_a_wait_sooner_leaves_a_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = trio.current_time()
    assert await wait_for_server(5, inf, trio.lowlevel.checkpoint)
    assert trio.current_time() - began == LEAST_SECONDS
    assert await wait_for_server(5, inf)
    assert trio.current_time() - began > 10 * LEAST_SECONDS
    assert not await wait_for_server(5, trio.current_time(), trio.lowlevel.checkpoint)
