"""What handlers must not do, and what the errors say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import triomq.aio
import triomq.sync
from triomq import HandlerInvalid, PushConsumer
from triomq.client.core.arguments import require_nothing


async def no_argument() -> None: ...
async def two(first: object, second: object) -> None: ...
async def named(*, message: object) -> None: ...
async def one(message: object) -> None: ...
async def more(message: object, times: int = 3) -> None: ...
async def any_number(*messages: object) -> None: ...


def plain_two(first: object, second: object) -> None: ...


@pytest.mark.parametrize("kind", [PushConsumer, triomq.aio.PushConsumer])
@pytest.mark.parametrize("handler", [no_argument, two, named, functools.partial(one, 1)])
def test_the_number_of_arguments_is_checked_at_the_start(
    kind: type[Any], handler: Callable[..., Any]
) -> None:
    with pytest.raises(HandlerInvalid, match=r"cannot be called with one argument.*the message"):
        kind("h:1", group="g", subscriptions="T", handler=handler)
    with pytest.raises(HandlerInvalid, match="cannot be called with one argument"):
        kind("h:1", group="g", subscriptions="T", batch_handler=handler)


def test_so_is_that_of_a_plain_one() -> None:
    with pytest.raises(HandlerInvalid, match=r"plain_two\(first.*cannot be called"):
        triomq.sync.PushConsumer("h:1", group="g", subscriptions="T", handler=plain_two)  # type: ignore[arg-type]


@pytest.mark.parametrize("handler", [one, more, any_number, functools.partial(two, 1)])
def test_other_handlers_are_taken(handler: Callable[..., Any]) -> None:
    PushConsumer("h:1", group="g", subscriptions="T", handler=handler)


def test_a_verdict_that_is_returned_is_no_verdict() -> None:
    require_nothing(one, None)
    with pytest.raises(
        HandlerInvalid, match=r"one returned the str 'RECONSUME_LATER'.*message\.retry\(\)"
    ):
        require_nothing(one, "RECONSUME_LATER")
