"""The TLS stage of the HA port, of a broker's settings; loaded only with ``haTls``."""

from __future__ import annotations

import attrs

from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.replication.link_tls import MasterTls, SlaveTls
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.server.connection_sniffer import server_context_of
from triomq.remoting.tls.contexts import current_client_context
from triomq.remoting.tls.security_settings import ClientAuth, resolve_replication


@attrs.frozen
class ReplicationTls:
    """Both ends; a broker in controller mode may need either."""

    master: MasterTls | None
    slave: SlaveTls | None


def open_replication_tls(config: BrokerConfig) -> ReplicationTls:
    """Check and load the files that this broker's role needs.

    Raises: ConfigError with cause and fix, OSError when too many files are open.
    """
    either, slave = config.replication.controller.enabled, config.broker_role is BrokerRole.SLAVE
    shown, client = resolve_replication(config.security)
    names = frozenset(config.replication.certificate_names)
    master = None
    if either or not slave:
        if shown is None:
            raise ConfigError(
                "tls",
                "haTls=true without a certificate",
                "set tls.server.certPath and tls.server.keyPath (`mqadmin tls init` makes both)",
            )
        if names and shown.client_ca_file is None:
            raise ConfigError(
                "tls",
                "haCertificateNames without tls.server.trustCertPath would accept certificates of"
                " every authority that this machine trusts",
                "name your own authority there",
            )
        asked = ClientAuth.REQUIRE if names else ClientAuth.NONE
        context = server_context_of(attrs.evolve(shown, client_auth=asked), (config.ha_ip,))
        master = MasterTls(context, names)
    if either or slave:
        current_client_context(client)
    return ReplicationTls(master, SlaveTls(client) if either or slave else None)
