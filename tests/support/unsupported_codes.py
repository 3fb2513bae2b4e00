"""The request codes that the broker's handler table does not have, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping

from triomq.remoting.protocol.codes import RequestCode as Code

UNUSED = "only a constant: no RocketMQ release sends or handles it"
NAME_SERVER = "for name servers"
TO_CLIENTS = "sent by brokers to clients"
CONTROLLER = "for controllers"
CONTAINER = "broker containers are not offered"
REPLICATION = "for controller mode"
READ_MODE = "this broker has no setting for the mapping of segments"
LITE_TOPICS = "lite topics are not offered"
STATIC_TOPICS = "static topics are not offered"
FILTER = "message filter servers were removed from RocketMQ"
ROCKSDB = "this broker does not use RocksDB"
COLD_DATA = "cold-data flow control is not offered"

_BY_REASON: Mapping[str, tuple[Code, ...]] = {
    UNUSED: (
        Code.QUERY_BROKER_OFFSET,
        Code.GET_TOPIC_CONFIG_LIST,
        Code.GET_TOPIC_NAME_LIST,
        Code.TRIGGER_DELETE_FILES,
        Code.GET_CLIENT_CONFIG,
        Code.SUSPEND_CONSUMER,
        Code.RESUME_CONSUMER,
        Code.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        Code.RESET_CONSUMER_OFFSET_IN_BROKER,
        Code.ADJUST_CONSUMER_THREAD_POOL,
        Code.WHO_CONSUME_THE_MESSAGE,
        Code.ACK_LITE_MESSAGE,
    ),
    NAME_SERVER: (
        Code.PUT_KV_CONFIG,
        Code.GET_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.QUERY_DATA_VERSION,
        Code.BROKER_HEARTBEAT,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.GET_BROKER_MEMBER_GROUP,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.GET_NAMESRV_CONFIG,
    ),
    TO_CLIENTS: (
        Code.CHECK_TRANSACTION_STATE,
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
        Code.NOTIFY_UNSUBSCRIBE_LITE,
    ),
    CONTROLLER: (
        Code.CONTROLLER_ALTER_SYNC_STATE_SET,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_GET_REPLICA_INFO,
        Code.CONTROLLER_GET_METADATA_INFO,
        Code.CONTROLLER_GET_SYNC_STATE_DATA,
        Code.UPDATE_CONTROLLER_CONFIG,
        Code.GET_CONTROLLER_CONFIG,
        Code.CLEAN_BROKER_DATA,
        Code.CONTROLLER_GET_NEXT_BROKER_ID,
        Code.CONTROLLER_APPLY_BROKER_ID,
        Code.RAFT_MESSAGE,
        Code.CHANGE_CONTROLLERS,
    ),
    CONTAINER: (Code.ADD_BROKER, Code.REMOVE_BROKER),
    REPLICATION: (Code.RESET_MASTER_FLUSH_OFFSET,),
    READ_MODE: (Code.SET_COMMITLOG_READ_MODE,),
    LITE_TOPICS: (
        Code.POP_LITE_MESSAGE,
        Code.LITE_SUBSCRIPTION_CTL,
        Code.GET_BROKER_LITE_INFO,
        Code.GET_PARENT_TOPIC_INFO,
        Code.GET_LITE_TOPIC_INFO,
        Code.GET_LITE_CLIENT_INFO,
        Code.GET_LITE_GROUP_INFO,
        Code.TRIGGER_LITE_DISPATCH,
    ),
    STATIC_TOPICS: (Code.UPDATE_AND_CREATE_STATIC_TOPIC,),
    FILTER: (Code.REGISTER_FILTER_SERVER, Code.REGISTER_MESSAGE_FILTER_CLASS),
    ROCKSDB: (
        Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        Code.SWITCH_TIMER_ENGINE,
    ),
    COLD_DATA: (
        Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        Code.GET_COLD_DATA_FLOW_CTR_INFO,
    ),
}

UNSUPPORTED: dict[int, str] = {
    int(code): reason for reason, codes in _BY_REASON.items() for code in codes
}
