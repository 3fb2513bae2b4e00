"""Limits of a broker's tables: a refusal names the limit and is counted; existing entries stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.offsets import open_consumer_offsets
from triomq.broker.services.persisted import Version
from triomq.broker.services.queue_locks import QueueLocks
from triomq.broker.services.subscriptions import open_subscription_groups
from triomq.broker.services.table_limits import BrokerTableLimits, broker_limits
from triomq.broker.services.topics import TopicSettings, new_topic, open_topics
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.bodies.offsets import MovedOffsetTable
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import DataVersion
from triomq.remoting.protocol.limits import LimitReached


def version() -> Version:
    return Version(lambda: 1)


def test_topics(tmp_path: Path) -> None:
    settings = TopicSettings(cluster_name="C", broker_name="b")
    count = len(open_topics(tmp_path, settings, LiveSettings(), version()).configs)
    limits = broker_limits(BrokerTableLimits(topics_max=count + 2))
    topics = open_topics(tmp_path, settings, LiveSettings(), version(), limits)
    topics.put(new_topic("T1", 1))
    assert topics.create_on_send("T2", "TBW102", 4) is not None
    for create in (
        lambda: topics.put(new_topic("T3", 1)),
        lambda: topics.create_on_send("T3", "TBW102", 4),
    ):
        with pytest.raises(
            LimitReached,
            match=(
                f"topic T3 is not created: the broker's limit is {count + 2}; use fewer, or raise"
                " topicsMax in its settings"
            ),
        ):
            create()
    assert topics.put(new_topic("T1", 2)), "one that exists can be changed"
    topics.ensure("%RETRY%G", 1)
    assert topics.delete("T2")
    assert topics.delete("T1")
    topics.put(new_topic("T3", 1))
    assert limits.refused == {"topicsMax": 2}


def test_groups(tmp_path: Path) -> None:
    count = len(open_subscription_groups(tmp_path, LiveSettings(), version()).configs)
    groups = open_subscription_groups(
        tmp_path, LiveSettings(), version(), broker_limits(BrokerTableLimits(groups_max=count + 1))
    )
    assert groups.find_or_create("G1") is not None
    assert groups.find_or_create("G1") is not None
    with pytest.raises(LimitReached, match="group G2 is not created: the broker's limit"):
        groups.find_or_create("G2")
    with pytest.raises(LimitReached, match="groupsMax"):
        groups.put(SubscriptionGroupConfig(group_name="G2"))
    groups.put(SubscriptionGroupConfig(group_name="G1", retry_max_times=3))
    assert groups.delete("G1")
    assert groups.find_or_create("G2") is not None


def test_consumer_offsets(tmp_path: Path) -> None:
    offsets = open_consumer_offsets(
        tmp_path, version(), limits=broker_limits(BrokerTableLimits(offsets_max=3))
    )
    for queue_id in range(3):
        offsets.require_room("G", "T", queue_id)
        offsets.commit("G", "T", queue_id, 1)
    offsets.require_room("G", "T", 2)
    with pytest.raises(
        LimitReached,
        match=(
            "the offset of group G in T-3 is not stored: the broker's limit is 3; use fewer, or"
            " raise consumerOffsetsMax"
        ),
    ):
        offsets.require_room("G", "T", 3)
    offsets.forget_topic("T")
    offsets.require_room("G", "T", 3)
    offsets.commit("G", "T", 3, 1)
    for offset in range(2, 9):
        offsets.commit("G", "T", 3, offset)
    offsets.require_room("G", "T", 4)  # one offset, however often it changes
    for queue_id in range(2):
        offsets.commit("H", "T", queue_id, 1)
    with pytest.raises(LimitReached):
        offsets.require_room("G", "T", 4)
    offsets.forget_group("H")
    offsets.require_room("G", "T", 4)
    rows = {"T@G": dict.fromkeys(range(3), 1)}
    offsets.replace(MovedOffsetTable(rows, DataVersion(0, 7, 7)), lambda topic, queue_id: 1)
    with pytest.raises(LimitReached):
        offsets.require_room("G", "T", 4)


async def test_queue_locks(autojump_clock: trio.testing.MockClock) -> None:
    locks = QueueLocks(limits=broker_limits(BrokerTableLimits(locks_max=3)))
    queues = [MessageQueue("T", "b", number) for number in range(4)]
    assert locks.lock("G", "c", queues[:3], 0.0) == queues[:3]
    assert locks.lock("G", "c", queues[:3], 1.0) == queues[:3], "they are renewed"
    with pytest.raises(
        LimitReached,
        match=(
            "group H gets no lock of 1 more queues: the broker's limit is 3; use fewer, or raise"
            " queueLocksMax"
        ),
    ):
        locks.lock("H", "d", queues[3:], 1.0)
    locks.unlock("G", "c", queues[:1])
    assert locks.lock("H", "d", queues[3:], 1.0) == queues[3:]
    await trio.sleep_until(100)
    await locks.sweep()
    assert locks.lock("H", "d", queues[:3], 100.0) == queues[:3]
