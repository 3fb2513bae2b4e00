"""An object of the SDK that is called from another loop than its own says so; it used to hang its
caller and to end its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from triomq import Message, NotRunning, Producer, PullConsumer, PushConsumer, SimpleConsumer
from triomq.testing import InProcessCluster

Call = Callable[[Any], Awaitable[object]]
CALLS: dict[str, tuple[type[Any], dict[str, object], Call]] = {
    "send": (Producer, {}, lambda producer: producer.send("T", b"x")),
    "queues": (Producer, {}, lambda producer: producer.queues("T")),
    "poll": (PullConsumer, {"subscriptions": "T"}, lambda consumer: consumer.poll()),
    "commit": (PullConsumer, {"subscriptions": "T"}, lambda consumer: consumer.commit()),
    "take": (PushConsumer, {"subscriptions": "T"}, lambda consumer: consumer.take()),
    "receive": (SimpleConsumer, {"subscriptions": "T"}, lambda consumer: consumer.receive()),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_from_elsewhere_is_refused_and_the_object_goes_on(
    triomq_cluster: InProcessCluster, name: str
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    kind, settings, call = CALLS[name]
    address = triomq_cluster.namesrv_address

    async def elsewhere(target: Any) -> None:
        with trio.fail_after(5):
            await call(target)

    async def under_asyncio(target: Any) -> None:
        await asyncio.wait_for(call(target), 5)

    async with kind(address, group="g", **settings) as target:
        for run in (
            lambda: trio.run(elsewhere, target),
            lambda: asyncio.run(under_asyncio(target)),
        ):
            with pytest.raises(NotRunning, match=r"trio\.from_thread\.run"):
                await trio.to_thread.run_sync(run)
        assert target.client_id in (await trio.to_thread.run_sync(lambda: target.client_id))
        if kind is Producer:
            await target.send(Message(topic="T", body=b"x"))
