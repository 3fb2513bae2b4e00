"""The topics of this broker, kept in topics.json.

There are system topics, those created by an admin, and those created by the first message. Source:
broker/topic/TopicConfigManager.java, common/attribute/AttributeUtil.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from triomq.broker.services.attributes import TOPIC_ATTRIBUTES, alter_attributes
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.persisted import PersistedTable, Version, load_table, pretty_steps
from triomq.broker.services.table_limits import broker_limits
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.route import QUEUES_MAX
from triomq.remoting.protocol.bodies.schema import write_plain
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicTable
from triomq.remoting.protocol.limits import Limits

logger = logging.getLogger(__name__)

PERM_READ, PERM_WRITE, PERM_INHERIT = 4, 2, 1
PERM_READ_WRITE = PERM_READ | PERM_WRITE
UNIT_FLAG, UNIT_SUBSCRIPTION_FLAG = 1, 2


@attrs.frozen(kw_only=True)
class TopicSettings:
    """The settings of the broker that concern topics."""

    cluster_name: str
    broker_name: str
    default_queue_count: int = 8
    cluster_topic_open: bool = True
    broker_topic_open: bool = True
    trace_topic: str | None = None
    light_queues: bool = False


def system_topics(settings: TopicSettings, live: LiveSettings) -> list[TopicConfig]:
    """Return the topics that every broker has from its start."""
    inherit = PERM_INHERIT
    cluster_perm = inherit | (PERM_READ_WRITE if settings.cluster_topic_open else 0)
    broker_perm = inherit | (PERM_READ_WRITE if settings.broker_topic_open else 0)
    rows = [
        (names.SELF_TEST_TOPIC, 1, PERM_READ_WRITE),
        (names.BENCHMARK_TOPIC, 1024, PERM_READ_WRITE),
        (settings.cluster_name, 16, cluster_perm),
        (settings.broker_name, 1, broker_perm),
        (names.OFFSET_MOVED_TOPIC, 1, PERM_READ_WRITE),
        (names.SCHEDULE_TOPIC, 18, PERM_READ_WRITE),
        (f"{settings.cluster_name}_REPLY_TOPIC", 1, PERM_READ_WRITE),
        (f"rmq_sys_REVIVE_LOG_{settings.cluster_name}", 8, PERM_READ_WRITE),
        (f"{names.SYNC_MEMBERS_PREFIX}{settings.broker_name}", 1, inherit),
        (names.HALF_TOPIC, 1, PERM_READ_WRITE),
        (names.OP_HALF_TOPIC, 1, PERM_READ_WRITE),
        (names.TIMER_TOPIC, 1, PERM_READ_WRITE),
    ]
    if live.auto_create_topics:
        rows.insert(
            1, (names.DEFAULT_TOPIC, settings.default_queue_count, inherit | PERM_READ_WRITE)
        )
    if settings.trace_topic is not None:
        rows.append((settings.trace_topic, 1, PERM_READ_WRITE))
    return [new_topic(name, queues, perm) for name, queues, perm in rows]


def new_topic(
    name: str, queues: int, perm: int = PERM_READ_WRITE, *, sys_flag: int = 0
) -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        read_queue_count=queues,
        write_queue_count=queues,
        perm=perm,
        topic_sys_flag=sys_flag,
    )


def has_batch_queues(config: TopicConfig) -> bool:
    """Return whether the topic keeps a batch as one record.

    Source: common/utils/QueueTypeUtils.java#isBatchCq.
    """
    return config.attributes.get("queue.type") == "BatchCQ"


def is_compacted(config: TopicConfig) -> bool:
    """Return whether a topic keeps the newest value of each key only."""
    policy = config.attributes.get("cleanup.policy")
    return policy == "COMPACTION" and not has_batch_queues(config)


def compaction_topics(configs: Iterable[TopicConfig]) -> dict[str, int]:
    """Return the compaction topics with the number of their queues."""
    return {
        config.topic_name: max(config.read_queue_count, config.write_queue_count)
        for config in configs
        if config.attributes and is_compacted(config)
    }


def saved_topics(directory: Path) -> list[TopicConfig]:
    """Return the topics of the file. Raises: DamagedTable.

    The store asks for some of them when it opens its queues, before the table is loaded.
    """
    loaded = load_table(directory / "topics.json", TopicTable.decode) or TopicTable()
    return list(loaded.topic_config_table.values())


def batch_topics(configs: Iterable[TopicConfig]) -> set[str]:
    """Return the topics with batch consume queues."""
    return {config.topic_name for config in configs if has_batch_queues(config)}


@attrs.define(eq=False)
class Topics(PersistedTable):
    """The table of topics.

    ``version`` is what other nodes compare; ``generation`` grows with every change, for caches in
    this process. ``on_change`` is called with the names of changed topics, so that name servers
    hear of them at once.
    """

    settings: TopicSettings
    live: LiveSettings
    version: Version
    configs: dict[str, TopicConfig] = attrs.field(factory=dict)
    limits: Limits = attrs.field(factory=broker_limits)
    on_change: Callable[[list[str]], None] = lambda topics: None
    generation: int = attrs.field(default=0, init=False)
    complete_to: int = attrs.field(default=0, init=False)
    """On a slave, the end of its log when the table was copied. A topic of an earlier message that
    the table lacks is deleted; a later message may be of a new topic.
    """

    def find(self, name: str) -> TopicConfig | None:
        """Return the topic. A light queue is a topic with one queue that is not in the table.

        Source: broker/topic/LmqTopicConfigManager.java.
        """
        config = self.configs.get(name)
        if config is None and self.settings.light_queues and name.startswith(names.LMQ_PREFIX):
            return new_topic(name, 1)
        return config

    def has_batch_queues(self, name: str) -> bool:
        """Return whether a topic keeps a batch as one record."""
        config = self.configs.get(name)
        return config is not None and has_batch_queues(config)

    def compacted(self) -> dict[str, int]:
        """Return the compaction topics with the number of their queues."""
        return compaction_topics(self.configs.values())

    def is_system_topic(self, name: str) -> bool:
        """Return whether a name is reserved.

        Such names are well known, made by this broker at its start, or have the system's prefix.
        """
        return (
            name in names.WELL_KNOWN_SYSTEM_TOPICS
            or name.startswith(names.SYSTEM_TOPIC_PREFIX)
            or name in (self.settings.cluster_name, self.settings.broker_name)
            or name == f"{self.settings.cluster_name}_REPLY_TOPIC"
        )

    def system_topic_names(self) -> list[str]:
        return sorted(
            {name for name in self.configs if self.is_system_topic(name)}
            | names.WELL_KNOWN_SYSTEM_TOPICS
        )

    def altered_attributes(self, name: str, changes: Mapping[str, str]) -> dict[str, str]:
        """Return a topic's attributes after the changes. Raises: ValueError, for illegal ones."""
        known = self.configs.get(name)
        return alter_attributes(
            TOPIC_ATTRIBUTES,
            known.attributes if known is not None else {},
            changes,
            create=known is None,
        )

    def put(self, config: TopicConfig, attribute_changes: Mapping[str, str] | None = None) -> bool:
        """Create or replace a topic; return False if nothing changes.

        Raises: ValueError, for illegal attributes; LimitReached.
        """
        known = self.configs.get(config.topic_name)
        if known is None:
            self._require_room(config.topic_name)
        attributes = self.altered_attributes(config.topic_name, attribute_changes or {})
        config = attrs.evolve(config, attributes=attributes)
        if config == known:
            return False
        self._store(config)
        return True

    def create_on_send(
        self, name: str, default_topic: str, wanted_queues: int, *, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create a topic like the one that the sender names as template.

        Returns: the topic; None if the template may not be inherited. Raises: LimitReached.
        Checkpoint: never.
        """
        template = self.configs.get(default_topic)
        if template is None or not template.perm & PERM_INHERIT:
            return None
        if default_topic == names.DEFAULT_TOPIC and not self.live.auto_create_topics:
            return None
        self._require_room(name)
        queues = max(0, min(wanted_queues, template.write_queue_count))
        config = new_topic(name, queues, template.perm & ~PERM_INHERIT, sys_flag=sys_flag)
        self._store(attrs.evolve(config, topic_filter_type=template.topic_filter_type))
        return self.configs[name]

    def ensure(
        self, name: str, queues: int, *, order: bool = False, sys_flag: int = 0
    ) -> TopicConfig:
        """Return the topic; create it with read and write permission if it is missing.

        For retry and dead-letter topics: the limit of groups bounds their number, and a failed
        message must have a place to go.
        """
        config = self.configs.get(name)
        if config is None:
            config = attrs.evolve(
                new_topic(name, min(queues, QUEUES_MAX), sys_flag=sys_flag), order=order
            )
            self._store(config)
        return config

    def delete(self, name: str) -> bool:
        if self.configs.pop(name, None) is None:
            return False
        self._changed([])
        return True

    def replace(self, table: TopicTable) -> list[str]:
        """Become a copy of the master's table, with its version.

        Returns: the names of topics that are gone.
        Checkpoint: never.
        """
        before, self.configs = self.configs, bounded(table.topic_config_table)
        self.version.load(table.data_version)
        self.generation += 1
        self.touch()
        changed = [name for name, config in self.configs.items() if before.get(name) != config]
        if changed:
            self.on_change(changed)
        return [name for name in before if name not in self.configs]

    def mark_ordered(self, ordered: set[str]) -> None:
        """Set the order flag of topics that name servers call ordered; nothing clears it."""
        changed = [
            name
            for name in ordered
            if (config := self.configs.get(name)) is not None and not config.order
        ]
        for name in changed:
            self.configs[name] = attrs.evolve(self.configs[name], order=True)
        if changed:
            self._changed(changed)

    def touch_version(self) -> None:
        """Register every topic again: the broker's permission, which goes with each, changed."""
        self._changed(list(self.configs))

    def _require_room(self, name: str) -> None:
        self.limits.require("topics_max", len(self.configs) + 1, f"topic {name} is not created")

    def _store(self, config: TopicConfig) -> None:
        self.configs[config.topic_name] = config
        self._changed([config.topic_name])

    def _changed(self, topics: list[str]) -> None:
        self.generation += 1
        self.version.bump()
        self.touch()
        if topics:
            self.on_change(topics)

    def encode(self) -> bytes:
        return b"".join(self.steps())

    def steps(self) -> Iterator[bytes]:
        version = write_plain(self.version.current)
        return pretty_steps({"dataVersion": version, "topicConfigTable": self._rows})

    def _rows(self) -> Iterator[tuple[str, object]]:
        for name in sorted(self.configs):
            config = self.configs.get(name)
            if config is not None:  # it may have been deleted since
                yield name, write_plain(config)


def bounded(configs: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Return the topics of a file or a master with their numbers of queues cut to the limit.

    The log says which were cut.
    """
    found = dict(configs)
    for name, config in configs.items():
        count = max(config.read_queue_count, config.write_queue_count)
        if count > QUEUES_MAX:
            logger.error(
                "topic %s has %d queues, more than the limit; this broker gives it %d; set a number"
                " with mqadmin topic update",
                name,
                count,
                QUEUES_MAX,
            )
            found[name] = attrs.evolve(
                config,
                read_queue_count=min(config.read_queue_count, QUEUES_MAX),
                write_queue_count=min(config.write_queue_count, QUEUES_MAX),
            )
    return found


def open_topics(
    directory: Path,
    settings: TopicSettings,
    live: LiveSettings,
    version: Version,
    limits: Limits | None = None,
    on_change: Callable[[list[str]], None] = lambda topics: None,
) -> Topics:
    """Load topics.json and add the system topics. Raises: DamagedTable."""
    path = directory / "topics.json"
    loaded = load_table(path, TopicTable.decode) or TopicTable()
    configs = bounded(loaded.topic_config_table)
    version.load(loaded.data_version)
    missing = {
        config.topic_name: config
        for config in system_topics(settings, live)
        if config.topic_name not in configs
    }
    topics = Topics(
        path, settings, live, version, configs | missing, limits or broker_limits(), on_change
    )
    if missing:
        topics._changed([])
    return topics
