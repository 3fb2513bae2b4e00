"""RequestModes: whether a group reads a topic by pulls or by pops, as an admin has set it.

The file ``messageRequestMode.json`` is Java's. Source: broker/loadbalance/
MessageRequestModeManager.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from triomq.broker.services.persisted import PersistedTable, load_table
from triomq.remoting.protocol.bodies.assignment import MessageRequestMode, MessageRequestModeTable

PULL, POP = "PULL", "POP"


@attrs.define(eq=False)
class RequestModes(PersistedTable):
    """(topic, group) -> mode."""

    default_mode: str
    default_share: int
    modes: dict[str, dict[str, MessageRequestMode]] = attrs.field(factory=dict)

    def find(self, topic: str, group: str) -> MessageRequestMode:
        """Return how a group reads a topic: its own mode, or else the default."""
        found = self.modes.get(topic, {}).get(group)
        if found is not None:
            return found
        return MessageRequestMode(
            topic=topic,
            consumer_group=group,
            mode=self.default_mode,
            pop_share_queue_count=self.default_share,
        )

    def put(self, mode: MessageRequestMode) -> None:
        """Set how a group reads a topic."""
        self.modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.touch()

    def replace(self, modes: Mapping[str, Mapping[str, MessageRequestMode]]) -> None:
        """Become a copy of a master's table."""
        before = self.encode()
        self.modes = {topic: dict(groups) for topic, groups in modes.items()}
        if self.encode() != before:
            self.touch()

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Forget the modes of a topic, or of a group, that is deleted."""
        changed = topic is not None and self.modes.pop(topic, None) is not None
        if group is not None:
            for groups in self.modes.values():
                changed = groups.pop(group, None) is not None or changed
        if changed:
            self.touch()

    def encode(self) -> bytes:
        return MessageRequestModeTable(self.modes).encode()


def open_request_modes(directory: Path, default_mode: str, default_share: int) -> RequestModes:
    """Load the table. Raises: DamagedTable."""
    path = directory / "messageRequestMode.json"
    loaded = load_table(path, MessageRequestModeTable.decode) or MessageRequestModeTable()
    modes = {topic: dict(groups) for topic, groups in loaded.message_request_mode_map.items()}
    return RequestModes(path, default_mode, default_share, modes)
