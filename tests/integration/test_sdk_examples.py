"""The scripts in `examples/` run as a user runs them: as processes, with a cluster at the address they are given."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from triomq import PullConsumer, PushConsumer
from triomq.testing import InProcessCluster, local_cluster

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


async def run(script: str, *arguments: str) -> str:
    """Run an example to its end; returns what it prints."""
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
    assert "lies in broker-a" in printed
    assert "100 more in one batch" in printed
    printed = await run("push_consumer.py", address, "120")
    assert "120 orders done" in printed
    assert printed.count("refunded") == 6
    printed = await run("iterate.py", address, "15")
    assert len(printed.splitlines()) == 15
    printed = await run("pull_consumer.py", address)
    assert "120 messages in 4 queues" in printed
    printed = await run("without_async.py", address)
    assert sorted(line for line in printed.splitlines() if line.startswith("got")) == [
        f"got job {number}" for number in range(10)
    ]


@pytest.mark.feature(161)
async def test_the_example_of_batches(triomq_cluster: InProcessCluster) -> None:
    printed = await run("batch_producer.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "5000 rows, each with an id and an offset of its own, in 4 queues",
        "500 values by automatic batches",
    ]


@pytest.mark.feature(73)
async def test_the_example_of_compression(triomq_cluster: InProcessCluster) -> None:
    printed = await run("compressed_bodies.py", triomq_cluster.namesrv_address)
    for name in ("zlib", "lz4", "zstd"):
        found = re.search(rf"{name}: (\d+) bytes, stored in (\d+)", printed)
        assert found
        assert int(found[2]) * 3 < int(found[1])


@pytest.mark.feature(69)
async def test_the_example_of_a_careful_producer(triomq_cluster: InProcessCluster) -> None:
    printed = await run("careful_producer.py", triomq_cluster.namesrv_address)
    for line in (
        "apple lies in queue 1",
        "banana lies in queue 2",
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
        "10 sent by the blocking door in a thread",
        "110 read back",
        "the loop went on",
    ]


@pytest.mark.feature(97, 159)
async def test_the_ordered_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("ordered.py", triomq_cluster.namesrv_address)
    for customer in ("ada", "bob", "eve"):
        assert f"{customer} -> created, paid, packed, delivered" in printed


@pytest.mark.feature(83, 158)
async def test_the_broadcast_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("broadcast.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == ["one {'apples': 1}", "two {'apples': 1}"]


@pytest.mark.feature(117)
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
    assert printed.splitlines() == ["red TenantOrders: order of red", "blue TenantOrders: order of blue"]


@pytest.mark.feature(120)
async def test_the_sql_example() -> None:
    async with local_cluster(settings={"enablePropertyFilter": True}) as cluster:
        assert await run("sql_filter.py", cluster.namesrv_address) == "Hangzhou 31, Hangzhou 35\n"


@pytest.mark.feature(124, 126)
async def test_the_retry_example(triomq_cluster: InProcessCluster) -> None:
    printed = (await run("retry.py", triomq_cluster.namesrv_address)).splitlines()
    assert [line for line in printed if line.startswith("hopeless")] == [f"hopeless: delivery {n}" for n in (1, 2, 3)]
    assert [line for line in printed if line.startswith("shaky")] == ["shaky: delivery 1", "shaky: delivery 2"]
    assert printed[-1] == "dead: hopeless of topic Tasks after 3 deliveries"


@pytest.mark.feature("80a")
async def test_the_batch_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("batches.py", triomq_cluster.namesrv_address, "300")
    assert printed == "300 readings, at most 25 at a time\n"


@pytest.mark.feature(159)
async def test_the_decoupling_example(triomq_cluster: InProcessCluster) -> None:
    printed = await run("decoupling.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "the shop has closed; stock 20, mail 20, billing 0: was away",
        "billing is back: 20, none was lost",
    ]


@pytest.mark.feature(140, 159)
async def test_the_example_of_a_peak(triomq_cluster: InProcessCluster) -> None:
    printed = await run("peaks.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == ["600 orders are stored", "600 orders are done, never more than 4 at a time"]


@pytest.mark.feature(160)
async def test_the_example_of_the_models(triomq_cluster: InProcessCluster) -> None:
    printed = await run("models.py", triomq_cluster.namesrv_address)
    assert printed.splitlines() == [
        "call: 127.0.0.1 answered with code 0",
        "point-to-point: ann and ben had 40 between them",
        "publish-subscribe: scanner had 40, printer had 40",
    ]


def test_every_example_of_the_sdk_is_run() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if f'"{path.name}"' not in text] == []


async def test_ctrl_c_stops_a_consumer_in_good_order(triomq_cluster: InProcessCluster) -> None:
    """Offsets are stored and the member is signed off: the next one of the group gets nothing twice."""
    address = triomq_cluster.namesrv_address
    await run("producer.py", address)
    command = [sys.executable, "-u", str(EXAMPLES / "push_consumer.py"), address]
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        seen = b""
        while seen.count(b"\n") < 120:
            seen += await process.stdout.receive_some()
        await trio.sleep(0.2)  # let the last handler end: an interrupted one leaves its message without verdict
        process.send_signal(signal.SIGINT)
        rest = b""
        while more := await process.stdout.receive_some():
            rest += more
        assert await process.wait() == 0, await process.stderr.receive_some()
    assert rest == b"stopped\n"
    async with PullConsumer(address, group="billing") as reader:
        queues = await reader.queues("Orders")
        assert sum([await reader.committed(queue) or 0 for queue in queues]) == 120


@pytest.mark.feature(92)
async def test_a_killed_consumer_loses_nothing(triomq_cluster: InProcessCluster) -> None:
    """SIGKILL in the middle of the work: what it had not finished, and perhaps a little that it had, comes to the next member."""
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
