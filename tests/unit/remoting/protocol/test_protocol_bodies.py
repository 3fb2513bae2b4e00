"""JSON bodies: the samples of the protocol sheet, the tolerance of fastjson, and the compressed
registration.
"""

import zlib

import attrs
import pytest

from triomq.remoting.core.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.bodies import registration
from triomq.remoting.protocol.bodies.cluster import (
    BrokerMembersBody,
    ClusterTable,
    HaStatus,
    KvTable,
)
from triomq.remoting.protocol.bodies.groups import (
    ConsumerConnection,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from triomq.remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.offsets import (
    ConsumeOffset,
    ConsumerOffsetTable,
    ConsumeStats,
    QueueOffsets,
    TopicOffset,
    TopicStats,
)
from triomq.remoting.protocol.bodies.registration import (
    RegisterBrokerBody,
    decode_registration,
    encode_deflated,
)
from triomq.remoting.protocol.bodies.route import BrokerData, MessageQueue, QueueData, TopicRoute
from triomq.remoting.protocol.bodies.running import ConsumerRunning, ProcessQueueState
from triomq.remoting.protocol.bodies.schema import JsonBody
from triomq.remoting.protocol.bodies.topics import DataVersion, TopicConfig, TopicNames, TopicTable

LEGACY_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"192.168.0.1:10911",1:"192.168.0.2:10911"},'
    b'"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":'
    b'"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
)
ROUTE = TopicRoute(
    [QueueData("broker-a", 8, 8)],
    [BrokerData("DefaultCluster", "broker-a", {0: "192.168.0.1:10911", 1: "192.168.0.2:10911"})],
)
HEARTBEAT = (
    b'{"clientID":"192.168.0.9@4321#123","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAS'
    b'T_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA'
    b' || TagB",'
    b'"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicA"}],"unitMode":false}],'
    b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}'
)
QUEUE = MessageQueue("TopicA", "broker-a", 3)


def test_routes_in_both_forms() -> None:
    assert TopicRoute.decode(LEGACY_ROUTE) == ROUTE
    assert ROUTE.encode_legacy() == LEGACY_ROUTE
    standard = LEGACY_ROUTE.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":')
    assert ROUTE.encode_standard() == standard
    assert TopicRoute.decode(standard) == ROUTE
    assert TopicRoute.decode(b"{}") == TopicRoute()


def test_standard_routes_are_ascii_with_upper_case_escapes() -> None:
    route = TopicRoute([], [BrokerData("集群", "b😀", {})], order_topic_conf="é:8")
    text = route.encode_standard()
    assert text.isascii()
    assert b"\\u96C6\\u7FA4" in text
    assert b"b\\uD83D\\uDE00" in text
    assert TopicRoute.decode(text) == route


def test_heartbeats() -> None:
    subscription = SubscriptionData(
        topic="TopicA",
        sub_string="TagA || TagB",
        tags=frozenset({"TagA", "TagB"}),
        codes=frozenset({2598919, 2598920}),
        sub_version=1700000000000,
    )
    data = HeartbeatData(
        client_id="192.168.0.9@4321#123",
        producers=[ProducerData("PG")],
        consumers=[ConsumerData(group="CG", subscriptions=[subscription])],
    )
    assert HeartbeatData.decode(HEARTBEAT) == data
    assert data.encode() == HEARTBEAT
    go = HEARTBEAT.replace(b'"heartbeatFingerprint":0,', b"").replace(b',"withoutSub":false', b"")
    assert HeartbeatData.decode(go) == data


def test_tables_with_object_keys() -> None:
    stats = TopicStats({QUEUE: TopicOffset(0, 9, 0)})
    text = (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":9,"minOffset":0}},"topicPutTps":0.0}'
    )
    assert stats.encode() == text
    assert TopicStats.decode(text) == stats
    as_string = (
        b'{"offsetTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":3,'
        b'\\"topic\\":\\"TopicA\\"}":{"maxOffset":9}}}'
    )
    assert TopicStats.decode(as_string) == stats
    consumed = ConsumeStats({QUEUE: ConsumeOffset(10, 5, 7, 6)})
    assert ConsumeStats.decode(consumed.encode()) == consumed
    assert QueueOffsets({QUEUE: 42}).encode().endswith(b'"TopicA"}:42}}')
    running = ConsumerRunning(queues={QUEUE: ProcessQueueState(dropped=True)}, jstack="x")
    assert b'"droped":true' in running.encode()
    assert ConsumerRunning.decode(running.encode()) == running


def test_tables_with_numbers_as_keys() -> None:
    table = ConsumerOffsetTable({"TopicA@CG": {1: 3, 0: 12}})
    assert table.encode(bare_keys=True) == b'{"offsetTable":{"TopicA@CG":{0:12,1:3}}}'
    assert table.encode() == b'{"offsetTable":{"TopicA@CG":{"0":12,"1":3}}}'
    assert ConsumerOffsetTable.decode(table.encode(bare_keys=True)) == table
    cluster = ClusterTable({"broker-a": ROUTE.broker_datas[0]}, {"DefaultCluster": ["broker-a"]})
    assert ClusterTable.decode(cluster.encode(bare_keys=True)) == cluster


def test_members_in_alphabetical_order_and_nothing_for_none() -> None:
    assert TopicConfig(topic_name="TopicA", read_queue_count=8, write_queue_count=8).encode() == (
        b'{"attributes":{},"order":false,"perm":6,"readQueueNums":8,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"TopicA",'
        b'"topicSysFlag":0,"writeQueueNums":8}'
    )
    assert TopicNames(["T"]).encode() == b'{"topicList":["T"]}'
    assert KvTable({"k": "v"}).encode() == b'{"table":{"k":"v"}}'
    assert BrokerMembersBody().encode() == b"{}"
    assert LockResponse([QUEUE]).encode() == b'{"lockOKMQSet":[' + QUEUE.encode() + b"]}"
    assert SubscriptionGroupConfig(group_name="CG").encode() == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,'
        b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"CG",'
        b'"groupRetryPolicy":{"type":"CUSTOMIZED"},'
        b'"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
        b'"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_queues_sort_by_topic_broker_and_number() -> None:
    queues = [
        MessageQueue("B", "a", 0),
        MessageQueue("A", "b", 0),
        MessageQueue("A", "a", 10),
        MessageQueue("A", "a", 9),
    ]
    assert sorted(queues) == list(reversed(queues))
    assert len({QUEUE, MessageQueue("TopicA", "broker-a", 3)}) == 1


def test_java_habits_are_read() -> None:
    text = (
        b'{"topicName":"T","perm":"6","readQueueNums":4.0,"order":"TRUE",'
        b'"attributes":{"a":1,"b":true,"c":{}},"new":[{}]}'
    )
    assert TopicConfig.decode(text) == TopicConfig(
        topic_name="T",
        perm=6,
        read_queue_count=4,
        order=True,
        attributes={"a": "1", "b": "true", "c": "{}"},
    )
    assert TopicConfig.decode(b'{"topicName":"T","perm":null,"order":1}') == TopicConfig(
        topic_name="T", order=True
    )
    assert DataVersion.decode(b'{"counter":"3"}') == DataVersion(counter=3)
    connection = ConsumerConnection.decode(
        b'{"connectionSet":[{"clientAddr":"a:1","clientId":"c","language":"JAVA","version":1}]}'
    )
    assert connection.connections[0].client_id == "c"
    shared = HeartbeatData.decode(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"a",'
        b'"subscriptionDataSet":[{"topic":"T"}]},'
        b'{"groupName":"b","subscriptionDataSet":[{"$ref":"$.consumerDataSet[0].subscriptionDataS'
        b'et[0]"}]}]}'
    )
    assert shared.consumers[0].subscriptions == shared.consumers[1].subscriptions


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (TopicNames, b""),
        (TopicNames, b"null"),
        (TopicNames, b"[]"),
        (TopicNames, b'{"topicList":"T"}'),
        (TopicNames, b'{"topicList":{}}'),
        (TopicConfig, b"{}"),
        (TopicConfig, b'{"topicName":"T","perm":"x"}'),
        (TopicConfig, b'{"topicName":"T","perm":true}'),
        (TopicConfig, b'{"topicName":"T","perm":1.5}'),
        (TopicConfig, b'{"topicName":"T","perm":[1]}'),
        (TopicConfig, b'{"topicName":"T","perm":9223372036854775808}'),
        (TopicConfig, b'{"topicName":"T","order":"perhaps"}'),
        (TopicConfig, b'{"topicName":"T","attributes":[1]}'),
        (TopicStats, b'{"topicPutTps":"fast"}'),
        (TopicStats, b'{"topicPutTps":true}'),
        (TopicStats, b'{"offsetTable":{"no object":{}}}'),
        (TopicStats, b'{"offsetTable":{"{}":{}}}'),
        (ConsumerOffsetTable, b'{"offsetTable":{"T@G":{"x":1}}}'),
        (HeartbeatData, b'{"clientID":"c","consumerDataSet":[5]}'),
    ],
)
def test_bodies_of_another_shape_are_refused(cls: type[JsonBody], text: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        cls.decode(text)
    assert caught.value.reason
    assert caught.value.fix


def test_the_error_names_the_place() -> None:
    with pytest.raises(
        RemoteProtocolError,
        match="consumerDataSet: subscriptionDataSet: SubscriptionData lacks topic",
    ):
        HeartbeatData.decode(
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}'
        )


def test_what_cannot_be_written_is_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        TopicNames(["\ud800"]).encode()
    with pytest.raises(LocalProtocolError):
        QueueOffsets({MessageQueue("\ud800", "b", 0): 1}).encode()


def test_other_bodies_survive_a_round_trip() -> None:
    for body in (
        LockRequest(consumer_group="CG", client_id="c", queues=[QUEUE]),
        HaStatus(master=True, master_log_max_offset=5),
        GroupRetryPolicy("EXPONENTIAL"),
        DataVersion(1, 2, 3).next(9),
    ):
        assert type(body).decode(body.encode()) == body


# ------------------------------------------------------------------------------------------------
# registration

TABLE = TopicTable(
    {
        "T": TopicConfig(
            topic_name="T",
            read_queue_count=4,
            write_queue_count=4,
            attributes={"message.type": "FIFO"},
        ),
        "U": TopicConfig(topic_name="U", perm=7),
    },
    DataVersion(0, 1700000000000, 5),
)


def piece(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def deflated(version: int, *, extra: bytes = b"") -> bytes:
    topics = [b'T 4 4 6 SINGLE_TAG {"message.type":"FIFO"}', b"U 16 16 7 SINGLE_TAG {}"]
    data = (
        piece(TABLE.data_version.encode())
        + (2).to_bytes(4, "big")
        + b"".join(map(piece, topics))
        + piece(b"[]")
    )
    if version >= 413:
        data += (1).to_bytes(4, "big") + piece(b'{"topic":"T","bname":"broker-a"}')
    return zlib.compress(data + extra)


def test_plain_registration() -> None:
    body = RegisterBrokerBody(TABLE)
    assert decode_registration(body.encode(), 479) == body
    assert decode_registration(TABLE.encode(), 28) == body


def test_compressed_registration_is_recognised_by_its_bytes() -> None:
    old = decode_registration(deflated(401), 401)
    assert old.table == TABLE
    assert old.filter_server_list == []
    new = decode_registration(deflated(479), 479)
    assert attrs.evolve(new.table, topic_queue_mapping_info_map=None) == TABLE
    assert new.table.topic_queue_mapping_info_map == {"T": {"topic": "T", "bname": "broker-a"}}
    assert (
        decode_registration(deflated(401), 479).table == TABLE
    )  # sections that are not there are not needed


def test_the_deflated_form_has_java_s_bytes_and_comes_back() -> None:
    body = RegisterBrokerBody(TABLE)
    without_mappings = zlib.decompress(deflated(401)).replace(
        piece(b"U 16 16 7 SINGLE_TAG {}"), piece(b"U 16 16 7 SINGLE_TAG")
    ) + (0).to_bytes(4, "big")
    assert zlib.decompress(encode_deflated(body)) == without_mappings
    assert (
        attrs.evolve(
            decode_registration(encode_deflated(body), 479).table, topic_queue_mapping_info_map=None
        )
        == TABLE
    )
    many = TopicTable(
        {
            f"%RETRY%group-{number}": TopicConfig(topic_name=f"%RETRY%group-{number}")
            for number in range(2000)
        },
        DataVersion(0, 1, 2),
    )
    assert len(encode_deflated(RegisterBrokerBody(many))) * 10 < len(
        RegisterBrokerBody(many).encode()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x78\x9cjunk",
        zlib.compress(b""),
        zlib.compress(piece(b"{}")[:-1]),
        zlib.compress(piece(b"{}") + b"\xff\xff\xff\xff"),
        zlib.compress(piece(b"{}") + (1).to_bytes(4, "big") + b"\xff\xff\xff\xff"),
        zlib.compress(piece(b"{}") + (1).to_bytes(4, "big") + piece(b"T 4 4")),
        zlib.compress(piece(b"{}") + (1).to_bytes(4, "big") + piece(b"T four 4 6 SINGLE_TAG {}")),
        zlib.compress(piece(b"{}") + (1).to_bytes(4, "big") + piece(b"T 4 4 6 SINGLE_TAG []")),
    ],
    ids=range(9),
)
def test_damaged_registrations_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_registration(data, 479)


def test_a_registration_cannot_inflate_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 1000)
    with pytest.raises(RemoteProtocolError, match="more than 1000 bytes"):
        decode_registration(zlib.compress(bytes(2000)), 479)
