"""What each request of a broker needs: the table of codes. SANS-IO.

A need comes from the header object that the handler takes, or from the decoded body that it takes,
so that check and handler never see two readings of the same bytes. A code without an entry is
refused. Requests that name a message by its place in the log (33, 36, 37, 309, 323) are checked
again when its topic is known. Where Java lets a valid signature be enough although the request
reads or changes what belongs to somebody, the entry says more than Java; ``STRICTER`` names each
with its reason.

Source: remoting/…/header/*.java (annotations RocketMQAction and RocketMQResource),
auth/…/authorization/builder/DefaultAuthorizationContextBuilder.java, and the answers of RocketMQ
5.5.0 to each request with each action alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from triomq.remoting.access.resources import Action, Need, cluster_need, group_need, topic_need
from triomq.remoting.access.rules import KEPT_LENGTH_MAX
from triomq.remoting.protocol.bodies.assignment import MessageRequestMode, QueryAssignmentRequest
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.heartbeat import HeartbeatData
from triomq.remoting.protocol.bodies.locks import LockRequest
from triomq.remoting.protocol.bodies.pop import BatchAckBody
from triomq.remoting.protocol.bodies.topics import TopicConfigList
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.names import SYSTEM_TOPIC_PREFIX, reply_topic

Needs: TypeAlias = Iterable[Need]
Header: TypeAlias = Any
"""The header of the request code in whose row a function stands: a class for each, or its twin."""
FromHeader: TypeAlias = Callable[[Header, str], Needs]
"""Takes the header object, None without one, and the name of the cluster."""
FromBody: TypeAlias = Callable[[Any], Needs]

PUB, SUB, GET = Action.PUB, Action.SUB, Action.GET
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE


def nothing(_header: Header, _cluster: str) -> Needs:
    """A valid signature is enough."""
    return ()


def _cluster(*actions: Action) -> FromHeader:
    return lambda _header, cluster: (cluster_need(cluster, *actions),)


def _topic(*actions: Action) -> FromHeader:
    return lambda header, _: (topic_need(header.topic, *actions),)


def _group(*actions: Action) -> FromHeader:
    return lambda header, _: (group_need(header.group, *actions),)


def _consumer_group(*actions: Action) -> FromHeader:
    return lambda header, _: (group_need(header.consumer_group, *actions),)


def _topic_then_group(*actions: Action) -> FromHeader:
    return lambda header, _: (
        topic_need(header.topic, *actions),
        group_need(header.consumer_group, *actions),
    )


def _group_then_topic(*actions: Action) -> FromHeader:
    return lambda header, _: (
        group_need(header.consumer_group, *actions),
        *_named_topic(header.topic, *actions),
    )


def _admin_group_then_topic(*actions: Action) -> FromHeader:
    return lambda header, _: (
        group_need(header.group, *actions),
        *_named_topic(header.topic, *actions),
    )


def _named_topic(topic: str | None, *actions: Action) -> Needs:
    return () if topic is None else (topic_need(topic, *actions),)


def _unregister(header: Header, _: str) -> Needs:
    return () if header.consumer_group is None else (group_need(header.consumer_group, SUB),)


def _group_lag(header: Header, _: str) -> Needs:
    yield group_need(header.consumer_group, GET)
    if header.topic_list:
        yield from (topic_need(each, GET) for each in header.topic_list.split(";") if each)
    elif header.topic is not None:
        yield topic_need(header.topic, GET)


def _topic_then_admin_group(header: Header, _: str) -> Needs:
    return topic_need(header.topic, GET), group_need(header.group, GET)


def _queue_entries(header: Header, _: str) -> Needs:
    yield topic_need(header.topic, GET)
    if header.consumer_group:
        yield group_need(header.consumer_group, GET)


def _correction(header: Header, _: str) -> Needs:
    yield from (group_need(each, GET) for each in (header.filter_groups or "").split(",") if each)
    yield group_need(header.compare_group, GET)
    yield topic_need(header.topic, GET)


def _send(header: Header, cluster: str) -> Needs:
    topic = header.topic
    if topic.startswith(SYSTEM_TOPIC_PREFIX):
        # What the broker keeps there moves messages of other topics.
        return topic_need(topic, PUB), cluster_need(cluster, UPDATE)
    return _sends_to(topic) if len(topic) <= KEPT_LENGTH_MAX else (topic_need(topic, PUB),)


@lru_cache(maxsize=256)
def _sends_to(topic: str) -> Needs:
    return (topic_need(topic, PUB),)


def _reply(header: Header, cluster: str) -> Needs:
    """Need nothing for the topic of replies, in any namespace."""
    if header.topic.rpartition("%")[2] == reply_topic(cluster):
        return ()
    return _send(header, cluster)


def _clone(header: Header, _: str) -> Needs:
    yield group_need(header.target_group, UPDATE)
    yield from _named_topic(header.topic, UPDATE)


HEADER_NEEDS: Mapping[int, FromHeader] = {
    Code.SEND_MESSAGE: _send,
    Code.SEND_MESSAGE_V2: _send,
    Code.SEND_BATCH_MESSAGE: _send,
    Code.SEND_REPLY_MESSAGE: _reply,
    Code.SEND_REPLY_MESSAGE_V2: _reply,
    Code.RECALL_MESSAGE: _topic(PUB),
    Code.CONSUMER_SEND_MSG_BACK: _group(SUB),
    Code.END_TRANSACTION: lambda header, _: _named_topic(header.topic, PUB),
    Code.RESUME_CHECK_HALF_MESSAGE: lambda header, _: _named_topic(header.topic, UPDATE),
    Code.PULL_MESSAGE: _topic_then_group(SUB),
    Code.LITE_PULL_MESSAGE: _topic_then_group(SUB),
    Code.PEEK_MESSAGE: _topic_then_group(SUB),
    Code.POP_MESSAGE: _group_then_topic(SUB),
    Code.NOTIFICATION: _group_then_topic(SUB),
    Code.ACK_MESSAGE: _group_then_topic(SUB),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _group_then_topic(SUB),
    Code.POLLING_INFO: _group_then_topic(GET),
    Code.QUERY_MESSAGE: _topic(SUB, GET),
    Code.VIEW_MESSAGE_BY_ID: lambda header, _: _named_topic(header.topic, GET),
    Code.UPDATE_CONSUMER_OFFSET: _topic_then_group(SUB, UPDATE),
    Code.QUERY_CONSUMER_OFFSET: _topic_then_group(SUB, GET),
    Code.GET_CONSUMER_LIST_BY_GROUP: _consumer_group(SUB, GET),
    Code.UNREGISTER_CLIENT: _unregister,
    Code.CHECK_CLIENT_CONFIG: nothing,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _topic(GET),
    Code.GET_MAX_OFFSET: _topic(GET),
    Code.GET_MIN_OFFSET: _topic(GET),
    Code.GET_EARLIEST_MSG_STORETIME: _topic(GET),
    Code.GET_ALL_CONSUMER_OFFSET: nothing,
    Code.GET_ALL_DELAY_OFFSET: nothing,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: nothing,
    Code.GET_TIMER_CHECK_POINT: nothing,
    Code.GET_TIMER_METRICS: nothing,
    Code.GET_TOPIC_CONFIG: _topic(GET),
    Code.GET_ALL_TOPIC_CONFIG: nothing,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: nothing,
    Code.GET_TOPIC_STATS_INFO: _topic(GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _topic(GET),
    Code.UPDATE_AND_CREATE_TOPIC: _topic(CREATE),
    Code.DELETE_TOPIC_IN_BROKER: _topic(DELETE),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _group(GET),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: nothing,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _admin_group_then_topic(UPDATE),
    Code.DELETE_SUBSCRIPTIONGROUP: _group(DELETE),
    Code.GET_CONSUMER_CONNECTION_LIST: _consumer_group(GET),
    Code.GET_PRODUCER_CONNECTION_LIST: _cluster(GET),
    Code.GET_ALL_PRODUCER_INFO: _cluster(GET),
    Code.GET_CONSUME_STATS: _group_lag,
    Code.GET_BROKER_CONSUME_STATS: _cluster(GET),
    Code.QUERY_TOPICS_BY_CONSUMER: _group(GET),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _admin_group_then_topic(GET),
    Code.QUERY_CONSUME_TIME_SPAN: _topic_then_admin_group,
    Code.QUERY_CONSUME_QUEUE: _queue_entries,
    Code.QUERY_CORRECTION_OFFSET: _correction,
    Code.CLONE_GROUP_OFFSET: _clone,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _admin_group_then_topic(UPDATE),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _topic_then_admin_group,
    Code.GET_CONSUMER_RUNNING_INFO: _consumer_group(GET),
    Code.CONSUME_MESSAGE_DIRECTLY: _group_then_topic(SUB),
    Code.GET_BROKER_CONFIG: _cluster(GET),
    Code.UPDATE_BROKER_CONFIG: _cluster(UPDATE),
    Code.GET_BROKER_RUNTIME_INFO: nothing,
    Code.VIEW_BROKER_STATS_DATA: _cluster(GET),
    Code.GET_BROKER_HA_STATUS: nothing,
    Code.GET_BROKER_EPOCH_CACHE: nothing,
    Code.NOTIFY_BROKER_ROLE_CHANGED: _cluster(UPDATE),
    Code.CONTROLLER_ELECT_MASTER: _cluster(UPDATE),
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _cluster(UPDATE),
    Code.EXCHANGE_BROKER_HA_INFO: _cluster(UPDATE),
    Code.DELETE_EXPIRED_COMMITLOG: _cluster(UPDATE),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster(UPDATE),
    Code.CLEAN_UNUSED_TOPIC: _cluster(UPDATE),
    Code.POP_ROLLBACK: _cluster(UPDATE),
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _cluster(UPDATE),
    Code.DELETE_ACL_CONFIG: _cluster(UPDATE),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _cluster(UPDATE),
    Code.GET_BROKER_CLUSTER_ACL_INFO: _cluster(GET),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _cluster(GET),
    Code.AUTH_CREATE_USER: _cluster(UPDATE),
    Code.AUTH_UPDATE_USER: _cluster(UPDATE),
    Code.AUTH_DELETE_USER: _cluster(UPDATE),
    Code.AUTH_GET_USER: _cluster(GET),
    Code.AUTH_LIST_USER: _cluster(GET),
    Code.AUTH_CREATE_ACL: _cluster(UPDATE),
    Code.AUTH_UPDATE_ACL: _cluster(UPDATE),
    Code.AUTH_DELETE_ACL: _cluster(UPDATE),
    Code.AUTH_GET_ACL: _cluster(GET),
    Code.AUTH_LIST_ACL: _cluster(GET),
}
"""Code -> what a request with this header needs."""


def heartbeat_needs(body: HeartbeatData) -> Needs:
    """Yield what a member of groups needs; producers need nothing."""
    for consumer in body.consumers:
        yield group_need(consumer.group, SUB)
        yield from (topic_need(each.topic, SUB) for each in consumer.subscriptions)


def _lock(body: LockRequest) -> Needs:
    yield group_need(body.consumer_group, SUB)
    yield from dict.fromkeys(topic_need(queue.topic, SUB) for queue in body.queues)


def _batch_ack(body: BatchAckBody) -> Needs:
    for group, topic in dict.fromkeys((ack.consumer_group, ack.topic) for ack in body.acks):
        yield group_need(group, SUB)
        yield topic_need(topic, SUB)


def _assignment(body: QueryAssignmentRequest) -> Needs:
    return group_need(body.consumer_group, SUB), topic_need(body.topic, SUB)


def _request_mode(body: MessageRequestMode) -> Needs:
    return group_need(body.consumer_group, UPDATE), topic_need(body.topic, UPDATE)


def _topics(body: TopicConfigList) -> Needs:
    return (topic_need(config.topic_name, CREATE) for config in body.topic_config_list)


def _new_group(body: SubscriptionGroupConfig) -> Needs:
    return (group_need(body.group_name, CREATE),)


def _groups(body: SubscriptionGroupList) -> Needs:
    return (group_need(config.group_name, CREATE) for config in body.group_config_list)


BODY_NEEDS: Mapping[int, FromBody] = {
    Code.HEART_BEAT: heartbeat_needs,
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.SET_MESSAGE_REQUEST_MODE: _request_mode,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _new_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups,
}
"""Code -> what a request with this decoded body needs; the handler asks when it has decoded it."""

STRICTER: Mapping[int, str] = {
    Code.SEND_REPLY_MESSAGE: "it is stored in the topic that its header names",
    Code.SEND_REPLY_MESSAGE_V2: "it is stored in the topic that its header names",
    Code.LITE_PULL_MESSAGE: "it reads messages as PULL_MESSAGE does",
    Code.BATCH_ACK_MESSAGE: "it acknowledges as ACK_MESSAGE does",
    Code.QUERY_ASSIGNMENT: "it tells the queues of a consumer, as over gRPC",
    Code.SET_MESSAGE_REQUEST_MODE: "it changes how a group reads a topic",
    Code.UPDATE_AND_CREATE_TOPIC_LIST: "it creates topics as UPDATE_AND_CREATE_TOPIC does",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "it creates and changes groups",
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "it creates and changes groups",
    Code.UPDATE_BROKER_CONFIG: "it changes the settings of the broker",
    Code.GET_BROKER_CONFIG: "it shows the settings of the broker",
    Code.DELETE_EXPIRED_COMMITLOG: "it deletes messages",
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: "it deletes queues",
    Code.CLEAN_UNUSED_TOPIC: "it deletes topics",
    Code.POP_ROLLBACK: "it puts POP back for all groups",
}
"""Codes for which a valid signature is enough at RocketMQ 5.5.0, and why it is not here."""
