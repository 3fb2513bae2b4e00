"""The list of request codes: code, handler, pool and header.

Every other code is answered REQUEST_CODE_NOT_SUPPORTED; ``tests/support/unsupported_codes.py`` has
the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from triomq.broker.processors.access import AccessRequests
from triomq.broker.processors.bodies import RequireForBody, with_body
from triomq.broker.processors.broker_config import BrokerConfigRequests
from triomq.broker.processors.clients import Clients
from triomq.broker.processors.consumption import Consumption
from triomq.broker.processors.controller_notices import ControllerNotices
from triomq.broker.processors.group_changes import GroupChanges
from triomq.broker.processors.group_progress import GroupProgress
from triomq.broker.processors.ha_status import HaStatusRequests
from triomq.broker.processors.housekeeping import Housekeeping
from triomq.broker.processors.offsets import GroupOffsetRequests, QueueOffsetRequests
from triomq.broker.processors.plain_acl import PlainAclRequests
from triomq.broker.processors.pop.acknowledgements import Acknowledgements
from triomq.broker.processors.pop.assignments import Assignments
from triomq.broker.processors.pop.polls import Polls
from triomq.broker.processors.pop.pop_messages import PopMessages
from triomq.broker.processors.pop.rollbacks import PopRollbacks
from triomq.broker.processors.pull import PullMessages
from triomq.broker.processors.query import QueryMessages
from triomq.broker.processors.queue_locks import QueueLockRequests
from triomq.broker.processors.recall import Recalls
from triomq.broker.processors.relays import Relays
from triomq.broker.processors.replies import Replies
from triomq.broker.processors.resets import Resets
from triomq.broker.processors.runtime import RuntimeFigures
from triomq.broker.processors.send.pipeline import SendPipeline
from triomq.broker.processors.send.send_back import SendBack
from triomq.broker.processors.subscriptions import GroupRequests
from triomq.broker.processors.topics import TopicRequests
from triomq.broker.processors.transactions import TransactionRequests
from triomq.remoting.protocol.bodies.assignment import MessageRequestMode, QueryAssignmentRequest
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from triomq.remoting.protocol.bodies.heartbeat import CheckClientBody, HeartbeatData
from triomq.remoting.protocol.bodies.locks import LockRequest
from triomq.remoting.protocol.bodies.pop import BatchAckBody
from triomq.remoting.protocol.bodies.topics import TopicConfigList
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers import (
    admin,
    auth,
    client,
    controller,
    offset,
    pop,
    pull,
    query,
    registration,
    send,
    topic,
    transaction,
)
from triomq.remoting.server.handlers import Handler, HandlerTable
from triomq.remoting.server.requests import Call

NOT_ON_THE_FAST_PORT = frozenset(
    {
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.PEEK_MESSAGE,
        Code.POP_MESSAGE,
        Code.NOTIFICATION,
        Code.POLLING_INFO,
    }
)
"""The codes that Java serves on its main port only, so that readers do not delay senders."""


@attrs.frozen(kw_only=True)
class SendHandlers:
    """What stores messages."""

    send: SendPipeline
    send_back: SendBack
    recalls: Recalls
    transactions: TransactionRequests
    replies: Replies
    reject: Callable[[], bool] | None = None
    """Set on a slave, which takes no messages; called before a request enters its pool."""


@attrs.frozen(kw_only=True)
class ReadHandlers:
    """What reads the log and the queues."""

    pull: PullMessages
    query: QueryMessages
    queues: QueueOffsetRequests
    reject: Callable[[], bool] | None = None
    """Set on a slave that may serve no pulls; called before a request enters its pool."""


@attrs.frozen(kw_only=True)
class PopHandlers:
    """What POP consumers ask for."""

    pop: PopMessages
    polls: Polls
    acknowledgements: Acknowledgements
    assignments: Assignments
    rollbacks: PopRollbacks


@attrs.frozen(kw_only=True)
class GroupHandlers:
    """What consumer groups ask for, and what others ask about them."""

    offsets: GroupOffsetRequests
    clients: Clients
    locks: QueueLockRequests
    consumption: Consumption
    progress: GroupProgress
    resets: Resets
    relays: Relays
    reject_commits: Callable[[], bool] | None = None
    """Set on a slave whose log may have parted from its master's."""


@attrs.frozen(kw_only=True)
class AdminHandlers:
    """What operators see and change."""

    topics: TopicRequests
    groups: GroupRequests
    config: BrokerConfigRequests
    runtime: RuntimeFigures
    housekeeping: Housekeeping


@attrs.frozen(kw_only=True)
class ReplicaHandlers:
    """What the other brokers of the group and the controller ask for."""

    ha_status: HaStatusRequests
    group_changes: GroupChanges
    notices: ControllerNotices


@attrs.frozen(kw_only=True)
class AccessHandlers:
    """What reads and changes users and their rules."""

    access: AccessRequests
    plain_acl: PlainAclRequests


@attrs.frozen(kw_only=True)
class Processors:
    """One object for each family of request codes, made by ``broker/wiring.py``."""

    sends: SendHandlers
    reads: ReadHandlers
    pops: PopHandlers
    consumers: GroupHandlers
    administration: AdminHandlers
    replicas: ReplicaHandlers
    users: AccessHandlers
    require_for_body: RequireForBody | None = None
    """Set where requests are authorized."""


def in_pool(name: str, *rows: tuple[Code, Call] | tuple[Code, Call, type]) -> list[Handler]:
    """Return the handlers of one pool. A row is a code, a method, and the header class if any."""
    return [Handler(row[0], row[1], name, row[2] if len(row) == 3 else None) for row in rows]


def handler_table(do: Processors) -> HandlerTable:
    """Return the handlers of every request code that this broker answers."""
    consumers, users = do.consumers, do.users
    offsets, clients, locks = consumers.offsets, consumers.clients, consumers.locks
    consumption, progress, relays = consumers.consumption, consumers.progress, consumers.relays
    topics, groups = do.administration.topics, do.administration.groups
    changes, notices, access = do.replicas.group_changes, do.replicas.notices, users.access
    acks, assigned = do.pops.acknowledgements, do.pops.assignments
    checked = partial(with_body, do.require_for_body)
    send_message = Handler(
        Code.SEND_MESSAGE,
        do.sends.send.handle,
        "send",
        send.SendMessageHeader,
        batch=True,
        reject=do.sends.reject,
    )
    send_reply = Handler(
        Code.SEND_REPLY_MESSAGE,
        do.sends.replies.handle,
        "reply",
        send.SendMessageHeader,
        reject=do.sends.reject,
    )
    pull_message = Handler(
        Code.PULL_MESSAGE,
        do.reads.pull.handle,
        "pull",
        pull.PullMessageHeader,
        reject=do.reads.reject,
    )
    handlers = [
        send_message,
        attrs.evolve(send_message, code=Code.SEND_MESSAGE_V2, short=True),
        attrs.evolve(send_message, code=Code.SEND_BATCH_MESSAGE, short=True),
        Handler(
            Code.CONSUMER_SEND_MSG_BACK,
            do.sends.send_back.handle,
            "send",
            send.SendBackHeader,
            reject=do.sends.reject,
        ),
        send_reply,
        attrs.evolve(send_reply, code=Code.SEND_REPLY_MESSAGE_V2, short=True),
        Handler(
            Code.END_TRANSACTION,
            do.sends.transactions.end,
            "transaction",
            transaction.EndTransactionHeader,
            batch=True,
        ),
        Handler(
            Code.RECALL_MESSAGE,
            do.sends.recalls.recall,
            "send",
            send.RecallMessageHeader,
            batch=True,
        ),
        pull_message,
        attrs.evolve(pull_message, code=Code.LITE_PULL_MESSAGE, pool="lite-pull"),
        *in_pool(
            "pull",
            (Code.POP_MESSAGE, do.pops.pop.handle, pop.PopMessageHeader),
            (Code.NOTIFICATION, do.pops.polls.notify, pop.NotificationHeader),
            (Code.POLLING_INFO, do.pops.polls.count, pop.PollingCountHeader),
        ),
        Handler(Code.ACK_MESSAGE, acks.acknowledge, "ack", pop.AckMessageHeader, batch=True),
        Handler(
            Code.BATCH_ACK_MESSAGE,
            partial(acks.acknowledge_batches, checked(BatchAckBody, acks.parts_of)),
            "ack",
            batch=True,
        ),
        Handler(
            Code.CHANGE_MESSAGE_INVISIBLETIME,
            acks.change,
            "ack",
            pop.ChangeInvisibleTimeHeader,
            batch=True,
        ),
        *in_pool(
            "query",
            (Code.QUERY_MESSAGE, do.reads.query.by_key, query.QueryMessageHeader),
            (Code.VIEW_MESSAGE_BY_ID, do.reads.query.by_offset, query.ViewMessageHeader),
        ),
        Handler(
            Code.UPDATE_CONSUMER_OFFSET,
            offsets.update,
            "consumer",
            offset.UpdateConsumerOffsetHeader,
            reject=consumers.reject_commits,
        ),
        *in_pool(
            "consumer",
            (Code.QUERY_CONSUMER_OFFSET, offsets.query, offset.QueryConsumerOffsetHeader),
            (Code.GET_CONSUMER_LIST_BY_GROUP, clients.consumer_list, client.ConsumerGroupHeader),
        ),
        *in_pool(
            "admin",
            (Code.GET_ALL_CONSUMER_OFFSET, offsets.all),
            (Code.GET_ALL_DELAY_OFFSET, offsets.all_delays),
            (Code.GET_TOPIC_CONFIG, topics.describe, topic.TopicHeader),
            (Code.GET_ALL_TOPIC_CONFIG, topics.all, topic.AllTopicsHeader),
            (Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, topics.system),
            (Code.QUERY_TOPIC_CONSUME_BY_WHO, topics.consumers, topic.TopicHeader),
            (Code.GET_SUBSCRIPTIONGROUP_CONFIG, groups.describe, topic.GroupHeader),
            (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups.all, topic.AllGroupsHeader),
            (
                Code.GET_CONSUMER_CONNECTION_LIST,
                consumption.consumer_connections,
                client.ConsumerGroupHeader,
            ),
            (
                Code.GET_PRODUCER_CONNECTION_LIST,
                consumption.producer_connections,
                client.ProducerConnectionHeader,
            ),
            (Code.GET_ALL_PRODUCER_INFO, consumption.producers),
            (Code.QUERY_TOPICS_BY_CONSUMER, progress.topics_of_group, topic.GroupHeader),
            (
                Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
                progress.subscription,
                topic.GroupSubscriptionHeader,
            ),
            (Code.QUERY_CORRECTION_OFFSET, progress.correction, offset.CorrectionOffsetHeader),
            (Code.CLONE_GROUP_OFFSET, consumers.resets.clone, offset.CloneGroupOffsetHeader),
            (Code.GET_BROKER_CONFIG, do.administration.config.get),
            (Code.UPDATE_BROKER_CONFIG, do.administration.config.update),
            (Code.VIEW_BROKER_STATS_DATA, do.administration.runtime.item, admin.BrokerStatsHeader),
            (Code.GET_BROKER_HA_STATUS, do.replicas.ha_status.status),
            (
                Code.NOTIFY_MIN_BROKER_ID_CHANGE,
                changes.smallest_id,
                registration.MinBrokerIdChangeHeader,
            ),
            (Code.GET_TIMER_CHECK_POINT, changes.timer_check_point),
            (Code.GET_BROKER_EPOCH_CACHE, notices.epochs),
            (
                Code.NOTIFY_BROKER_ROLE_CHANGED,
                notices.role_changed,
                controller.RoleChangedHeader,
            ),
            (Code.GET_ALL_MESSAGE_REQUEST_MODE, assigned.all_modes),
            (Code.GET_TIMER_METRICS, do.sends.recalls.metrics),
            (Code.AUTH_GET_USER, access.user, auth.UserHeader),
            (Code.AUTH_LIST_USER, access.users, auth.ListUsersHeader),
            (Code.AUTH_GET_ACL, access.rules, auth.AclHeader),
            (Code.AUTH_LIST_ACL, access.all_rules, auth.ListAclsHeader),
            (Code.GET_BROKER_CLUSTER_ACL_INFO, users.plain_acl.versions),
            (Code.GET_BROKER_CLUSTER_ACL_CONFIG, users.plain_acl.accounts),
            (Code.DELETE_EXPIRED_COMMITLOG, do.administration.housekeeping.delete_expired_log),
            (Code.CLEAN_EXPIRED_CONSUMEQUEUE, do.administration.housekeeping.delete_expired_queues),
            (Code.CLEAN_UNUSED_TOPIC, do.administration.housekeeping.delete_unused_topics),
            (Code.POP_ROLLBACK, do.pops.rollbacks.roll_back),
            (
                Code.RESUME_CHECK_HALF_MESSAGE,
                do.sends.transactions.resume,
                transaction.ResumeCheckHeader,
            ),
        ),
        *in_pool(
            "offset",
            (Code.SEARCH_OFFSET_BY_TIMESTAMP, do.reads.queues.search, offset.SearchOffsetHeader),
            (Code.GET_MAX_OFFSET, do.reads.queues.max_offset, offset.GetMaxOffsetHeader),
            (Code.GET_MIN_OFFSET, do.reads.queues.min_offset, offset.GetMinOffsetHeader),
            (
                Code.GET_EARLIEST_MSG_STORETIME,
                do.reads.queues.earliest_store_time,
                offset.GetMinOffsetHeader,
            ),
        ),
        *in_pool("heartbeat", (Code.HEART_BEAT, checked(HeartbeatData, clients.heartbeat))),
        *in_pool(
            "client",
            (Code.UNREGISTER_CLIENT, clients.unregister, client.UnregisterClientHeader),
            (Code.CHECK_CLIENT_CONFIG, checked(CheckClientBody, clients.check)),
        ),
        *in_pool(
            "lock",
            (Code.LOCK_BATCH_MQ, checked(LockRequest, locks.lock)),
            (Code.UNLOCK_BATCH_MQ, checked(LockRequest, locks.unlock)),
        ),
        *in_pool(
            "change",
            (Code.UPDATE_AND_CREATE_TOPIC, topics.create, topic.CreateTopicHeader),
            (Code.UPDATE_AND_CREATE_TOPIC_LIST, checked(TopicConfigList, topics.create_list)),
            (Code.DELETE_TOPIC_IN_BROKER, topics.delete, topic.DeleteTopicHeader),
            (
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                checked(SubscriptionGroupConfig, groups.put),
            ),
            (
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                checked(SubscriptionGroupList, groups.put_list),
            ),
            (Code.UPDATE_AND_GET_GROUP_FORBIDDEN, groups.forbid, topic.GroupForbiddenHeader),
            (Code.DELETE_SUBSCRIPTIONGROUP, groups.delete, topic.DeleteGroupHeader),
            (Code.SET_MESSAGE_REQUEST_MODE, checked(MessageRequestMode, assigned.set_mode)),
            (
                Code.CONTROLLER_ELECT_MASTER,
                notices.hand_over,
                controller.ElectMasterHeader,
            ),
            (
                Code.EXCHANGE_BROKER_HA_INFO,
                changes.master_address if notices.tenure is None else notices.master_address,
                admin.ExchangeHaAddressHeader,
            ),
            (Code.AUTH_CREATE_USER, access.create_user, auth.UserHeader),
            (Code.AUTH_UPDATE_USER, access.update_user, auth.UserHeader),
            (Code.AUTH_DELETE_USER, access.delete_user, auth.UserHeader),
            (Code.AUTH_CREATE_ACL, access.put_rules, auth.AclHeader),
            (Code.AUTH_UPDATE_ACL, access.put_rules, auth.AclHeader),
            (Code.AUTH_DELETE_ACL, access.delete_rules, auth.DeleteAclHeader),
            (Code.UPDATE_AND_CREATE_ACL_CONFIG, users.plain_acl.put),
            (Code.DELETE_ACL_CONFIG, users.plain_acl.delete),
            (Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, users.plain_acl.trust),
        ),
        *in_pool(
            "disk",
            (Code.PEEK_MESSAGE, do.pops.polls.peek, pop.PeekMessageHeader),
            (Code.GET_TOPIC_STATS_INFO, topics.stats, topic.TopicHeader),
            (Code.GET_CONSUME_STATS, consumption.group_lag, admin.ConsumeStatsHeader),
            (Code.GET_BROKER_CONSUME_STATS, consumption.broker_lag, admin.BrokerConsumeStatsHeader),
            (Code.QUERY_CONSUME_TIME_SPAN, progress.time_spans, topic.GroupTopicHeader),
            (Code.QUERY_CONSUME_QUEUE, progress.queue_entries, admin.QueryConsumeQueueHeader),
            (
                Code.INVOKE_BROKER_TO_RESET_OFFSET,
                consumers.resets.reset,
                offset.ResetOffsetHeader,
            ),
            (Code.GET_BROKER_RUNTIME_INFO, do.administration.runtime.handle),
        ),
        *in_pool(
            "relay",
            (Code.QUERY_ASSIGNMENT, checked(QueryAssignmentRequest, assigned.query)),
            (Code.GET_CONSUMER_RUNNING_INFO, relays.running, client.ConsumerRunningHeader),
            (Code.CONSUME_MESSAGE_DIRECTLY, relays.consume_directly, client.ConsumeDirectlyHeader),
            (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, relays.status, client.ConsumerStatusHeader),
        ),
    ]
    return HandlerTable(handlers)
