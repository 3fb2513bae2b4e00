"""The examinations of the console: what a server does to one ends no other part of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from triomq.client.admin.admin import Admin
from triomq.client.console.core.cluster_doctor import ClusterDoctor
from triomq.remoting.core.findings import Level


@pytest.mark.parametrize(
    ("hangs", "said"), [(False, "no address"), (True, "it takes longer than 20 s")]
)
async def test_an_examination_that_fails_is_a_finding(
    autojump_clock: MockClock, hangs: bool, said: str
) -> None:
    @asynccontextmanager
    async def open_admin(namesrvs: Sequence[str]) -> AsyncIterator[Admin]:
        if hangs:
            await trio.sleep_forever()
        raise ValueError("no address")
        yield

    doctor = ClusterDoctor(["127.0.0.1:9876"], open_admin)
    with trio.move_on_after(90):
        await doctor.examine_forever()
    (finding,) = doctor.to_do
    assert (finding.level, finding.text) == (Level.PROBLEM, said)
