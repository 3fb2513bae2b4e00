"""What the broker of a store would let clients read: topics, numbers of queues, the broker's name.

They stand in ``config/topics.json``. A copy without it has the topics of its queues' folders.
Source: common/…/ConfigManager.java, common/…/TopicConfig.java.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from triomq.client.spark.errors import OptionError, SourceError
from triomq.client.spark.offsets import Queue
from triomq.client.spark.option_values import TOPIC_PATTERN
from triomq.client.spark.store.stored_queue import StoredQueue
from triomq.remoting.protocol.bodies.route import PERM_INHERIT, PERM_READ
from triomq.remoting.protocol.names import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    WELL_KNOWN_SYSTEM_TOPICS,
)

logger = logging.getLogger(__name__)

CONFIG_BYTES_MAX = 256 << 20
QUEUES_MAX = 100_000
"""per topic; Java takes 1024 by default"""
REPLY_SUFFIX = "_REPLY_TOPIC"
QUEUES, BATCH_QUEUES = "consumequeue", "batchconsumequeue"


@attrs.frozen
class ServedTopic:
    """A topic that clients may read."""

    queue_count: int
    batched: bool
    of_system: bool


def served_topics(root: Path) -> dict[str, ServedTopic]:
    """Return the readable topics of a store. Raises: SourceError, OSError."""
    table = config_table(root / "config" / "topics.json")
    if table is None:
        logger.warning(
            "%s has no config/topics.json: the topics are those of the queues' folders", root
        )
        return topics_of_folders(root)
    topics = {}
    try:
        # Topics of clusters and brokers hand their queues down to others.
        of_clusters = {name for name, entry in table.items() if entry.get("perm", 6) & PERM_INHERIT}
        for name, entry in table.items():
            attributes = entry.get("attributes") or {}
            count = int(entry.get("readQueueNums", 16))
            readable = entry.get("perm", 6) & PERM_READ and 0 < count <= QUEUES_MAX
            if not readable or not TOPIC_PATTERN.fullmatch(name):
                continue
            if attributes.get("cleanup.policy") == "COMPACTION":
                logger.warning("topic %s is compacted: it is read from its broker only", name)
                continue
            topics[name] = ServedTopic(
                count,
                attributes.get("queue.type") == "BatchCQ",
                of_system=is_system(name)
                or name in of_clusters
                or name.removesuffix(REPLY_SUFFIX) in of_clusters,
            )
    except (AttributeError, TypeError, ValueError) as error:
        raise SourceError(
            f"{root / 'config' / 'topics.json'} is not a table of topics: {error}; restore it from"
            " a copy, or move it away to read the topics of the queues' folders"
        ) from error
    return topics


def config_table(path: Path) -> Mapping[str, Any] | None:
    """Return the topics of a configuration file or of its backup; None if there is neither."""
    for each in (path, path.with_name(f"{path.name}.bak")):
        if not each.is_file() or not each.stat().st_size:
            continue
        if each.stat().st_size > CONFIG_BYTES_MAX:
            raise SourceError(f"{each} has more than {CONFIG_BYTES_MAX} bytes; restore it")
        try:
            table = json.loads(each.read_bytes())["topicConfigTable"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            logger.warning("%s cannot be read: %s", each, error)
            continue
        if isinstance(table, dict):
            return table
    return None


def topics_of_folders(root: Path) -> dict[str, ServedTopic]:
    """Return the topics whose queues have folders. Raises: OSError."""
    topics: dict[str, ServedTopic] = {}
    for folder in (QUEUES, BATCH_QUEUES):
        if not (root / folder).is_dir():
            continue
        for topic in os.listdir(root / folder):
            place = root / folder / topic
            numbers = [int(n) for n in os.listdir(place) if n.isdecimal()] if place.is_dir() else []
            if numbers and max(numbers) < QUEUES_MAX and TOPIC_PATTERN.fullmatch(topic):
                topics[topic] = ServedTopic(
                    max(numbers) + 1, folder == BATCH_QUEUES, is_system(topic)
                )
    return topics


def is_system(topic: str) -> bool:
    """Return whether a pattern never matches this topic, as in ``format("rocketmq")``."""
    return topic in WELL_KNOWN_SYSTEM_TOPICS or topic.startswith(
        (SYSTEM_TOPIC_PREFIX, RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX)
    )


def wanted_queues(
    root: Path, subscribe: tuple[str, ...], pattern: re.Pattern[str] | None, broker: str
) -> list[StoredQueue]:
    """Return every readable queue of the wanted topics, also those without messages.

    Raises: SourceError for a topic that clients cannot read, OSError.
    """
    topics = served_topics(root)
    if pattern is not None:
        subscribe = tuple(
            name
            for name, topic in sorted(topics.items())
            if not topic.of_system and pattern.fullmatch(name)
        )
        if not subscribe:
            raise SourceError(
                f"no topic of {root} matches subscribePattern = {pattern.pattern!r}; a name must"
                " match as a whole, and system topics never match"
            )
    absent = sorted(set(subscribe) - topics.keys())
    if absent:
        raise SourceError(
            f"{root} has no topic {', '.join(absent)} that clients can read; check the spelling and"
            " the topic's perm in config/topics.json"
        )
    return [
        StoredQueue.find(
            Queue(name, broker, number),
            root / (BATCH_QUEUES if topics[name].batched else QUEUES) / name / str(number),
            batched=topics[name].batched,
        )
        for name in sorted(subscribe)
        for number in range(topics[name].queue_count)
    ]


def broker_name(root: Path, given: str | None) -> str:
    """Return the name of the store's broker. Only stores of controller mode have it.

    Raises: OptionError if it is not known, or if the store has another one.
    """
    path = root / "brokerIdentity"
    stored = path.read_text("utf-8", "replace")[:1024].split("#") if path.is_file() else []
    known = stored[1] if len(stored) >= 3 else None
    if given is None and known is None:
        raise OptionError(
            "option 'brokerName' is missing, and the store does not have it; give the name that the"
            " broker registers with, so that live reading goes on where this ends"
        )
    if given is not None and known is not None and given != known:
        raise OptionError(f"option 'brokerName' = {given!r}, but {path} says {known!r}")
    return given or known or ""
