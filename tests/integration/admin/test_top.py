"""``mqadmin top``: one frame and the live view, beside a broker that never answers; the number of
requests on a large cluster.
"""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from mqadmin_calls import call, failed, mqadmin
from silent_servers import silent_broker, silent_server
from textual.pilot import Pilot
from textual.widgets import Input, Static

from triomq import Producer, PushConsumer
from triomq.client.admin import requests
from triomq.client.admin.admin import Admin
from triomq.client.admin.cluster_poller import ClusterPoller
from triomq.client.admin.cluster_view import ClusterView, NameServerRow
from triomq.client.core.portal import Portal
from triomq.client.mqadmin.command_line import understand
from triomq.client.mqadmin.commands.top import live
from triomq.client.mqadmin.execution import wants_screen
from triomq.client.mqadmin.top.frame import TopFrame
from triomq.client.mqadmin.top.loader import TopLoader, load_once, open_loader
from triomq.client.mqadmin.top.screen import PortalSource, TopApp
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicConfigList
from triomq.remoting.protocol.codes import RequestCode
from triomq.testing import InProcessCluster, local_cluster

ALTERNATE_SCREEN_LEFT = b"\x1b[?1049l"
TIMEOUT = ("--timeout", 10)


@asynccontextmanager
async def busy_cluster() -> AsyncIterator[InProcessCluster]:
    """Run a broker whose topic ``orders`` has five messages, and a group that took one of them."""
    async with local_cluster() as cluster:
        namesrv = cluster.namesrv_address
        await cluster.create_topic("orders", queues=1)
        await cluster.create_topic("invoices", queues=1)
        async with Producer(namesrv, group="shop") as producer:
            for _ in range(5):
                await producer.send("orders", b"x")
        async with PushConsumer(
            namesrv, group="billing", subscriptions="orders", consume_from="first"
        ) as consumer:
            await (await anext(consumer)).ack()
            async with cluster.admin() as admin:
                while (
                    not (await admin.consume_stats("billing", "orders"))
                    .some()["broker-a"]
                    .offset_table
                ):
                    await trio.sleep(0.02)
                yield cluster


def row_of(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return row


async def test_one_frame_beside_a_silent_broker() -> None:
    async with busy_cluster() as cluster:
        live_broker, namesrv = cluster.brokers[0].address, cluster.namesrv_address
        alone = (await mqadmin("top", "--json", "-n", namesrv, *TIMEOUT)).document
        async with silent_broker(namesrv, ["orders"]) as ghost:
            done = await mqadmin("top", "--json", "-n", namesrv, *TIMEOUT)
            text = await mqadmin("top", "--once", "-n", namesrv, *TIMEOUT)
            csv = await mqadmin("top", "--csv", "-n", namesrv, *TIMEOUT)
    group = row_of(alone["groups"], group="billing")
    assert (group["members"], group["incomplete"]) == (1, False)
    assert group["lag"] > 0
    assert group["oldestSeconds"] is not None
    topic = row_of(alone["topics"], topic="orders")
    assert (topic["inTps"], topic["incomplete"], alone["topicCount"]) == (0.0, False, 2)

    assert done.code == text.code == csv.code == 3
    document = done.document
    assert list(document["failures"]) == [ghost]
    silent = row_of(document["servers"], address=ghost)
    assert (silent["inTps"], silent["putLatency99Ms"]) == (None, None)
    assert ghost in silent["error"]
    answering = row_of(document["servers"], address=live_broker)
    assert answering["error"] is None
    assert answering["inTps"] is not None
    assert row_of(document["topics"], topic="orders")["incomplete"] is True
    assert row_of(document["groups"], group="billing")["members"] == 1
    (line,) = [line for line in text.out.splitlines() if ghost in line and "did not answer" in line]
    assert "?" in line
    assert "2 brokers (1 silent)" in text.out
    assert csv.out.splitlines()[0].startswith("role,address,clusterName,brokerName")


async def test_one_frame_is_filtered_and_cut() -> None:
    async with busy_cluster() as cluster:
        words = ("top", "--json", "-n", cluster.namesrv_address)
        filtered = (await mqadmin(*words, "--filter", "INVO")).document
        cut = (await mqadmin(*words, "--rows", 1)).document
        everything = (await mqadmin(*words, "--all")).document
        text = await call(cluster, "top", "--rows", 1)
    assert [row["topic"] for row in filtered["topics"]] == ["invoices"]
    assert (len(cut["topics"]), cut["topicCount"]) == (1, 2)
    assert "Topics: 2 (the first 1; --rows and --filter show others)" in text.out
    assert {row["kind"] for row in everything["topics"]} >= {"normal", "system"}


async def test_a_cluster_without_a_name_server_has_no_frame() -> None:
    with silent_server() as port:
        done = await mqadmin("top", "-n", f"127.0.0.1:{port}", "--timeout", 2)
    assert failed(done, 6, f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("words", "screen"),
    [
        ([], True),
        (["-i", "5"], True),
        (["--once"], False),
        (["--json"], False),
        (["--csv"], False),
        (["--watch", "5"], False),
    ],
)
def test_the_live_view_is_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, words: list[str], screen: bool
) -> None:
    call = understand(["top", *words])
    assert not isinstance(call, str)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as raw, open(os.devnull) as pipe:
        with os.fdopen(os.dup(raw.fileno()), "r") as terminal:
            monkeypatch.setattr("sys.stdin", terminal)
            assert wants_screen(call, terminal) is screen
            assert wants_screen(call, pipe) is False
    os.close(ours)


def test_without_textual_the_fix_is_named() -> None:
    code = (
        "import sys; sys.modules['textual'] = None\n"
        "from triomq.client.mqadmin.command_line import complain, understand\n"
        "call = understand(['top', '-n', '127.0.0.1:1'])\n"
        "try:\n    call.command.screen(call.values)\n"
        "except Exception as error:\n    sys.exit(complain(error, [], sys.stdout, sys.stderr))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done
    assert "pip install 'triomq[admin]'" in done.stderr
    assert live.__module__ == "triomq.client.mqadmin.commands.top"


async def test_the_program_shows_the_view_until_q() -> None:
    async with local_cluster() as cluster:
        ours, theirs = pty.openpty()
        process = await trio.lowlevel.open_process(
            [
                sys.executable,
                "-m",
                "triomq.client.mqadmin.cli",
                "top",
                "-n",
                cluster.namesrv_address,
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(theirs)
        out = b""
        async with trio.lowlevel.FdStream(ours) as terminal:
            with trio.fail_after(60):
                while b"broker-a" not in out:
                    out += await terminal.receive_some(65536)
                await terminal.send_all(b"q")
                while ALTERNATE_SCREEN_LEFT not in out:
                    out += await terminal.receive_some(65536)
                await process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in out


# --- the loader


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests that reach the network, by name."""
    names: Counter[str] = Counter()
    original = requests.request

    def noted(code: RequestCode, *rest: Any) -> Any:
        names[RequestCode(code).name] += 1
        return original(code, *rest)

    monkeypatch.setattr(requests, "request", noted)
    return names


async def test_a_round_on_a_large_cluster_has_a_budget(sent: Counter[str]) -> None:
    """With 2,000 topics and 500 groups: rows on the screen first, a few hundred requests in all."""
    topics = TopicConfigList([TopicConfig(topic_name=f"T{number}") for number in range(2000)])
    groups = SubscriptionGroupList(
        [SubscriptionGroupConfig(group_name=f"G{number}") for number in range(500)]
    )
    async with local_cluster() as cluster, cluster.admin() as admin, cluster.admin() as details:
        address = cluster.brokers[0].address
        await admin.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=topics.encode())
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        await admin.ask(address, code, body=groups.encode())
        loader = TopLoader(ClusterPoller(admin, details, 60.0), details, 60.0, 10.0)
        loader.show_first(["T1999", "T7"], ["G499"])
        sent.clear()
        await loader.round()
        first, frame = sent.total(), loader.frame
        sent.clear()
        await loader.round()
        second = loader.frame
        sent_again = sent.total()
        assert (await load_once(admin, 10.0, 50)).view.topics.keys() == frame.view.topics.keys()
    assert len(frame.view.topics) >= 2000
    assert {"T1999", "T7"} <= frame.topics.keys()
    assert "G499" in frame.groups
    assert first <= 210
    assert sent_again <= 205, "the tables are not read in every round"
    assert len(second.topics) > len(frame.topics), "the others have their turn"


# --- the live view


async def until(pilot: Pilot[None], found: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not found():
            await pilot.pause(0.05)


def text_of(app: TopApp, part: str) -> str:
    return str(app.query_one(part, Static).render())


def known(app: TopApp, key: str) -> int:
    """Return the number of rows with a known value."""
    return sum(row[key] is not None for row in app.shown)


def names(app: TopApp) -> list[str]:
    return [row[app.shown_tab.identity] for row in app.shown]


async def in_a_view(
    namesrv: str, scenario: Callable[[TopApp, Pilot[None]], Awaitable[None]]
) -> TopApp:
    """Run the view and its loader in threads of their own, as the program has two loops."""

    def connect() -> Admin:
        return Admin(namesrv, timeout_seconds=0.5)

    portal: Portal[TopLoader] = Portal(open_loader(connect(), connect(), 0.5, 1.0))
    loader = await trio.to_thread.run_sync(portal.start().result)
    app = TopApp(PortalSource(loader, portal))

    async def drive() -> None:
        async with app.run_test(size=(160, 40)) as pilot:
            await scenario(app, pilot)

    try:
        await trio.to_thread.run_sync(partial(asyncio.run, drive()))
    finally:
        await trio.to_thread.run_sync(portal.stop().result)
    return app


async def test_the_view_beside_a_silent_broker() -> None:
    seen: dict[str, Any] = {}

    async def scenario(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: known(app, "inTps") == 1 and len(app.shown) == 3)
        seen["servers"] = list(app.shown)
        seen["headline"] = text_of(app, "#headline")
        first = app._source.frame
        await until(pilot, lambda: app._source.frame.view.taken_at > first.view.taken_at)
        await pilot.press("2")
        await until(pilot, lambda: known(app, "inTps") == 2)
        seen["topics"] = names(app)
        await until(pilot, lambda: len(app._source.loader.shown_topics) == 2)
        await pilot.press("s")
        await pilot.press("s", "s")
        seen["status"] = text_of(app, "#status")
        seen["sorted"] = names(app)
        await pilot.press("slash", "i", "n", "v", "enter")
        seen["filtered"] = names(app)
        seen["focus"] = app.focused is app.table
        await pilot.press("escape")
        seen["cleared"] = names(app)
        seen["filter"] = app.query_one("#filter", Input).display
        await pilot.press("3")
        await until(pilot, lambda: known(app, "members") == 1)
        seen["groups"] = list(app.shown)
        await pilot.press("enter")
        await pilot.pause()
        seen["details"] = str(app.screen.query_one("#details", Static).render())
        await pilot.press("escape")
        await pilot.press("a")
        seen["all groups"] = names(app)
        await pilot.press("q")
        await until(pilot, lambda: app._exit)

    async with busy_cluster() as cluster, silent_broker(cluster.namesrv_address, ["x"]) as ghost:
        app = await in_a_view(cluster.namesrv_address, scenario)
        address = cluster.brokers[0].address
    assert app.return_code == 0
    silent = row_of(seen["servers"], address=ghost)
    assert (silent["inTps"], silent["brokerName"]) == (None, "ghost")
    assert silent["error"]
    assert row_of(seen["servers"], address=address)["error"] is None
    assert "2 brokers (1 silent)" in seen["headline"]
    assert "old" in seen["headline"]
    assert sorted(seen["topics"]) == ["invoices", "orders"]
    assert seen["sorted"] == seen["cleared"] == ["invoices", "orders"]
    assert "sorted by topic" in seen["status"]
    assert (seen["filtered"], seen["focus"], seen["filter"]) == (["invoices"], True, False)
    (group,) = seen["groups"]
    assert (group["group"], group["members"]) == ("billing", 1)
    assert "orders at broker-a" in seen["details"]
    assert len(seen["all groups"]) > 1


async def test_names_are_shown_as_they_are() -> None:
    """Neither as Textual's markup nor with control characters."""
    frame = TopFrame(
        view=ClusterView(
            name_servers=(NameServerRow("[::1]:9876", "no [bold]answer\x1b"),), taken_at=1.0
        )
    )

    class StillSource:
        crash = None

        def __init__(self) -> None:
            self.frame = frame

        def show_first(self, topics: Sequence[str], groups: Sequence[str]) -> None:
            self.shown = (topics, groups)

    async def drive() -> list[str]:
        app = TopApp(StillSource(), wall=lambda: 1.0)
        async with app.run_test(size=(160, 40)) as pilot:
            await pilot.pause()
            return [cell.plain for cell in app.table.get_row_at(0)]

    cells = await trio.to_thread.run_sync(lambda: asyncio.run(drive()))
    assert cells[4] == "[::1]:9876"
    assert cells[-1] == "no [bold]answer\\x1b"


async def test_ctrl_c_leaves_the_view() -> None:
    async def scenario(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+c")
        await until(pilot, lambda: app._exit)

    with silent_server() as port:
        app = await in_a_view(f"127.0.0.1:{port}", scenario)
    assert app.return_code == 0


async def test_a_loader_that_crashes_ends_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: TopLoader) -> None:
        raise ZeroDivisionError("a bug")

    async def scenario(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app._exit)

    monkeypatch.setattr(TopLoader, "round", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await in_a_view("127.0.0.1:1", scenario)
