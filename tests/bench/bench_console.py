"""Time of the console's pages with many topics and groups: one broker, no sockets for the pages.

``python tests/bench/bench_console.py --topics 10000 --groups 1000``
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil
import trio

from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicConfigList
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.testing import local_cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from console_pages import console_of

PATHS = (
    "/",
    "/topics",
    "/topics?page=400",
    "/topics?search=999",
    "/groups?sort=lag",
    "/topic?name=Topic-5000",
    "/group?name=Group-500",
    "/messages?topic=Topic-5000&by=time",
    "/configuration",
)
ROUNDS = 15


async def run(topics: int, groups: int, folder: Path) -> None:
    async with local_cluster() as cluster, cluster.admin() as admin:
        (broker,) = await admin.brokers()
        for first in range(0, topics, 1000):
            names = [f"Topic-{number}" for number in range(first, min(first + 1000, topics))]
            configs = [
                TopicConfig(topic_name=name, read_queue_count=4, write_queue_count=4)
                for name in names
            ]
            body = TopicConfigList(configs).encode()
            await admin.ask(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        made = [SubscriptionGroupConfig(group_name=f"Group-{number}") for number in range(groups)]
        body = SubscriptionGroupList(made).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        await admin.ask(broker.address, code, body=body)
        for number in range(groups):
            header = UpdateConsumerOffsetHeader(f"Group-{number}", f"Topic-{number}", 0, 0)
            await admin.ask(broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        async with console_of(cluster.namesrv_address, folder, poll_seconds=3600.0) as client:
            await client.log_in("admin")
            began = time.perf_counter()
            with trio.fail_after(60):
                while len(client.console.poller.view.groups) < groups:
                    await trio.sleep(0.02)
            seen = client.console.poller.view
            print(f"{len(seen.topics)} topics, {len(seen.groups)} groups", end="; ")
            print(f"tables read in {time.perf_counter() - began:.2f} s", end="; ")
            print(f"memory {psutil.Process().memory_info().rss / 2**20:.0f} MiB (with the cluster)")
            for path in PATHS:
                times = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    await client.get(path)
                    times.append(1000 * (time.perf_counter() - began))
                    assert client.status == 200, client.text
                print(f"{path:40} median {statistics.median(times):6.1f} ms", end="")
                print(f"  max {max(times):6.1f} ms  {len(client.text) / 1024:6.1f} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trio.run(partial(run, options.topics, options.groups, Path(folder)))


if __name__ == "__main__":
    main()
