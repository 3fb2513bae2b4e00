"""How long answers of name servers and brokers are used, and what holds while they are silent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from triomq.client.proxy.cached_look_ups import ABSENT_SECONDS, RETRY_SECONDS, CachedLookUps
from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code
from triomq.remoting.messaging.status_codes import Refused

FRESH = 20.0


@attrs.define(eq=False)
class Source:
    """Answers with ``values``, or fails."""

    values: dict[str, str] = attrs.field(factory=dict)
    asked: list[str] = attrs.field(factory=list)
    silent: bool = False
    seconds: float = 0.0

    async def ask(self, name: str) -> str | None:
        self.asked.append(name)
        await trio.sleep(self.seconds)
        if self.silent:
            raise Refused(Code.INTERNAL_SERVER_ERROR, "silent")
        return self.values.get(name)


@asynccontextmanager
async def cached(
    source: Source, *, entries_max: int = 10, absence_believed_seconds: float = 0.0
) -> AsyncIterator[CachedLookUps[str]]:
    async with trio.open_nursery() as nursery:
        yield CachedLookUps(
            "values", source.ask, FRESH, entries_max, nursery.start_soon, absence_believed_seconds
        )
        nursery.cancel_scope.cancel()


async def test_an_answer_is_asked_for_again_in_the_background(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Source({"a": "1"}, seconds=1.0)
    async with cached(source) as look_ups:
        assert await look_ups.get("a") == "1"
        source.values["a"] = "2"
        await trio.sleep(FRESH - 1)
        assert await look_ups.get("a") == "1"
        assert source.asked == ["a"]
        await trio.sleep(2)
        began = trio.current_time()
        assert await look_ups.get("a") == "1"  # at once
        assert await look_ups.get("a") == "1"
        assert trio.current_time() == began
        await trio.sleep(1.5)
        assert await look_ups.get("a") == "2"
        assert source.asked == ["a", "a"]
        source.values["a"] = "3"
        await trio.sleep(10 * FRESH)
        assert await look_ups.get("a") == "3"  # nobody used it for long: it is asked for first


async def test_one_question_for_all_who_wait(autojump_clock: trio.testing.MockClock) -> None:
    source = Source({"a": "1"}, seconds=1.0)
    async with cached(source) as look_ups:
        found: list[str | None] = []

        async def get() -> None:
            found.append(await look_ups.get("a"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(get)
        assert found == ["1"] * 5
        assert source.asked == ["a"]
        source.silent = True
        failures: list[str] = []

        async def fail() -> None:
            try:
                await look_ups.get("b")
            except Refused as error:
                failures.append(error.message)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(fail)
        assert failures == ["silent"] * 5
        assert source.asked == ["a", "b"]


async def test_a_cancelled_question_does_not_hold_up_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Source({"a": "1"}, seconds=5.0)
    async with cached(source) as look_ups:
        with trio.move_on_after(1):
            await look_ups.get("a")
        assert await look_ups.get("a") == "1"


async def test_an_old_answer_holds_while_its_source_is_silent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = Source({"a": "1"})
    async with cached(source) as look_ups:
        assert await look_ups.get("a") == "1"
        source.silent = True
        await trio.sleep(1000 * FRESH)
        assert await look_ups.get("a") == "1"
        await trio.sleep(RETRY_SECONDS * 1.1)
        source.silent, source.values["a"] = False, "2"
        assert await look_ups.get("a") == "2"
        source.silent = True
        with pytest.raises(Refused):
            await look_ups.get("new")


async def test_absence_holds_for_a_shorter_time(autojump_clock: trio.testing.MockClock) -> None:
    source = Source()
    async with cached(source) as look_ups:
        assert await look_ups.get("a") is None
        assert await look_ups.get("a") is None
        assert source.asked == ["a"]
        source.values["a"] = "1"
        await trio.sleep(ABSENT_SECONDS * 1.1)
        assert await look_ups.get("a") == "1"
        del source.values["a"]
        await trio.sleep(10 * FRESH)
        assert await look_ups.get("a") is None


async def test_a_known_value_stays_until_its_absence_has_lasted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A name server that was restarted has no routes for some seconds."""
    source = Source({"a": "1"})
    async with cached(source, absence_believed_seconds=30.0) as look_ups:
        assert await look_ups.get("a") == "1"
        del source.values["a"]
        look_ups.expire(lambda value: value == "1")
        began = trio.current_time()
        while trio.current_time() - began < 29:
            assert await look_ups.get("a") == "1"
            await trio.sleep(0.5)
        await trio.sleep(5)
        assert await look_ups.get("a") is None
        assert await look_ups.get("a") is None
        source.values["a"] = "2"
        await trio.sleep(ABSENT_SECONDS * 1.1)
        assert await look_ups.get("a") == "2"


async def test_expiry_and_the_number_of_answers(autojump_clock: trio.testing.MockClock) -> None:
    source = Source({name: name for name in "abc"})
    async with cached(source, entries_max=2) as look_ups:
        for name in "abc":
            assert await look_ups.get(name) == name
        assert await look_ups.get("c") == "c"
        assert source.asked == ["a", "b", "c"]
        assert await look_ups.get("a") == "a"  # it had made room
        assert source.asked == ["a", "b", "c", "a"]
        source.values["c"] = "new"
        look_ups.expire(lambda value: value == "c")
        assert await look_ups.get("c") == "new"
        assert await look_ups.get("a") == "a"
        assert source.asked == ["a", "b", "c", "a", "c"]
