"""Which class of Java belongs to which body class of ours, and a filled instance of each."""

from __future__ import annotations

import types
from typing import Any, Union, cast, get_args, get_origin

import attrs

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

JAVA_BODIES: dict[type[JsonBody], str] = {
    assignment.QueryAssignmentRequest: "QueryAssignmentRequestBody",
    assignment.QueryAssignmentResponse: "QueryAssignmentResponseBody",
    assignment.MessageRequestMode: "SetMessageRequestModeRequestBody",
    assignment.MessageRequestModeTable: "MessageRequestModeSerializeWrapper",
    auth.User: "UserInfo",
    auth.Acl: "AclInfo",
    cluster.ClusterTable: "ClusterInfo",
    cluster.BrokerMembers: "BrokerMemberGroup",
    cluster.BrokerMembersBody: "GetBrokerMemberGroupResponseBody",
    cluster.KvTable: "KVTable",
    cluster.HaStatus: "HARuntimeInfo",
    controller.SyncStateSet: "SyncStateSet",
    controller.ElectMasterBody: "ElectMasterResponseBody",
    controller.SyncStateData: "BrokerReplicasInfo",
    controller.EpochEntries: "EpochEntryCache",
    groups.ConsumerIds: "GetConsumerListByGroupResponseBody",
    groups.GroupNames: "GroupList",
    groups.ConsumerConnection: "ConsumerConnection",
    groups.ProducerConnection: "ProducerConnection",
    groups.ProducerTable: "ProducerTableInfo",
    groups.SubscriptionGroupConfig: "SubscriptionGroupConfig",
    groups.SubscriptionGroupTable: "SubscriptionGroupWrapper",
    groups.SubscriptionGroupList: "SubscriptionGroupList",
    groups.GroupForbidden: "GroupForbidden",
    groups.GroupSubscription: "QuerySubscriptionResponseBody",
    heartbeat.HeartbeatData: "HeartbeatData",
    heartbeat.CheckClientBody: "CheckClientRequestBody",
    locks.LockRequest: "LockBatchRequestBody",
    locks.LockResponse: "LockBatchResponseBody",
    offsets.TopicStats: "TopicStatsTable",
    offsets.ConsumeStats: "ConsumeStats",
    offsets.BrokerConsumeStats: "ConsumeStatsList",
    offsets.ConsumerOffsetTable: "ConsumerOffsetSerializeWrapper",
    offsets.DelayOffsetTable: "DelayOffsetSerializeWrapper",
    offsets.QueueOffsets: "ResetOffsetBody",
    offsets.QueueOffsetList: "ResetOffsetBodyForC",
    offsets.ConsumerStatus: "GetConsumerStatusBody",
    offsets.ConsumeTimeSpans: "QueryConsumeTimeSpanBody",
    offsets.CorrectionOffsets: "QueryCorrectionOffsetBody",
    offsets.BrokerStats: "BrokerStatsData",
    offsets.ConsumeQueueEntries: "QueryConsumeQueueResponseBody",
    pop.BatchAckBody: "BatchAckMessageRequestBody",
    registration.RegisterBrokerBody: "RegisterBrokerBody",
    route.TopicRoute: "TopicRouteData",
    running.ConsumerRunning: "ConsumerRunningInfo",
    running.ConsumeDirectlyResult: "ConsumeMessageDirectlyResult",
    timer.TimerMetrics: "TimerMetrics$TimerMetricsSerializeWrapper",
    topics.DataVersion: "DataVersion",
    topics.TopicConfig: "TopicConfig",
    topics.TopicTable: "TopicConfigAndMappingSerializeWrapper",
    topics.TopicConfigList: "CreateTopicListRequestBody",
    topics.TopicNames: "TopicList",
}

NO_JAVA_BODY = {
    cluster.ColdReads: (
        "Java builds this answer by hand (ColdDataCgCtrService.getColdDataFlowCtrInfo)"
    )
}

# Texts that are enumerations in Java, or otherwise not free.
_FIXED: dict[tuple[type, str], Any] = {
    (assignment.QueryAssignmentRequest, "message_model"): "BROADCASTING",
    (assignment.QueueAssignment, "mode"): "POP",
    (assignment.MessageRequestMode, "mode"): "POP",
    (groups.ConnectionData, "language"): "GO",
    (groups.ProducerEntry, "language"): "GO",
    (groups.ConsumerConnection, "consume_type"): "CONSUME_PASSIVELY",
    (groups.ConsumerConnection, "message_model"): "BROADCASTING",
    (groups.ConsumerConnection, "consume_from_where"): "CONSUME_FROM_TIMESTAMP",
    (groups.GroupRetryPolicy, "type"): "EXPONENTIAL",
    (heartbeat.ConsumerData, "consume_type"): "CONSUME_PASSIVELY",
    (heartbeat.ConsumerData, "message_model"): "BROADCASTING",
    (heartbeat.ConsumerData, "consume_from_where"): "CONSUME_FROM_TIMESTAMP",
    (pop.BatchAck, "bits"): "BQI=",
    (running.ConsumeDirectlyResult, "consume_result"): "CR_COMMIT",
    (topics.TopicConfig, "topic_filter_type"): "MULTI_TAG",
    (topics.TopicTable, "topic_queue_mapping_detail_map"): {},
    (topics.TopicTable, "topic_queue_mapping_info_map"): {},
    (route.TopicRoute, "topic_queue_mapping_by_broker"): None,
    (running.ConsumerRunning, "user"): {},
}


def filled(cls: type) -> Any:
    """An instance with something in every member."""
    members: dict[str, Any] = {}
    for number, field in enumerate(attrs.fields(cast("Any", cls)), start=2):
        if (cls, field.name) in _FIXED:
            members[field.alias] = _FIXED[cls, field.name]
        else:
            members[field.alias] = _value(field.type, field.name, number)
    return cls(**members)


def _value(annotation: Any, name: str, number: int) -> Any:
    scalars = {str: f"{name} ü中", int: number, float: number + 0.5, bool: True}
    if annotation in scalars:
        return scalars[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, Union):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _value(inner, name, number)
    if origin in (list, frozenset):
        return origin([_value(arguments[0], name, number)])
    if origin is dict:
        return {_value(arguments[0], name, number): _value(arguments[1], name, number)}
    if annotation is Any:
        return {}
    return filled(annotation)
