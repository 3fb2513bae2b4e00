"""The ten daily tasks of docs/operations.md: each command is run, and must print what the page
shows, but for times, ids and rates.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
from mqadmin_calls import mqadmin
from pages import BLOCK, ROOT

from triomq import Producer, PushConsumer, ReceivedMessage
from triomq.testing import InProcessCluster, local_cluster

PAGE = (ROOT / "docs" / "operations.md").read_text()
SECTION = PAGE[PAGE.index("## Ten daily tasks") : PAGE.index("## Start")]
MASKS = (
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?", "TIME"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\d+\.\d+(?![.\d:])", "NUMBER"),  # rates, shares of a disk
    (r"NUMBER\(.*?\)", "LOAD"),
    (r"(broker-[ab]), queue \d, offset \d", "PLACE"),
    (r"\bbroker-[ab]  +0  ID$", "broker 0 ID"),  # where the copy of a dead letter went
    (r" in \d+ queues$", " in N queues"),  # those of retries are made when they are needed
)
"""different in every run"""


@attrs.frozen
class Task:
    """A command of the page and what it prints there."""

    line: str
    output: str


def tasks() -> list[Task]:
    found = []
    for match in BLOCK.finditer(SECTION):
        if match["info"] == "console":
            line, _, output = match["text"].partition("\n")
            found.append(Task(line.removeprefix("$ mqadmin "), output))
    return found


def plain(text: str, addresses: dict[str, str]) -> list[str]:
    """The lines in an order of their own, with words for what differs from run to run."""
    for address, word in addresses.items():
        text = text.replace(address, word)
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return sorted(" ".join(line.split()) for line in text.splitlines())


@contextlib.asynccontextmanager
async def members(cluster: InProcessCluster, fails_for: str = "") -> AsyncIterator[set[str]]:
    """A member of billing, and the keys of what it got."""
    got: set[str] = set()

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        got.update(message.keys)
        if fails_for in message.keys:
            raise ValueError("no such customer")

    async with PushConsumer(
        cluster.namesrv_address,
        group="billing",
        subscriptions="orders",
        consume_from="first",
        handler=handle,
    ):
        yield got


async def send(cluster: InProcessCluster, numbers: range) -> set[str]:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        for number in numbers:
            await producer.send(
                "orders", b'{"order": %d}' % number, keys=[f"order-{number}"], tag="paid"
            )
    return {f"order-{number}" for number in numbers}


async def done(line: str) -> str:
    answer = await mqadmin(*shlex.split(line))
    assert answer.code in (0, 1), answer
    return answer.out


async def until_dead() -> None:
    with trio.fail_after(30):
        while "billing" not in await done("dlq list"):
            await trio.sleep(0.05)


@pytest.fixture
async def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InProcessCluster]:
    """As the page says: 24 orders are read, one of them is a dead letter, 16 wait."""
    (wanted,) = [match["text"] for match in BLOCK.finditer(SECTION) if match["info"] == "yaml"]
    (tmp_path / "cluster.yaml").write_text(wanted)
    monkeypatch.chdir(tmp_path)
    async with local_cluster(brokers=2) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv_address)
        await done("topic create -c DefaultCluster -t orders -r 4 -w 4")
        await done("group create -c DefaultCluster -g billing -r 0")
        async with members(cluster, fails_for="order-17") as got:
            sent = await send(cluster, range(24))
            with trio.fail_after(30):
                while got != sent:
                    await trio.sleep(0.02)
            await until_dead()
        await send(cluster, range(24, 40))
        yield cluster


@pytest.mark.timeout(120)
@pytest.mark.feature("200b", "148a")
async def test_each_task_prints_what_the_page_shows(cluster: InProcessCluster) -> None:
    addresses = {broker.address: broker.name for broker in cluster.brokers}
    of_page = {"127.0.0.1:10911": "broker-a", "127.0.0.1:10921": "broker-b"}
    for task in tasks():
        async with contextlib.AsyncExitStack() as stack:
            if task.line.startswith("broker drain"):  # "the members run again"
                await stack.enter_async_context(members(cluster))
            printed = await done(task.line)
        assert plain(printed, addresses) == plain(task.output, of_page), task.line
    assert len(tasks()) == 10


def test_another_output_is_seen() -> None:
    """The masks leave what tells one state from another."""
    for task in tasks():
        for wrong in (task.output.replace("1", "2"), task.output + "more\n"):
            assert wrong == task.output or plain(wrong, {}) != plain(task.output, {}), task
