"""Two tenants with the same names on one cluster, and a third client without a namespace.

None of them sees another's messages.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from mqadmin_calls import mqadmin
from serving import until

from triomq import (
    AssignmentChange,
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendReceipt,
)
from triomq.client.receiving.local_offsets import read_offsets
from triomq.testing import InProcessCluster

TENANTS = ("red", "blue", None)


def client(tenant: str | None, name: str | None = None) -> ClientSettings:
    return ClientSettings(
        namespace=tenant,
        instance_name=name,
        route_interval=0.5,
        heartbeat_interval=0.5,
        shutdown_timeout=2.0,
    )


def consumer_settings(tenant: str | None, **more: object) -> ConsumerSettings:
    return ConsumerSettings(
        error_delay=0.05, rebalance_retry=0.05, lock_retry=0.05, offset_interval=0.1,
        client=client(tenant), **more  # type: ignore[arg-type]
    )  # fmt: skip


async def create(cluster: InProcessCluster, topic: str) -> None:
    for tenant in TENANTS:
        await cluster.create_topic(f"{tenant}%{topic}" if tenant else topic, queues=2)


async def send(
    cluster: InProcessCluster, tenant: str | None, topic: str, count: int = 6
) -> list[SendReceipt]:
    async with Producer(
        cluster.namesrv_address, group="shop", settings=ProducerSettings(client=client(tenant))
    ) as producer:
        body = f"{tenant}".encode()
        receipts = [
            await producer.send(topic, body, sharding_key="k"),
            *await producer.send_batch([Message(topic=topic, body=body)] * 2),
        ]
        queues = await producer.queues(topic)
        receipts += [
            await producer.send(topic, body, queue=queues[number % 2])
            for number in range(count - 3)
        ]
        return receipts


@pytest.mark.feature(166)
@pytest.mark.parametrize("ordered", [False, True])
async def test_tenants_do_not_see_each_other(
    ordered: bool, triomq_cluster: InProcessCluster
) -> None:
    await create(triomq_cluster, "Orders")
    seen: dict[str | None, list[tuple[bytes, str, str]]] = {tenant: [] for tenant in TENANTS}
    notices: list[AssignmentChange] = []

    def handler(tenant: str | None):  # type: ignore[no-untyped-def]
        async def handle(message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            seen[tenant].append((message.body, message.topic, message.queue.topic))

        return handle

    async with trio.open_nursery() as nursery:
        for tenant in TENANTS:

            async def consume(
                tenant: str | None = tenant,
                *,
                task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
            ) -> None:
                async with PushConsumer(
                    triomq_cluster.namesrv_address, group="billing", subscriptions="Orders",
                    consume_from="first", ordered=ordered,
                    handler=handler(tenant), on_assignment=notices.append,
                    settings=consumer_settings(tenant),
                ) as member:  # fmt: skip
                    await member.wait_assigned()
                    assert {queue.topic for queue in member.assignment} <= {
                        "Orders",
                        "%RETRY%billing",
                    }
                    assert sum(queue.topic == "Orders" for queue in member.assignment) == 2, (
                        "the queues are not shared with the others"
                    )
                    task_status.started()
                    await trio.sleep_forever()

            await nursery.start(consume)
        for tenant in TENANTS:
            receipts = await send(triomq_cluster, tenant, "Orders")
            assert {receipt.queue.topic for receipt in receipts} == {"Orders"}
        await until(lambda: all(len(messages) >= 6 for messages in seen.values()))
        running = await mqadmin(
            "consumerConnection",
            "-g",
            "red%billing",
            "-n",
            triomq_cluster.namesrv_address,
            "--json",
        )
        assert set(running.document["subscriptions"]) == {"red%Orders", "%RETRY%red%billing"}
        nursery.cancel_scope.cancel()
    for tenant in TENANTS:
        assert seen[tenant] == [(f"{tenant}".encode(), "Orders", "Orders")] * 6
    assert {change.topic for change in notices} <= {"Orders", "%RETRY%billing"}


@pytest.mark.feature(166)
async def test_retries_dead_letters_and_offsets_of_a_tenant(
    triomq_cluster: InProcessCluster,
) -> None:
    await create(triomq_cluster, "Orders")
    seen: list[tuple[str, str, int]] = []

    async def fail(message: ReceivedMessage) -> None:
        seen.append(
            (
                message.topic,
                message.properties.get("INSTANCE_ID", "of a batch"),
                message.reconsume_times,
            )
        )
        if message.reconsume_times:
            await message.dead_letter()
        else:
            await message.retry(1)

    async with PushConsumer(
        triomq_cluster.namesrv_address, group="billing", subscriptions="Orders",
        consume_from="first",
        handler=fail, settings=consumer_settings("red"),
    ):  # fmt: skip
        (receipt, *_) = await send(triomq_cluster, "red", "Orders", count=3)
        await until(lambda: len(seen) == 6)
    assert sorted(seen) == [
        ("Orders", mark, times)
        for mark, times in (("of a batch", 0), ("of a batch", 1), ("red", 0), ("red", 1))
        for _ in range(1 + (mark != "red"))
    ]
    dead = PullConsumer(
        triomq_cluster.namesrv_address,
        group="undertaker",
        subscriptions="%DLQ%billing",
        consume_from="first",
        settings=consumer_settings("red"),
    )
    letters: list[ReceivedMessage] = []
    async with dead:
        with trio.fail_after(30):
            while len(letters) < 3:
                letters += await dead.poll()
    assert {letter.body for letter in letters} == {b"red"}
    async with PullConsumer(
        triomq_cluster.namesrv_address, group="red%billing"
    ) as administrator:  # with the full names
        full = MessageQueue("red%Orders", receipt.queue.broker_name, receipt.queue.queue_id)
        await administrator.queues("red%Orders")
        assert await administrator.committed(full)
        assert not await administrator.committed(
            MessageQueue("Orders", full.broker_name, full.queue_id)
        )


@pytest.mark.feature(166)
async def test_offset_files_and_positions_of_tenants_on_one_machine(
    triomq_cluster: InProcessCluster, tmp_path: Path
) -> None:
    await create(triomq_cluster, "Orders")
    for tenant in TENANTS:
        await send(triomq_cluster, tenant, "Orders")
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        got.append(message.body)

    for tenant in TENANTS:
        async with PushConsumer(
            triomq_cluster.namesrv_address, group="caches", subscriptions="Orders",
            consume_from="first", broadcast=True,
            handler=handle, settings=ConsumerSettings(offset_dir=str(tmp_path),
            client=client(tenant, "one")),
        ) as member:  # fmt: skip
            await until(lambda: len(got) == 6)
            folder = tmp_path / member.client_id / (f"{tenant}%caches" if tenant else "caches")
        assert set(got) == {f"{tenant}".encode()}
        got.clear()
        stored = read_offsets(folder / "offsets.json")
        assert {queue.topic for queue in stored} == {f"{tenant}%Orders" if tenant else "Orders"}
        assert sum(stored.values()) == 6


async def test_an_administrator_addresses_a_tenant_by_its_full_names(
    triomq_cluster: InProcessCluster,
) -> None:
    await create(triomq_cluster, "Orders")
    await send(triomq_cluster, "red", "Orders")
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(message.body)

    async with PushConsumer(
        triomq_cluster.namesrv_address, group="billing", subscriptions="Orders",
        consume_from="first",
        handler=handle, settings=consumer_settings("red"),
    ) as member:  # fmt: skip
        await until(lambda: len(seen) == 6)
        status = await mqadmin(
            "consumerStatus",
            "-g",
            "red%billing",
            "-i",
            member.client_id,
            "-n",
            triomq_cluster.namesrv_address,
        )
        assert "red%Orders" in status.out
        reset = await mqadmin(
            "resetOffsetByTime",
            "-g",
            "red%billing",
            "-t",
            "red%Orders",
            "-s",
            "0",
            "-n",
            triomq_cluster.namesrv_address,
        )
        assert reset.code == 0, reset
        await until(lambda: len(seen) == 12)
