"""Which request code has which handler."""

from __future__ import annotations

from triomq.namesrv.config_requests import ConfigRequests
from triomq.namesrv.kv_requests import KvRequests
from triomq.namesrv.registration_requests import RegistrationRequests
from triomq.namesrv.route_requests import RouteRequests
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.registration import (
    BrokerHeader,
    BrokerHeartbeatHeader,
    BrokerMembersHeader,
    BrokerNameHeader,
    ClusterHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
    RegisterBrokerHeader,
)
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader, TopicHeader
from triomq.remoting.server.handlers import Handler, HandlerTable


def handler_table(
    brokers: RegistrationRequests, routes: RouteRequests, kv: KvRequests, config: ConfigRequests
) -> HandlerTable:
    """Return the handler of every request code of the name server."""
    code = RequestCode
    return HandlerTable(
        [
            Handler(code.GET_ROUTEINFO_BY_TOPIC, routes.route, "route", GetRouteHeader),
            Handler(code.REGISTER_BROKER, brokers.register_broker, header=RegisterBrokerHeader),
            Handler(code.UNREGISTER_BROKER, brokers.unregister_broker, header=BrokerHeader),
            Handler(code.BROKER_HEARTBEAT, brokers.heartbeat, header=BrokerHeartbeatHeader),
            Handler(code.QUERY_DATA_VERSION, brokers.query_data_version, header=BrokerHeader),
            Handler(code.GET_BROKER_MEMBER_GROUP, brokers.members, header=BrokerMembersHeader),
            Handler(code.GET_BROKER_CLUSTER_INFO, routes.cluster_table),
            Handler(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, routes.all_topics),
            Handler(code.GET_TOPICS_BY_CLUSTER, routes.cluster_topics, header=ClusterHeader),
            Handler(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, routes.system_topics),
            Handler(code.GET_UNIT_TOPIC_LIST, routes.unit_topics),
            Handler(code.GET_HAS_UNIT_SUB_TOPIC_LIST, routes.unit_topics),
            Handler(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, routes.unit_topics),
            Handler(code.REGISTER_TOPIC_IN_NAMESRV, routes.register_topic, header=TopicHeader),
            Handler(code.DELETE_TOPIC_IN_NAMESRV, routes.delete_topic, header=DeleteTopicHeader),
            Handler(
                code.WIPE_WRITE_PERM_OF_BROKER,
                routes.wipe_write_permission,
                header=BrokerNameHeader,
            ),
            Handler(
                code.ADD_WRITE_PERM_OF_BROKER, routes.add_write_permission, header=BrokerNameHeader
            ),
            Handler(code.PUT_KV_CONFIG, kv.put_kv, header=PutKvConfigHeader),
            Handler(code.GET_KV_CONFIG, kv.get_kv, header=KvConfigHeader),
            Handler(code.DELETE_KV_CONFIG, kv.delete_kv, header=KvConfigHeader),
            Handler(code.GET_KVLIST_BY_NAMESPACE, kv.kv_namespace, header=KvNamespaceHeader),
            Handler(code.UPDATE_NAMESRV_CONFIG, config.update_config),
            Handler(code.GET_NAMESRV_CONFIG, config.get_config),
        ]
    )
