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


async def test_changes_of_users_and_rules_are_answered_as_java_answers_them(
    tmp_path: Path,
) -> None:
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
