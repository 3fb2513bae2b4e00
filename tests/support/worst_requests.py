"""Every request code of the servers with its worst input: what makes it do the most."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from triomq.broker.processors.bodies import BODY_BYTES_MAX
from triomq.remoting.protocol.batch import ELEMENTS_MAX
from triomq.remoting.protocol.bodies.registration import RegisterBrokerBody, encode_deflated
from triomq.remoting.protocol.bodies.route import QueueData, TopicRoute
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
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
    route,
    send,
    transaction,
)
from triomq.remoting.protocol.headers import topic as topics
from triomq.remoting.protocol.limits import SETTINGS_BYTES_MAX

PLAIN = "any"
"""Of a request whose work does not grow with anything."""


class Worst(NamedTuple):
    """One request."""

    code: Code
    what: str
    """What makes it long."""
    header: object | None = None
    body: bytes = b""


class Size(NamedTuple):
    """How much a broker has."""

    queues: int
    """Of the topic T, for which some groups have offsets in all."""
    topics: int
    groups: int
    groups_of_topic: int
    members: int
    """Of the group G, and of a group of producers."""


FULL = Size(65_535, 20_000, 5_000, 12, 50_000)
SMALL = Size(10_000, 3_000, 1_000, 3, 3_000)


def write_tables(folder: Path, size: Size) -> None:
    """Write the tables of a broker that has as much as it may."""
    config = folder / "config"
    config.mkdir(parents=True)
    names = ["T", *(f"t{number}" for number in range(size.topics - 50))]
    topic_table = {
        name: {
            "topicName": name,
            "readQueueNums": size.queues if name == "T" else 1,
            "writeQueueNums": size.queues if name == "T" else 1,
            "perm": 6,
        }
        for name in names
    }
    groups = ["G", *(f"g{number}" for number in range(size.groups - 50))]
    queues = {str(number): 0 for number in range(size.queues)}
    offsets: dict[str, Any] = {f"T@{name}": queues for name in groups[: size.groups_of_topic]}
    offsets |= {f"{name}@G": {"0": 0} for name in names[1:]}
    offsets |= {f"t1@{name}": {"0": 0} for name in groups}
    for name, table in (
        ("topics", {"topicConfigTable": topic_table}),
        (
            "subscriptionGroup",
            {"subscriptionGroupTable": {name: {"groupName": name} for name in groups}},
        ),
        ("consumerOffset", {"offsetTable": offsets}),
    ):
        (config / f"{name}.json").write_text(json.dumps(table))


def filled_body(before: bytes, item: bytes, after: bytes, count: int) -> bytes:
    """Return JSON with as many items as the limit of bodies allows, at most ``count``; ``%d`` in
    an item is its number.
    """
    number = min(count, (BODY_BYTES_MAX - len(before) - len(after)) // (len(item) + 5))
    return before + b",".join(item % each for each in range(number)) + after


def send_header(**changes: Any) -> send.SendMessageHeader:
    values: dict[str, Any] = {
        "producer_group": "P",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_count": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 0,
        "flag": 0,
        "properties": "UNIQ_KEY\1k\2",
    }
    return send.SendMessageHeader(**{**values, **changes})


def pull_header(**changes: Any) -> pull.PullMessageHeader:
    values: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "t1",
        "queue_id": 0,
        "queue_offset": 0,
        "message_count_max": 100_000,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_timeout_ms": 0,
        "sub_version": 0,
        "subscription": "none",
        "expression_type": "TAG",
    }
    return pull.PullMessageHeader(**{**values, **changes})


def lock_body(count: int) -> bytes:
    return filled_body(
        b'{"consumerGroup":"G","clientId":"c","mqSet":[',
        b'{"topic":"T","brokerName":"broker-a","queueId":%d}',
        b"]}",
        count,
    )


def batch_ack(count: int) -> bytes:
    now = int(time.time() * 1000)
    part = (
        b'{"c":"G","t":"t1","r":"0","so":%%d,"q":0,"rq":0,"pt":%d,"it":60000,"b":"/////w=="}' % now
    )
    return b'{"brokerName":"broker-a","acks":[%s]}' % b",".join(
        part % number for number in range(0, 32 * count, 32)
    )


def broker_requests(size: Size) -> Iterable[Worst]:
    """Yield the requests to a broker; those that change much come last."""
    many = f"a topic with {size.queues:,} queues"
    text = b"x" * 4_000_000
    wide = b"".join(b"k%d\x01v\x02" % number for number in range(4000)).decode()
    worst = Worst
    yield worst(Code.SEND_MESSAGE, "properties of 32 KiB", send_header(properties=wide), text)
    yield worst(Code.SEND_MESSAGE_V2, "properties of 32 KiB", send_header(properties=wide), text)
    empty = (22).to_bytes(4, "big") + bytes(18)
    yield worst(
        Code.SEND_BATCH_MESSAGE,
        f"a batch of {ELEMENTS_MAX:,} empty messages",
        send_header(topic="t1", batch=True, properties=""),
        empty * ELEMENTS_MAX,
    )
    yield worst(
        Code.SEND_BATCH_MESSAGE,
        f"a batch of {2 * ELEMENTS_MAX:,} empty messages",
        send_header(topic="t1", batch=True, properties=""),
        empty * (2 * ELEMENTS_MAX),
    )
    named = b"TAGS\1a\2KEYS\1k\2UNIQ_KEY\1u\2"
    element = (
        (22 + len(named)).to_bytes(4, "big") + bytes(16) + len(named).to_bytes(2, "big") + named
    )
    yield worst(
        Code.SEND_BATCH_MESSAGE,
        f"a batch of {ELEMENTS_MAX:,} messages with tags and keys",
        send_header(topic="t1", batch=True, properties=""),
        element * ELEMENTS_MAX,
    )
    for code in (Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2):
        yield worst(
            code,
            "4 MiB for a client that is not connected",
            send_header(properties="CLIENT\1x\2"),
            text,
        )
    yield worst(Code.CONSUMER_SEND_MSG_BACK, PLAIN, send.SendBackHeader(0, "G", 0))
    end = transaction.EndTransactionHeader("P", 0, 0, 8, "x")
    yield worst(Code.END_TRANSACTION, PLAIN, end)
    yield worst(Code.RESUME_CHECK_HALF_MESSAGE, PLAIN, transaction.ResumeCheckHeader("T", "x"))
    yield worst(Code.RECALL_MESSAGE, PLAIN, send.RecallMessageHeader("T", "x"))
    for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
        yield worst(code, f"{2 * ELEMENTS_MAX:,} messages, none with the tag", pull_header())
        yield worst(code, f"{ELEMENTS_MAX:,} messages of 91 bytes", pull_header(subscription="*"))
        yield worst(
            code,
            f"{ELEMENTS_MAX:,} messages, none with the property",
            pull_header(
                subscription=" OR ".join(f"a{n} = 'b'" for n in range(450)), expression_type="SQL92"
            ),
        )
    pops: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "T",
        "queue_id": -1,
        "message_count_max": 32,
        "invisible_ms": 60_000,
        "poll_ms": 0,
        "init_mode": 0,
    }
    yield worst(Code.POP_MESSAGE, many, pop.PopMessageHeader(**pops))
    yield worst(Code.POP_MESSAGE, f"{many}, in order", pop.PopMessageHeader(**pops, order=True))
    stranger = {**pops, "consumer_group": "stranger"}
    yield worst(Code.POP_MESSAGE, f"{many}, a new group", pop.PopMessageHeader(**stranger))
    yield worst(Code.NOTIFICATION, many, pop.NotificationHeader("G", "T", -1, 0, 0))
    yield worst(Code.PEEK_MESSAGE, many, pop.PeekMessageHeader("G", "T", -1, 32))
    yield worst(Code.POLLING_INFO, PLAIN, pop.PollingCountHeader("G", "T", -1))
    yield worst(Code.ACK_MESSAGE, PLAIN, pop.AckMessageHeader("G", "t1", 0, "x", 0))
    for count in (300, 1000, 4096, 50_000):
        yield worst(Code.BATCH_ACK_MESSAGE, f"{count:,} parts", None, batch_ack(count))
    yield worst(
        Code.BATCH_ACK_MESSAGE,
        "bits for a million offsets in each part",
        None,
        b'{"brokerName":"b","acks":[%s]}'
        % b",".join(
            [
                b'{"c":"G","t":"t1","r":"0","so":0,"q":0,"rq":0,"pt":0,"it":1,"b":"%s"}'
                % (b"/" * 174_000)
            ]
            * 90
        ),
    )
    yield worst(
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        PLAIN,
        pop.ChangeInvisibleTimeHeader("G", "t1", 0, "x", 0, 1),
    )
    last = 2**63 - 1
    yield worst(
        Code.QUERY_MESSAGE,
        f"{ELEMENTS_MAX:,} messages with the key",
        query.QueryMessageHeader("t1", "k", 100_000, 0, last),
    )
    yield worst(Code.VIEW_MESSAGE_BY_ID, "a message of 4 MiB", query.ViewMessageHeader(0))
    yield worst(
        Code.UPDATE_CONSUMER_OFFSET, PLAIN, offset.UpdateConsumerOffsetHeader("G", "T", 0, 0)
    )
    yield worst(Code.QUERY_CONSUMER_OFFSET, PLAIN, offset.QueryConsumerOffsetHeader("G", "T", 0))
    members = f"a group of {size.members:,} members"
    yield worst(Code.GET_CONSUMER_LIST_BY_GROUP, members, client.ConsumerGroupHeader("G"))
    yield worst(Code.GET_ALL_CONSUMER_OFFSET, "all offsets")
    yield worst(Code.GET_ALL_DELAY_OFFSET, PLAIN)
    yield worst(Code.GET_TOPIC_CONFIG, PLAIN, topics.TopicHeader("T"))
    yield worst(Code.GET_ALL_TOPIC_CONFIG, f"{size.topics:,} topics", topics.AllTopicsHeader())
    yield worst(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, PLAIN)
    yield worst(
        Code.QUERY_TOPIC_CONSUME_BY_WHO, f"{size.groups:,} groups", topics.TopicHeader("t1")
    )
    yield worst(Code.GET_SUBSCRIPTIONGROUP_CONFIG, PLAIN, topics.GroupHeader("G"))
    yield worst(
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, f"{size.groups:,} groups", topics.AllGroupsHeader()
    )
    yield worst(Code.GET_CONSUMER_CONNECTION_LIST, members, client.ConsumerGroupHeader("G"))
    yield worst(Code.GET_PRODUCER_CONNECTION_LIST, members, client.ProducerConnectionHeader("P"))
    yield worst(Code.GET_ALL_PRODUCER_INFO, members)
    yield worst(Code.QUERY_TOPICS_BY_CONSUMER, f"{size.topics:,} topics", topics.GroupHeader("G"))
    yield worst(
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER, PLAIN, topics.GroupSubscriptionHeader("G", "T")
    )
    yield worst(Code.QUERY_CORRECTION_OFFSET, many, offset.CorrectionOffsetHeader("T", "G"))
    yield worst(Code.GET_BROKER_CONFIG, PLAIN)
    yield worst(
        Code.UPDATE_BROKER_CONFIG, "32 KiB of lines", None, b"a=b\n" * (SETTINGS_BYTES_MAX // 4)
    )
    yield worst(Code.VIEW_BROKER_STATS_DATA, PLAIN, admin.BrokerStatsHeader("TOPIC_PUT_NUMS", "t1"))
    yield worst(Code.GET_BROKER_HA_STATUS, PLAIN)
    yield worst(
        Code.NOTIFY_MIN_BROKER_ID_CHANGE, PLAIN, registration.MinBrokerIdChangeHeader(0, "x")
    )
    yield worst(Code.GET_TIMER_CHECK_POINT, PLAIN)
    yield worst(Code.GET_BROKER_EPOCH_CACHE, PLAIN)
    yield worst(Code.NOTIFY_BROKER_ROLE_CHANGED, PLAIN, controller.RoleChangedHeader("x", 1, 1, 1))
    yield worst(
        Code.CONTROLLER_ELECT_MASTER, PLAIN, controller.ElectMasterHeader("c", "b", 1, True)
    )
    yield worst(Code.GET_TIMER_METRICS, PLAIN)
    yield worst(Code.DELETE_EXPIRED_COMMITLOG, PLAIN)
    yield worst(Code.CLEAN_EXPIRED_CONSUMEQUEUE, PLAIN)
    yield worst(Code.CLEAN_UNUSED_TOPIC, f"{size.topics:,} topics")
    yield worst(Code.SEARCH_OFFSET_BY_TIMESTAMP, PLAIN, offset.SearchOffsetHeader("t1", 0, 1))
    yield worst(Code.GET_MAX_OFFSET, PLAIN, offset.GetMaxOffsetHeader("t1", 0))
    yield worst(Code.GET_MIN_OFFSET, PLAIN, offset.GetMinOffsetHeader("t1", 0))
    yield worst(Code.GET_EARLIEST_MSG_STORETIME, PLAIN, offset.GetMinOffsetHeader("t1", 0))
    yield worst(
        Code.HEART_BEAT,
        "1,000 groups",
        None,
        b'{"clientID":"c","producerDataSet":[%s],"consumerDataSet":[%s]}'
        % (
            b",".join(b'{"groupName":"p%d"}' % number for number in range(500)),
            b",".join(
                b'{"groupName":"g%d","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
                b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":['
                b'{"topic":"t%d","subString":"*"}]}' % (number, number)
                for number in range(500)
            ),
        ),
    )
    yield worst(
        Code.HEART_BEAT,
        "a group with 5,000 topics",
        None,
        filled_body(
            b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g1",'
            b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
            b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[',
            b'{"topic":"t%d","subString":"a || b"}',
            b"]}]}",
            5_000,
        ),
    )
    yield worst(
        Code.HEART_BEAT,
        "a body of 2 MiB",
        None,
        filled_body(
            b'{"clientID":"c","consumerDataSet":[],"producerDataSet":[',
            b'{"groupName":"p%d"}',
            b"]}",
            10**6,
        ),
    )
    yield worst(
        Code.UNREGISTER_CLIENT, "1,000 groups", client.UnregisterClientHeader("c", "P", "G")
    )
    yield worst(
        Code.CHECK_CLIENT_CONFIG,
        "a filter of 16 KiB",
        None,
        json.dumps(
            {
                "clientId": "c",
                "group": "G",
                "subscriptionData": {
                    "topic": "T",
                    "subString": " OR ".join(f"a{n} = 'b'" for n in range(450)),
                    "expressionType": "SQL92",
                },
            }
        ).encode(),
    )
    yield worst(Code.POP_ROLLBACK, PLAIN)
    for strategy in ("AVG", "AVG_BY_CIRCLE"):
        yield worst(
            Code.QUERY_ASSIGNMENT,
            f"{many}, {strategy}",
            None,
            json.dumps(
                {
                    "topic": "T",
                    "consumerGroup": "g1",
                    "clientId": "c",
                    "strategyName": strategy,
                    "messageModel": "CLUSTERING",
                }
            ).encode(),
        )
    yield worst(
        Code.QUERY_ASSIGNMENT,
        f"{many}, broadcasting",
        None,
        json.dumps(
            {
                "topic": "T",
                "consumerGroup": "g1",
                "clientId": "c",
                "strategyName": "AVG",
                "messageModel": "BROADCASTING",
            }
        ).encode(),
    )
    yield worst(
        Code.SET_MESSAGE_REQUEST_MODE,
        PLAIN,
        None,
        b'{"topic":"T","consumerGroup":"g2","mode":"POP","popShareQueueNum":1}',
    )
    yield worst(Code.GET_ALL_MESSAGE_REQUEST_MODE, PLAIN)
    for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
        for count in (2_000, 33_000):
            body = lock_body(count)
            yield worst(code, f"{body.count(b'topic'):,} queues", None, body)
    yield worst(
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN, PLAIN, topics.GroupForbiddenHeader("G", "T", True)
    )
    yield worst(
        Code.EXCHANGE_BROKER_HA_INFO, PLAIN, admin.ExchangeHaAddressHeader("127.0.0.1:1", 0, "")
    )
    yield worst(Code.GET_TOPIC_STATS_INFO, many, topics.TopicHeader("T"))
    yield worst(
        Code.GET_CONSUME_STATS, f"{many}, {size.topics:,} topics", admin.ConsumeStatsHeader("G")
    )
    yield worst(Code.GET_BROKER_CONSUME_STATS, "all offsets", admin.BrokerConsumeStatsHeader())
    yield worst(Code.QUERY_CONSUME_TIME_SPAN, many, topics.GroupTopicHeader("G", "T"))
    yield worst(
        Code.QUERY_CONSUME_QUEUE,
        "1,024 entries",
        admin.QueryConsumeQueueHeader("t1", 0, 0, 100_000, "G"),
    )
    yield worst(Code.GET_BROKER_RUNTIME_INFO, PLAIN)
    yield worst(
        Code.GET_CONSUMER_RUNNING_INFO, PLAIN, client.ConsumerRunningHeader("G", "member-0")
    )
    yield worst(Code.CONSUME_MESSAGE_DIRECTLY, PLAIN, client.ConsumeDirectlyHeader("g1", "c", "x"))
    yield worst(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, PLAIN, client.ConsumerStatusHeader("T", "g1")
    )
    policies = [
        {"resource": f"Topic:t{number}", "actions": ["Pub"], "decision": "Allow"}
        for number in range(300)
    ]
    rules = json.dumps({"subject": "User:u", "policies": [{"entries": policies}]}).encode()
    user = b'{"username":"u","password":"secret","userType":"Normal"}'
    worst_of_users: tuple[tuple[Code, str, object, bytes], ...] = (
        (Code.AUTH_CREATE_USER, PLAIN, auth.UserHeader("u"), user),
        (Code.AUTH_UPDATE_USER, PLAIN, auth.UserHeader("u"), user),
        (Code.AUTH_GET_USER, PLAIN, auth.UserHeader("u"), b""),
        (Code.AUTH_LIST_USER, "made in a thread", auth.ListUsersHeader(), b""),
        (Code.AUTH_CREATE_ACL, "300 rules", auth.AclHeader("User:u"), rules),
        (Code.AUTH_UPDATE_ACL, "300 rules", auth.AclHeader("User:u"), rules),
        (Code.AUTH_GET_ACL, "300 rules", auth.AclHeader("User:u"), b""),
        (Code.AUTH_LIST_ACL, "made in a thread", auth.ListAclsHeader(), b""),
        (Code.AUTH_DELETE_ACL, "300 rules", auth.DeleteAclHeader("User:u"), b""),
        (Code.AUTH_DELETE_USER, PLAIN, auth.UserHeader("u"), b""),
    )
    for row in worst_of_users:
        yield worst(*row)
    for number in range(50, 55):  # without aclEnable; with it, a thread reads and writes files
        yield worst(Code(number), PLAIN)
    # What changes much.
    yield worst(
        Code.INVOKE_BROKER_TO_RESET_OFFSET, many, offset.ResetOffsetHeader("G", "T", -1, force=True)
    )
    yield worst(
        Code.CLONE_GROUP_OFFSET,
        many,
        offset.CloneGroupOffsetHeader("G", "clone", "T", offline=True),
    )
    create = topics.CreateTopicHeader("new", "TBW102", size.queues, size.queues, 6)
    yield worst(Code.UPDATE_AND_CREATE_TOPIC, many, create)
    yield worst(
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        "a body of 2 MiB",
        None,
        filled_body(
            b'{"topicConfigList":[',
            b'{"topicName":"t%d","readQueueNums":2,"writeQueueNums":2,"perm":6}',
            b"]}",
            size.topics - 100,
        ),
    )
    yield worst(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, PLAIN, None, b'{"groupName":"g3"}')
    yield worst(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        f"{size.groups:,} groups",
        None,
        filled_body(
            b'{"groupConfigList":[',
            b'{"groupName":"g%d","retryMaxTimes":3}',
            b"]}",
            size.groups - 100,
        ),
    )
    yield worst(Code.DELETE_SUBSCRIPTIONGROUP, many, topics.DeleteGroupHeader("g5", True))
    yield worst(Code.DELETE_TOPIC_IN_BROKER, many, topics.DeleteTopicHeader("T"))
    yield worst(
        Code.DELETE_TOPIC_IN_BROKER, f"{size.groups:,} groups", topics.DeleteTopicHeader("t1")
    )


NAMES = 199_000
"""Topics of the broker in front of which a name server is measured."""
GROUPS = 9_000
"""Brokers beside it."""


def broker_of(number: int) -> registration.RegisterBrokerHeader:
    """Return the header of one broker's registration."""
    return registration.RegisterBrokerHeader(
        f"b{number}", f"10.0.0.1:{number + 1}", "C", f"10.0.0.1:{number + 1}", 0
    )


def registration_body(topics_of_it: Iterable[str], *, version: int, flag: int = 0) -> bytes:
    """Return the body of a registration."""
    table = {
        name: TopicConfig(
            topic_name=name, read_queue_count=8, write_queue_count=8, perm=6, topic_sys_flag=flag
        )
        for name in topics_of_it
    }
    body = RegisterBrokerBody(TopicTable(table, DataVersion(version, version, version)))
    return encode_deflated(body) if len(table) > 1000 else body.encode()


def namesrv_requests() -> Iterable[Worst]:
    """Yield the requests to a name server; those that change much come last."""
    many, worst = f"{NAMES:,} topics", Worst
    names = [f"t{number}" for number in range(NAMES)]
    yield worst(Code.REGISTER_BROKER, many, broker_of(0), registration_body(names, version=1))
    for number in range(1, GROUPS):
        shared = ["shared", f"u{number % 10}"]
        yield worst(
            Code.REGISTER_BROKER,
            "two topics",
            broker_of(number),
            registration_body(shared, version=1),
        )
    yield worst(
        Code.REGISTER_BROKER,
        f"{many}, unchanged",
        broker_of(0),
        registration_body(names, version=1),
    )
    yield worst(Code.REGISTER_BROKER, many, broker_of(0), registration_body(names, version=2))
    shared = f"a topic on {GROUPS:,} brokers"
    for standard in (False, True):
        yield worst(Code.GET_ROUTEINFO_BY_TOPIC, shared, route.GetRouteHeader("shared", standard))
    yield worst(Code.GET_BROKER_CLUSTER_INFO, f"{GROUPS:,} brokers")
    yield worst(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, many)
    yield worst(
        Code.GET_TOPICS_BY_CLUSTER, f"{many}, {GROUPS:,} brokers", registration.ClusterHeader("C")
    )
    yield worst(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, f"{GROUPS:,} brokers")
    for code in (
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ):
        yield worst(code, many)
    yield worst(
        Code.REGISTER_TOPIC_IN_NAMESRV,
        "a route of 128 KiB",
        topics.TopicHeader("new"),
        TopicRoute([QueueData(f"b{number}", 8, 8, 6, 0) for number in range(1_000)], []).encode(),
    )
    yield worst(
        Code.BROKER_HEARTBEAT, PLAIN, registration.BrokerHeartbeatHeader("C", "10.0.0.1:1", "b0")
    )
    yield worst(
        Code.QUERY_DATA_VERSION,
        PLAIN,
        registration.BrokerHeader("b0", "10.0.0.1:1", "C", 0),
        DataVersion(1, 1, 1).encode(),
    )
    yield worst(Code.GET_BROKER_MEMBER_GROUP, PLAIN, registration.BrokerMembersHeader("C", "b0"))
    value = "x" * 100_000
    for number in range(39):
        yield worst(
            Code.PUT_KV_CONFIG,
            "a table of 4 MiB",
            registration.PutKvConfigHeader("N", f"{number}", value),
        )
    yield worst(Code.GET_KV_CONFIG, PLAIN, registration.KvConfigHeader("N", "1"))
    yield worst(
        Code.GET_KVLIST_BY_NAMESPACE, "a table of 4 MiB", registration.KvNamespaceHeader("N")
    )
    yield worst(Code.DELETE_KV_CONFIG, "a table of 4 MiB", registration.KvConfigHeader("N", "1"))
    yield worst(Code.GET_NAMESRV_CONFIG, PLAIN)
    yield worst(
        Code.UPDATE_NAMESRV_CONFIG, "32 KiB of lines", None, b"a=b\n" * (SETTINGS_BYTES_MAX // 4)
    )
    yield worst(Code.DELETE_TOPIC_IN_NAMESRV, shared, topics.DeleteTopicHeader("shared", "C"))
    yield worst(Code.WIPE_WRITE_PERM_OF_BROKER, many, registration.BrokerNameHeader("b0"))
    yield worst(Code.ADD_WRITE_PERM_OF_BROKER, many, registration.BrokerNameHeader("b0"))
    yield worst(Code.UNREGISTER_BROKER, many, registration.BrokerHeader("b0", "10.0.0.1:1", "C", 0))
