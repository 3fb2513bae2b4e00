"""``mqadmin bench`` against a cluster in the process, and its end by Ctrl-C as a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import trio
from mqadmin_calls import call, failed, mqadmin
from silent_servers import silent_broker, silent_server

from triomq import PushConsumer
from triomq.client.admin.admin import Admin
from triomq.client.mqadmin.bench import load_run
from triomq.client.mqadmin.bench.bench_places import own_topic
from triomq.client.mqadmin.command_line import understand
from triomq.client.mqadmin.commands import bench
from triomq.client.mqadmin.execution import whole_seconds
from triomq.testing import InProcessCluster, local_cluster


async def names(cluster: InProcessCluster) -> set[str]:
    """Return the topics and groups that benchmarks have left."""
    async with cluster.admin() as admin:
        groups = (await admin.groups()).some()
        known = {*(await admin.topics()), *(name for some in groups.values() for name in some)}
    return {name for name in known if "BENCH_" in name and not name.startswith("TOOLS")}


async def test_a_run_sends_its_messages_and_deletes_its_topic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_cluster() as cluster:
        words = ("bench", "send", "--count", 300, "--rate", 1000, "--size", 100, "--batch", 3)
        done = await call(cluster, *words, "--json")
        quiet = capsys.readouterr().err
        monkeypatch.setattr(load_run, "TELL_SECONDS", 0.1)
        text = await call(cluster, "bench", "send", "--duration", 1, "--rate", 100)
        progress = capsys.readouterr().err
        assert await names(cluster) == set()
    document = done.document
    assert (document["sent"], document["failed"], document["overdue"]) == (300, 0, 0)
    assert document["interrupted"] is False
    assert 0 < document["latencyMinMs"] <= document["latencyP50Ms"] <= document["latencyMaxMs"]
    assert document["topic"].startswith("BENCH_")
    assert quiet == "", "it ended within its first second"
    assert text.code == 0
    assert text.out.startswith("sent 100 messages to BENCH_")
    assert "latency (ms): min " in text.out
    assert "p99.9 " in text.out
    assert "msg/s" in progress
    assert "0 failed" in progress


async def test_messages_are_as_the_options_say() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("plain", queues=1)
        words = ("bench", "send", "-t", "plain", "--count", 4, "--size", 5000, "--keys", 2)
        done = await call(cluster, *words, "--tags", "paid", "--batch", 2, "--in-flight", 1)
        assert done.code == 0, done
        async with cluster.admin() as admin:
            (queue,) = await admin.queues("plain")
            messages = await admin.read(queue, 0, count=9)
            delayed = await mqadmin(
                *("bench", "send", "-t", "plain", "--count", 1, "--delay", 60),
                *("-n", cluster.namesrv_address),
            )
            assert delayed.code == 0, delayed
            assert len(await admin.read(queue, 0, count=9)) == 4, "it is not delivered yet"
    assert [(len(one.body), one.tag) for one in messages] == [(5000, "paid")] * 4
    assert {one.keys for one in messages} == {
        (f"bench-{number}-0", f"bench-{number}-1") for number in range(4)
    }


async def test_a_topic_that_groups_consume_needs_yes() -> None:
    async with local_cluster() as cluster:
        namesrv = cluster.namesrv_address
        await cluster.create_topic("orders", queues=1)
        words = ("bench", "send", "-t", "orders", "--count", 2, "-n", namesrv)
        async with PushConsumer(
            namesrv, group="billing", subscriptions="orders", consume_from="first"
        ) as consumer:
            await consumer.wait_assigned()
            done = await mqadmin(*words)
            assert failed(done, 2, "billing", "--yes")
            async with cluster.admin() as admin:
                (queue,) = await admin.queues("orders")
                assert await admin.max_offset(queue) == 0
                assert (await mqadmin(*words, "--yes")).code == 0
                assert await admin.max_offset(queue) == 2
        for topic in ("%RETRY%billing", "%DLQ%billing", "RMQ_SYS_TRANS_HALF_TOPIC"):
            done = await mqadmin("bench", "send", "-t", topic, "-n", namesrv)
            assert failed(done, 2, topic, "--yes")
        missing = await mqadmin("bench", "send", "-t", "nowhere", "-n", namesrv)
        assert missing.code == 4


async def test_whether_a_topic_has_consumers_must_be_known() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        async with silent_broker(cluster.namesrv_address, ["orders"]) as ghost:
            words = ("bench", "send", "-t", "orders", "--count", 2, "--timeout", 2)
            done = await call(cluster, *words)
    assert failed(done, 2, ghost, "is not known", "--yes")


async def test_failed_sends_are_counted_with_their_broker() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        async with silent_broker(cluster.namesrv_address, ["orders"]) as ghost:
            words = ("bench", "send", "-t", "orders", "--yes", "--count", 20, "--in-flight", 20)
            done = await call(cluster, *words, "--timeout", 2, "--json")
    document = done.document
    assert done.code == 3
    assert document["sent"] > 0
    assert document["failed"] > 0
    assert document["sent"] + document["failed"] == 20
    assert document["failedBy"] == {"SendTimeout": document["failed"]}
    assert list(document["failures"]) == ["ghost"]
    assert ghost in document["failures"]["ghost"]


async def test_end_to_end_with_its_own_load() -> None:
    async with local_cluster() as cluster:
        words = ("bench", "consume", "--count", 100, "--rate", 500, "--size", 50, "--json")
        done = await call(cluster, *words)
        assert await names(cluster) == set()
    document = done.document
    assert (document["sent"], document["received"], document["duplicates"]) == (100, 100, 0)
    assert document["lag"] == 0
    assert document["storeLatencyMaxMs"] <= document["bornLatencyMaxMs"]
    assert document["mbPerSecond"] > 0


async def test_a_topic_is_consumed_from_its_beginning_or_its_end() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("orders", queues=2)
        namesrv = ("-n", cluster.namesrv_address)
        assert (await mqadmin("bench", "send", "-t", "orders", "--count", 50, *namesrv)).code == 0
        words = ("bench", "consume", "-t", "orders", "--json", *namesrv)
        first = (await mqadmin(*words, "--count", 50, "--duration", 20)).document
        last = (await mqadmin(*words, "--duration", 1, "--from", "last")).document
        assert await names(cluster) == set()
    assert (first["received"], first["lag"], first["sent"]) == (50, 0, None)
    assert last["received"] == 0
    assert (last["storeLatencyP50Ms"], last["bornLatencyMaxMs"]) == (None, None)


async def test_a_group_that_exists_needs_yes() -> None:
    async with local_cluster() as cluster:
        namesrv = ("-n", cluster.namesrv_address)
        await cluster.create_topic("orders", queues=1)
        group = ("-g", "billing")
        assert (
            await mqadmin("group", "create", *group, "-c", "DefaultCluster", *namesrv)
        ).code == 0
        words = ("bench", "consume", "-t", "orders", "--duration", 1, *group, *namesrv)
        assert failed(await mqadmin(*words), 2, "billing", "broker-a", "--yes")
        assert (await mqadmin(*words, "--yes")).code == 0
        async with cluster.admin() as admin:
            assert "billing" in (await admin.groups()).some()["broker-a"], "it is not ours"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("send --batch 2 --delay 1", "exclude each other"),
        ("send --batch 1024 --size 2000", "give at most --batch 524"),
        ("send --batch 4 --count 10", "give --count 12"),
        ("send --rate 0", "use a number above 0"),
        ("send --rate 2000000", "at most 1,000,000"),
        ("send --rate fast", "use a number above 0"),
        ("send --size 5000000", "from 0 to 4194304"),
        ("send --in-flight 5000", "from 1 to 1024"),
        ("consume --from middle", "use first or last"),
        ("consume -t orders --rate 5", "bench send -t"),
    ],
)
async def test_wrong_options_are_refused(words: str, reason: str) -> None:
    done = await mqadmin("bench", *words.split(), "-n", "127.0.0.1:1")
    assert failed(done, 2, reason)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [([], 10), (["--duration", "90"], 90), (["--count", "5"], bench.COUNTED_SECONDS)],
)
def test_the_load_comes_beside_the_deadline(words: list[str], seconds: int) -> None:
    call = understand(["bench", "send", *words, "--timeout", "7"])
    assert not isinstance(call, str)
    assert whole_seconds(call) == 7 + seconds + bench.END_SECONDS


async def test_ctrl_c_ends_the_load_prints_the_summary_and_cleans_up() -> None:
    async with local_cluster() as cluster:
        words = ("bench", "send", "--duration", "300", "--rate", "50", "--json")
        command = [sys.executable, "-m", "triomq.client.mqadmin.cli", *words]
        process = await trio.lowlevel.open_process(
            [*command, "-n", cluster.namesrv_address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = b"", b""
        with trio.fail_after(60):
            while b"in flight" not in err:
                err += await process.stderr.receive_some(4096)
            assert len(await names(cluster)) == 1
            process.send_signal(signal.SIGINT)
            async for piece in process.stdout:
                out += piece
            async for piece in process.stderr:
                err += piece
            await process.wait()
        assert process.returncode == 0, (out, err)
        assert await names(cluster) == set()
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["sent"] > 0
    assert b"the run was ended by a signal" in err
    assert b"Traceback" not in err


async def test_the_own_topic_is_deleted_if_the_run_is_cancelled() -> None:
    warnings: list[str] = []
    async with local_cluster() as cluster, cluster.admin() as admin:
        with trio.CancelScope() as scope:
            async with own_topic(admin, 2, warnings.append, keep=False) as topic:
                assert await names(cluster) == {topic.name}
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert await names(cluster) == set()
    assert warnings == []


async def test_what_cannot_be_deleted_is_named_with_its_fix() -> None:
    warnings: list[str] = []
    async with local_cluster() as cluster:
        async with Admin(cluster.namesrv_address, timeout_seconds=0.2) as admin:
            async with silent_broker(cluster.namesrv_address, ["x"]) as ghost:
                async with own_topic(admin, 2, warnings.append, keep=False) as topic:
                    assert list(topic.missing) == [ghost]
        assert await names(cluster) == set()
    (line,) = warnings
    assert ghost in line
    assert f"mqadmin topic delete -t {topic.name}" in line


async def test_a_broker_that_was_missing_before_keeps_nothing() -> None:
    """No warning says that the benchmark's topic or group may be left there."""
    async with local_cluster(brokers=2) as cluster:
        await cluster.stop_broker("broker-b")
        sent = await call(cluster, "bench", "send", "--count", 1)
        consumed = await call(cluster, "bench", "consume", "--duration", 1)
        assert (sent.code, consumed.code) == (3, 3)
        for done in (sent, consumed):
            assert "may be left" not in done.err
            assert done.err.count("broker broker-b:0 is missing") == 1
        await cluster.stop_broker("broker-a")
        none = await call(cluster, "bench", "consume")
        assert none.code == 1
        (line,) = none.err.splitlines()
        assert all(f"{name}:0 is missing" in line for name in ("broker-a", "broker-b"))


async def test_the_own_topic_is_kept_if_that_is_wanted() -> None:
    async with local_cluster() as cluster:
        words = ("bench", "send", "--count", 1, "--keep", "--queues", 3)
        assert (await call(cluster, *words)).code == 0
        (topic,) = await names(cluster)
        async with cluster.admin() as admin:
            assert len(await admin.queues(topic)) == 3


async def test_without_a_name_server_nothing_is_left_to_delete() -> None:
    with silent_server() as port:
        done = await mqadmin("bench", "send", "-n", f"127.0.0.1:{port}", "--timeout", 1)
    assert failed(done, 6, f"127.0.0.1:{port}")
    assert "may be left" not in done.err
