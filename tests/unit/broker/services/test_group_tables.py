"""Settings and offsets of consumer groups, and their files."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.offsets import (
    CHANGES_PER_VERSION,
    ConsumerOffsets,
    open_consumer_offsets,
)
from triomq.broker.services.persisted import Version
from triomq.broker.services.subscriptions import SubscriptionGroups, open_subscription_groups
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig
from triomq.remoting.protocol.names import SYSTEM_GROUPS

GOLDEN = Path(__file__).resolve().parent.parent.parent.parent / "golden" / "store"


def clock() -> int:
    return 1_700_000_000_000


def open_groups(folder: Path, live: LiveSettings | None = None) -> SubscriptionGroups:
    return open_subscription_groups(folder, live or LiveSettings(), Version(clock))


def open_offsets(folder: Path) -> ConsumerOffsets:
    return open_consumer_offsets(folder, Version(clock))


def golden(release: str, name: str, folder: Path) -> None:
    with tarfile.open(GOLDEN / f"java-{release}.tar.gz") as archive:
        file = archive.extractfile(f"java-{release}/config/{name}")
        assert file is not None
        (folder / name).write_bytes(file.read())


def test_groups_are_created_if_the_settings_allow_it(tmp_path: Path) -> None:
    groups = open_groups(tmp_path)
    assert sorted(groups.configs) == sorted(SYSTEM_GROUPS)
    made = groups.find_or_create("G")
    assert made == SubscriptionGroupConfig(group_name="G")
    assert groups.find_or_create("G") is made
    assert groups.find_or_create("not legal!") is None
    closed = open_groups(tmp_path, LiveSettings(auto_create_groups=False))
    assert closed.find_or_create("G") is None
    assert closed.find_or_create("TOOLS_CONSUMER") is not None
    assert closed.find_or_create("CID_RMQ_SYS_new") is not None


def test_groups_are_read_back(tmp_path: Path) -> None:
    groups = open_groups(tmp_path)
    groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    groups.forbidden["G"] = {"T": 2}
    counter = groups.version.current.counter
    groups.put(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    assert groups.version.current.counter == counter, "nothing changed"
    groups.path.write_bytes(groups.encode())
    again = open_groups(tmp_path)
    assert again.configs == groups.configs
    assert again.forbidden == {"G": {"T": 2}}
    assert again.delete("G")
    assert not again.delete("G")
    assert again.forbidden == {}


def test_unknown_attributes_of_a_group_are_refused(tmp_path: Path) -> None:
    groups = open_groups(tmp_path)
    with pytest.raises(ValueError, match="unsupported key: x"):
        groups.put(SubscriptionGroupConfig(group_name="G", attributes={"+x": "1"}))
    assert groups.find("G") is None


def test_notices_depend_on_broker_and_group(tmp_path: Path) -> None:
    live = LiveSettings()
    groups = open_groups(tmp_path, live)
    groups.put(
        SubscriptionGroupConfig(group_name="quiet", notify_consumer_ids_changed_enable=False)
    )
    assert groups.wants_notice("unknown")
    assert not groups.wants_notice("quiet")
    live.notify_consumer_changes = False
    assert not groups.wants_notice("unknown")


@pytest.mark.parametrize("release", ["4.9.4", "5.5.0"])
def test_java_s_files_are_taken_over(tmp_path: Path, release: str) -> None:
    golden(release, "subscriptionGroup.json", tmp_path)
    golden(release, "consumerOffset.json", tmp_path)
    groups, offsets = open_groups(tmp_path), open_offsets(tmp_path)
    assert groups.configs["gc"].retry_max_times == 16
    queues = offsets.queues_of("gc", "GoldTopic")
    assert sorted(queues) == [0, 1, 2, 3]
    assert all(value > 0 for value in queues.values())


def test_offsets_are_committed_and_read_back(tmp_path: Path) -> None:
    offsets = open_offsets(tmp_path)
    assert offsets.committed_offset("G", "T", 0) is None
    offsets.commit("G", "T", 0, 10)
    offsets.commit("G", "T", 1, 0)
    offsets.commit("G", "U", 0, 3)
    offsets.commit("H", "T", 0, 2)
    offsets.commit("G", "T", 0, 4)
    assert offsets.committed_offset("G", "T", 0) == 4, "a smaller one counts, too"
    offsets.note_pull("G", "T", 0, 99)
    offsets.path.write_bytes(offsets.encode())
    again = open_offsets(tmp_path)
    assert again.committed == {"G": {"T": {0: 4, 1: 0}, "U": {0: 3}}, "H": {"T": {0: 2}}}
    assert again.pulled == {}
    assert again.topics_of("G") == ["T", "U"]
    assert again.groups_of("T") == ["G", "H"]
    assert json.loads((tmp_path / "consumerOffset.json").read_text())["offsetTable"]["T@G"] == {
        "0": 4,
        "1": 0,
    }


def test_a_commit_tells_by_how_much_the_group_went_on(tmp_path: Path) -> None:
    offsets = open_offsets(tmp_path)
    steps = [offsets.commit("G", "T", 0, offset) for offset in (100, 104, 104, 50, 51)]
    assert steps == [0, 4, 0, 0, 1], "neither its first offset nor a way back is consumption"


def test_the_same_offset_again_changes_nothing(tmp_path: Path) -> None:
    offsets = open_offsets(tmp_path)
    offsets.commit("G", "T", 0, 10)
    changes = offsets.changes
    offsets.commit("G", "T", 0, 10)
    assert offsets.changes == changes


def test_the_version_moves_every_500_commits(tmp_path: Path) -> None:
    offsets = open_offsets(tmp_path)
    for number in range(2 * CHANGES_PER_VERSION + 1):
        offsets.commit("G", "T", 0, number)
    assert offsets.version.current.counter == 2


def test_forgetting_topics_and_groups(tmp_path: Path) -> None:
    offsets = open_offsets(tmp_path)
    for group in ("G", "H"):
        for topic in ("T", "U"):
            offsets.commit(group, topic, 0, 1)
            offsets.note_pull(group, topic, 0, 1)
    offsets.forget_topic("T")
    offsets.forget_group("H")
    assert offsets.committed == {"G": {"U": {0: 1}}}
    assert offsets.pulled_offset("G", "T", 0) == 0
    assert offsets.pulled_offset("G", "U", 0) == 1
    changes = offsets.changes
    offsets.forget_topic("unknown")
    offsets.forget_group("unknown")
    assert offsets.changes == changes


def test_resets_are_taken_once_each_and_end_with_their_topic_or_group(tmp_path: Path) -> None:
    offsets = open_offsets(tmp_path)
    offsets.reset("G", "T", {0: 5, 1: 6}, 100)
    offsets.reset("G", "T", {1: 7, 2: 8}, 200)
    assert [offsets.pending_reset("G", "T", queue_id) for queue_id in range(4)] == [5, 7, 8, None]
    assert [offsets.take_reset("G", "T", queue_id) for queue_id in (0, 0, 1, 2, 2)] == [
        5,
        None,
        7,
        8,
        None,
    ]
    assert offsets.resets == {}
    for group in ("G", "H"):
        for topic in ("T", "U"):
            offsets.reset(group, topic, {0: 1}, 300)
    offsets.forget_topic("T")
    assert sorted(offsets.resets) == sorted(offsets.moved) == [("G", "U"), ("H", "U")]
    offsets.forget_group("H")
    assert sorted(offsets.resets) == sorted(offsets.moved) == [("G", "U")]


def test_resets_outlive_a_restart_and_java_reads_the_offsets_beside_them(tmp_path: Path) -> None:
    offsets = open_offsets(tmp_path)
    offsets.commit("G", "T", 0, 9)
    offsets.reset("G", "T", {0: 5, 1: 6}, 100)
    offsets.reset("H", "T", {0: 5}, 200, members=False)
    (tmp_path / "consumerOffset.json").write_bytes(offsets.encode())
    again = open_offsets(tmp_path)
    assert again.resets == {("G", "T"): {0: 5, 1: 6}}
    assert again.moved == {("G", "T"): {0: 100, 1: 100}, ("H", "T"): {0: 200}}
    assert (again.moved_at("G", "T", 1), again.moved_at("G", "U", 1)) == (100, 0)
    again.forget_moves(150)
    assert again.moved == {("H", "T"): {0: 200}}
    table = json.loads(offsets.encode())["offsetTable"]
    assert table == {"T@G": {"0": 5, "1": 6}, "T@H": {"0": 5}}


def test_pulls_of_a_deleted_group_do_not_count_for_the_next_group_of_that_name(
    tmp_path: Path,
) -> None:
    offsets = open_offsets(tmp_path)
    for group in ("G", "H"):
        offsets.note_pull(group, "T", 0, 9)
    offsets.forget_group("G")
    assert (offsets.pulled_offset("G", "T", 0), offsets.pulled_offset("H", "T", 0)) == (0, 9)
