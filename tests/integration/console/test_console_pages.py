"""The pages against a cluster in the same loop: what they show and what they change."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from access_callers import ROOT, SETTINGS
from console_pages import PageClient, console_of
from hooked_cluster import hooked_cluster
from mqadmin_calls import mqadmin

from triomq import ReceivedMessage
from triomq.client.admin.admin import Admin
from triomq.client.admin.cluster_view import ClusterView
from triomq.client.console import run
from triomq.client.core.config import ClientSettings, ConsumerSettings
from triomq.client.sdk.producer import Producer
from triomq.client.sdk.push_consumer import PushConsumer
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.registration import RegisterBrokerHeader
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.signing import Credentials
from triomq.testing import InProcessCluster, local_cluster


@pytest.fixture
async def client(triomq_cluster: InProcessCluster, tmp_path: Path) -> AsyncIterator[PageClient]:
    async with console_of(triomq_cluster.namesrv_address, tmp_path) as client:
        await client.log_in("admin")
        yield client


async def until(client: PageClient, path: str, text: str) -> str:
    """Load a page until it holds a text."""
    with trio.fail_after(10):
        while text not in await client.get(path):
            await trio.sleep(0.05)
    return client.text


async def send(cluster: InProcessCluster, topic: str, *bodies: bytes, **options: Any) -> list[str]:
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        return [(await producer.send(topic, body, **options)).message_id for body in bodies]


@pytest.mark.feature(147)
async def test_a_topic_from_creation_to_deletion(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    await client.get("/topics/create")
    await client.post(
        "/topics/create", name="orders", cluster="DefaultCluster", queues="3", type="FIFO"
    )
    assert "Topic orders was created." in await client.follow()
    assert "Topic orders was created." not in await client.get("/topic?name=orders"), "once"
    admin = triomq_cluster.admin()
    async with admin:
        (address,) = [broker.address for broker in await admin.brokers()]
        config = await admin.topic_config("orders", address)
        assert config is not None
        assert (config.read_queue_count, config.attributes) == (3, {"message.type": "FIFO"})
        row = re.search(r"orders</a></th><td>FIFO</td>", await until(client, "/topics", "orders<"))
        assert row is not None
        await client.get("/topic?name=orders")
        await client.post(
            "/topic/update",
            name="orders",
            broker="broker-a",
            read_queues="5",
            write_queues="4",
            perm="4",
        )
        assert "Topic orders was changed." in await client.follow()
        config = await admin.topic_config("orders", address)
        assert config is not None
        assert (config.read_queue_count, config.write_queue_count, config.perm) == (5, 4, 4)
        await client.post("/topic/delete", name="orders", confirm="order")
        assert client.status == 400
        assert "orders" in await admin.topics()
        await client.get("/topic?name=orders")
        await client.post("/topic/delete", name="orders", confirm="orders")
        assert client.status == 303
        assert "orders" not in await admin.topics()
    changes = [line for line in client.audit() if line["action"] != "login"]
    assert [(line["action"], line["outcome"]) for line in changes] == [
        (action, outcome)
        for action in ("topic.create", "topic.update", "topic.delete")
        for outcome in ("begun", "done")
    ]
    assert changes[2]["before"] == {
        "broker-a": {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    }
    assert changes[2]["after"]["writeQueueNums"] == 4
    assert {line["user"] for line in changes} == {"admin"}


async def test_a_failed_change_is_in_the_audit(client: PageClient) -> None:
    await client.get("/topics/create")
    await client.post("/topics/create", name="x", cluster="nowhere", queues="3", type="NORMAL")
    assert client.status == 502
    begun, failed = client.audit()[-2:]
    assert (begun["outcome"], failed["outcome"]) == ("begun", "failed")
    assert "no cluster 'nowhere'" in failed["error"]


async def test_messages_are_found_and_shown(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    await triomq_cluster.create_topic("orders", queues=1)
    await client.get("/topic?name=orders")
    await client.post(
        "/topic/send", name="orders", body='{"n": 1, "t": "<b>"}', tag="new", keys="k1 k2"
    )
    raw = await client.follow()
    assert '  "n": 1' in client.text, "JSON is indented"
    assert "&#34;&lt;b&gt;&#34;" in raw
    assert "k1 k2" in client.text
    (binary,) = await send(triomq_cluster, "orders", b"\xff\x00bin")
    await client.get(f"/messages?topic=orders&by=id&id={binary}")
    assert binary in client.text
    link = re.search(r'href="(/message\?[^"]+)"', client.text)
    assert link is not None
    await client.get(link.group(1))
    assert "ff 00 62 69 6e" in client.text
    assert "not UTF-8" in client.text
    await client.get(link.group(1) + "&form=text")
    assert "\N{REPLACEMENT CHARACTER}\\x00bin" in client.text
    await client.get("/messages?topic=orders&by=key&key=k2")
    assert '{"n": 1, "t": "<b>"}' in client.text
    await client.get("/messages?topic=orders&by=key&key=none")
    assert "No message was found" in client.text
    await client.get("/messages?topic=orders&by=time")
    assert client.text.count('href="/message?') == 2
    await client.get("/messages?topic=orders&by=time&begin=2020-01-01T00:00&end=2020-01-02T00:00")
    assert client.text.count('href="/message?') == 0
    await client.get("/messages?topic=orders&by=time&begin=2021-01-01T00:00&end=2020-01-02T00:00")
    assert client.status == 400
    await send(triomq_cluster, "orders", *[b"%d" % number for number in range(100)])
    await client.get("/messages?topic=orders&by=time")
    assert client.text.count('href="/message?') == 64
    assert "There are more messages" in client.text
    assert ">99</td>" in client.text, "the newest ones"
    assert ">35</td>" not in client.text
    await client.get("/messages?topic=nowhere&by=time")
    assert client.status == 502
    await client.get("/message?topic=orders&broker=broker-a&queue=0&offset=7777")
    assert client.status == 400


async def test_a_message_is_sent_again(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    await triomq_cluster.create_topic("orders", queues=1)
    body = b"x" * 10_000  # compressed by the producer
    (message_id,) = await send(
        triomq_cluster, "orders", body, tag="t", keys=["k"], properties={"own": "1"}
    )
    await client.get("/message?topic=orders&broker=broker-a&queue=0&offset=0")
    form = {"topic": "orders", "broker": "broker-a", "queue": "0", "offset": "0"}
    await client.post("/message/resend", **form)
    assert f"Message {message_id} was sent again to orders." in await client.follow()
    admin = triomq_cluster.admin()
    async with admin:
        first, second = await admin.read(MessageQueue("orders", "broker-a", 0), 0, count=5)
    assert second.body == first.body
    assert second.message_id == first.message_id == message_id
    assert (second.tag, second.keys, second.properties["own"]) == ("t", ("k",), "1")


async def commit(admin: Admin, group: str, queue: MessageQueue, offset: int) -> None:
    header = UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset)
    await admin.ask(await admin.address_of(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def offsets_of(admin: Admin, group: str, topic: str) -> dict[int, int]:
    stats = (await admin.consume_stats(group, topic)).values["broker-a"]
    return {queue.queue_id: offset.consumer_offset for queue, offset in stats.offset_table.items()}


async def test_a_group_is_moved_as_its_preview_says(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    await triomq_cluster.create_topic("orders", queues=2)
    queues = [MessageQueue("orders", "broker-a", number) for number in (0, 1)]
    async with (
        triomq_cluster.admin() as admin,
        Producer(triomq_cluster.namesrv_address, group="shop") as producer,
    ):
        for number in range(12):
            await producer.send("orders", b"%d" % number, queue=queues[number % 3 // 2])
        await admin.update_group("billing", lambda config: config)
        await commit(admin, "billing", queues[0], 5)
        await commit(admin, "billing", queues[1], 1)
        row = re.compile(r'billing</a></th><td class="right">6</td>')
        with trio.fail_after(10):
            client.console.poller.refresh_soon()
            while row.search(await client.get("/groups")) is None:
                await trio.sleep(0.05)
        await client.get("/group?name=billing")
        assert "No member is online." in client.text
        assert '<p class="figure">6</p>' in client.text
        preview = "/group/move?name=billing&topic=orders&"
        await client.get(preview + "target=shift&by=-2&time=")
        cells = re.findall(r'<td class="right">([^<]*)</td>', client.text)
        #        queue, now, then, difference, first, next
        assert cells == ["0", "5", "3", "-2", "0", "8", "1", "1", "0", "-1", "0", "4"]
        assert await offsets_of(admin, "billing", "orders") == {0: 5, 1: 1}, "only shown"
        form = {"name": "billing", "topic": "orders", "time": "", "by": "-2"}
        await client.post("/group/move", **form, target="shift")
        assert "Group billing was moved in topic orders." in await client.follow()
        assert await offsets_of(admin, "billing", "orders") == {0: 3, 1: 0}
        assert client.audit()[-1]["before"] == {"broker-a/0": 5, "broker-a/1": 1}
        assert client.audit()[-1]["after"]["offsets"] == {"broker-a/0": 3, "broker-a/1": 0}
        for target, time, expected in (
            ("latest", "", {0: 8, 1: 4}),
            ("earliest", "", {0: 0, 1: 0}),
            ("time", "2999-01-01T00:00", {0: 8, 1: 4}),
            ("time", "2020-01-01T00:00:00", {0: 0, 1: 0}),
        ):
            await client.get(preview + f"target={target}&by=0&time={time}")
            then = re.findall(r'<td class="right">([^<]*)</td>', client.text)[2::6]
            assert [int(text) for text in then] == list(expected.values()), target
            await client.post("/group/move", **{**form, "target": target, "time": time, "by": "0"})
            assert client.status == 303, client.text
            assert await offsets_of(admin, "billing", "orders") == expected, target
        for wrong in ("target=nowhere", "target=time&time=soon", "target=shift&by=x"):
            await client.get(preview + wrong)
            assert client.status == 400, wrong
        await client.get("/group?name=billing")
        await client.post("/group/delete", name="billing", confirm="billing")
        assert client.status == 303
        assert "billing" not in (await admin.groups()).values["broker-a"]


@pytest.mark.feature(147)
async def test_a_group_is_created_and_changed_after_a_preview(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    filled = {
        "name": "billing",
        "cluster": "DefaultCluster",
        "consumeEnable": "true",
        "consumeBroadcastEnable": "true",
        "consumeMessageOrderly": "false",
        "retryMaxTimes": "3",
        "retryQueueNums": "1",
    }
    assert "/group/change" in await client.get("/groups")
    await client.get("/group/change")
    assert 'name="retryMaxTimes" type="number" value="16"' in client.text
    for field, wrong, text in (
        ("retryMaxTimes", "many", "Give a whole number from -1 to 100000."),
        ("retryMaxTimes", "", "Fill"),
        ("name", "no blanks", "Use letters, digits, _, -, % and |, 120 characters at most."),
    ):
        await client.get("/group/change?preview=1&" + urlencode({**filled, field: wrong}))
        assert client.status == 400
        if wrong:
            label = re.search(rf'<label>[^<]*<input name="{field}".*?</label>', client.text)
            assert label is not None
            assert text in label[0], "the error is beside its field"
            assert f'value="{wrong}"' in label[0], "the input is kept"
        assert 'value="true" selected' in client.text
    async with triomq_cluster.admin() as admin:
        (broker,) = await admin.brokers()
        await client.get("/group/change?preview=1&" + urlencode(filled))
        assert f"@@ {broker.address} @@" in client.text
        assert "+ retryMaxTimes=3" in client.text
        assert "billing" not in (await admin.groups()).values["broker-a"], "only shown"
        await client.post("/group/change", **filled)
        assert "The settings of group billing were written." in await client.follow()
        config = await admin.group_config("billing", broker.address)
        assert config is not None
        assert (config.retry_max_times, config.consume_broadcast_enable) == (3, True)
        await until(client, "/group/change?name=billing", "Change its settings")
        assert 'name="retryMaxTimes" type="number" value="3"' in client.text
        changed = {**filled, "retryMaxTimes": "5"}
        await client.get("/group/change?preview=1&" + urlencode(changed))
        assert re.findall(r"<(?:del|ins)>(.*?)</", client.text) == [
            "- retryMaxTimes=3",
            "+ retryMaxTimes=5",
        ]
        await client.post("/group/change", **changed)
        config = await admin.group_config("billing", broker.address)
        assert config is not None
        assert config.retry_max_times == 5
    done = [line for line in client.audit() if line["outcome"] == "done"]
    first, second = (line for line in done if line["action"] != "login")
    assert (first["action"], first["before"]) == ("group.update", {broker.address: None})
    assert second["before"][broker.address]["retryMaxTimes"] == 3
    assert second["after"]["retryMaxTimes"] == 5


async def test_a_form_keeps_its_input_in_the_users_language(client: PageClient) -> None:
    await client.get("/preferences?language=zh&next=/topics/create")
    await client.get("/topics/create")
    await client.post("/topics/create", name="kept", cluster="c", queues="x", type="FIFO")
    assert client.status == 400
    assert "请填写 1 到 1024 之间的整数。</span></label>" in client.text
    assert 'value="kept"' in client.text
    assert 'value="FIFO" selected' in client.text


async def test_members_with_their_stacks(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    await triomq_cluster.create_topic("orders", queues=1)
    started = trio.Event()

    async def handle_slowly(message: object) -> None:
        started.set()
        await trio.sleep_forever()

    await send(triomq_cluster, "orders", b"x")
    async with PushConsumer(
        triomq_cluster.namesrv_address,
        group="billing",
        subscriptions={"orders": "*"},
        consume_from="first",
        handler=handle_slowly,
        settings=ConsumerSettings(client=ClientSettings(shutdown_timeout=0.0)),
    ):
        with trio.fail_after(10):
            await started.wait()
        await client.get("/group?name=billing")
        assert "CONSUME_PASSIVELY" in client.text
        assert "<code>*</code>" in client.text
        link = re.search(r'href="(/group/member\?[^"]+stacks=1)"', client.text)
        assert link is not None
        await client.get(link.group(1))
        assert "handle_slowly" in client.text
        await client.get(link.group(1).replace("127.0.0.1", "192.0.2.1"))
        assert client.status == 400, "never a request to an address that no broker has"


@pytest.mark.feature(147)
async def test_problems_come_first_in_the_words_of_mqadmin(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    found = await mqadmin("doctor", "--cluster", "-n", triomq_cluster.namesrv_address, "--json")
    advice = [one for one in found.document["findings"] if one["level"] == "advice"]
    assert advice
    page = await until(client, "/", advice[0]["found"])
    assert page.index(advice[0]["fix"]) < page.index("Messages per second")


@pytest.mark.feature(147)
async def test_what_holds_a_group_back_and_who_has_its_queues(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    await send(triomq_cluster, "orders", b"1", b"2")

    async def hang(_: ReceivedMessage) -> None:
        await trio.sleep_forever()

    namesrv = triomq_cluster.namesrv_address
    async with PushConsumer(
        namesrv,
        group="billing",
        subscriptions="orders",
        handler=hang,
        consume_from="first",
        settings=ConsumerSettings(client=ClientSettings(shutdown_timeout=0.1)),
    ) as consumer:
        with trio.fail_after(30):
            while not consumer.assignment:
                await trio.sleep(0.05)
        assert "What holds it back" in await client.get("/group?name=billing")
        page = await client.get("/group?name=billing&why=1")
        assert f">{consumer.client_id}</td>" in page
        found = await mqadmin("groupWhy", "billing", "-n", namesrv, "--seconds", "1", "--json")
        for finding in found.document["findings"]:
            assert finding["check"] in client.text


@pytest.mark.feature(127)
async def test_dead_letters(client: PageClient, triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("orders", queues=1)
    ids = await send(triomq_cluster, "orders", b"first", b"second", b"third", keys=["k"])
    async with triomq_cluster.admin() as admin:
        (broker,) = await admin.brokers()
        await admin.update_group("billing", lambda config: config)
        for stored in await admin.read(MessageQueue("orders", "broker-a", 0), 0, count=3):
            header = SendBackHeader(stored.log_offset, "billing", -1, ids[0], "orders")
            header.failure = "ValueError: <late>"
            await admin.ask(broker.address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        client.console.poller.refresh_soon()
        await until(client, "/dead-letters", 'href="/dead-letters?group=billing"')
        await client.get("/dead-letters?group=billing")
        marks = re.findall(r'name="message" value="([^"]+)"', client.text)
        assert len(marks) == 3
        assert client.text.count("orders</td>") == 3
        assert client.text.count("ValueError: <late>") == 3
        assert "Failed deliveries" in client.text
        await client.get("/dead-letters?group=billing&search=second")
        assert len(re.findall(r'name="message" value="([^"]+)"', client.text)) == 1
        await client.get("/dead-letters?group=billing&end=2020-01-01T00:00")
        assert "No dead letters in this time." in client.text
        lines = (await client.get("/dead-letters/export?group=billing")).splitlines()
        assert sorted(json.loads(line)["body"] for line in lines) == ["first", "second", "third"]
        assert "attachment" in client.headers["content-disposition"]
        await client.get("/dead-letters?group=billing")
        await client.post("/dead-letters/resend", group="billing")
        assert client.status == 400
        marks.sort(key=lambda mark: int(mark.rpartition(":")[2]))
        await client.post("/dead-letters/resend", group="billing", to="group", message=marks[:2])
        assert "2 dead letters of billing were sent again." in await client.follow()
        await until_sent(client, *marks[:2])
        again: list[tuple[str, bytes]] = []
        async with PushConsumer(
            triomq_cluster.namesrv_address,
            group="billing",
            subscriptions={"orders": "*"},
            consume_from="last",
        ) as consumer:
            with trio.fail_after(20):
                async for message in consumer:
                    again.append((message.topic, message.body))
                    await message.ack()
                    if len(again) == 2:
                        break
        assert sorted(again) == [("orders", b"first"), ("orders", b"second")]
        assert await admin.max_offset(MessageQueue("orders", "broker-a", 0)) == 3, "not the topic"
        await client.get("/dead-letters?group=billing")
        await client.post("/dead-letters/resend", group="billing", to="topic", message=marks[2])
        assert client.status == 303
        assert await admin.max_offset(MessageQueue("orders", "broker-a", 0)) == 4
        await client.get("/dead-letters?group=billing")
        await client.post("/dead-letters/resend", group="billing", message="broker-a:0:99")
        assert client.status == 400
        await until_sent(client, *marks)


async def until_sent(client: PageClient, *marks: str) -> None:
    """Wait until these dead letters of ``billing`` are those that were sent again."""
    found: set[str] = set()
    with trio.move_on_after(20):
        while found != set(marks):
            found = {
                mark.group(1)
                for row in (await client.get("/dead-letters?group=billing")).split("<tr>")
                if ">sent</span>" in row
                and (mark := re.search(r'name="message" value="([^"]+)"', row))
            }
            await trio.sleep(0.05)
    assert found == set(marks)


async def test_who_sent_a_dead_letter_again_does_not_matter(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    """A console that starts afterwards knows what another one and mqadmin have sent."""
    namesrv = triomq_cluster.namesrv_address
    await triomq_cluster.create_topic("orders", queues=1)
    ids = await send(triomq_cluster, "orders", b"first", b"second", b"third")

    async def give_up(queue: MessageQueue, *offsets: int) -> None:
        for offset in offsets:
            (stored,) = await admin.read(queue, offset, count=1)
            header = SendBackHeader(stored.log_offset, "billing", -1, None, queue.topic)
            await admin.ask(broker.address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async with triomq_cluster.admin() as admin:
        (broker,) = await admin.brokers()
        await admin.update_group("billing", lambda config: config)
        await give_up(MessageQueue("orders", "broker-a", 0), 0, 1, 2)
        dead = "broker-a:0:"
        async with console_of(namesrv, tmp_path) as first:
            await first.log_in("admin")
            await first.get("/dead-letters?group=billing")
            await first.post("/dead-letters/resend", group="billing", message=dead + "0")
            await until_sent(first, dead + "0")
        by_mqadmin = ("dlq", "resend", "billing", "--id", ids[1], "--only-group", "--yes")
        assert (await mqadmin(*by_mqadmin, "-n", namesrv)).code == 0
        async with console_of(namesrv, tmp_path) as other:
            await other.log_in("admin")
            await until_sent(other, dead + "0", dead + "1")
            await give_up(MessageQueue("%RETRY%billing", "broker-a", 0), 0)
            with trio.fail_after(10):
                while dead + "3" not in await other.get("/dead-letters?group=billing"):
                    await trio.sleep(0.05)
            await until_sent(other, dead + "0", dead + "1")


async def test_the_overview_says_how_far_slaves_are_behind(
    client: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Slaves behind" not in await client.get("/"), "there are none"
    for lags, shown in (
        ({"a:2": 2048, "b:2": 0}, '"/brokers">2.0 KiB</a></p>'),
        ({"a:2": 2048, "b:2": None}, "incomplete"),
        ({"b:2": None}, '"unknown">'),
    ):
        monkeypatch.setattr(ClusterView, "slave_lags", lags)
        text = await client.get("/")
        assert shown in text[text.index("Slaves behind") : text.index(">Topics</h2>")]


async def test_a_broker_that_stops_is_never_shown_as_zero(tmp_path: Path) -> None:
    async with (
        local_cluster(brokers=2) as cluster,
        console_of(cluster.namesrv_address, tmp_path) as client,
    ):
        await client.log_in("viewer")
        await cluster.create_topic("orders")
        assert (await client.get("/brokers")).count('class="badge good"') == 2
        await until(client, "/", ">2 of 2<")
        client.console.poller.refresh_soon()
        await until(client, "/topics", "broker-a, broker-b")
        await cluster.crash_broker("broker-b")
        await until(client, "/brokers", "not registered any more")
        row = client.text[client.text.index("broker-b", client.text.index("<table")) :]
        assert re.search(r"last data <time[^>]*>\d+ s ago", row)
        assert row.count('class="unknown"') == 4, "rates, disk, oldest message"
        await client.get("/")
        assert ">1 of 2<" in client.text
        assert "incomplete" in client.text
        await client.get("/topic?name=orders")
        assert client.status == 200
        assert "broker-b" in client.text


async def test_a_broker_that_hangs_does_not_make_pages_wait(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    """A listener that never answers is registered as a broker."""
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    body = RegisterBrokerBody()
    header = RegisterBrokerHeader(
        broker_name="broker-z",
        broker_addr=f"127.0.0.1:{port}",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:1",
        broker_id=0,
    )
    async with (
        listener,
        triomq_cluster.admin() as admin,  # the registration ends with its connection
    ):
        await admin.ask(
            triomq_cluster.namesrv_address, RequestCode.REGISTER_BROKER, header, body.encode()
        )
        async with console_of(triomq_cluster.namesrv_address, tmp_path) as client:
            await client.log_in("viewer")
            await until(client, "/brokers", "broker-z")
            assert "no answer" in client.text
            with trio.fail_after(10):  # the poller has told the pages
                while not client.console.poller._silent:
                    await trio.sleep(0.05)
            with trio.fail_after(1.5):  # less than one request's time limit
                for path in ("/", "/brokers", "/configuration", "/producers", "/groups"):
                    await client.get(path)
                    assert client.status == 200, path
            assert "broker-a" in await client.get("/brokers")


async def test_a_console_without_a_cluster_says_so(tmp_path: Path) -> None:
    async with console_of("127.0.0.1:1", tmp_path) as client:
        await client.log_in("viewer")
        for path in ("/", "/brokers", "/topics", "/groups"):
            await client.get(path)
            assert client.status == 200, path
            assert "no name server answers" in client.text, path
            assert 'class="figure">0<' not in client.text
        await client.get("/topic?name=x")
        assert client.status == 502


async def test_the_configuration_is_changed_with_a_diff(client: PageClient) -> None:
    await client.get("/configuration?search=brokerPermission")
    assert "brokerPermission" in client.text
    (broker,) = client.console.poller.view.brokers
    await client.get("/configuration/change?kind=broker&key=brokerPermission&value=4")
    assert "<del>- brokerPermission=6</del>" in client.text
    assert "<ins>+ brokerPermission=4</ins>" in client.text
    form = {"kind": "broker", "key": "brokerPermission", "value": "4", "server": broker.address}
    await client.post("/configuration/change", **form)
    assert "Setting brokerPermission was changed." in await client.follow()
    assert client.audit()[-1]["before"] == {broker.address: "6"}
    await client.get("/configuration/change?kind=broker&key=brokerPermision&value=4")
    assert client.status == 400
    await client.get("/configuration?kind=namesrv")
    assert client.status == 200
    await client.get("/configuration?differences=1")
    assert client.status == 200


async def test_producers_and_policies(client: PageClient, triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("orders")
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        await producer.send("orders", b"x")
        with trio.fail_after(5):
            while "shop" not in await client.get("/producers"):
                await trio.sleep(0.05)
        assert "PYTHON" in client.text
        await client.get("/producers?search=none")
        assert "No producer is connected." in client.text
    await client.get("/policies")
    assert client.status == 200


@pytest.mark.feature(194)
async def test_users_and_rules_and_why_one_may(tmp_path: Path) -> None:
    root = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
    async with (
        hooked_cluster(tmp_path, (), **SETTINGS) as namesrv,
        console_of(namesrv, tmp_path, credentials=root) as client,
    ):
        await client.log_in("admin")

        async def ask(question: str) -> str:
            return await client.get(f"/policies?user=guest&from=10.1.2.3&{question}")

        await until(client, "/policies", "inner")
        await client.post("/policies/user", name="guest", password="pw-12345678", type="Normal")
        rule = {"subject": "User:guest", "resource": "Topic:or*", "actions": "Pub", "sources": ""}
        await client.get("/policies")
        await client.post("/policies/rule", **rule, decision="Allow")
        assert "Pub on Topic:or*" in await ask("action=Pub&resource=Topic:orders")
        assert "no rule is about that" in await ask("action=Sub&resource=Topic:orders")
        await ask("action=Pub&resource=Topic:or*")
        assert client.status == 400
        assert "Resource: Name one resource" in client.text
        await client.get("/policies")
        await client.post("/policies/user/update", name="guest", status="disable")
        assert "User guest was changed at all brokers." in await client.follow()
        assert "the user is disabled" in await ask("action=Pub&resource=Topic:orders")
        assert client.audit()[-1]["after"] == {"status": "disable", "type": "", "password": ""}
        await client.post("/policies/user/delete", name="guest", confirm="guest")
        assert "User guest was deleted at all brokers." in await client.follow()


async def test_preferences(client: PageClient) -> None:
    await client.get("/preferences?language=zh&next=/topics")
    assert client.headers["location"] == "/topics"
    await client.get("/topics")
    assert '<html lang="zh-CN"' in client.text
    assert "消费组" in client.text
    await client.get("/preferences?theme=dark&language=xx&next=//evil.example")
    assert client.headers["location"] == "/"
    await client.get("/topics")
    assert 'data-theme="dark"' in client.text
    assert '<html lang="zh-CN"' in client.text


@pytest.mark.feature(147)
async def test_a_broker_s_page_is_for_people(
    client: PageClient, triomq_cluster: InProcessCluster
) -> None:
    await send(triomq_cluster, "orders", b"x" * 2000)
    (row,) = client.console.poller.view.brokers
    page = f"/broker?address={row.address}"
    text = await until(client, page, "orders")
    assert "master" in text
    with trio.fail_after(30):
        while client.console.doctor.found is None:
            await trio.sleep(0.05)
    text = await client.get(page)
    assert "broker-a:0 address</span>" in text, "what doctor finds of it"
    disk = await mqadmin("broker", "disk", "-b", row.address, "-n", client.console.settings.namesrv)
    assert "diskSpaceWarningLevelRatio" in disk.out
    thresholds = text[text.index("Reached at the hour") :]
    assert "diskSpaceWarningLevelRatio</span>" in thresholds
    assert "sends are refused" in thresholds
    changed = text[text.index("Settings that differ") : text.index("<details")]
    assert '<th scope="row">listenPort</th>' in changed
    assert '<th scope="row">brokerPermission</th>' not in changed
    assert text.index("<details>") < text.index("commitLogMaxOffset")
    assert "<details open>" in await client.get(page + "&search=commitLogMax")


@pytest.mark.feature(147)
async def test_a_broker_is_drained_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "REQUEST_SECONDS", 8.0)  # it drains just once
    async with (
        local_cluster(brokers=2) as cluster,
        console_of(cluster.namesrv_address, tmp_path) as client,
        cluster.admin() as admin,
    ):
        await cluster.create_topic("orders", queues=1)
        queue = MessageQueue("orders", "broker-a", 0)
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            await producer.send("orders", b"x", queue=queue)
        await admin.update_group("billing", lambda config: config)
        await commit(admin, "billing", queue, 0)
        await client.log_in("operator")
        place = cluster.broker("broker-a").address
        page = f"/broker?address={place}"
        assert "/broker/drain" not in await client.get(page), "only admins may"
        await client.post("/broker/drain", address=place, name="broker-a", confirm="broker-a")
        assert client.status == 403
        await client.log_in("admin")
        assert "producers send to other brokers" in await client.get(page), "what it costs"
        assert "No other broker of this cluster" not in client.text
        await client.post("/broker/drain", address=place, name="broker-a", confirm="broker-b")
        assert client.status == 400
        await client.get(page)
        await client.post("/broker/drain", address=place, name="broker-a", confirm="broker-a")
        text = await client.follow()
        assert "Closed to producers since" in text
        assert "billing</a></th><td" in text, "who has not read"
        assert "safe to stop</span>" not in text
        found = await mqadmin("doctor", "--cluster", "-n", cluster.namesrv_address)
        assert "closed to producers since" in found.out, "the same drain as mqadmin's"
        await commit(admin, "billing", queue, 1)
        assert "safe to stop</span>" in await client.get(page)
        other = cluster.broker("broker-b").address
        assert "No other broker of this cluster" in await client.get(f"/broker?address={other}")
        await client.get(page)
        await client.post("/broker/undrain", address=place)
        assert "Broker broker-a takes messages again" in await client.follow()
        assert "/broker/drain" in client.text
        actions = [(one["action"], one["outcome"]) for one in client.audit()]
        assert actions[-4:] == [
            (f"broker.{name}", outcome)
            for name in ("drain", "undrain")
            for outcome in ("begun", "done")
        ]
