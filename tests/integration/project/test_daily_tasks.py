"""The ten daily tasks of docs/operations.md, and who consumes what: each command is run, and must
print what the page shows, but for times, ids and rates; also beside a broker that is dead or hangs.
"""

from __future__ import annotations

import contextlib
import html
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
from console_pages import console_of
from mqadmin_calls import mqadmin
from pages import BLOCK, ROOT
from silent_servers import silent_broker

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
        queues = [one for one in await producer.queues("orders") if one.broker_name != "broker-c"]
        for number in numbers:
            await producer.send(
                "orders",
                b'{"order": %d}' % number,
                keys=[f"order-{number}"],
                tag="paid",
                queue=queues[number % len(queues)],
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


@pytest.fixture(params=["living", "dead", "hung"])
async def cluster(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    roomy_disk: None,
) -> AsyncIterator[InProcessCluster]:
    """As the page says: 24 orders are read, one of them is a dead letter, 16 wait. A third broker
    has the topic, and no messages.
    """
    (wanted,) = [match["text"] for match in BLOCK.finditer(SECTION) if match["info"] == "yaml"]
    (tmp_path / "cluster.yaml").write_text(wanted)
    monkeypatch.chdir(tmp_path)
    async with local_cluster(brokers=2 if request.param == "living" else 3) as cluster:
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
        if request.param != "living":
            await cluster.crash_broker("broker-c")
        if request.param != "hung":
            yield cluster
            return
        topics = ["orders", "%RETRY%billing", "%DLQ%billing"]
        async with silent_broker(cluster.namesrv_address, topics, "broker-c"):
            yield cluster


WHO_CONSUMES_WHAT = Task("topic list -c", "DefaultCluster orders billing")
OF_BROKERS = [
    Task(f"broker {word} -c DefaultCluster", "")
    for word in ("config", "disk", "replication", "status")
]
"""questions about each broker, of which the page shows no output"""
IN_CONSOLE: dict[str, tuple[str, ...]] = {
    "/brokers": ("broker-a", "broker-b"),
    "/": ("only this machine can reach it; set brokerIP1 when clients run elsewhere",),
    "/groups": ("billing", ">16<"),
    "/group?name=billing&why=1": (
        "no member is online; 16 messages wait",
        "start a consumer of the group, and see its log for the reason why it ended",
        "because of ValueError: no such customer",
    ),
    "/messages?topic=orders&by=key&key=order-17": ("order-17", "broker-"),
    "/dead-letters?group=billing": ("order-17", "ValueError: no such customer"),
    "/group/move?name=billing&topic=orders&target=earliest": ("broker-a", "broker-b"),
    "/topic?name=orders": ("billing", 'name="read_queues"'),
    "/broker?address={broker-a}": ('action="/broker/drain"',),
}
"""The page of the console that answers each question, except that about files in Git, and words of
it. ``mqadmin`` says the same.
"""
CHANGES = ("dlq resend", "group reset", "cluster apply")
SUMS = re.compile(r"\d+ (checks|findings)[:;].*")
"""lines that count the broker that does not answer"""


async def answer(cluster: InProcessCluster, task: Task) -> None:
    """Run the command of a task; its answer must be right, and say whether it is complete."""
    addresses = {broker.address: broker.name for broker in cluster.brokers}
    of_page = {"127.0.0.1:10911": "broker-a", "127.0.0.1:10921": "broker-b"}
    done = await mqadmin(*shlex.split(task.line))
    printed, wanted = plain(done.out, addresses), plain(task.output, of_page)
    if len(addresses) == 2:
        assert done.code in (0, 1), (task.line, done)
        assert task in (WHO_CONSUMES_WHAT, *OF_BROKERS) or printed == wanted, task.line
        assert set(wanted) <= set(printed), task.line
        return
    printed = [line.replace(" at the brokers that answer", "") for line in printed]
    lacking = [line for line in wanted if line not in printed and not SUMS.fullmatch(line)]
    assert lacking == [], (task.line, done)
    if task.line.startswith("broker drain"):
        assert done.code == 0, "nothing of the other broker is asked"
        return
    assert "broker-c" in done.out or "did not answer" in done.out + done.err, (task.line, done)
    if task.line.startswith("doctor"):
        assert done.code == 1
        return
    # Dead letters lie at one broker, and perhaps at the other.
    count = "1 of 2" if task.line.startswith("dlq resend") else "2 of 3"
    assert done.code == 3, (task.line, done)
    warning = f"mqadmin: warning: {count} answered, the output is incomplete"
    assert warning in done.err, (task.line, done)


async def ask_console(cluster: InProcessCluster, folder: Path) -> None:
    addresses = {broker.name: broker.address for broker in cluster.brokers}
    async with console_of(cluster.namesrv_address, folder) as client:
        await client.log_in("admin")
        with trio.fail_after(20):
            while not client.console.poller.view.tables_at or client.console.doctor.found is None:
                await trio.sleep(0.05)
        for path, words in IN_CONSOLE.items():
            await client.get(path.replace("{broker-a}", addresses["broker-a"]))
            text = html.unescape(client.text).replace(" at the brokers that answer", "")
            assert client.status == 200, (path, text)
            assert [word for word in words if word not in text] == [], path
            assert ("Some servers did not answer" in text) == (len(addresses) > 2), path
            assert ("broker-c" in text) == (len(addresses) > 2), path


@pytest.mark.timeout(300)
@pytest.mark.feature("200b", "148a")
async def test_each_task_prints_what_the_page_shows(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    """Those that read, together; then those that change something else each; then the drain."""
    await ask_console(cluster, tmp_path)
    asked = [*tasks(), WHO_CONSUMES_WHAT, *OF_BROKERS]
    assert len(asked) == 15
    changing = [task for task in asked if task.line.startswith(CHANGES)]
    drains = [task for task in asked if task.line.startswith("broker drain")]
    for turn in ([task for task in asked if task not in (*changing, *drains)], changing):
        async with trio.open_nursery() as nursery:
            for task in turn:
                nursery.start_soon(answer, cluster, task)
    async with members(cluster):  # "run again"
        for task in drains:
            await answer(cluster, task)


def test_another_output_is_seen() -> None:
    """The masks leave what tells one state from another."""
    for task in tasks():
        for wrong in (task.output.replace("1", "2"), task.output + "more\n"):
            assert wrong == task.output or plain(wrong, {}) != plain(task.output, {}), task
