"""A name server and a broker inside the test's own loop, the broker with RPC hooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from brokers import broker_config

from triomq.broker.app import BrokerReady, run_broker
from triomq.namesrv.app import NamesrvReady, run_namesrv
from triomq.namesrv.config import NamesrvConfig
from triomq.remoting.server.request_hooks import RequestHook


@asynccontextmanager
async def hooked_cluster(
    folder: Path, hooks: Sequence[RequestHook], **settings: object
) -> AsyncIterator[str]:
    """Yield the name server's address; both are stopped at the end of the block."""
    async with trio.open_nursery() as nursery:
        config = NamesrvConfig(
            listen_host="127.0.0.1", listen_port=0, kv_path=folder / "kvConfig.json"
        )
        namesrv: NamesrvReady = await nursery.start(run_namesrv, config)
        address = f"127.0.0.1:{namesrv.port}"
        own = broker_config(
            folder / "store", namesrvAddr=address, brokerClusterName="DefaultCluster", **settings
        )
        async with trio.open_nursery() as serving:
            broker: BrokerReady = await serving.start(partial(run_broker, own, request_hooks=hooks))
            yield address
            broker.stop()
        namesrv.stop()
