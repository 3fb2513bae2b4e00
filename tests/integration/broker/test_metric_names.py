"""The page of metrics of our broker beside that of Java's broker under the same load."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import peer_of, running_broker
from golden_metrics import JAVA_PAGE, complaints
from metric_load import DEALS, PULLS, SIZES, TIMED, TOPIC, run_load
from monitor_pages import get, value
from processes import free_port

from triomq.testing import local_cluster


@pytest.mark.feature("185a")
async def test_names_types_labels_and_edges_are_java_s(tmp_path: Path) -> None:
    port = free_port()
    page = ""
    async with (
        local_cluster(dir=tmp_path, settings={"monitorPort": port}) as cluster,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(run_load, cluster.namesrv_address, "DefaultCluster")
        page = (await get(port, "/metrics"))[2]
        nursery.cancel_scope.cancel()
    java = JAVA_PAGE.read_text()
    assert complaints(page, java) == []
    normal = {"topic": TOPIC, "message_type": "normal", "is_system": "false"}
    assert value(page, "rocketmq_messages_in_total", **normal) == len(SIZES)
    assert value(page, "rocketmq_messages_in_total", topic=TOPIC, message_type="fifo") == 1
    assert value(page, "rocketmq_messages_in_total", topic=TIMED, message_type="delay") == 3
    assert value(page, "rocketmq_commit_messages_total", topic=DEALS) == 1
    for edge in ("1024.0", "4096.0", "524288.0", "+Inf"):
        bucket = {**normal, "le": edge}
        counts = [value(each, "rocketmq_message_size_bucket", **bucket) for each in (page, java)]
        assert counts[0] == counts[1] > 0
    dead = {"topic": TOPIC, "consumer_group": PULLS}
    assert value(page, "rocketmq_send_to_dlq_messages_total", **dead) == 1
    # The comparison sees each kind of difference.
    for old, new in (
        ("rocketmq_topic_number", "rocketmq_topics"),
        ("# TYPE rocketmq_topic_number gauge", "# TYPE rocketmq_topic_number counter"),
        ('message_type="', 'type="'),
        ('le="1024.0"', 'le="1024"'),
    ):
        assert complaints(page.replace(old, new), java)


@pytest.mark.feature("185a")
async def test_a_metric_has_a_bounded_number_of_series(tmp_path: Path) -> None:
    port = free_port()
    async with (
        running_broker(tmp_path, monitorPort=port, monitorSeriesMax=3) as ready,
        peer_of(ready) as peer,
    ):
        for number in range(5):
            await peer.create_topic(f"T{number}", queues=1)
            await peer.send(f"T{number}")
            await peer.commit("billing", f"T{number}", 0, 0)
        page = (await get(port, "/metrics"))[2]
    for name, count in (("rocketmq_messages_in_total", 2), ("rocketmq_consumer_lag_messages", 2)):
        assert page.count(f"\n{name}{{") == 3
        assert value(page, "triomq_metric_series_left_out", metric=name) >= count


@pytest.mark.feature("185a")
async def test_lag_in_messages_and_in_time(tmp_path: Path) -> None:
    port = free_port()
    async with running_broker(tmp_path, monitorPort=port) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=1)
        for _ in range(5):
            await peer.send("T")
        await peer.pull("T", 0, 0, count=2, group="billing")
        await peer.commit("billing", "T", 0, 1)
        await trio.sleep(0.02)
        page = (await get(port, "/metrics"))[2]
    labels = {"topic": "T", "consumer_group": "billing", "is_retry": "false"}
    figures = {
        name: value(page, f"rocketmq_consumer_{name}", **labels)
        for name in ("lag_messages", "ready_messages", "inflight_messages")
    }
    assert figures == {"lag_messages": 4, "ready_messages": 3, "inflight_messages": 1}
    for name in ("lag_latency", "queueing_latency"):
        assert value(page, f"rocketmq_consumer_{name}_milliseconds", **labels) >= 20
