"""Settings of consumer groups, created by an admin or by the first member that connects; kept in subscriptionGroup.json.

Source: broker/subscription/SubscriptionGroupManager.java, remoting/protocol/subscription/SubscriptionGroupConfig.java.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from triomq.broker.services.attributes import GROUP_ATTRIBUTES, alter_attributes
from triomq.broker.services.limits import broker_limits
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.persisted import PersistedTable, encode_pretty, load_table
from triomq.broker.services.versions import Version
from triomq.remoting.limits import Limits
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.schema import write_plain

READ_FORBIDDEN = 1 << 2
"""Bit 2 of a forbidden entry.  Source: common/constant/PermName.java#INDEX_PERM_READ."""


@attrs.define(eq=False)
class SubscriptionGroups:
    """The table.  ``forbidden`` (group -> topic -> bits) says which topics a group may not read."""

    table: PersistedTable
    version: Version
    live: LiveSettings
    configs: dict[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    forbidden: dict[str, dict[str, int]] = attrs.field(factory=dict)
    limits: Limits = attrs.field(factory=broker_limits)
    light_groups: bool = False
    """Whether groups whose names begin with %LMQ% exist without being in the table."""

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings as they are stored."""
        return self.configs.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings, made with the defaults if the broker may; None if it may not or the name is illegal.  Raises LimitReached."""
        config = self.configs.get(group)
        if config is not None:
            return config
        if self.light_groups and group.startswith(names.LMQ_PREFIX):
            return SubscriptionGroupConfig(group_name=group)  # there may be as many as light queues: Source: broker/subscription/LmqSubscriptionGroupManager.java
        if not (self.live.auto_create_groups or names.is_system_group(group)) or names.group_complaint(group) is not None:
            return None
        config = SubscriptionGroupConfig(group_name=group)
        self._require_room(group)
        self._store(config)
        return config

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace.  Attribute keys of ``config`` carry the sign of the change.  Raises ValueError for illegal ones, LimitReached."""
        known = self.configs.get(config.group_name)
        if known is None:
            self._require_room(config.group_name)
        current = known.attributes if known is not None else {}
        attributes = alter_attributes(GROUP_ATTRIBUTES, current, config.attributes, create=known is None)
        config = attrs.evolve(config, attributes=attributes)
        if config != known:
            self._store(config)

    def delete(self, group: str) -> bool:
        if self.configs.pop(group, None) is None:
            return False
        self.forbidden.pop(group, None)
        self._changed()
        return True

    def may_read(self, group: str, topic: str) -> bool:
        """False when an operator has forbidden this group this topic."""
        return not self.forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN

    def allow_reading(self, group: str, topic: str, allowed: bool) -> None:
        """Forbid a group a topic, or allow it again; other topics of the group stay as they are (Java 5.5.0 drops them too)."""
        topics = dict(self.forbidden.get(group, {}))
        bits = topics.get(topic, 0)
        bits = bits & ~READ_FORBIDDEN if allowed else bits | READ_FORBIDDEN
        if bits == topics.get(topic, 0):
            return
        topics[topic] = bits
        if not bits:
            del topics[topic]
        if topics:
            self.forbidden[group] = topics
        else:
            del self.forbidden[group]
        self._changed()

    def disable(self, group: str) -> None:
        """Let nobody of this group consume until an operator allows it again (updateSubGroup -s true)."""
        config = self.configs.get(group)
        if config is not None and config.consume_enable:
            self._store(attrs.evolve(config, consume_enable=False))

    def replace(self, table: SubscriptionGroupTable) -> None:
        """Become a copy of the master's table, its version included."""
        self.configs = dict(table.subscription_group_table)
        self.forbidden = dict(table.forbidden_table)
        self.version.load(table.data_version)
        self.table.touch()

    def wants_notice(self, group: str) -> bool:
        """May the members of this group be told that one came or went?"""
        config = self.configs.get(group)
        return self.live.notify_consumer_changes and (config is None or config.notify_consumer_ids_changed_enable)

    def _require_room(self, group: str) -> None:
        self.limits.require("groups_max", len(self.configs) + 1, f"group {group} is not created")

    def _store(self, config: SubscriptionGroupConfig) -> None:
        self.configs[config.group_name] = config
        self._changed()

    def _changed(self) -> None:
        self.version.bump()
        self.table.touch()

    def encode(self) -> bytes:
        table = SubscriptionGroupTable(dict(sorted(self.configs.items())), self.version.current, self.forbidden)
        return encode_pretty(write_plain(table))


def open_subscription_groups(directory: Path, live: LiveSettings, version: Version, limits: Limits | None = None) -> SubscriptionGroups:
    """Load subscriptionGroup.json and add the system's groups.  Raises DamagedTable."""
    path = directory / "subscriptionGroup.json"
    groups = SubscriptionGroups(PersistedTable(path, bytes), version, live, limits=limits or broker_limits())
    groups.table.encode = groups.encode
    loaded = load_table(path, SubscriptionGroupTable.decode)
    if loaded is not None:
        groups.configs = dict(loaded.subscription_group_table)
        groups.forbidden = dict(loaded.forbidden_table)
        version.load(loaded.data_version)
    missing = [name for name in names.SYSTEM_GROUPS if name not in groups.configs]
    for name in missing:
        groups.configs[name] = SubscriptionGroupConfig(group_name=name)
    if missing:
        groups._changed()
    return groups
