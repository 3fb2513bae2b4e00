"""broker drain and undrain: writes stop for good, until the broker is given back."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator

import pytest
import trio
from mqadmin_calls import Done, call, failed, run

from triomq import MessageQueue, Producer, PullConsumer
from triomq.client.admin import draining
from triomq.client.admin.admin import Admin
from triomq.client.mqadmin.commands import drain as drain_command
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import KvConfigHeader
from triomq.testing import InProcessCluster, local_cluster

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster(brokers=2) as running:
        await running.create_topic("orders", queues=1)
        yield running


async def perms(cluster: InProcessCluster, topic: str) -> dict[str, int]:
    async with Admin(cluster.namesrv_address) as admin:
        return {data.broker_name: data.perm for data in (await admin.route(topic)).queue_datas}


async def until_perm(cluster: InProcessCluster, topic: str, perm: int) -> None:
    """Wait until the name server shows this permission of a topic at broker-a."""
    with trio.fail_after(30):
        while (await perms(cluster, topic)).get("broker-a") != perm:
            await trio.sleep(0.02)


async def behind(cluster: InProcessCluster, group: str, messages: int = 2) -> None:
    """Send messages to broker-a that a group has not read."""
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        for _ in range(messages):
            await producer.send("orders", b"x", queue=QUEUE)
    address = cluster.broker("broker-a").address
    assert (await call(cluster, "updateSubGroup", "-b", address, "-g", group)).code == 0
    reset = ("resetOffsetByTime", "-g", group, "-t", "orders", "-s", 0, "-b", address)
    assert (await call(cluster, *reset, "-q", 0, "-o", 0)).code == 0


async def test_a_drain_waits_until_all_is_read_and_writes_stay_away(
    cluster: InProcessCluster,
) -> None:
    await behind(cluster, "billing")
    address = cluster.broker("broker-a").address
    assert (await call(cluster, "updateTopic", "-b", address, "-t", "closed", "-p", 4)).code == 0
    doctor = ("doctor", "--cluster")
    assert "closed to producers since" not in (await call(cluster, *doctor)).out
    out, err = io.StringIO(), io.StringIO()
    words = ["broker", "drain", "broker-a", "--json", "--timeout", "60"]
    codes: list[int] = []

    async def drain() -> None:
        codes.append(await run([*words, "-n", cluster.namesrv_address], out, err))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain)
        with trio.fail_after(30):
            while "not yet read: billing 2" not in err.getvalue():
                await trio.sleep(0.02)
        # A producer with an old route: the drain looks again, and sees its message.
        async with Producer(cluster.namesrv_address, group="shop") as producer:
            await producer.send("orders", b"x", queue=QUEUE)
            with trio.fail_after(30):
                while "not yet read: billing 3" not in err.getvalue():
                    await trio.sleep(0.02)
        assert codes == []
        async with PullConsumer(
            cluster.namesrv_address, group="billing", subscriptions="orders"
        ) as consumer:
            read = 0
            with trio.fail_after(30):
                while read < 3:
                    read += len(await consumer.poll())
            await consumer.commit()
    assert codes == [0], (out.getvalue(), err.getvalue())
    document = json.loads(out.getvalue())
    assert (document["drained"], document["before"], document["brokerPermission"]) == (True, 6, 4)
    assert document["groups"] == []
    assert "closed to producers since" in (await call(cluster, *doctor)).out
    other = await call(cluster, "broker", "drain", "broker-b", "--dry-run")
    assert "no other broker of cluster DefaultCluster takes messages" in other.err
    first = await call(cluster, "broker", "drain", "broker-a", "--dry-run")
    assert "no other broker" not in first.err

    # Changed topics are registered, which undoes a permission that was only wiped.
    assert (await call(cluster, "updateTopic", "-b", address, "-t", "new", "-p", 6)).code == 0
    await until_perm(cluster, "new", 4)
    assert await perms(cluster, "orders") == {"broker-a": 4, "broker-b": 6}
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        assert {queue.broker_name for queue in await producer.queues("orders")} == {"broker-b"}

    given_back = await call(cluster, "broker", "undrain", "broker-a")
    assert (given_back.code, given_back.err) == (0, "")
    for topic, perm in (("orders", 6), ("new", 6), ("closed", 4)):
        await until_perm(cluster, topic, perm)
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        await producer.send("orders", b"x", queue=QUEUE)
    async with Admin(cluster.namesrv_address) as admin:
        header = KvConfigHeader(namespace="TRIOMQ_DRAIN", key="broker-a")
        with pytest.raises(Exception, match="broker-a"):
            await admin.ask(cluster.namesrv_address, RequestCode.GET_KV_CONFIG, header)


async def early_drain(cluster: InProcessCluster) -> Done:
    """Call the command so that it looks once, however long an answer takes on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drain_command, "POLL_SECONDS", 30.0)
        return await call(cluster, "broker", "drain", "broker-a", "--timeout", 30)


async def test_a_drain_that_ends_too_early_says_who_has_not_read(cluster: InProcessCluster) -> None:
    await behind(cluster, "billing")
    early = await early_drain(cluster)
    assert early.code == 1
    assert early.out.splitlines()[1].split() == ["billing", "2", "1"]
    assert "is not safe to stop yet: not all of it is read by 1 group" in early.out
    assert "--ignore" in early.out
    again = await call(cluster, "broker", "drain", "broker-a", "--ignore", "audit,billing")
    assert again.code == 0
    assert again.out == "broker-a is safe to stop; afterwards: mqadmin broker undrain broker-a\n"
    assert (await call(cluster, "broker", "undrain", "broker-a")).code == 0
    await until_perm(cluster, "orders", 6)


async def test_a_drain_waits_for_the_routes_of_producers(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer with an old route still gets its messages accepted, by Java's brokers too."""
    words = ("broker", "drain", "broker-a")
    async with Producer(cluster.namesrv_address, group="shop") as producer:
        receipt = await producer.send("orders", b"x", queue=QUEUE)
        early = await early_drain(cluster)
        assert early.code == 1
        assert "producers with an old route may send for 30 s more" in early.out
        assert (await producer.send("orders", b"x", queue=QUEUE)).queue == receipt.queue
        monkeypatch.setattr(draining, "ROUTE_SECONDS", 0.0)
        assert (await call(cluster, *words)).code == 0, "the time counts from the first call"
        assert (await call(cluster, "broker", "undrain", "broker-a")).code == 0
        monkeypatch.setattr(draining, "ROUTE_SECONDS", 1.0)
        waited = await call(cluster, *words)
        assert waited.code == 0
        assert "all is read; producers may have an old route" in waited.err


@pytest.mark.parametrize("text", [None, "", "6", "6 x", "1 2 3"])
def test_other_values_are_no_drain(text: str | None) -> None:
    assert draining.drained_of(text) is None


def test_the_time_of_a_clock_that_is_wrong_is_limited() -> None:
    drained = draining.drained_of("6 100000")
    assert drained is not None
    assert [drained.route_seconds_left(now) for now in (0, 100_000, 110_000, 200_000)] == [
        30.0,
        30.0,
        20.0,
        0.0,
    ]


async def test_a_broker_that_could_not_be_written_stays_so(cluster: InProcessCluster) -> None:
    address = cluster.broker("broker-a").address
    setting = ("updateBrokerConfig", "-b", address, "-k", "brokerPermission", "-v", 4)
    assert (await call(cluster, *setting)).code == 0
    assert (await call(cluster, "broker", "drain", address)).code == 0
    back = await call(cluster, "broker", "undrain", address)
    assert back.code == 0
    assert f"mqadmin broker set -b {address} -k brokerPermission -v 6" in back.err
    assert "broker-a has brokerPermission 4;" in back.out


async def test_a_broker_that_was_not_drained_is_given_back_with_a_warning(
    cluster: InProcessCluster,
) -> None:
    back = await call(cluster, "broker", "undrain", "broker-a", "--json")
    assert back.document["brokerPermission"] == 6
    assert "was not drained by mqadmin broker drain" in back.err
    assert failed(await call(cluster, "broker", "drain", "nobody"), 4, "broker-a, broker-b")
