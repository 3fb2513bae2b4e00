"""Settings of consumer groups, kept in subscriptionGroup.json.

An admin creates them, or the first member that connects. Source:
broker/subscription/SubscriptionGroupManager.java,
remoting/protocol/subscription/SubscriptionGroupConfig.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from triomq.broker.services.attributes import GROUP_ATTRIBUTES, alter_attributes
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.persisted import PersistedTable, Version, load_table, pretty_steps
from triomq.broker.services.table_limits import broker_limits
from triomq.remoting.protocol import names
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.schema import write_plain
from triomq.remoting.protocol.limits import Limits

READ_FORBIDDEN = 1 << 2
"""Bit 2 of a forbidden entry. Source: common/constant/PermName.java#INDEX_PERM_READ."""


@attrs.define(eq=False)
class SubscriptionGroups(PersistedTable):
    """The table. ``forbidden`` (group -> topic -> bits): the topics that a group may not read."""

    version: Version
    live: LiveSettings
    configs: dict[str, SubscriptionGroupConfig] = attrs.field(factory=dict)
    forbidden: dict[str, dict[str, int]] = attrs.field(factory=dict)
    limits: Limits = attrs.field(factory=broker_limits)
    light_groups: bool = False
    """Whether groups whose names begin with %LMQ% exist without being in the table."""

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's settings as they are stored."""
        return self.configs.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's settings; create them with the defaults if they are missing.

        None if the broker may not create them, or the name is illegal. Raises: LimitReached.
        """
        config = self.configs.get(group)
        if config is not None:
            return config
        if self.light_groups and group.startswith(names.LMQ_PREFIX):
            # Not stored: there can be as many such groups as light queues.
            # Source: broker/subscription/LmqSubscriptionGroupManager.java.
            return SubscriptionGroupConfig(group_name=group)
        if (
            not (self.live.auto_create_groups or names.is_system_group(group))
            or names.group_complaint(group) is not None
        ):
            return None
        config = SubscriptionGroupConfig(group_name=group)
        self._require_room(group)
        self._store(config)
        return config

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group. Attribute keys of ``config`` carry the sign of the change.

        Raises: ValueError, for illegal attributes; LimitReached.
        """
        known = self.configs.get(config.group_name)
        if known is None:
            self._require_room(config.group_name)
        current = known.attributes if known is not None else {}
        attributes = alter_attributes(
            GROUP_ATTRIBUTES, current, config.attributes, create=known is None
        )
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
        """Return False if an operator has forbidden this group to read this topic."""
        return not self.forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN

    def allow_reading(self, group: str, topic: str, allowed: bool) -> None:
        """Forbid a group to read a topic, or allow it again.

        Other topics of the group stay as they are (Java 5.5.0 drops them too).
        """
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
        """Let no member of this group consume until an operator allows it again.

        The command for that is ``updateSubGroup -s true``.
        """
        config = self.configs.get(group)
        if config is not None and config.consume_enable:
            self._store(attrs.evolve(config, consume_enable=False))

    def replace(self, table: SubscriptionGroupTable) -> None:
        """Become a copy of the master's table, with its version."""
        self.configs = dict(table.subscription_group_table)
        self.forbidden = dict(table.forbidden_table)
        self.version.load(table.data_version)
        self.touch()

    def wants_notice(self, group: str) -> bool:
        """Return whether members of this group are to be told when another member comes or goes."""
        config = self.configs.get(group)
        return self.live.notify_consumer_changes and (
            config is None or config.notify_consumer_ids_changed_enable
        )

    def _require_room(self, group: str) -> None:
        self.limits.require("groups_max", len(self.configs) + 1, f"group {group} is not created")

    def _store(self, config: SubscriptionGroupConfig) -> None:
        self.configs[config.group_name] = config
        self._changed()

    def _changed(self) -> None:
        self.version.bump()
        self.touch()

    def encode(self) -> bytes:
        return b"".join(self.steps())

    def steps(self) -> Iterator[bytes]:
        content: dict[str, object] = {
            "dataVersion": write_plain(self.version.current),
            "forbiddenTable": dict(self.forbidden),
            "subscriptionGroupTable": self._rows,
        }
        return pretty_steps(content)

    def _rows(self) -> Iterator[tuple[str, object]]:
        for name in sorted(self.configs):
            config = self.configs.get(name)
            if config is not None:  # it may have been deleted since
                yield name, write_plain(config)


def open_subscription_groups(
    directory: Path,
    live: LiveSettings,
    version: Version,
    limits: Limits | None = None,
    *,
    light_groups: bool = False,
) -> SubscriptionGroups:
    """Load subscriptionGroup.json and add the system's groups. Raises: DamagedTable."""
    path = directory / "subscriptionGroup.json"
    loaded = load_table(path, SubscriptionGroupTable.decode) or SubscriptionGroupTable()
    configs = dict(loaded.subscription_group_table)
    forbidden = dict(loaded.forbidden_table)
    version.load(loaded.data_version)
    missing = {
        name: SubscriptionGroupConfig(group_name=name)
        for name in names.SYSTEM_GROUPS
        if name not in configs
    }
    groups = SubscriptionGroups(
        path, version, live, configs | missing, forbidden, limits or broker_limits(), light_groups
    )
    if missing:
        groups._changed()
    return groups
