"""Requests that read and change the settings of a name server.

Source: namesrv/…/processor/DefaultRequestProcessor.java.
"""

from __future__ import annotations

import logging
from itertools import starmap

import attrs

from triomq.namesrv.config import NAMESRV_KEYS, PROTECTED_KEYS, NamesrvConfig, RunningConfig
from triomq.namesrv.routes import RouteRules, RouteTable
from triomq.remoting.core.errors import Rejected
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.properties_file import (
    Entry,
    PropertiesError,
    format_properties,
    parse_entries,
)
from triomq.remoting.core.saved_settings import SavedSettings
from triomq.remoting.core.settings import ConfigError, Source, load, render
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.limits import SETTINGS_BYTES_MAX, require_size
from triomq.remoting.server.requests import Request, Response

_log = logging.getLogger(__name__)

LIVE_KEYS = frozenset(
    {
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableElectUncleanMaster",
        "enableTopicList",
        "needWaitForService",
        "notifyBrokerRoleChanged",
        "orderMessageEnable",
        "refuseForeignBrokers",
        "returnOrderTopicConfigToBroker",
        "supportActingMaster",
        "waitSecondsForService",
    }
)
"""settings that a request may change while the name server runs"""


@attrs.frozen
class ConfigRequests:
    """The handlers of requests about settings."""

    config: RunningConfig
    routes: RouteTable
    saved: SavedSettings

    def get_config(self, request: Request) -> Response:
        """Return the effective configuration as properties: GET_NAMESRV_CONFIG (319)."""
        return Response(body=format_properties(render(self.config.current)).encode())

    async def update_config(self, request: Request) -> Response:
        """Change all given settings or none, now and for later starts: UPDATE_NAMESRV_CONFIG (318).

        Raises: Rejected.
        Checkpoint: always.
        """
        require_size(request.body, SETTINGS_BYTES_MAX)
        try:
            entries = parse_entries(request.body.decode())
        except (UnicodeDecodeError, PropertiesError):
            raise Rejected(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        changed = {entry.key for entry in entries}
        if changed & (PROTECTED_KEYS | set(self.config.current.protected_keys.split(";"))):
            raise Rejected(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        fixed = sorted(changed - LIVE_KEYS)
        if fixed:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"{', '.join(fixed)}: takes effect at a start only; write it into the name server's"
                " file",
            )
        wanted = Source("", tuple(entries))
        texts = render(self._changed_by(wanted))
        try:
            await self.saved.save({key: texts[key] for key in changed})
        except OSError as error:
            remark = (
                f"cannot save the change in {self.saved.path}: {explained(error)}; nothing was"
                " changed"
            )
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark) from None
        # Again: other requests may have changed the configuration during the save.
        self.config.current = self._changed_by(wanted)
        self.routes.set_rules(route_rules(self.config.current))
        _log.info(
            "%s changed: %s",
            request.connection.peer_text,
            ", ".join(f"{e.key}={e.value}" for e in entries),
        )
        return Response()

    def _changed_by(self, wanted: Source) -> NamesrvConfig:
        """Return the configuration with some other values.

        Raises: Rejected if a value is not allowed.
        """
        current = Source(
            "now", tuple(starmap(Entry, render(self.config.current, secrets=True).items()))
        )
        try:
            return load(NamesrvConfig, [current, wanted], NAMESRV_KEYS).config
        except ConfigError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from None


def route_rules(config: NamesrvConfig) -> RouteRules:
    """Return the settings that the route table follows."""
    return RouteRules(
        delete_missing_topics=config.delete_missing_topics, acting_master=config.acting_master
    )
