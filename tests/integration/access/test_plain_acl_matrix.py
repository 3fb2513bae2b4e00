"""ACL 1.0: each request with each set of credentials, against the recorded answers of 4.9.4."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from access_callers import Caller
from access_requests import access_request, recorded
from brokers import running_broker

from triomq.remoting.access.needs import BODY_NEEDS, HEADER_NEEDS
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command

ACCESS_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
SECRET = "12345678"
ACCOUNTS = """
accounts:
  - accessKey: nobody1
    secretKey: 12345678
  - accessKey: RocketMQ
    secretKey: 12345678
    topicPerms: [TA=PUB|SUB]
    groupPerms: [GA=SUB]
  - {accessKey: pubonly1, secretKey: 12345678, defaultTopicPerm: PUB, defaultGroupPerm: PUB}
  - {accessKey: subonly1, secretKey: 12345678, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
  - {accessKey: rocketmq2, secretKey: 12345678, admin: true, whiteRemoteAddress: 192.168.1.*}
  - {accessKey: whiteip, secretKey: 12345678, whiteRemoteAddress: 127.0.0.9}
  - {accessKey: whitehere, secretKey: 12345678, whiteRemoteAddress: 127.0.0.*}
"""
CALLERS: dict[str, tuple[str | None, str, bool]] = {
    "none": (None, SECRET, True),
    "wrongsig": ("nobody1", "wrong", True),
    "nosig": ("nobody1", SECRET, False),
    "unknown": ("ghost11", SECRET, True),
    "noright": ("nobody1", SECRET, True),
    "right (TA=PUB|SUB, GA=SUB)": ("RocketMQ", SECRET, True),
    "default PUB only": ("pubonly1", SECRET, True),
    "default SUB only": ("subonly1", SECRET, True),
    "admin": ("rocketmq2", SECRET, True),
    "account white, wrong sig": ("whitehere", "wrong", True),
    "account white, other address": ("whiteip", SECRET, True),
}
"""Column of the recording -> access key, secret, whether the request has its signature."""

OPEN_IN_JAVA: dict[str, frozenset[int]] = {
    "messages: as the request that does the same and is checked": frozenset(
        {
            *(Code.SEND_BATCH_MESSAGE, Code.END_TRANSACTION, Code.VIEW_MESSAGE_BY_ID),
            *(Code.LITE_PULL_MESSAGE, Code.POP_MESSAGE, Code.PEEK_MESSAGE, Code.ACK_MESSAGE),
            *(Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME, Code.NOTIFICATION),
            *(Code.POLLING_INFO, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ),
            *(Code.QUERY_ASSIGNMENT, Code.CONSUME_MESSAGE_DIRECTLY),
            Code.SEND_MESSAGE,  # to a retry topic
            *(Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2),  # to any topic
        }
    ),
    "figures of a topic or group: SUB on it": frozenset(
        {
            *(Code.QUERY_CONSUMER_OFFSET, Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET),
            *(Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME, Code.GET_TOPIC_STATS_INFO),
            *(Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_CONSUME_STATS, Code.GET_TOPIC_CONFIG),
            *(Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_CONSUME_TIME_SPAN),
            *(Code.GET_CONSUMER_RUNNING_INFO, Code.QUERY_CORRECTION_OFFSET),
            *(Code.QUERY_CONSUME_QUEUE, Code.QUERY_TOPICS_BY_CONSUMER),
            *(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.GET_SUBSCRIPTIONGROUP_CONFIG),
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        }
    ),
    "changes, settings and figures of the broker: an administrator": frozenset(
        {
            *(Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_ALL_PRODUCER_INFO),
            *(Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CLONE_GROUP_OFFSET),
            *(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, Code.SET_MESSAGE_REQUEST_MODE),
            *(Code.GET_BROKER_CONFIG, Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_CONSUME_STATS),
            *(Code.CLEAN_UNUSED_TOPIC, Code.CLEAN_EXPIRED_CONSUMEQUEUE),
            *(Code.DELETE_EXPIRED_COMMITLOG, Code.RESUME_CHECK_HALF_MESSAGE),
            *(Code.NOTIFY_MIN_BROKER_ID_CHANGE, Code.EXCHANGE_BROKER_HA_INFO),
        }
    ),
}
"""What is needed here -> codes that 4.9.4 lets any account send. On purpose: docs/security.md."""
OTHER_RESOURCE_NAMED = {
    (Code.PULL_MESSAGE, ""): "the topic is looked at before the group",
    (Code.PULL_MESSAGE, "DLQ topic"): "the topic is looked at before the group",
    (Code.UPDATE_CONSUMER_OFFSET, ""): "the topic is looked at before the group",
    (Code.SEND_MESSAGE, "retry topic, ext group=GB"): "the group of the retry topic counts",
    (Code.SEND_MESSAGE_V2, "retry topic"): "the group of the retry topic, not the producer's",
}
"""Request -> why its refusal names another resource."""


def refused(answer: Command) -> bool:
    """Whether access control refuses, rather than the handler."""
    return (answer.remark or "").startswith(ACCESS_EXCEPTION)


def differences(
    caller: Caller, columns: dict[str, tuple[str | None, str, bool]], stricter: set[int]
) -> Iterator[str]:
    """Ask everything; yield what differs from 4.9.4 without being listed; fill *stricter*."""
    for row in recorded("matrix", "4.9.4"):
        code, variant = row["code"], row["variant"]
        if code not in HEADER_NEEDS and code not in BODY_NEEDS:
            continue
        command = access_request(code, variant)
        for column, (name, secret, sign) in columns.items():
            wanted, remark = row["r"][column]
            answer = caller.ask(command, name, secret, sign=sign)
            theirs = (remark or "").removesuffix(", …")
            where = f"{code} {row['name']} {variant}, {column}"
            if not theirs.startswith(ACCESS_EXCEPTION):
                if refused(answer):
                    stricter.add(code)
            elif (answer.code, (answer.remark or "").partition(", ")[0]) != (
                wanted,
                theirs,
            ) and not (
                refused(answer)
                and (code, variant) in OTHER_RESOURCE_NAMED
                and "No default permission for" in theirs
            ):
                yield f"{where}: {answer.code} {answer.remark}, not {theirs}"


async def asked(
    tmp_path: Path, accounts: str, columns: dict[str, Any]
) -> tuple[list[str], set[int]]:
    """Return the differences, and the codes for which this broker is stricter."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(accounts)
    path.chmod(0o600)
    settings = {
        "aclEnable": True,
        "plainAclFile": path,
        "brokerClusterName": "DefaultCluster",
        "grpcServerPort": 0,
    }
    stricter: set[int] = set()
    async with running_broker(tmp_path, **settings) as broker:

        def work() -> list[str]:
            with BlockingConnection(broker.address) as connection:
                return list(differences(Caller(connection), columns, stricter))

        return await trio.to_thread.run_sync(work), stricter


@pytest.mark.feature("167e")
async def test_each_request_is_answered_as_4_9_4_answers_it(tmp_path: Path) -> None:
    """What 4.9.4 refuses is refused with its code and text; the list says what is stricter here."""
    found, stricter = await asked(tmp_path, ACCOUNTS, CALLERS)
    assert not found, "\n".join(found)
    assert stricter == frozenset().union(*OPEN_IN_JAVA.values())


async def test_from_a_trusted_address_everything_is_allowed(tmp_path: Path) -> None:
    accounts = f"globalWhiteRemoteAddresses: [10.0.0.1, 127.0.0.{{1,2}}]\n{ACCOUNTS}".replace(
        "127.0.0.{1,2}", '"127.0.0.{1,2}"'
    )
    unsigned = {"global white, none": (None, SECRET, True)}
    assert await asked(tmp_path, accounts, unsigned) == ([], set())
