"""Make a checked BrokerConfig from the command line of ``mqbroker`` and the other sources.

Sources in Java's order, later ones win: environment (``NAMESRV_ADDR``, only the default of
``namesrvAddr``), files, settings that were changed at run time, options (``-n``).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from triomq.broker.config import BrokerConfig, BrokerRole, check_controller_mode, check_role
from triomq.broker.java_keys import BROKER_KEYS
from triomq.remoting.access.access_settings import (
    check_access,
    check_admin_addresses,
    check_plain_acl,
)
from triomq.remoting.core.command_line import defined_entries, file_source
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.saved_settings import load_with_saved
from triomq.remoting.core.settings import ConfigError, Loaded, Source
from triomq.remoting.tls.security_settings import ClientAuth, ProxyMode


def read_options(
    parsed: argparse.Namespace, environment: Mapping[str, str]
) -> Loaded[BrokerConfig]:
    """Load what the options of ``broker_parser()`` and the environment say. Raises: ConfigError."""
    return load_broker_config(
        parsed.config,
        environment=environment,
        definitions=defined_entries(parsed.define),
        options=[
            *([Entry("namesrvAddr", parsed.namesrvAddr)] if parsed.namesrvAddr is not None else []),
            *([Entry("startBesideMaster", "true")] if parsed.force else []),
        ],
    )


def load_broker_config(
    files: Path | Sequence[Path] | None,
    *,
    environment: Mapping[str, str],
    definitions: Sequence[Entry] = (),
    options: Sequence[Entry] = (),
) -> Loaded[BrokerConfig]:
    """Return a BrokerConfig, with the checks that concern several settings. Raises: ConfigError."""
    sources = []
    if environment.get("NAMESRV_ADDR", "").strip():
        sources.append(
            Source("environment NAMESRV_ADDR", (Entry("namesrvAddr", environment["NAMESRV_ADDR"]),))
        )
    named = [files] if isinstance(files, Path) else files or ()
    sources += [file_source(file) for file in named]
    given = [Source("option -D", tuple(definitions)), Source("option", tuple(options))]
    loaded = load_with_saved(BrokerConfig, sources, given, BROKER_KEYS)
    config = loaded.config
    check_role(config, loaded.origins)
    check_controller_mode(config, loaded.origins)
    claimed = config.security.proxy_protocol is ProxyMode.OPTIONAL
    check_admin_addresses(config.access, loaded.origins, claimed=claimed)
    check_access(config.access, loaded.origins, slave=config.broker_role is BrokerRole.SLAVE)
    slave = config.broker_role is BrokerRole.SLAVE
    check_plain_acl(config.plain_acl, config.access, loaded.origins, slave=slave)
    _check_certificate_users(config, loaded.origins)
    _check_ha_login(config, loaded.origins)
    if config.replication.controller.enabled and "minInSyncReplicas" not in loaded.origins:
        return attrs.evolve(loaded, config=with_default_minimum(config))
    return loaded


def _check_certificate_users(config: BrokerConfig, origins: Mapping[str, str]) -> None:
    """Refuse certificates as users where none is verified. Raises: ConfigError."""
    settings, tls = config.access, config.security
    asked = tls.client_auth is not ClientAuth.NONE and tls.verify_clients
    if settings.certificate_users and not (settings.authentication and asked):
        raise ConfigError(
            origins.get("tlsSubjectIsUser", ""),
            "tlsSubjectIsUser=true, and no certificate of a client is verified for a user",
            "write authenticationEnabled=true, tls.server.need.client.auth=optional,"
            " tls.server.authClient=true, and tls.server.trustCertPath: your own authority, since"
            " all of its certificates count",
        )


def _check_ha_login(config: BrokerConfig, origins: Mapping[str, str]) -> None:
    """Refuse a login of slaves without what it needs. Raises: ConfigError."""
    if config.replication.authentication and config.access.inner is None:
        raise ConfigError(
            origins.get("haAuthentication", ""),
            "haAuthentication=true without innerClientAuthenticationCredentials: the slaves have no"
            " secret to log in with",
            "write the same innerClientAuthenticationCredentials into the file of each broker of"
            ' this brokerName: {"accessKey":"NAME","secretKey":"SECRET"}',
        )
    if config.replication.certificate_names and not config.replication.tls:
        raise ConfigError(
            origins.get("haCertificateNames", ""),
            "haCertificateNames without haTls=true: the HA port sees no certificate",
            "write haTls=true into the file of each broker of this brokerName",
        )


def with_default_minimum(config: BrokerConfig) -> BrokerConfig:
    """Return settings of controller mode with as many copies as the group has brokers, at most 2.

    The default of ``minInSyncReplicas`` is 1, that of classic mode.
    """
    rules = attrs.evolve(config.replication.replicas, min_in_sync_replicas=0)
    return attrs.evolve(config, replication=attrs.evolve(config.replication, replicas=rules))
