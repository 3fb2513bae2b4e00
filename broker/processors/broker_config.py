"""The broker's configuration over the wire: UPDATE_BROKER_CONFIG (25) and GET_BROKER_CONFIG (26).

Only what ``LiveSettings`` holds, and when the store deletes and flushes, can change while the broker runs; any other key is refused with the
reason, and nothing of the request is applied.  Changes are saved in a file of the broker's own before they are applied, so that they hold over a restart; the operator's file is
left alone.
Source: broker/processor/AdminBrokerProcessor.java#updateBrokerConfig, #getBrokerConfig.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import attrs

from triomq.broker.config import BrokerConfig, RetentionSettings
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected
from triomq.remoting.java_keys import KeyTable
from triomq.remoting.limits import SETTINGS_BYTES_MAX, require_size
from triomq.remoting.properties import format_properties, parse_entries
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import BrokerConfigResponseHeader
from triomq.remoting.saved_settings import SavedSettings
from triomq.remoting.server.handlers import Request, Response
from triomq.remoting.settings import ConfigError, Source, load, render, settings_of

logger = logging.getLogger(__name__)

ALWAYS_PROTECTED = frozenset({"configBlackList", "brokerConfigPath"})
# Java's name -> the field of BrokerConfig and of LiveSettings, which bear the same name.
LIVE_KEYS: Mapping[str, str] = {
    "autoCreateTopicEnable": "auto_create_topics",
    "autoCreateSubscriptionGroup": "auto_create_groups",
    "brokerPermission": "broker_permission",
    "longPollingEnable": "long_polling",
    "shortPollingTimeMills": "short_polling_ms",
    "notifyConsumerIdsChangedEnable": "notify_consumer_changes",
    "useServerSideResetOffset": "server_side_reset",
    "enableMixedMessageType": "mixed_message_type",
    "enforceMessageType": "enforce_message_type",
    "rejectPullConsumerEnable": "reject_pull_consumers",
    "litePullMessageEnable": "lite_pulls",
    "enablePropertyFilter": "property_filter",
    "startAcceptSendRequestTimeStamp": "accept_sends_from_ms",
    "disableConsumeIfConsumerReadSlowly": "disable_slow_consumers",
    "consumerFallbehindThreshold": "slow_consumer_bytes",
}
# What the store takes over while it runs.  When a message counts as stored (flushDiskType) is not among them, as in Java.
STORE_KEYS = frozenset(
    {
        *(described.java for _, _, described in settings_of(RetentionSettings)),
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "flushConsumeQueueThoroughInterval",
        "syncFlushTimeout",
    }
)
PATHS = {described.java: path for path, _, described in settings_of(BrokerConfig)}


def with_value(config: Any, path: Sequence[str], value: Any) -> Any:
    """A copy of a configuration, or of a group of it, with another value at a path of field names."""
    name, *rest = path
    return attrs.evolve(config, **{name: with_value(getattr(config, name), rest, value) if rest else value})


@attrs.define(eq=False)
class BrokerConfigRequests:
    """The two handlers."""

    config: BrokerConfig
    keys: KeyTable
    live: LiveSettings
    topics: Topics
    saved: SavedSettings
    store: MessageStore

    def get(self, request: Request) -> Response:
        """All settings as they are in effect now, in the form of a properties file."""
        config = attrs.evolve(self.config, **{name: getattr(self.live, name) for name in LIVE_KEYS.values()})
        version = self.topics.version.current.encode().decode()
        return Response(header=BrokerConfigResponseHeader(version), body=format_properties(render(config)).encode())

    async def update(self, request: Request) -> Response:
        """Check everything, save it, apply it; or refuse it as a whole."""
        changes = self._checked(request.body)
        texts = render(self._changed(changes))
        try:
            await self.saved.save({key: texts[key] for key in changes})
        except OSError as error:
            remark = f"cannot save the change in {self.saved.path}: {error.strerror or error}; nothing was changed"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark) from None
        permission_before = self.live.broker_permission
        self.config = self._changed(changes)  # another request may have changed it since it was saved
        for key, value in changes.items():
            logger.info("%s set to %s by %s", key, texts[key], request.connection.peer_text)
            if key in LIVE_KEYS:
                setattr(self.live, LIVE_KEYS[key], value)
        if not STORE_KEYS.isdisjoint(changes):
            store = self.config.store
            self.store.reconfigure(
                retention=store.retention.rules(),
                flush_interval_ms=store.flush_interval_ms,
                index_write_interval_ms=store.index_write_interval_ms,
                checkpoint_interval_ms=store.checkpoint_interval_ms,
                sync_flush_timeout_ms=store.sync_flush_timeout_ms,
            )
        if self.live.broker_permission != permission_before:
            self.topics.touch_version()
        self.topics.generation += 1  # whoever keeps what a topic allows must look again
        return Response()

    def _changed(self, changes: Mapping[str, Any]) -> BrokerConfig:
        """The configuration with the changes."""
        config = self.config
        for key, value in changes.items():
            config = with_value(config, PATHS[key], value)
        return config

    def _checked(self, body: bytes) -> dict[str, Any]:
        """Java's name -> value of every entry; Rejected if one of them cannot be applied."""
        require_size(body, SETTINGS_BYTES_MAX)
        try:
            entries = tuple(parse_entries(body.decode()))
        except ValueError:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        protected = ALWAYS_PROTECTED | set(self.config.protected_keys.split(";"))
        if any(entry.key in protected for entry in entries):
            raise Rejected(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        try:
            loaded = load(BrokerConfig, [Source("", entries)], self.keys)
        except ConfigError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if loaded.warnings:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "; ".join(loaded.warnings))
        fixed = sorted({entry.key for entry in entries} - LIVE_KEYS.keys() - STORE_KEYS)
        if fixed:
            remark = f"{', '.join(fixed)}: takes effect at a start only; write it into the broker's file and start it again"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        return {key: attrgetter(".".join(PATHS[key]))(loaded.config) for key in loaded.origins}
