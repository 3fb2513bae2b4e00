"""``--dry-run`` shows the changes and sends none of them; commands that delete ask first."""

import json
import os
import pty
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mqadmin_calls import call, failed, mqadmin
from silent_servers import silent_broker

from triomq import Message, MessageQueue, Producer, PushConsumer
from triomq.client.admin import requests
from triomq.client.admin.admin import Admin
from triomq.client.admin.changes import changes_of
from triomq.client.admin.unsent import UnsentRequest, changes_server
from triomq.client.mqadmin.commands import load
from triomq.client.mqadmin.core.command import Effect
from triomq.client.mqadmin.core.command_list import LIST, VERBS
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.fields import header, wire
from triomq.remoting.protocol.headers.auth import UserHeader
from triomq.remoting.protocol.headers.offset import UpdateConsumerOffsetHeader
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.testing import InProcessCluster, local_cluster

CLUSTER = ("-c", "DefaultCluster")


@header
class AccountHeader:
    """An account of RocketMQ 4, as the header of request 50 has it."""

    access_key: str = wire("accessKey")
    secret_key: str = wire("secretKey")


JAVA_ONLY = {
    *VERBS["user"].values(),
    *VERBS["acl"].values(),
    *(name for name in LIST if "Cold" in name),
    "setCommitLogReadAheadMode",
    "resetMasterFlushOffset",
}
"""Commands whose requests our brokers refuse."""
ELSEWHERE = {
    "brokerForget",  # it needs a missing broker: test_missing_brokers.py
    *("electMaster", "cleanBrokerMetadata", "updateControllerConfig"),  # test_controller_commands
    *("addController", "removeController"),
}


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    async with local_cluster() as running:
        await running.create_topic("orders", queues=2)
        yield running


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that reach the network, by name."""
    names: list[str] = []
    original = requests.request

    def noted(code: RequestCode, *rest: Any) -> Any:
        names.append(RequestCode(code).name)
        return original(code, *rest)

    monkeypatch.setattr(requests, "request", noted)
    return names


async def changes(cluster: InProcessCluster, *words: object) -> list[dict[str, Any]]:
    done = await call(cluster, *words, "--dry-run", "--json")
    assert done.code == 0, done
    document = done.document
    assert document["dryRun"] is True
    return [change for change in document["changes"] if change["before"] != change["after"]]


async def test_a_topic_s_change_is_shown_and_not_made(
    cluster: InProcessCluster, sent: list[str]
) -> None:
    broker, namesrv = cluster.brokers[0].address, cluster.namesrv_address
    sent.clear()
    words = ("updateTopic", *CLUSTER, "-t", "orders", "-r", 4, "-a", "+message.type=FIFO")
    done = await mqadmin(*words, "--dry-run", "-n", namesrv)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"{broker}: topic orders",
        "  - readQueueNums = 2",
        "  + readQueueNums = 4",
        "  - attributes = {}",
        '  + attributes = {"message.type": "FIFO"}',
    ]
    same = await mqadmin("updateTopic", *CLUSTER, "-t", "orders", "--dry-run", "-n", namesrv)
    assert same.out == f"{broker}: topic orders: no change\n"
    (new,) = await changes(cluster, "updateTopic", *CLUSTER, "-t", "other")
    assert (new["before"], new["after"]["readQueueNums"]) == (None, 8)
    read = {"GET_BROKER_CLUSTER_INFO", "GET_KVLIST_BY_NAMESPACE", "GET_TOPIC_CONFIG"}
    assert set(sent) == read
    assert "other" not in (await mqadmin("topicList", "-n", namesrv)).out.split()


async def test_no_command_changes_anything_in_a_dry_run(
    cluster: InProcessCluster, sent: list[str], tmp_path: Path
) -> None:
    namesrv, broker = cluster.namesrv_address, cluster.brokers[0].address
    (tmp_path / "topics").write_text('[{"topicName": "orders", "perm": 4}, {"topicName": "new"}]')
    (tmp_path / "groups").write_text('[{"groupName": "billing", "retryMaxTimes": 1}]')
    orders, group = ("-t", "orders"), ("-g", "billing")
    (tmp_path / "cluster.json").write_text(
        json.dumps(
            {
                "format": 1,
                "cluster": "DefaultCluster",
                "topics": {"orders": {"perm": 4}, "new": {}},
                "groups": {"billing": {"retryMaxTimes": 1}},
                "offsets": {"billing": {"orders": {"broker-a": {"1": 0}}}},
            }
        )
    )
    for words in (group, ("-g", "failing")):
        assert (await mqadmin("updateSubGroup", *CLUSTER, *words, "-n", namesrv)).code == 0
    assert (
        await mqadmin("updateKvConfig", "-s", "S", "-k", "old", "-v", "1", "-n", namesrv)
    ).code == 0
    async with Producer(namesrv, group="shop") as producer:
        await producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 1))
    async with Admin(namesrv) as admin:
        commit = UpdateConsumerOffsetHeader("billing", "orders", 1, 1)
        await admin.ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        (stored,) = await admin.read(MessageQueue("orders", "broker-a", 1), 0, count=1)
        back = SendBackHeader(stored.log_offset, "failing", -1, stored.message_id, "orders")
        await admin.ask(broker, RequestCode.CONSUMER_SEND_MSG_BACK, back)
    calls: dict[str, tuple[tuple[object, ...], list[tuple[Any, Any]] | int]] = {
        "updateTopic": ((*orders, *CLUSTER, "-p", 4), [({"perm": 6}, {"perm": 4})]),
        "deleteTopic": ((*orders, *CLUSTER), 1),
        "updateSubGroup": (
            (*group, *CLUSTER, "-r", 3, "-o", "true"),
            [({"retryMaxTimes": 16}, {"retryMaxTimes": 3, "consumeMessageOrderly": True})],
        ),
        "deleteSubGroup": ((*group, *CLUSTER, "-r", "true"), 3),
        "setConsumeMode": ((*orders, *group, "-m", "POP", *CLUSTER), [(None, {"mode": "POP"})]),
        "resetOffsetByTime": (
            (*orders, *group, "-s", "-1h"),
            [
                (
                    {"orders queue 1": 1},  # in queue 0 the group has no offset yet
                    {"orders queue 0": 0, "orders queue 1": 0},
                )
            ],
        ),
        "skipAccumulatedMessage": ((*orders, "-g", "failing"), [(None, {"orders queue 1": 1})]),
        "cloneGroupOffset": (("-s", "billing", "-d", "copy", *orders), 1),
        "clusterApply": ((tmp_path / "cluster.json",), 3),
        "clusterImport": ((tmp_path / "cluster.json",), 4),
        "brokerDrain": (("broker-a",), 3),
        "brokerUndrain": (("broker-a",), 0),
        "wipeWritePerm": (("-b", "broker-a"), [(None, {"brokerName": "broker-a"})]),
        "addWritePerm": (("-b", "broker-a"), 1),
        "updateTopicPerm": ((*orders, *CLUSTER, "-p", 4), [({"perm": 6}, {"perm": 4})]),
        "updateBrokerConfig": (
            ("-b", broker, "-k", "brokerPermission", "-v", 4),
            [({"brokerPermission": "6"}, {"brokerPermission": "4"})],
        ),
        "updateNamesrvConfig": (
            ("-k", "orderMessageEnable", "-v", "true"),
            [({"orderMessageEnable": "false"}, {"orderMessageEnable": "true"})],
        ),
        "updateKvConfig": (("-s", "S", "-k", "old", "-v", "2"), [({"old": "1"}, {"old": "2"})]),
        "deleteKvConfig": (("-s", "S", "-k", "old"), [({"old": "1"}, None)]),
        "updateOrderConf": (("-m", "put", *orders, "-v", "a:4"), [(None, {"orders": "a:4"})]),
        "updateTopicList": ((*CLUSTER, "-f", tmp_path / "topics"), 2),
        "updateSubGroupList": (
            (*CLUSTER, "-f", tmp_path / "groups"),
            [({"retryMaxTimes": 16}, {"retryMaxTimes": 1})],
        ),
        "messageReplay": ((*orders, "--from", 0), [(None, {"topic": "orders", "bodyBytes": 1})]),
        "dlqResend": (("failing", "--topic", "orders"), [(None, {"topic": "orders"})]),
        "dlqPurge": (("failing",), [({"messages": 1}, None)]),
        "deleteExpiredCommitLog": (("-b", broker), 1),
        "cleanExpiredCQ": (("-b", broker), 1),
        "cleanUnusedTopic": (("-b", broker), 1),
    }
    before = await state(cluster)
    sent.clear()
    wrong = {}
    for name, (words, expected) in calls.items():
        found = await changes(cluster, name, *words)
        if isinstance(expected, int):
            found = [change for change in found if "NAMESRV" not in change["request"]]
            found = [change for change in found if change["subject"] != "DELETE_TOPIC_IN_BROKER"]
            if len(found) != expected:
                wrong[name] = found
        else:
            found = [change for change in found if "IN_NAMESRV" not in change["request"]]
            pairs = [(part(found[0], "before", b), part(found[0], "after", a)) for b, a in expected]
            if len(found) != len(expected) or pairs != expected:
                wrong[name] = found
    assert wrong == {}
    assert [name for name in sent if changes_server(RequestCode[name])] == []
    assert await state(cluster) == before
    changing = (Effect.CHANGES, Effect.DESTROYS, Effect.SENDS, Effect.MOVES)
    tried = {n for n in LIST if load(n).effect in changing and load(n).run is not None}
    assert tried - JAVA_ONLY - ELSEWHERE == set(calls)


def part(change: dict[str, Any], side: str, like: dict[str, Any] | None) -> Any:
    """Return the members of one side that the expectation names."""
    return (
        None
        if like is None and change[side] is None
        else {key: change[side][key] for key in like or {}}
    )


async def state(cluster: InProcessCluster) -> list[Any]:
    """Return what these commands could have changed."""
    namesrv = ("-n", cluster.namesrv_address, "--json")
    calls = (
        ("topicRoute", "-t", "orders"),
        ("topicList",),
        ("getConsumerConfig", "-g", "billing"),
        ("consumerProgress", "-g", "billing"),
        ("consumerProgress",),
        ("getBrokerConfig", *CLUSTER),
        ("getNamesrvConfig",),
    )
    return [(await mqadmin(*words, *namesrv)).document for words in calls]


async def test_a_dry_run_has_the_row_of_a_silent_broker_and_exit_code_3(
    cluster: InProcessCluster,
) -> None:
    namesrv = cluster.namesrv_address
    async with silent_broker(namesrv, ["orders"]) as ghost:
        words = ("updateTopic", *CLUSTER, "-t", "orders", "-p", 4, "--timeout", 2, "-n", namesrv)
        done = await mqadmin(*words, "--dry-run")
    assert done.code == 3
    assert f"{cluster.brokers[0].address}: topic orders\n  - perm = 6\n  + perm = 4\n" in done.out
    assert f"{ghost}  failed: " in done.out


async def test_without_a_terminal_a_deletion_needs_yes(cluster: InProcessCluster) -> None:
    words = ("deleteTopic", *CLUSTER, "-t", "orders", "-n", cluster.namesrv_address)
    assert failed(await mqadmin(*words), 2, "--yes", "--dry-run", "the topic with its queues")
    assert (await call(cluster, "topicRoute", "-t", "orders")).code == 0
    assert (await mqadmin(*words, "-y")).code == 0


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
async def test_on_a_terminal_a_move_of_a_group_shows_its_effect_and_asks(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    ours, theirs = pty.openpty()
    namesrv = cluster.namesrv_address
    await mqadmin("group", "create", *CLUSTER, "-g", "billing", "-n", namesrv)
    words = ("group", "skip", "-g", "billing", "-t", "orders", "-n", namesrv)
    with os.fdopen(theirs) as terminal:
        os.write(ours, f"{answer}\n".encode())
        monkeypatch.setattr("sys.stdin", terminal)
        done = await mqadmin(*words)
        assert done.code == code
        assert "offsets of group billing in topic orders (new)\n" in done.err
        assert "This moves the group, and its members drop what they have pulled." in done.err
        assert (await mqadmin(*words, "--yes")).err == ""
    os.close(ours)


async def ignore(message: Message) -> None:
    pass


async def test_deleting_a_topic_names_its_groups(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesrv = cluster.namesrv_address
    words = ("topic", "delete", *CLUSTER, "-t", "orders", "-n", namesrv)
    async with PushConsumer(namesrv, group="billing", subscriptions="orders", handler=ignore):
        await mqadmin("group", "create", *CLUSTER, "-g", "audit", "-n", namesrv)
        await mqadmin("group", "skip", "-g", "audit", "-t", "orders", "-n", namesrv)
        assert (
            "2 groups read topic orders: audit, billing" in (await mqadmin(*words, "--dry-run")).err
        )
        ours, theirs = pty.openpty()
        with os.fdopen(theirs) as terminal, monkeypatch.context() as patched:
            os.write(ours, b"n\n")
            patched.setattr("sys.stdin", terminal)
            question = (await mqadmin(*words)).err
        os.close(ours)
        assert question.index("2 groups read topic orders: audit, billing") < question.index(
            "[y/N]"
        )
        done = await mqadmin(*words, "--yes", "--json")
        assert (done.code, done.document["groups"]) == (0, ["audit", "billing"])


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("", 1), ("y", 0)])
async def test_on_a_terminal_a_deletion_shows_its_effect_and_asks(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    ours, theirs = pty.openpty()
    namesrv = cluster.namesrv_address
    with os.fdopen(theirs) as terminal:
        os.write(ours, f"{answer}\n".encode())
        monkeypatch.setattr("sys.stdin", terminal)
        done = await mqadmin("deleteTopic", *CLUSTER, "-t", "orders", "-n", namesrv)
    os.close(ours)
    assert done.code == code
    broker = cluster.brokers[0].address
    assert f"{broker}: topic orders (deleted)\n  - topicName = orders\n" in done.err
    assert "This deletes the topic with its queues and offsets. Continue? [y/N] " in done.err
    assert done.err.endswith("not confirmed: nothing was done\n") is (code == 1)
    left = (await mqadmin("topicList", "-n", namesrv)).out.split()
    assert ("orders" in left) is (code == 1)


@pytest.mark.parametrize(
    "words",
    [
        ("updateTopic", "-t", "orders", *CLUSTER, "--watch", 1),
        ("topicList", "--dry-run"),
        ("topicList", "--yes"),
        ("sendMessage", "-t", "orders", "-p", "x", "--dry-run"),
        ("topicList", "--json", "--csv"),
    ],
)
async def test_options_that_do_not_fit_are_refused(words: tuple[object, ...]) -> None:
    assert failed(await mqadmin(*words, "-n", "127.0.0.1:1"), 2)


async def test_a_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the fields of a request that nobody reads, nor beside its value before."""
    old, new, address = "s3cr3t-old", "s3cr3t-new", "127.0.0.1:1"
    present = {"username": "ann", "password": old, "userType": "Normal"}

    async def ask(*_: object) -> Command:
        return Command(code=0, body=json.dumps(present).encode())

    admin = Admin(address)
    monkeypatch.setattr(admin, "ask", ask)
    body = json.dumps({"username": "ann", "password": new}).encode()
    (user,) = await changes_of(
        admin, UnsentRequest(address, RequestCode.AUTH_UPDATE_USER, UserHeader("ann"), body)
    )
    assert user.lines == [
        f"{address}: user ann",
        "  - password = (hidden)",
        "  + password = (hidden, new)",
    ]
    account_header = AccountHeader("ann", new)
    (account,) = await changes_of(
        admin, UnsentRequest(address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account_header, b"")
    )
    assert "    accessKey = ann" in account.lines
    assert "    secretKey = (hidden)" in account.lines
    for change in (user, account):
        text = json.dumps(change.document) + "\n".join(change.lines)
        assert old not in text
        assert new not in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GET_BROKER_CONFIG", False),
        ("QUERY_MESSAGE", False),
        ("PULL_MESSAGE", False),
        ("UPDATE_AND_GET_GROUP_FORBIDDEN", True),
        ("AUTH_GET_ACL", False),
        ("AUTH_UPDATE_ACL", True),
        ("CONTROLLER_ELECT_MASTER", True),
        ("EXPORT_ROCKSDB_CONFIG_TO_JSON", True),
        ("POP_MESSAGE", True),
        ("UNREGISTER_BROKER", True),
    ],
)
def test_a_request_that_is_not_known_to_read_is_held_back(name: str, expected: bool) -> None:
    assert changes_server(RequestCode[name]) is expected
