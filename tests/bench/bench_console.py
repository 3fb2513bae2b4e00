"""Time of the console's pages with many topics and groups: one broker, no sockets for the pages.

``python tests/bench/bench_console.py --topics 10000 --groups 1000``

The longest step is that of any task of this process, so of the broker's, too: for that time no
other page is answered.
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

from triomq import Producer
from triomq.client.admin.admin import Admin
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicConfigList
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.testing import local_cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from console_pages import console_of

PATHS = (
    "/",
    "/topics",
    "/topics?page=400",
    "/topics?search=999",
    "/groups?sort=lag",
    "/topic?name=Topic-100",
    "/group?name=Group-100",
    "/messages?topic=Topic-100&by=time",
    "/dead-letters?group=Group-0",
    "/brokers",
    "/broker?address={broker}",
    "/configuration",
)
ROUNDS = 15
DEAD_LETTERS = 25
"""those of one page"""


class StepClock(trio.abc.Instrument):
    """Measures how long tasks hold the loop, in processor time: other programs do not count."""

    def __init__(self) -> None:
        self.began, self.longest = time.thread_time(), 0.0

    def before_task_step(self, _: trio.lowlevel.Task) -> None:
        self.began = time.thread_time()

    def after_task_step(self, _: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self.began)


async def send_messages(namesrv: str, admin: Admin, address: str, topics: int) -> None:
    """Send one message to each topic, and have a group give up some."""
    async with Producer(namesrv, group="bench") as producer, trio.open_nursery() as nursery:

        async def send(first: int) -> None:
            for number in range(first, topics, 20):
                await producer.send(f"Topic-{number}", b"x" * 200)

        for first in range(20):
            nursery.start_soon(send, first)
    async with Producer(namesrv, group="bench") as producer:
        queue = (await producer.queues("Topic-0"))[0]
        for _ in range(DEAD_LETTERS):
            receipt = await producer.send("Topic-0", b"x" * 200, queue=queue)
            (stored,) = await admin.read(queue, receipt.queue_offset, count=1)
            header = SendBackHeader(stored.log_offset, "Group-0", -1, None, "Topic-0")
            await admin.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)


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
        await send_messages(cluster.namesrv_address, admin, broker.address, topics)
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
            clock = StepClock()
            trio.lowlevel.add_instrument(clock)
            for path in (path.format(broker=broker.address) for path in PATHS):
                times, clock.longest = [], 0.0
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    await client.get(path)
                    times.append(1000 * (time.perf_counter() - began))
                    assert client.status == 200, client.text
                print(f"{path:40} median {statistics.median(times):6.1f} ms", end="")
                print(f"  max {max(times):6.1f} ms  {len(client.text) / 1024:6.1f} KiB", end="")
                print(f"  longest step {1000 * clock.longest:5.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trio.run(partial(run, options.topics, options.groups, Path(folder)))


if __name__ == "__main__":
    main()
