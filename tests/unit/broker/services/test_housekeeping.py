"""Whose queues an operator's clean-up may delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triomq.broker.processors.housekeeping import Housekeeping
from triomq.broker.services.held_pulls import HeldPulls
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.persisted import Version
from triomq.broker.services.topics import TopicSettings, open_topics


class Store:
    """A store with queues of a topic that is in no table."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def queues(self) -> dict[str, list[int]]:
        return {"Unknown": [0]}

    def delete_topic(self, topic: str) -> None:
        self.deleted.append(topic)


@pytest.mark.parametrize(("slave", "deleted"), [(False, ["Unknown"]), (True, [])])
async def test_only_a_master_knows_which_topics_are_unused(
    tmp_path: Path, slave: bool, deleted: list[str]
) -> None:
    store: Any = Store()
    topics = open_topics(
        tmp_path,
        TopicSettings(cluster_name="C", broker_name="b"),
        LiveSettings(),
        Version(lambda: 1),
    )
    asked: Any = type(
        "Request", (), {"connection": type("Connection", (), {"peer_text": "127.0.0.1:1"})}
    )
    assert (
        await Housekeeping(store, topics, HeldPulls(), slave=slave).delete_unused_topics(asked)
    ).code == 0
    assert store.deleted == deleted
