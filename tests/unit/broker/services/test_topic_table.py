"""The table of topics: system topics, creation by admin and by the first message, names,
attributes, and Java's file.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from triomq.broker.services.attributes import (
    TOPIC_ATTRIBUTES,
    alter_attributes,
    parse_attribute_changes,
)
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.persisted import Version
from triomq.broker.services.topics import Topics, TopicSettings, new_topic, open_topics
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicTable

GOLDEN = Path(__file__).resolve().parent.parent.parent.parent / "golden" / "store"
SETTINGS = TopicSettings(cluster_name="C", broker_name="b")


def clock() -> int:
    return 1_700_000_000_000


def open_at(
    folder: Path, live: LiveSettings | None = None, settings: TopicSettings = SETTINGS
) -> Topics:
    return open_topics(folder, settings, live or LiveSettings(), Version(clock))


def save(topics: Topics) -> None:
    topics.path.write_bytes(topics.encode())


def test_a_new_broker_has_the_system_topics(tmp_path: Path) -> None:
    topics = open_at(tmp_path)
    made = {
        name: (config.read_queue_count, config.write_queue_count, config.perm)
        for name, config in topics.configs.items()
    }
    assert made == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "C": (16, 16, 7),
        "b": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "C_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_C": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b": (1, 1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
    }
    assert all(topics.is_system_topic(name) for name in made)
    assert not topics.is_system_topic("orders")
    assert topics.is_system_topic("rmq_sys_anything")
    assert topics.dirty


def test_settings_decide_which_system_topics_exist(tmp_path: Path) -> None:
    settings = TopicSettings(
        cluster_name="C",
        broker_name="b",
        cluster_topic_open=False,
        trace_topic="RMQ_SYS_TRACE_TOPIC",
    )
    topics = open_at(tmp_path, LiveSettings(auto_create_topics=False), settings)
    assert "TBW102" not in topics.configs
    assert topics.configs["C"].perm == 1
    assert topics.configs["RMQ_SYS_TRACE_TOPIC"].read_queue_count == 1


def test_put_changes_version_generation_and_file_only_for_a_real_change(tmp_path: Path) -> None:
    topics = open_at(tmp_path)
    changed: list[list[str]] = []
    topics.on_change = changed.append
    counter, generation, changes = (
        topics.version.current.counter,
        topics.generation,
        topics.changes,
    )
    assert topics.put(new_topic("T", 4))
    assert not topics.put(new_topic("T", 4))
    assert topics.put(new_topic("T", 5))
    assert (topics.version.current.counter, topics.generation, topics.changes) == (
        counter + 2,
        generation + 2,
        changes + 2,
    )
    assert changed == [["T"], ["T"]]
    assert topics.delete("T")
    assert not topics.delete("T")
    assert topics.find("T") is None


def test_a_deletion_and_a_copied_table_count_as_changes_too(tmp_path: Path) -> None:
    """For caches in this process, for the file, and for name servers."""
    topics = open_at(tmp_path)
    changed: list[list[str]] = []
    topics.on_change = changed.append
    topics.put(new_topic("T", 1))

    def seen() -> tuple[int, int, int]:
        return topics.generation, topics.changes, topics.version.current.counter

    before = seen()
    assert topics.delete("T")
    assert all(after > earlier for after, earlier in zip(seen(), before))
    before = seen()
    assert not topics.delete("T")
    assert seen() == before
    configs = {"U": new_topic("U", 2), "C": topics.configs["C"]}
    gone = topics.replace(TopicTable(configs, DataVersion(0, 9, 99)))
    assert "TBW102" in gone
    assert "C" not in gone
    assert (seen()[0] > before[0], seen()[1] > before[1], topics.version.current) == (
        True,
        True,
        DataVersion(0, 9, 99),
    )
    assert changed == [["T"], ["U"]]


def test_the_first_message_creates_a_topic_from_the_template(tmp_path: Path) -> None:
    topics = open_at(tmp_path)
    made = topics.create_on_send("T", "TBW102", 4)
    assert made is not None
    assert (made.read_queue_count, made.write_queue_count, made.perm) == (4, 4, 6)
    wide = topics.create_on_send("U", "TBW102", 100)
    assert wide is not None
    assert wide.write_queue_count == 8, "no more than the pattern has"
    assert topics.create_on_send("V", "unknown", 4) is None
    assert topics.create_on_send("V", "T", 4) is None, "T may not be inherited"


def test_creation_can_be_switched_off_while_running(tmp_path: Path) -> None:
    live = LiveSettings()
    topics = open_at(tmp_path, live)
    live.auto_create_topics = False
    assert topics.create_on_send("T", "TBW102", 4) is None
    assert topics.create_on_send("T", "C", 4) is not None, "other patterns are not meant"


def test_the_file_is_read_back(tmp_path: Path) -> None:
    topics = open_at(tmp_path)
    topics.put(new_topic("T", 3), {"+message.type": "FIFO"})
    topics.mark_ordered({"T", "unknown"})
    save(topics)
    again = open_at(tmp_path)
    assert again.configs == topics.configs
    assert again.version.current == topics.version.current
    assert again.configs["T"].order
    assert not again.dirty
    row = json.loads((tmp_path / "topics.json").read_text())["topicConfigTable"]["T"]
    assert row == {
        "attributes": {"message.type": "FIFO"}, "order": True, "perm": 6, "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T", "topicSysFlag": 0, "writeQueueNums": 3,
    }  # fmt: skip


@pytest.mark.parametrize("release", ["4.9.4", "5.5.0"])
def test_a_java_broker_s_file_is_taken_over(tmp_path: Path, release: str) -> None:
    with tarfile.open(GOLDEN / f"java-{release}.tar.gz") as archive:
        file = archive.extractfile(f"java-{release}/config/topics.json")
        assert file is not None
        (tmp_path / "topics.json").write_bytes(file.read())
    topics = open_at(tmp_path)
    config = topics.configs["GoldTopic"]
    assert (config.read_queue_count, config.perm, config.attributes) == (4, 6, {})
    assert topics.version.current.counter > 0


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        ("T-1_|%a", None),
        ("", "The specified topic is blank."),
        ("  ", "The specified topic is blank."),
        (
            "a b",
            (
                "The specified topic: a b, contains illegal characters, allowing only"
                " ^[%|a-zA-Z0-9_-]+$"
            ),
        ),
        (
            "a/b",
            (
                "The specified topic: a/b, contains illegal characters, allowing only"
                " ^[%|a-zA-Z0-9_-]+$"
            ),
        ),
        (
            "ä",
            "The specified topic: ä, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ("a" * 127, None),
        ("a" * 128, f"The specified topic: {'a' * 128}, is longer than topic max length: 127"),
        ("%RETRY%" + "a" * 248, None),
        (
            "%DLQ%" + "a" * 251,
            (
                f"The specified topic is DLQ or Retry topic: %DLQ%{'a' * 251}, and it's longer than"
                " topic max length: 255"
            ),
        ),
    ],
)
def test_names_of_topics(topic: str, complaint: str | None) -> None:
    assert names.topic_complaint(topic) == complaint


def test_names_of_groups() -> None:
    assert names.group_complaint("G" * 120) is None
    assert names.group_complaint("") == "The specified group is blank."
    assert (
        names.group_complaint("G" * 121)
        == f"The specified group: {'G' * 121}, is longer than group max length: 120"
    )
    assert "illegal characters" in (names.group_complaint("a+b") or "")


def test_attribute_changes() -> None:
    assert parse_attribute_changes("") == {}
    assert parse_attribute_changes("+message.type=FIFO,-reserve.time") == {
        "+message.type": "FIFO",
        "-reserve.time": "",
    }
    current = {"message.type": "NORMAL", "queue.type": "SimpleCQ"}
    altered = alter_attributes(
        TOPIC_ATTRIBUTES, current, {"+message.type": "DELAY", "+reserve.time": "5"}, create=False
    )
    assert altered == {"message.type": "DELAY", "queue.type": "SimpleCQ", "reserve.time": "5"}
    assert alter_attributes(TOPIC_ATTRIBUTES, current, {"-message.type": ""}, create=False) == {
        "queue.type": "SimpleCQ"
    }


@pytest.mark.parametrize(
    ("changes", "create", "error"),
    [
        ({"message.type": "FIFO"}, True, "wrong format key: message.type"),
        ({"+": "x"}, True, "kv string format wrong"),
        (
            {"-message.type": ""},
            True,
            "only add attribute is supported while creating topic. key: message.type",
        ),
        ({"-reserve.time": ""}, False, "attempt to delete a nonexistent key: reserve.time"),
        ({"+colour": "red"}, True, "unsupported key: colour"),
        (
            {"+queue.type": "SimpleCQ"},
            False,
            "attempt to update an unchangeable attribute. key: queue.type",
        ),
        ({"+message.type": "BLUE"}, True, "value is not in set"),
        ({"+reserve.time": "-2"}, True, "value is not in range"),
        (
            {"+cleanup.policy": "COMPACTION", "+queue.type": "BatchCQ"},
            True,
            "cleanup.policy=COMPACTION does not go with queue.type=BatchCQ",
        ),
        (
            {"+cleanup.policy": "COMPACTION"},
            False,
            "attempt to update an unchangeable attribute. key: cleanup.policy",
        ),
        (
            {"+message.type": "FIFO", "-message.type": ""},
            False,
            "alter duplication key. key: message.type",
        ),
    ],
)
def test_wrong_attribute_changes(changes: dict[str, str], create: bool, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace(".", r"\.")):
        alter_attributes(
            TOPIC_ATTRIBUTES,
            {"message.type": "NORMAL", "queue.type": "SimpleCQ"},
            changes,
            create=create,
        )


@pytest.mark.parametrize("text", ["message.type=FIFO", "message.type", "+a=1,+a=2"])
def test_attribute_text_in_a_wrong_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"format is wrong|duplication"):
        parse_attribute_changes(text)
