"""``triomq.testing``: the cluster in the test's own loop, and the fixture in a user's project."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import trio

from triomq.broker.store.core.errors import StoreLocked
from triomq.broker.store.io.disk import Disk
from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import TrioMQError
from triomq.client.sdk.producer import Producer
from triomq.client.sdk.push_consumer import PushConsumer
from triomq.client.sending.receipt import SendReceipt
from triomq.in_process import _run
from triomq.remoting.core.settings import ConfigError
from triomq.testing import InProcessCluster, Simulation, local_cluster, server_in_thread, simulate

pytest_plugins = ["pytester"]


@pytest.mark.feature("180a")
async def test_the_fixture_is_a_cluster_that_works(triomq_cluster: InProcessCluster) -> None:
    await triomq_cluster.create_topic("orders", queues=3)
    async with (
        Producer(triomq_cluster.namesrv_address, group="shop") as producer,
        PushConsumer(
            triomq_cluster.namesrv_address,
            group="billing",
            subscriptions="orders",
            consume_from="first",
        ) as consumer,
    ):
        sent = {(await producer.send("orders", b"x")).message_id for _ in range(9)}
        got = set()
        with trio.fail_after(10):
            while got != sent:
                message = await anext(consumer)
                got.add(message.message_id)
                await message.ack()
    assert len(sent) == 9
    listening = {
        one.laddr.port
        for one in psutil.Process().net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    }
    assert {
        server.port for server in (*triomq_cluster.namesrvs, *triomq_cluster.brokers)
    } <= listening, "not in this process"


async def test_shape_and_names(tmp_path: Path) -> None:
    async with local_cluster(
        brokers=["east", "west"], namesrvs=2, dir=tmp_path, cluster_name="Earth"
    ) as cluster:
        assert len(cluster.namesrv_address.split(";")) == 2
        assert [(broker.name, broker.running) for broker in cluster.brokers] == [
            ("east", True),
            ("west", True),
        ]
        assert len({broker.address for broker in cluster.brokers}) == 2
        assert cluster.broker("west").store_dir == tmp_path / "west"
        async with cluster.admin() as admin:
            assert {
                (broker.cluster, broker.name, broker.address) for broker in await admin.brokers()
            } == {("Earth", broker.name, broker.address) for broker in cluster.brokers}
        with pytest.raises(KeyError, match="the cluster has east, west"):
            cluster.broker("north")
        with pytest.raises(KeyError, match="the cluster has namesrv-1, namesrv-2"):
            cluster.namesrv("namesrv-3")
    assert (tmp_path / "east" / "commitlog").is_dir()
    assert not (tmp_path / "east" / "abort").exists()


@pytest.mark.feature("180c")
async def test_clusters_side_by_side_have_ports_of_their_own(
    triomq_cluster: InProcessCluster,
) -> None:
    async with local_cluster(brokers=2) as other:
        addresses = [
            server.address
            for one in (triomq_cluster, other)
            for server in (*one.namesrvs, *one.brokers)
        ]
        assert len(set(addresses)) == 5
        for cluster in (triomq_cluster, other):
            async with Producer(cluster.namesrv_address, group="shop") as producer:
                assert (await producer.send("orders", b"x")).queue_offset == 0


async def test_stop_and_start_a_broker() -> None:
    async with local_cluster(brokers=2) as cluster:
        await cluster.create_topic("orders", queues=1)
        address = cluster.broker("broker-b").address
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            queue = next(
                queue
                for queue in await producer.queues("orders")
                if queue.broker_name == "broker-b"
            )
            await producer.send("orders", b"before", queue=queue)
        await cluster.stop_broker("broker-b")
        assert not cluster.broker("broker-b").running
        async with cluster.admin() as admin:
            assert [broker.name for broker in await admin.brokers()] == ["broker-a"]
            assert list(await admin.topic_brokers("orders")) == ["broker-a"]
            await cluster.start_broker("broker-b")
            assert cluster.broker("broker-b").address == address
            assert [message.body for message in await admin.read(queue, 0, count=10)] == [b"before"]


async def test_a_start_waits_for_the_end_of_a_stop() -> None:
    async with local_cluster(namesrvs=2) as cluster, trio.open_nursery() as nursery:
        broker, namesrv = cluster.brokers[0], cluster.namesrvs[1]
        for _ in range(3):
            nursery.start_soon(cluster.stop_broker, "broker-a")
            while broker.running:
                await trio.lowlevel.checkpoint()
            await cluster.start_broker("broker-a")
            assert broker.running
            nursery.start_soon(cluster.stop_namesrv, "namesrv-2")
            while namesrv.running:
                await trio.lowlevel.checkpoint()
            await cluster.start_namesrv("namesrv-2")
            assert namesrv.running
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            assert (await producer.send("orders", b"x")).queue_offset == 0


async def test_a_stop_that_was_cancelled_ends_before_the_next_start() -> None:
    async with local_cluster() as cluster:
        with trio.move_on_after(0):
            await cluster.stop_broker("broker-a")
        assert not cluster.brokers[0].running
        await cluster.start_broker("broker-a")
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            assert (await producer.send("orders", b"x")).queue_offset == 0


async def test_a_crashed_broker_comes_back_with_its_messages() -> None:
    async with local_cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            receipts = [await producer.send("orders", str(number).encode()) for number in range(20)]
        await cluster.crash_broker("broker-a")
        assert (cluster.broker("broker-a").store_dir / "abort").exists()
        await cluster.start_broker("broker-a")
        async with cluster.admin() as admin:
            messages = await admin.read(receipts[0].queue, 0, count=100)
        assert [message.message_id for message in messages] == [
            receipt.message_id for receipt in receipts
        ]


async def test_messages_acknowledged_while_a_broker_crashed_are_stored() -> None:
    """Senders never pause: a sender is nearly always answered in the turn of the crash."""
    acknowledged: list[SendReceipt] = []
    async with local_cluster() as cluster:
        await cluster.create_topic("orders", queues=1)

        async def send(producer: Producer) -> None:
            while True:
                with contextlib.suppress(TrioMQError):
                    acknowledged.append(await producer.send("orders", b"x"))
                await trio.lowlevel.checkpoint()

        async with Producer(
            cluster.namesrv_address, group="shop", settings=ProducerSettings(retries=0)
        ) as producer:
            for _ in range(5):
                async with trio.open_nursery() as senders:
                    for _ in range(30):
                        senders.start_soon(send, producer)
                    count = len(acknowledged)
                    while len(acknowledged) < count + 100:
                        await trio.lowlevel.checkpoint()
                    await cluster.crash_broker("broker-a")
                    senders.cancel_scope.cancel()
                await cluster.start_broker("broker-a")
        async with cluster.admin() as admin:
            queue = acknowledged[0].queue
            there: set[str] = set()
            while len(there) < await admin.max_offset(queue):
                there |= {
                    message.message_id
                    for message in await admin.read(queue, len(there), count=1000)
                }
    assert {receipt.message_id for receipt in acknowledged} <= there


@pytest.mark.feature("181a")
@pytest.mark.parametrize("settings", [{}, {"flushDiskType": "SYNC_FLUSH"}], ids=["async", "sync"])
def test_a_cluster_with_its_usual_disk_is_simulated_over_many_flushes(
    settings: dict[str, object],
) -> None:
    """The first flush uses a thread, since the file's name is new; later ones would use the
    kernel's queue.
    """

    async def orders(simulation: Simulation) -> tuple[int, int]:
        async with local_cluster(settings=settings) as cluster:
            await cluster.create_topic("orders")
            async with Producer(cluster.namesrv_address, group="shop") as producer:
                for _ in range(3):
                    receipt = await producer.send("orders", b"x")
                    await trio.sleep(2)
            return receipt.queue_offset, sum(broker.running for broker in cluster.brokers)

    open_queue = Disk.open_sync_queue
    results = [simulate(7, orders) for _ in range(2)]
    assert results[0] == results[1]
    assert results[0][1] == 1
    assert Disk.open_sync_queue is open_queue


@pytest.mark.feature("5a")
async def test_stop_and_start_a_name_server() -> None:
    async with local_cluster(namesrvs=2) as cluster:
        first, second = cluster.namesrvs
        await cluster.stop_namesrv("namesrv-1")
        assert (first.running, second.running) == (False, True)
        await cluster.create_topic("orders")
        address = first.address
        await cluster.start_namesrv("namesrv-1")
        assert first.address == address
        async with Producer(address + ";" + second.address, group="shop") as producer:
            assert (await producer.send("orders", b"x")).queue_offset == 0


async def test_settings_have_rocketmq_s_names() -> None:
    async with (
        local_cluster(settings={"autoCreateTopicEnable": False}) as cluster,
        Producer(cluster.namesrv_address, group="shop") as producer,
    ):
        with pytest.raises(TrioMQError, match="nowhere"):
            await producer.send("nowhere", b"x")


async def test_the_temporary_folder_goes_away() -> None:
    async with local_cluster() as cluster:
        folder = cluster.dir
        assert (folder / "broker-a").is_dir()
    assert not folder.exists()


async def test_an_error_in_the_block_stops_the_cluster_and_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with local_cluster() as cluster:
            address = cluster.brokers[0].address
            raise ZeroDivisionError
    host, _, port = address.partition(":")
    with pytest.raises(OSError, match=r"."):
        await trio.open_tcp_stream(host, int(port))


async def test_a_cluster_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="autoCreateTopicEnable"):
        async with local_cluster(settings={"autoCreateTopicEnabel": True}):
            raise AssertionError("it started")
    async with local_cluster(dir=tmp_path):
        with pytest.raises(StoreLocked):
            async with local_cluster(dir=tmp_path):
                raise AssertionError("it started")


async def test_a_service_that_crashes_ends_the_block() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with local_cluster() as cluster:
            running = cluster.brokers[0]._running
            assert running is not None

            async def crash(_: object, *, task_status: trio.TaskStatus[object]) -> None:
                task_status.started(running.ready)
                raise ZeroDivisionError

            await cluster._nursery.start(_run, crash, None)
            await trio.sleep_forever()


USER_PROJECT = """
    import pytest
    from triomq.client.sdk.producer import Producer

    {mark}
    async def test_orders(triomq_cluster):
        await triomq_cluster.create_topic("orders")
        async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
            assert (await producer.send("orders", b"x")).queue_offset == 0

    def test_nothing_to_do_with_it():
        assert True
"""


@pytest.mark.parametrize(("mark", "ini"), [("", "trio_mode = true"), ("@pytest.mark.trio", "")])
def test_the_fixture_in_a_project_of_its_own(
    pytester: pytest.Pytester, mark: str, ini: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile(USER_PROJECT.format(mark=mark))
    pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"
    ).assert_outcomes(passed=2)


OTHER_LOOPS = """
    import asyncio, pytest
    from triomq import aio, sync

    addresses = set()

    def test_plain(triomq_server):
        addresses.add(triomq_server)
        with sync.Producer(triomq_server, group="shop") as producer:
            assert producer.send("Orders", b"1").queue_offset == 0

    @pytest.mark.asyncio
    async def test_under_pytest_asyncio(triomq_server):
        addresses.add(triomq_server)
        asyncio.get_running_loop()
        async with aio.Producer(triomq_server, group="shop") as producer:
            await producer.send("Orders", b"2")

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
    async def test_under_anyio(triomq_server, anyio_backend):
        import triomq
        addresses.add(triomq_server)
        door = aio if anyio_backend == "asyncio" else triomq
        async with door.Producer(triomq_server, group="shop") as producer:
            await producer.send("Orders", b"3")

    def test_one_server_for_the_session(triomq_server):
        assert addresses == {triomq_server}
        with sync.PullConsumer(
            triomq_server, group="audit", subscriptions="Orders", consume_from="earliest"
        ) as consumer:
            got = set()
            while got != {b"1", b"2", b"3"}:
                got.update(message.body for message in consumer.poll(timeout=5))
"""


def test_the_server_for_tests_without_trio(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(OTHER_LOOPS)
    pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:trio", "-W", "error"
    ).assert_outcomes(passed=5)


def test_a_server_that_cannot_start_says_so_to_its_caller() -> None:
    with pytest.raises(ConfigError, match="noSuchKey"), server_in_thread(settings={"noSuchKey": 1}):
        raise AssertionError("not reached")


def test_a_project_without_pytest_trio_is_not_disturbed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain():\n    import sys\n    assert 'trio' not in sys.modules")
    pytester.runpytest_subprocess(
        "-p",
        "no:trio",
        "-p",
        "no:asyncio",
        "-p",
        "no:anyio",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
    ).assert_outcomes(passed=1)
    assert (
        "triomq_cluster"
        in pytester.runpytest_subprocess(
            "--fixtures", "-p", "no:cacheprovider", "-p", "no:asyncio"
        ).stdout.str()
    )


def test_the_module_works_without_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest_trio'] = None; import triomq.testing as t; assert 'trio'"
        " not in sys.modules; assert 'pytest' not in sys.modules; import trio\nasync def main():\n "
        "   async with t.local_cluster() as cluster:"
        " print(cluster.brokers[0].running)\ntrio.run(main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        __import__("triomq.testing").testing.nothing  # noqa: B018
