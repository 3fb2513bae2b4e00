"""Run consumers of one interface in this process until a signal comes or one of them fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Sequence

import trio

from triomq import aio, client, sync
from triomq.client.runner.command_line import RunOptions
from triomq.remoting.core.settings import ConfigError
from triomq.runner.targets import load_consumers


def run_targets(options: RunOptions) -> None:
    """Run the consumers of the targets, and the port with their probes.

    Raises: ``ConfigError``; what a consumer fails with; ``SystemExit`` after Ctrl-C.
    """
    consumers = load_consumers(options.targets)
    if not consumers:
        raise ConfigError("", "the functions gave no consumer", "return at least one")
    if isinstance(consumers[0], aio.PushConsumer):
        aio.run(_under_asyncio, consumers, options)
    elif isinstance(consumers[0], sync.PushConsumer):
        sync.run(_in_threads, consumers, options)
    else:
        client.run(_in_trio, consumers, options)


async def _in_trio(consumers: Sequence[client.PushConsumer], options: RunOptions) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if options.port:
            probes = client.Probes(*consumers, port=options.port, host=options.host)
            await stack.enter_async_context(probes)
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        await trio.sleep_forever()


async def _under_asyncio(consumers: Sequence[aio.PushConsumer], options: RunOptions) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if options.port:
            probes = aio.Probes(*consumers, port=options.port, host=options.host)
            await stack.enter_async_context(probes)
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        ends = [asyncio.wrap_future(consumer._portal.left) for consumer in consumers]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()


def _in_threads(consumers: Sequence[sync.PushConsumer], options: RunOptions) -> None:
    with contextlib.ExitStack() as stack:
        if options.port:
            probes = sync.Probes(*consumers, port=options.port, host=options.host)
            stack.enter_context(probes)
        for consumer in consumers:
            stack.enter_context(consumer)
        ends = [consumer._portal.left for consumer in consumers]
        done, _ = concurrent.futures.wait(ends, return_when=concurrent.futures.FIRST_COMPLETED)
        done.pop().result()
