"""The scripts in ``examples/`` run as a user runs them: as processes, with a cluster's address."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from triomq import Producer, PullConsumer, PushConsumer
from triomq.testing import InProcessCluster, local_cluster

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ELSEWHERE = {
    "test_order_service.py": ("project/test_pages.py", '/ "test_order_service.py")'),
    "web_service.py": ("client/test_web_service.py", '"web_service:app"'),
}
"""Example → the file, and a part of the line, of the test that runs it under another program."""


async def run(script: str, *arguments: str) -> str:
    """Run an example to its end and return what it prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments]
    with trio.fail_after(60):
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, stdin=subprocess.DEVNULL, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_the_examples_of_the_sdk(triomq_cluster: InProcessCluster) -> None:
    address = triomq_cluster.namesrv_address
    printed = await run("producer.py", address)
    assert "is in broker-a" in printed
    assert "100 more in one batch" in printed
    printed = await run("push_consumer.py", address, "120")
    assert "120 orders done" in printed
    assert printed.count("refunded") == 6
    printed = await run("iterate.py", address, "15")
    assert len(printed.splitlines()) == 15
    printed = await run("pull_consumer.py", address)
    assert "120 messages in 4 queues" in printed
    printed = await run("simple_consumer.py", address, "20")
    assert re.search(r"^2\d orders packed$", printed, re.MULTILINE)
    printed = await run("pop_workers.py", address, "100")
    assert re.search(r"^1[0-2]\d orders delivered by [2-8] workers$", printed, re.MULTILINE)
    printed = await run("without_async.py", address)
    assert sorted(line for line in printed.splitlines() if line.startswith("got")) == [
        f"got job {number}" for number in range(10)
    ]


async def test_the_first_message_and_the_tutorial(triomq_cluster: InProcessCluster) -> None:
    address = triomq_cluster.namesrv_address
    first = (EXAMPLES / "first_message.py").read_text()
    assert first.count("127.0.0.1:9876") == 2
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-c", first.replace("127.0.0.1:9876", address)], capture_stdout=True
        )
    assert done.stdout.endswith(b"one coffee\n")
    printed = await run("order_service.py", address)
    assert printed == "charged: o-1, o-2\ngiven up: o-3\n"
    page = (EXAMPLES.parent / "docs" / "tutorial.md").read_text()
    assert f"```text\n{printed}```" in page


async def test_the_example_of_a_service(triomq_cluster: InProcessCluster) -> None:
    address = triomq_cluster.namesrv_address
    async with Producer(address, group="shop") as producer:
        await producer.send("Invoices", b"order 1")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-W", "error", str(EXAMPLES / "service.py"), str(port)]
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            command, stdout=subprocess.PIPE, env={**os.environ, "NAMESRV_ADDR": address}
        )
        assert process.stdout is not None
        printed = b""
        while not printed.endswith(b"\n"):
            printed += await process.stdout.receive_some()
        process.terminate()
        async for some in process.stdout:
            printed += some
        assert printed == b"billed order 1\nended in order\n"
        assert await process.wait() == 0


async def test_the_examples_of_traces_and_spans(triomq_cluster: InProcessCluster) -> None:
    address = triomq_cluster.namesrv_address
    printed = await run("message_traces.py", address)
    assert printed.splitlines() == [
        "billed ('order-7',)",
        "Pub shop success",
        "Sub billing success",
    ]
    spans = [
        line.split(" ", 1) for line in (await run("opentelemetry_spans.py", address)).splitlines()
    ]
    assert [name for _, name in spans] == [
        *("send Spanned", "order"),
        *("bill", "process Spanned", "ack Spanned"),
    ]
    assert len({trace_id for trace_id, _ in spans}) == 1


@pytest.mark.feature("161a")
async def test_the_example_of_batches(triomq_cluster: InProcessCluster) -> None:
    printed = await run("batch_producer.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "5000 rows, each with an id and an offset of its own, in 4 queues",
        "500 values by automatic batches",
    ]


@pytest.mark.feature("73a")
async def test_the_example_of_compression(triomq_cluster: InProcessCluster) -> None:
    printed = await run("compressed_bodies.py", triomq_cluster.namesrv_address)
    for name in ("zlib", "lz4", "zstd"):
        found = re.search(rf"{name}: (\d+) bytes, stored in (\d+)", printed)
        assert found
        assert int(found[2]) * 3 < int(found[1])


@pytest.mark.feature("69b")
async def test_the_example_of_a_careful_producer(triomq_cluster: InProcessCluster) -> None:
    printed = await run("careful_producer.py", triomq_cluster.namesrv_address)
    for line in (
        "apple is in queue 1",
        "banana is in queue 2",
        "forbidden: passwords are not sent around",
        "invalid: a message to 'Words' has 5000000 bytes, the limit is 4194304",
        "{'stored': 4}",
    ):
        assert line in printed


@pytest.mark.feature(191, 192)
async def test_the_example_under_asyncio(triomq_cluster: InProcessCluster) -> None:
    printed = await run("under_asyncio.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "100 sent with await",
        "10 sent by triomq.sync in a thread",
        "110 read back, 10 of them nightly",
        "the loop went on",
    ]


@pytest.mark.feature("162a", "162c")
async def test_the_example_of_requests(triomq_cluster: InProcessCluster) -> None:
    printed = await run("requests.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == ["tea: 3", "coffee: 4", "water: no answer, stored"]


async def test_the_example_of_a_table(triomq_cluster: InProcessCluster) -> None:
    printed = await run("tables.py", triomq_cluster.namesrv_address)
    assert printed == "coffee 4 tea 5\ncoffee 6\n"


@pytest.mark.feature("95a")
async def test_the_example_of_once(triomq_cluster: InProcessCluster) -> None:
    printed = await run("once.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "booking: 5 done, 5 duplicates",
        "receipts: 5 done, 5 duplicates",
        "booked 500",
    ]
    assert await run("once_pulled.py", triomq_cluster.namesrv_address) == (
        "['transfer 0', 'transfer 1', 'transfer 2', 'transfer 3'], 4 duplicates\n"
    )


@pytest.mark.feature("97a", "159b")
async def test_the_ordered_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("ordered.py", triomq_cluster.namesrv_address)
    for customer in ("ada", "bob", "eve"):
        assert f"{customer} -> created, paid, packed, delivered" in printed


@pytest.mark.feature(158)
async def test_the_broadcast_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("broadcast.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == ["one {'apples': 1}", "two {'apples': 1}"]


@pytest.mark.feature("117a", "117b", "117c")
async def test_the_tag_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("tag_filter.py", triomq_cluster.namesrv_address)
    assert sorted(printed.splitlines()) == [
        "accounting (paid || refunded): paid paid paid refunded",
        "audit (*): created created paid paid paid refunded",
        "packing (paid): paid paid paid",
    ]


@pytest.mark.feature(166)
async def test_the_example_of_tenants(triomq_cluster: InProcessCluster) -> None:
    printed = await run("namespaces.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "red TenantOrders: order of red",
        "blue TenantOrders: order of blue",
    ]


@pytest.mark.feature("120a")
async def test_the_sql_example() -> None:
    async with local_cluster(settings={"enablePropertyFilter": True}) as cluster:
        assert await run("sql_filter.py", cluster.namesrv_address) == "Hangzhou 31, Hangzhou 35\n"


@pytest.mark.feature("124b", 126)
async def test_the_retry_example(triomq_cluster: InProcessCluster) -> None:
    printed = (await run("retry.py", triomq_cluster.namesrv_address)).splitlines()
    assert [line for line in printed if line.startswith("hopeless")] == [
        f"hopeless: delivery {n}" for n in (1, 2, 3)
    ]
    assert [line for line in printed if line.startswith("shaky")] == [
        "shaky: delivery 1",
        "shaky: delivery 2",
    ]
    assert printed[-1] == "dead: hopeless of topic Tasks after 3 deliveries"


@pytest.mark.feature("80a")
async def test_the_batch_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("batches.py", triomq_cluster.namesrv_address, "300")
    assert printed == "300 readings, at most 25 at a time\n"


@pytest.mark.feature("159a")
async def test_the_decoupling_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("decoupling.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "the shop has closed; stock 20, mail 20, billing 0: was away",
        "billing is back: 20, none was lost",
    ]


@pytest.mark.feature("155a")
async def test_the_example_of_a_registration(triomq_cluster: InProcessCluster) -> None:
    printed = (await run("registration.py", triomq_cluster.namesrv_address)).splitlines()
    assert [re.sub(r"\d+ ms", "N ms", line) for line in printed] == [
        "four calls: N ms",
        "one call and one send: N ms",
        "afterwards: coupons, mail, sms",
    ]


@pytest.mark.feature(140, "159d")
async def test_the_example_of_a_peak(triomq_cluster: InProcessCluster) -> None:
    printed = await run("peaks.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "600 orders are stored",
        "600 orders are done, never more than 4 at a time",
    ]


@pytest.mark.feature("160b")
async def test_the_example_of_typed_bodies(triomq_cluster: InProcessCluster) -> None:
    printed = await run("typed_bodies.py", triomq_cluster.namesrv_address)
    assert printed == "shipping order 1 to Ada\n"


async def test_the_example_of_the_models(triomq_cluster: InProcessCluster) -> None:
    printed = await run("models.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "call: 127.0.0.1 answered with code 0",
        "point-to-point: ann and ben had 40 between them",
        "publish-subscribe: scanner had 40, printer had 40",
    ]


@pytest.mark.feature("106a")
async def test_the_example_of_transactions(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    path = str(tmp_path / "orders.db")
    printed = await run("transactions.py", triomq_cluster.namesrv_address, path)
    assert printed.splitlines() == [
        "order-1: CHECK constraint failed: pieces > 0",
        "order-2 has a row: True",
        "there is no other message",
    ]


async def test_the_example_of_timed_messages() -> None:
    async with local_cluster(settings={"recallMessageEnable": True}) as cluster:
        printed = await run("timed.py", cluster.namesrv_address)
        assert printed == "one reminder waits, the other is taken back\n"


def test_every_example_of_the_sdk_is_run() -> None:
    here = re.findall(r'\brun\(\s*"(\w+\.py)"|EXAMPLES / "(\w+\.py)"', Path(__file__).read_text())
    for path, part in ELSEWHERE.values():
        assert part in (Path(__file__).parents[1] / path).read_text()
    ran = {name for pair in here for name in pair if name} | set(ELSEWHERE)
    assert {path.name for path in EXAMPLES.glob("*.py")} == ran


async def test_ctrl_c_stops_a_consumer_in_good_order(triomq_cluster: InProcessCluster) -> None:
    """Offsets are stored and the member unregisters, so the next member of the group gets nothing
    twice.
    """
    address = triomq_cluster.namesrv_address
    await run("producer.py", address)
    command = [sys.executable, "-u", str(EXAMPLES / "push_consumer.py"), address]
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        seen = b""
        while seen.count(b"\n") < 120:
            seen += await process.stdout.receive_some()
        # Let the last handler end: an interrupted handler leaves its message unsettled.
        await trio.sleep(0.2)
        process.send_signal(signal.SIGINT)
        rest = b""
        while more := await process.stdout.receive_some():
            rest += more
        assert await process.wait() == 0, await process.stderr.receive_some()
    assert rest == b"stopped\n"
    async with PullConsumer(address, group="billing") as reader:
        queues = await reader.queues("Orders")
        assert sum([await reader.committed(queue) or 0 for queue in queues]) == 120


@pytest.mark.feature("92a", "92b")
async def test_a_killed_consumer_loses_nothing(triomq_cluster: InProcessCluster) -> None:
    """After SIGKILL in the middle of the work, the next member gets what was not finished, and
    perhaps a little that was.
    """
    address = triomq_cluster.namesrv_address
    await run("producer.py", address)
    done: set[int] = set()
    command = [sys.executable, "-u", str(EXAMPLES / "push_consumer.py"), address]
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        printed = b""
        while printed.count(b"\n") < 10:
            printed += await process.stdout.receive_some()
        process.kill()
        await process.wait()
        while more := await process.stdout.receive_some():
            printed += more
    done.update(int(number) for number in re.findall(rb"'order': (\d+)", printed))
    assert len(done) >= 10

    async with PushConsumer(
        address, group="billing", subscriptions={"Orders": "paid || refunded"}, consume_from="first"
    ) as consumer:
        with trio.fail_after(30):
            while len(done) < 120:
                message = await anext(consumer)
                done.add(json.loads(message.body)["order"])
                await message.ack()
    assert done == set(range(120))


@pytest.mark.feature("95a")
async def test_the_guide_s_consumer_handles_a_duplicate_once(
    triomq_cluster: InProcessCluster,
) -> None:
    """One order was sent twice under one id, with more orders between than are handled at once."""
    assert (
        "if message.message_id in done:\n        return"
        in (EXAMPLES.parent / "docs" / "sdk" / "consuming.md").read_text()
    )
    await triomq_cluster.create_topic("Orders", queues=1)
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        twice = producer.new_message_id()
        for number in range(60):
            await producer.send(
                "Orders",
                b'{"order": %d}' % number,
                tag="paid",
                message_id=twice if number == 3 else None,
            )
            if number == 50:
                await producer.send("Orders", b'{"order": 3}', tag="paid", message_id=twice)
    printed = await run("push_consumer.py", triomq_cluster.namesrv_address, "60")
    assert sorted(int(number) for number in re.findall(r"'order': (\d+)", printed)) == list(
        range(60)
    )


@pytest.mark.feature("78b")
def test_the_guide_warns_of_a_producer_for_each_message() -> None:
    guide = " ".join((EXAMPLES.parent / "docs" / "sdk" / "sending.md").read_text().split())
    assert (
        "starting and stopping a producer for each message costs a look-up, connections and an"
        " orderly close every time" in guide
    )
