"""The broker's configuration over the wire: UPDATE_BROKER_CONFIG (25) and GET_BROKER_CONFIG (26).

Only what ``LiveSettings`` holds can change while the broker runs; any other key is refused with the reason, and nothing of the request is
applied.  Changes are saved in a file of the broker's own before they are applied, so that they hold over a restart; the operator's file is
left alone.
Source: broker/processor/AdminBrokerProcessor.java#updateBrokerConfig, #getBrokerConfig.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs

from triomq.broker.config import BrokerConfig
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.topics import Topics
from triomq.remoting.errors import Rejected
from triomq.remoting.java_keys import KeyTable
from triomq.remoting.properties import format_properties, parse_entries
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import BrokerConfigResponseHeader
from triomq.remoting.saved_settings import SavedSettings
from triomq.remoting.server.handlers import Request, Response
from triomq.remoting.settings import ConfigError, Source, load, render

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
    "startAcceptSendRequestTimeStamp": "accept_sends_from_ms",
    "disableConsumeIfConsumerReadSlowly": "disable_slow_consumers",
    "consumerFallbehindThreshold": "slow_consumer_bytes",
}
KEYS_OF_FIELDS = {field: key for key, field in LIVE_KEYS.items()}


@attrs.define(eq=False)
class BrokerConfigRequests:
    """The two handlers."""

    config: BrokerConfig
    keys: KeyTable
    live: LiveSettings
    topics: Topics
    saved: SavedSettings

    def get(self, request: Request) -> Response:
        """All settings as they are in effect now, in the form of a properties file."""
        config = attrs.evolve(self.config, **{name: getattr(self.live, name) for name in LIVE_KEYS.values()})
        version = self.topics.version.current.encode().decode()
        return Response(header=BrokerConfigResponseHeader(version), body=format_properties(render(config)).encode())

    async def update(self, request: Request) -> Response:
        """Check everything, save it, apply it; or refuse it as a whole."""
        changes = self._checked(request.body)
        texts = {KEYS_OF_FIELDS[name]: str(value).lower() if isinstance(value, bool) else str(value) for name, value in changes.items()}
        try:
            await self.saved.save(texts)
        except OSError as error:
            remark = f"cannot save the change in {self.saved.path}: {error.strerror or error}; nothing was changed"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark) from None
        permission_before = self.live.broker_permission
        for name, value in changes.items():
            logger.info("%s set to %s by %s", KEYS_OF_FIELDS[name], value, request.connection.peer_text)
            setattr(self.live, name, value)
        if self.live.broker_permission != permission_before:
            self.topics.touch_version()
        self.topics.generation += 1  # whoever keeps what a topic allows must look again
        return Response()

    def _checked(self, body: bytes) -> dict[str, Any]:
        """Field name -> value of every entry; Rejected if one of them cannot be applied."""
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
        fixed = sorted({entry.key for entry in entries} - LIVE_KEYS.keys())
        if fixed:
            remark = f"{', '.join(fixed)}: takes effect at a start only; write it into the broker's file and start it again"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        return {name: getattr(loaded.config, name) for key, name in LIVE_KEYS.items() if key in loaded.origins}
