"""A relay that delays what passes, both ways; order and bytes stay as they are. This kernel's
traffic control may have no delay of its own (netem).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio
from fault_disk import Controls

CHUNKS_MAX = 1024


async def relay(near: trio.SocketStream, host: str, port: int, controls: Controls) -> None:
    """One connection, until either side ends it."""
    try:
        far = await trio.open_tcp_stream(host, port)
    except OSError:
        await near.aclose()
        return
    async with near, far, trio.open_nursery() as nursery:
        for source, target in ((near, far), (far, near)):
            send, receive = trio.open_memory_channel[tuple[float, bytes]](CHUNKS_MAX)
            nursery.start_soon(read, source, send, controls)
            nursery.start_soon(write, target, receive, nursery.cancel_scope)


async def read(
    source: trio.SocketStream,
    chunks: trio.MemorySendChannel[tuple[float, bytes]],
    controls: Controls,
) -> None:
    async with chunks:
        try:
            async for data in source:
                await chunks.send((trio.current_time() + controls.delay_seconds, bytes(data)))
        except trio.BrokenResourceError:
            pass


async def write(
    target: trio.SocketStream,
    chunks: trio.MemoryReceiveChannel[tuple[float, bytes]],
    scope: trio.CancelScope,
) -> None:
    try:
        async for due, data in chunks:
            await trio.sleep_until(due)
            await target.send_all(data)
    except trio.BrokenResourceError:
        pass
    scope.cancel()


def run_relay(port: int, host: str, target_port: int, controls: Path) -> None:
    """Serve on 127.0.0.1, for ever."""
    trio.run(
        partial(trio.serve_tcp, host="127.0.0.1"),
        partial(relay, host=host, port=target_port, controls=Controls(controls)),
        port,
    )
