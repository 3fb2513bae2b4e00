"""Settings that an admin may change while the broker runs (UPDATE_BROKER_CONFIG); everything else is fixed at the start."""

from __future__ import annotations

import attrs


@attrs.define(eq=False, kw_only=True)
class LiveSettings:
    """One object, shared by whoever reads one of these; changed only by the admin handler."""

    auto_create_topics: bool = True
    auto_create_groups: bool = True
    broker_permission: int = 6
    long_polling: bool = True
    short_polling_ms: int = 1000
    notify_consumer_changes: bool = True
    server_side_reset: bool = True
    mixed_message_type: bool = False
    enforce_message_type: bool = False
    reject_pull_consumers: bool = False
    lite_pulls: bool = True
    property_filter: bool = False
    accept_sends_from_ms: int = 0
    disable_slow_consumers: bool = False
    slow_consumer_bytes: int = 16 * 1024 * 1024 * 1024

    @property
    def readable(self) -> bool:
        return bool(self.broker_permission & 4)

    @property
    def writable(self) -> bool:
        return bool(self.broker_permission & 2)
