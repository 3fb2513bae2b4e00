"""Change and return the broker's configuration: UPDATE_BROKER_CONFIG (25), GET_BROKER_CONFIG (26).

The settings in ``LiveSettings``, and those for retention and flushing, can change while the broker
runs. If a request names any other key, it is refused with the reason, and nothing is applied.
Changes are saved in a file of the broker's own before they are applied, so they survive a restart;
the operator's file is not changed. Source:
broker/processor/AdminBrokerProcessor.java#updateBrokerConfig, #getBrokerConfig.
"""

from __future__ import annotations

import logging

import attrs

from triomq.broker.config import BrokerConfig
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.topics import Topics
from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.retention import RetentionRules
from triomq.broker.store.store import MessageStore
from triomq.remoting.access.quotas import Quotas
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.java_keys import KeyTable
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.properties_file import Entry, format_properties, parse_entries
from triomq.remoting.core.saved_settings import SavedSettings
from triomq.remoting.core.settings import ConfigError, Source, load, render, settings_of
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.admin import BrokerConfigResponseHeader
from triomq.remoting.protocol.limits import SETTINGS_BYTES_MAX, require_size
from triomq.remoting.server.requests import Request, Response

logger = logging.getLogger(__name__)

ALWAYS_PROTECTED = frozenset({"configBlackList", "brokerConfigPath"})
LIVE_KEYS = frozenset(described.java for _, _, described in settings_of(LiveSettings))
# Settings that the store accepts while it runs; flushDiskType is not among them, as in Java.
STORE_KEYS = frozenset(
    {
        *(described.java for _, _, described in settings_of(RetentionRules)),
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "flushConsumeQueueThoroughInterval",
        "syncFlushTimeout",
    }
)


@attrs.define(eq=False)
class BrokerConfigRequests:
    """The two handlers."""

    config: BrokerConfig
    keys: KeyTable
    live: LiveSettings
    topics: Topics
    saved: SavedSettings
    store: MessageStore
    quotas: Quotas | None

    def changed(self) -> str:
        """Return the names of the settings whose value is not the default, but for the folder of
        the store: its default is in the home directory, and a user of a container may have none.
        """
        here = StoreConfig(root=self.config.store.root)
        now, usual = render(self.config), render(BrokerConfig(store=here))
        return " ".join(sorted(key for key in now if now[key] != usual.get(key)))

    def get(self, request: Request) -> Response:
        """Return all settings that are in effect, in the form of a properties file."""
        version = self.topics.version.current.encode().decode()
        return Response(
            header=BrokerConfigResponseHeader(version),
            body=format_properties(render(self.config)).encode(),
        )

    async def update(self, request: Request) -> Response:
        """Check, save and apply all changes, or refuse the request as a whole. Raises: Rejected."""
        wanted = self._checked(request.body)
        keys = dict.fromkeys(entry.key for entry in wanted.entries)
        texts = render(self._changed(wanted))
        try:
            await self.saved.save({key: texts[key] for key in keys})
        except OSError as error:
            remark = (
                f"cannot save the change in {self.saved.path}: {explained(error)}; nothing was"
                " changed"
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark) from None
        permission_before = self.live.broker_permission
        # Computed again: another request may have changed the configuration during the save.
        self.config = self._changed(wanted)
        for name, value in attrs.asdict(self.config.live, recurse=False).items():
            setattr(self.live, name, value)
        if self.quotas is not None and "quotas" in keys:
            self.quotas.replace(self.live.quotas)
        for key in keys:
            logger.info("%s set to %s by %s", key, texts[key], request.connection.peer_text)
        if not STORE_KEYS.isdisjoint(keys):
            store = self.config.store
            changed = attrs.evolve(
                self.store.config,
                retention=store.retention,
                flush_interval_ms=store.flush_interval_ms,
                index_write_interval_ms=store.index_write_interval_ms,
                checkpoint_interval_ms=store.checkpoint_interval_ms,
                sync_flush_timeout_ms=store.sync_flush_timeout_ms,
            )
            self.store.reconfigure(changed)
        if self.live.broker_permission != permission_before:
            self.topics.touch_version()
        self.topics.generation += 1  # caches of what a topic allows are no longer valid
        return Response()

    def _changed(self, wanted: Source) -> BrokerConfig:
        """Return the configuration with some other values."""
        current = [Entry(key, text) for key, text in render(self.config, secrets=True).items()]
        return load(BrokerConfig, [Source("", tuple(current)), wanted], self.keys).config

    def _checked(self, body: bytes) -> Source:
        """Return the settings of a request. Raises: Rejected, if one of them cannot be applied."""
        require_size(body, SETTINGS_BYTES_MAX)
        try:
            entries = tuple(parse_entries(body.decode()))
        except ValueError:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        protected = ALWAYS_PROTECTED | set(self.config.protected_keys.split(";"))
        if any(entry.key in protected for entry in entries):
            raise Rejected(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        wanted = Source("", entries)
        try:
            loaded = load(BrokerConfig, [wanted], self.keys)
        except ConfigError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if loaded.warnings:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "; ".join(loaded.warnings))
        fixed = sorted({entry.key for entry in entries} - LIVE_KEYS - STORE_KEYS)
        if self.quotas is None and any(entry.key == "quotas" for entry in entries):
            fixed.append("quotas, at a broker that was started without any")
        if fixed:
            remark = (
                f"{', '.join(fixed)}: takes effect at a start only; write it into the broker's file"
                " and start it again"
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        return wanted
