"""Who may change what a name server knows: brokers and administrators, if the settings want that.

Reading stays open, since clients of RocketMQ sign no request to a name server that they need not.
A name server keeps no users: it knows the two of its settings.
"""

from __future__ import annotations

from triomq.remoting.access.access_settings import WriterSettings
from triomq.remoting.access.control import AccessControl
from triomq.remoting.access.needs import nothing
from triomq.remoting.access.users import AccessUser, UserTable
from triomq.remoting.audit.decision_log import DecisionLog
from triomq.remoting.audit.decision_notes import DecisionNotes
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.server.access_check import AccessCheck

READS = frozenset(
    {
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.QUERY_DATA_VERSION,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.GET_KV_CONFIG,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_NAMESRV_CONFIG,
        Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_REPLICA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA,
        Code.GET_CONTROLLER_CONFIG,
    }
)
WRITES = frozenset(
    {
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.BROKER_HEARTBEAT,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.PUT_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        Code.CONTROLLER_ELECT_MASTER,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_GET_NEXT_BROKER_ID,
        Code.CONTROLLER_APPLY_BROKER_ID,
        Code.CLEAN_BROKER_DATA,
        Code.UPDATE_CONTROLLER_CONFIG,
        Code.CHANGE_CONTROLLERS,
        Code.RAFT_MESSAGE,
    }
)


def writer_check(settings: WriterSettings, audit: DecisionLog | None = None) -> AccessCheck | None:
    """Return the request hook, None where everybody may change everything unseen.

    Raises: ConfigError.
    """
    if settings.authentication:
        control = _control(settings)
    elif audit is not None or settings.admin_networks:
        control = AccessControl.without_users("", settings.admin_networks)
    else:
        return None
    return AccessCheck(
        DecisionNotes(control, audit),
        header_needs=dict.fromkeys(READS | WRITES, nothing),
        body_needs={},
    )


def _control(settings: WriterSettings) -> AccessControl:
    if settings.inner is None:
        raise ConfigError(
            "",
            "authenticationEnabled=true without innerClientAuthenticationCredentials: no broker"
            " could register",
            "write the same innerClientAuthenticationCredentials as in the files of the brokers",
        )
    table = UserTable()
    for user in (settings.initial_user, settings.inner):
        if user is not None:
            table.put(AccessUser(user.access_key, user.secret_key, is_super=True))
    return AccessControl(
        table, "", unauthenticated_codes=READS, admin_networks=settings.admin_networks
    )
