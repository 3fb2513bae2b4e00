"""Requests that change users and rules, in the recorded order, against RocketMQ 5.5.0's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from access_requests import recorded
from brokers import broker_config, running_broker

from triomq.broker.app import run_broker
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.auth import UserHeader
from triomq.remoting.protocol.headers.query import ViewMessageHeader
from triomq.remoting.protocol.headers.send import (
    SendBackHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)

PASSWORDS_ARE_FOR_SUPER_USERS = "Java shows passwords to everybody with Get on the cluster"
DIFFERENT = {"normal lists": PASSWORDS_ARE_FOR_SUPER_USERS}
"""Experiments whose answers differ on purpose."""
NULL_POINTER = "java.lang.NullPointerException"
OTHERS = {"alice", "bob", "carol", "dave", "erin"}
"""Users of other experiments, who appear in Java's lists."""


def differs(row: dict[str, Any], answer: Command) -> bool:
    remark = "" if row["remark"] == "not set any response code" else row["remark"] or ""
    if remark.startswith(NULL_POINTER):  # ours says that the body is missing
        remark = "the body with the user is missing"
    if answer.code != row["resp"] or not (answer.remark or "").startswith(remark):
        return True
    if row["code"] in (Code.AUTH_LIST_USER, Code.AUTH_LIST_ACL):
        return listed(bytes(answer.body).decode()) != listed(row["respBody"])
    return bytes(answer.body).decode() != row["respBody"]


def listed(body: str) -> list[Any]:
    """The entries of a list, those of other experiments left out."""
    return [
        entry
        for entry in json.loads(body or "[]")
        if (entry.get("username") or entry.get("subject", "")).removeprefix("User:") not in OTHERS
        and not (entry.get("username") or entry.get("subject", "")).startswith(
            ("g", "User:g", "inner", "r")
        )
    ]


async def test_changes_of_users_and_rules_are_answered_as_java_answers_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path, brokerClusterName="DefaultCluster", **SETTINGS) as broker:

        def work() -> list[str]:
            found = []
            passwords = {"root": ROOT[1], "frank": PASSWORD}
            with BlockingConnection(broker.address) as connection:
                caller = Caller(connection)
                for row in recorded("admin"):
                    command = Command(
                        row["code"],
                        ext={name: str(value) for name, value in row["ext"].items()},
                        body=row["body"].encode(),
                    )
                    answer = caller.ask(command, row["caller"], passwords[row["caller"]])
                    if row["name"] not in DIFFERENT and differs(row, answer):
                        body = bytes(answer.body).decode()
                        found.append(
                            f"{row['name']}: {answer.code} {answer.remark} {body}, not"
                            f" {row['resp']} {row['remark']} {row['respBody']}"
                        )
            return found

        found = await trio.to_thread.run_sync(work)
        assert not found, "\n".join(found)


async def test_passwords_are_shown_to_super_users_only_and_no_right_is_needed_twice(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, brokerClusterName="DefaultCluster", **SETTINGS) as broker:

        def work() -> None:
            with BlockingConnection(broker.address) as connection:
                caller = Caller(connection)
                caller.create_user("frank")
                get = request(Code.AUTH_GET_USER, UserHeader("root"))
                assert caller.ask(get, "frank").code == ResponseCode.NO_PERMISSION
                caller.grant("frank", [["Cluster:DefaultCluster", ["Get"]]], None)
                shown = caller.ask(get, "frank")
                assert json.loads(bytes(shown.body)) == {
                    "userStatus": "enable",
                    "userType": "Super",
                    "username": "root",
                }
                settings = caller.ask(Command(Code.GET_BROKER_CONFIG), "frank")
                text = bytes(settings.body).decode()
                assert settings.code == 0
                assert "authenticationEnabled=true" in text
                assert "rootpw123" not in text
                assert "innerpw123" not in text

        await trio.to_thread.run_sync(work)


async def test_users_and_rules_are_there_after_a_crash_and_only_the_owner_reads_them(
    tmp_path: Path,
) -> None:
    def ask(address: str, work: Any) -> Any:
        with BlockingConnection(address) as connection:
            return work(Caller(connection))

    def create(caller: Caller) -> None:
        caller.create_user("frank")
        caller.grant("frank", [["Topic:TA", ["Get"]]], "127.0.0.0/8")

    async with trio.open_nursery() as nursery:
        ready = await nursery.start(run_broker, broker_config(tmp_path, **SETTINGS))
        await trio.to_thread.run_sync(ask, ready.address, create)
        nursery.cancel_scope.cancel()
    assert (tmp_path / "config" / "access.json").stat().st_mode & 0o777 == 0o600
    async with running_broker(tmp_path, brokerClusterName="DefaultCluster", **SETTINGS) as broker:

        def check(caller: Caller) -> None:
            reading = Command(Code.GET_TOPIC_CONFIG, ext={"topic": "TA"})
            assert caller.ask(reading, "frank").code == ResponseCode.TOPIC_NOT_EXIST
            assert caller.ask(reading, "frank", "wrong").code == ResponseCode.NO_PERMISSION

        await trio.to_thread.run_sync(ask, broker.address, check)


async def test_nobody_prepares_a_user_while_authentication_is_off(tmp_path: Path) -> None:
    def prepare(address: str) -> int:
        with BlockingConnection(address) as connection:
            body = b'{"password":"x","userType":"Super"}'
            command = request(Code.AUTH_CREATE_USER, UserHeader("mallory"), body)
            return Caller(connection).ask(command, None).code

    def use(address: str) -> str | None:
        with BlockingConnection(address) as connection:
            return Caller(connection).ask(Command(Code.GET_BROKER_CONFIG), "mallory", "x").remark

    async with running_broker(tmp_path, grpcServerPort=0) as broker:
        code = await trio.to_thread.run_sync(prepare, broker.address)
        assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    async with running_broker(tmp_path, **SETTINGS) as broker:
        remark = await trio.to_thread.run_sync(use, broker.address)
        assert remark == "User:mallory is not found."


async def test_no_message_of_another_topic_is_read_by_its_place_in_the_log(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **SETTINGS) as broker:

        def work() -> None:
            with BlockingConnection(broker.address) as connection:
                caller = Caller(connection)
                caller.create_user("mallory")
                mine = [["Topic:mine", ["Get"]], ["Topic:mine", ["Sub"]], ["Group:G", ["Sub"]]]
                caller.grant("mallory", mine, None)
                for topic in "mine", "secret":
                    fields = send_fields(topic)
                    sent = caller.ask_root(Code.SEND_MESSAGE, fields, b"x")
                    assert sent.code == 0, sent.remark
                    header = sent.header(SendMessageResponseHeader)
                    offset = int(header.message_id[16:], 16)
                    for said in (None, "mine"):
                        seen = caller.ask(
                            request(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset, said)),
                            "mallory",
                        )
                        assert (seen.code == 0) == (topic == "mine"), (topic, said, seen)
                    back = caller.ask(
                        request(
                            Code.CONSUMER_SEND_MSG_BACK,
                            SendBackHeader(offset, "G", 1, origin_topic="mine"),
                        ),
                        "mallory",
                    )
                    assert (back.code == 0) == (topic == "mine"), (topic, back)
                    if topic == "secret":
                        assert "no permission to access Topic:secret" in (back.remark or "")

        await trio.to_thread.run_sync(work)


def send_fields(topic: str) -> SendMessageHeader:
    return SendMessageHeader(
        producer_group="P",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
    )
