"""THE list: request code, method, pool, header.  What is not in it is in ``UNSUPPORTED`` with its reason, and answered with code 3."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.broker.processors.bodies import with_body
from triomq.broker.processors.broker_config import BrokerConfigRequests
from triomq.broker.processors.clients import Clients
from triomq.broker.processors.consumption import Consumption
from triomq.broker.processors.group_changes import GroupChanges
from triomq.broker.processors.ha_status import HaStatusRequests
from triomq.broker.processors.housekeeping import Housekeeping
from triomq.broker.processors.locks import Locks
from triomq.broker.processors.offsets import GroupOffsets, QueueOffsets
from triomq.broker.processors.progress import Progress
from triomq.broker.processors.pull import PullMessages
from triomq.broker.processors.query import QueryMessages
from triomq.broker.processors.relays import Relays
from triomq.broker.processors.resets import Resets
from triomq.broker.processors.runtime import RuntimeFigures
from triomq.broker.processors.send import SendMessages
from triomq.broker.processors.send_back import SendBack
from triomq.broker.processors.subscriptions import GroupRequests
from triomq.broker.processors.topics import TopicRequests
from triomq.broker.processors.unsupported import UNSUPPORTED as UNSUPPORTED
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.heartbeat import CheckClientBody, HeartbeatData
from triomq.remoting.protocol.bodies.locks import LockRequest
from triomq.remoting.protocol.bodies.topics import TopicConfigList
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers import admin, client, offset, pull, query, route, send, topic
from triomq.remoting.server.handlers import Handler, HandlerTable

NOT_ON_THE_FAST_PORT = frozenset(
    {Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.PEEK_MESSAGE, Code.POP_MESSAGE, Code.NOTIFICATION, Code.POLLING_INFO}
)
"""What a Java broker registers for its main port only, so that readers do not delay senders."""


@attrs.frozen(kw_only=True)
class Processors:
    """One object of each kind, made by ``broker/app.py``."""

    send: SendMessages
    send_back: SendBack
    pull: PullMessages
    query: QueryMessages
    queues: QueueOffsets
    offsets: GroupOffsets
    clients: Clients
    locks: Locks
    topics: TopicRequests
    groups: GroupRequests
    consumption: Consumption
    progress: Progress
    resets: Resets
    relays: Relays
    config: BrokerConfigRequests
    runtime: RuntimeFigures
    housekeeping: Housekeeping
    ha_status: HaStatusRequests
    group_changes: GroupChanges
    reject_sends: Callable[[], bool] | None = None
    """Set on a slave, which takes no messages, with the answer and from the place where Java has it: before the pool."""
    reject_pulls: Callable[[], bool] | None = None
    """The same on a slave that serves no pulls."""


def handler_table(do: Processors) -> HandlerTable:
    """Every request code that this broker answers."""
    message, offsets, topics, groups = do.send.handle, do.offsets, do.topics, do.groups
    return HandlerTable(
        [
            # messages in
            Handler(Code.SEND_MESSAGE, message, "send", send.SendMessageHeader, batch=True, reject=do.reject_sends),
            Handler(Code.SEND_MESSAGE_V2, message, "send", send.SendMessageHeader, short=True, batch=True, reject=do.reject_sends),
            Handler(Code.SEND_BATCH_MESSAGE, message, "send", send.SendMessageHeader, short=True, batch=True, reject=do.reject_sends),
            Handler(Code.CONSUMER_SEND_MSG_BACK, do.send_back.handle, "send", send.SendBackHeader, reject=do.reject_sends),
            # messages out
            Handler(Code.PULL_MESSAGE, do.pull.handle, "pull", pull.PullMessageHeader, reject=do.reject_pulls),
            Handler(Code.LITE_PULL_MESSAGE, do.pull.handle, "lite-pull", pull.PullMessageHeader, reject=do.reject_pulls),
            Handler(Code.QUERY_MESSAGE, do.query.by_key, "query", query.QueryMessageHeader),
            Handler(Code.VIEW_MESSAGE_BY_ID, do.query.by_offset, "query", query.ViewMessageHeader),
            # positions
            Handler(Code.QUERY_CONSUMER_OFFSET, offsets.query, "consumer", offset.QueryConsumerOffsetHeader),
            Handler(Code.UPDATE_CONSUMER_OFFSET, offsets.update, "consumer", offset.UpdateConsumerOffsetHeader),
            Handler(Code.GET_ALL_CONSUMER_OFFSET, offsets.all, "admin"),
            Handler(Code.GET_ALL_DELAY_OFFSET, offsets.all_delays, "admin"),
            Handler(Code.SEARCH_OFFSET_BY_TIMESTAMP, do.queues.search, "offset", offset.SearchOffsetHeader),
            Handler(Code.GET_MAX_OFFSET, do.queues.max_offset, "offset", offset.GetMaxOffsetHeader),
            Handler(Code.GET_MIN_OFFSET, do.queues.min_offset, "offset", offset.GetMinOffsetHeader),
            Handler(
                Code.GET_EARLIEST_MSG_STORETIME, do.queues.earliest_store_time, "offset", offset.GetEarliestStoreTimeHeader
            ),
            # clients
            Handler(Code.HEART_BEAT, with_body(HeartbeatData, do.clients.heartbeat), "heartbeat"),
            Handler(Code.UNREGISTER_CLIENT, do.clients.unregister, "client", client.UnregisterClientHeader),
            Handler(Code.CHECK_CLIENT_CONFIG, with_body(CheckClientBody, do.clients.check), "client"),
            Handler(Code.GET_CONSUMER_LIST_BY_GROUP, do.clients.consumer_list, "consumer", client.GetConsumerListHeader),
            Handler(Code.LOCK_BATCH_MQ, with_body(LockRequest, do.locks.lock), "lock"),
            Handler(Code.UNLOCK_BATCH_MQ, with_body(LockRequest, do.locks.unlock), "lock"),
            # topics
            Handler(Code.UPDATE_AND_CREATE_TOPIC, topics.create, "change", topic.CreateTopicHeader),
            Handler(Code.UPDATE_AND_CREATE_TOPIC_LIST, with_body(TopicConfigList, topics.create_list), "change"),
            Handler(Code.DELETE_TOPIC_IN_BROKER, topics.delete, "change", topic.DeleteTopicHeader),
            Handler(Code.GET_TOPIC_CONFIG, topics.describe, "admin", topic.TopicHeader),
            Handler(Code.GET_ALL_TOPIC_CONFIG, topics.all, "admin", topic.AllTopicsHeader),
            Handler(Code.GET_TOPIC_STATS_INFO, topics.stats, "disk", topic.TopicHeader),
            Handler(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, topics.system, "admin"),
            Handler(Code.QUERY_TOPIC_CONSUME_BY_WHO, topics.consumers, "admin", topic.TopicHeader),
            # groups
            Handler(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, with_body(SubscriptionGroupConfig, groups.put), "change"),
            Handler(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, with_body(SubscriptionGroupList, groups.put_list), "change"),
            Handler(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, groups.forbid, "change", topic.GroupForbiddenHeader),
            Handler(Code.DELETE_SUBSCRIPTIONGROUP, groups.delete, "change", topic.DeleteGroupHeader),
            Handler(Code.GET_SUBSCRIPTIONGROUP_CONFIG, groups.describe, "admin", topic.GroupHeader),
            Handler(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups.all, "admin", topic.AllGroupsHeader),
            # consumption
            Handler(
                Code.GET_CONSUMER_CONNECTION_LIST,
                do.consumption.consumer_connections,
                "admin",
                client.ConsumerConnectionHeader,
            ),
            Handler(
                Code.GET_PRODUCER_CONNECTION_LIST,
                do.consumption.producer_connections,
                "admin",
                client.ProducerConnectionHeader,
            ),
            Handler(Code.GET_CONSUME_STATS, do.consumption.group_lag, "disk", admin.ConsumeStatsHeader),
            Handler(Code.GET_BROKER_CONSUME_STATS, do.consumption.broker_lag, "disk", admin.BrokerConsumeStatsHeader),
            Handler(Code.GET_ALL_PRODUCER_INFO, do.consumption.producers, "admin"),
            Handler(Code.QUERY_TOPICS_BY_CONSUMER, do.progress.topics_of_group, "admin", topic.GroupHeader),
            Handler(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, do.progress.subscription, "admin", topic.GroupSubscriptionHeader),
            Handler(Code.QUERY_CONSUME_TIME_SPAN, do.progress.time_spans, "disk", topic.GroupTopicHeader),
            Handler(Code.QUERY_CORRECTION_OFFSET, do.progress.correction, "admin", offset.CorrectionOffsetHeader),
            Handler(Code.QUERY_CONSUME_QUEUE, do.progress.queue_entries, "disk", admin.QueryConsumeQueueHeader),
            Handler(Code.INVOKE_BROKER_TO_RESET_OFFSET, do.resets.reset, "disk", offset.ResetOffsetHeader),
            Handler(Code.CLONE_GROUP_OFFSET, do.resets.clone, "admin", offset.CloneGroupOffsetHeader),
            # asked of a client by way of the broker
            Handler(Code.GET_CONSUMER_RUNNING_INFO, do.relays.running, "relay", client.ConsumerRunningHeader),
            Handler(Code.CONSUME_MESSAGE_DIRECTLY, do.relays.consume_directly, "relay", client.ConsumeDirectlyHeader),
            Handler(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, do.relays.status, "relay", client.ConsumerStatusHeader),
            # the broker itself
            Handler(Code.GET_BROKER_CONFIG, do.config.get, "admin"),
            Handler(Code.UPDATE_BROKER_CONFIG, do.config.update, "admin"),
            Handler(Code.GET_BROKER_RUNTIME_INFO, do.runtime.handle, "disk"),
            Handler(Code.VIEW_BROKER_STATS_DATA, do.runtime.item, "admin", admin.BrokerStatsHeader),
            Handler(Code.GET_BROKER_HA_STATUS, do.ha_status.status, "admin"),
            Handler(Code.NOTIFY_MIN_BROKER_ID_CHANGE, do.group_changes.smallest_id, "admin", route.MinBrokerIdChangeHeader),
            Handler(Code.GET_TIMER_CHECK_POINT, do.group_changes.timer_check_point, "admin"),
            Handler(Code.EXCHANGE_BROKER_HA_INFO, do.group_changes.master_address, "change", admin.ExchangeHaAddressHeader),
            Handler(Code.DELETE_EXPIRED_COMMITLOG, do.housekeeping.delete_expired_log, "admin"),
            Handler(Code.CLEAN_EXPIRED_CONSUMEQUEUE, do.housekeeping.delete_expired_queues, "admin"),
            Handler(Code.CLEAN_UNUSED_TOPIC, do.housekeeping.delete_unused_topics, "admin"),
        ],
        unsupported=UNSUPPORTED,
    )
