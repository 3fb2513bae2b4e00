"""The body of each request and of its answer, for tests and the generated reference."""

from enum import Enum
from typing import NamedTuple, TypeAlias

from triomq.remoting.protocol.bodies import (
    assignment,
    auth,
    cluster,
    controller,
    groups,
    heartbeat,
    locks,
    offsets,
    pop,
    registration,
    route,
    running,
    timer,
    topics,
)
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.codes import RequestCode as Code


class BodyKind(Enum):
    """Bodies other than a JSON object."""

    MESSAGE = "the bytes of one message"
    BATCH = "messages as `batch` packs them"
    RECORDS = "messages as they lie in the commit log"
    PROPERTIES = "`key=value` lines, as Java's properties files"
    TEXT = "plain text"
    NAMES = "a JSON array of texts"


class ArrayOf(NamedTuple):
    """A JSON array of objects."""

    member: type[JsonBody]


Body: TypeAlias = type[JsonBody] | type[timer.TimerCheckPoint] | BodyKind | ArrayOf | None


class BodyPair(NamedTuple):
    """The bodies of a request and of its successful answer; None means no body."""

    request: Body
    response: Body


BODIES: dict[int, BodyPair] = {
    code: BodyPair(asked, answered)
    for code, asked, answered in (
        (Code.SEND_MESSAGE, BodyKind.MESSAGE, None),
        (Code.SEND_MESSAGE_V2, BodyKind.MESSAGE, None),
        (Code.SEND_BATCH_MESSAGE, BodyKind.BATCH, None),
        (Code.SEND_REPLY_MESSAGE, BodyKind.MESSAGE, None),
        (Code.SEND_REPLY_MESSAGE_V2, BodyKind.MESSAGE, None),
        (Code.PUSH_REPLY_MESSAGE_TO_CLIENT, BodyKind.MESSAGE, None),
        (Code.CHECK_TRANSACTION_STATE, BodyKind.RECORDS, None),
        (Code.PULL_MESSAGE, None, BodyKind.RECORDS),
        (Code.LITE_PULL_MESSAGE, None, BodyKind.RECORDS),
        (Code.QUERY_MESSAGE, None, BodyKind.RECORDS),
        (Code.VIEW_MESSAGE_BY_ID, None, BodyKind.RECORDS),
        (Code.POP_MESSAGE, None, BodyKind.RECORDS),
        (Code.PEEK_MESSAGE, None, BodyKind.RECORDS),
        (Code.BATCH_ACK_MESSAGE, pop.BatchAckBody, None),
        (Code.HEART_BEAT, heartbeat.HeartbeatData, None),
        (Code.CHECK_CLIENT_CONFIG, heartbeat.CheckClientBody, None),
        (Code.GET_CONSUMER_LIST_BY_GROUP, None, groups.ConsumerIds),
        (Code.LOCK_BATCH_MQ, locks.LockRequest, locks.LockResponse),
        (Code.UNLOCK_BATCH_MQ, locks.LockRequest, None),
        (
            Code.QUERY_ASSIGNMENT,
            assignment.QueryAssignmentRequest,
            assignment.QueryAssignmentResponse,
        ),
        (Code.SET_MESSAGE_REQUEST_MODE, assignment.MessageRequestMode, None),
        (Code.GET_ALL_MESSAGE_REQUEST_MODE, None, assignment.MessageRequestModeTable),
        (Code.GET_ALL_CONSUMER_OFFSET, None, offsets.ConsumerOffsetTable),
        (Code.GET_ALL_DELAY_OFFSET, None, offsets.DelayOffsetTable),
        (Code.GET_TIMER_CHECK_POINT, None, timer.TimerCheckPoint),
        (Code.GET_TIMER_METRICS, None, timer.TimerMetrics),
        (Code.RESET_CONSUMER_CLIENT_OFFSET, offsets.QueueOffsets, None),
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, None, offsets.QueueOffsets),
        (Code.GET_CONSUMER_STATUS_FROM_CLIENT, None, offsets.ConsumerStatus),
        (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, None, offsets.ConsumerStatus),
        (Code.GET_CONSUMER_RUNNING_INFO, None, running.ConsumerRunning),
        (Code.CONSUME_MESSAGE_DIRECTLY, BodyKind.RECORDS, running.ConsumeDirectlyResult),
        (Code.UPDATE_AND_CREATE_TOPIC_LIST, topics.TopicConfigList, None),
        (Code.GET_ALL_TOPIC_CONFIG, None, topics.TopicTable),
        (Code.GET_TOPIC_CONFIG, None, topics.TopicConfig),
        (Code.GET_TOPIC_STATS_INFO, None, offsets.TopicStats),
        (Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None, topics.TopicNames),
        (Code.QUERY_TOPIC_CONSUME_BY_WHO, None, groups.GroupNames),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, groups.SubscriptionGroupConfig, None),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups.SubscriptionGroupList, None),
        (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, groups.SubscriptionGroupTable),
        (Code.GET_SUBSCRIPTIONGROUP_CONFIG, None, groups.SubscriptionGroupConfig),
        (Code.UPDATE_AND_GET_GROUP_FORBIDDEN, None, groups.GroupForbidden),
        (Code.QUERY_TOPICS_BY_CONSUMER, None, topics.TopicNames),
        (Code.QUERY_SUBSCRIPTION_BY_CONSUMER, None, groups.GroupSubscription),
        (Code.GET_CONSUMER_CONNECTION_LIST, None, groups.ConsumerConnection),
        (Code.GET_PRODUCER_CONNECTION_LIST, None, groups.ProducerConnection),
        (Code.GET_ALL_PRODUCER_INFO, None, groups.ProducerTable),
        (Code.GET_CONSUME_STATS, None, offsets.ConsumeStats),
        (Code.GET_BROKER_CONSUME_STATS, None, offsets.BrokerConsumeStats),
        (Code.QUERY_CONSUME_TIME_SPAN, None, offsets.ConsumeTimeSpans),
        (Code.QUERY_CORRECTION_OFFSET, None, offsets.CorrectionOffsets),
        (Code.VIEW_BROKER_STATS_DATA, None, offsets.BrokerStats),
        (Code.QUERY_CONSUME_QUEUE, None, offsets.ConsumeQueueEntries),
        (Code.UPDATE_BROKER_CONFIG, BodyKind.PROPERTIES, None),
        (Code.GET_BROKER_CONFIG, None, BodyKind.PROPERTIES),
        (Code.GET_BROKER_RUNTIME_INFO, None, cluster.KvTable),
        (Code.GET_BROKER_HA_STATUS, None, cluster.HaStatus),
        (Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, BodyKind.PROPERTIES, None),
        (Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, BodyKind.TEXT, None),
        (Code.GET_COLD_DATA_FLOW_CTR_INFO, None, cluster.ColdReads),
        (Code.AUTH_CREATE_USER, auth.User, None),
        (Code.AUTH_UPDATE_USER, auth.User, None),
        (Code.AUTH_GET_USER, None, auth.User),
        (Code.AUTH_LIST_USER, None, ArrayOf(auth.User)),
        (Code.AUTH_CREATE_ACL, auth.Acl, None),
        (Code.AUTH_UPDATE_ACL, auth.Acl, None),
        (Code.AUTH_GET_ACL, None, auth.Acl),
        (Code.AUTH_LIST_ACL, None, ArrayOf(auth.Acl)),
        (Code.GET_KVLIST_BY_NAMESPACE, None, cluster.KvTable),
        (Code.REGISTER_BROKER, registration.RegisterBrokerBody, cluster.KvTable),
        (Code.QUERY_DATA_VERSION, topics.DataVersion, topics.DataVersion),
        (Code.REGISTER_TOPIC_IN_NAMESRV, route.TopicRoute, None),
        (Code.GET_ROUTEINFO_BY_TOPIC, None, route.TopicRoute),
        (Code.GET_BROKER_CLUSTER_INFO, None, cluster.ClusterTable),
        (Code.GET_BROKER_MEMBER_GROUP, None, cluster.BrokerMembersBody),
        (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, topics.TopicNames),
        (Code.GET_TOPICS_BY_CLUSTER, None, topics.TopicNames),
        (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, topics.TopicNames),
        (Code.GET_UNIT_TOPIC_LIST, None, topics.TopicNames),
        (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, None, topics.TopicNames),
        (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None, topics.TopicNames),
        (Code.UPDATE_NAMESRV_CONFIG, BodyKind.PROPERTIES, None),
        (Code.GET_NAMESRV_CONFIG, None, BodyKind.PROPERTIES),
        (Code.CONTROLLER_ALTER_SYNC_STATE_SET, controller.SyncStateSet, controller.SyncStateSet),
        (Code.CONTROLLER_ELECT_MASTER, None, controller.ElectMasterBody),
        (Code.CONTROLLER_REGISTER_BROKER, None, controller.SyncStateSet),
        (Code.CONTROLLER_GET_REPLICA_INFO, None, controller.SyncStateSet),
        (Code.CONTROLLER_GET_SYNC_STATE_DATA, BodyKind.NAMES, controller.SyncStateData),
        (Code.GET_BROKER_EPOCH_CACHE, None, controller.EpochEntries),
        (Code.NOTIFY_BROKER_ROLE_CHANGED, controller.SyncStateSet, None),
        (Code.UPDATE_CONTROLLER_CONFIG, BodyKind.PROPERTIES, None),
        (Code.GET_CONTROLLER_CONFIG, None, BodyKind.PROPERTIES),
    )
}
"""Request code -> bodies. Codes that are not listed have no bodies."""
