"""Each request with each set of credentials, against the recorded answers of RocketMQ 5.5.0."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from access_callers import ROOT, SETTINGS, Caller
from access_requests import access_request, recorded
from brokers import running_broker

from triomq.remoting.access.needs import BODY_NEEDS, HEADER_NEEDS, STRICTER
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.bodies import auth
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.auth import UserHeader


def refused(answer: Command) -> bool:
    """Whether access control refuses, rather than the handler."""
    return answer.code == ResponseCode.NO_PERMISSION and "no permission to access" in (
        answer.remark or ""
    )


def differences(caller: Caller) -> list[str]:
    """Ask everything; return what differs from Java's answers.

    A code without a handler is answered 3 to everybody: nothing is behind it.
    """
    found = []
    for row in recorded("matrix"):
        code, variant, answers = row["code"], row["variant"], row["r"]
        if code not in HEADER_NEEDS and code not in BODY_NEEDS:
            assert caller.ask(Command(code), None).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            continue
        command = access_request(code, variant)
        where = f"{code} {row['name']} {variant}"
        for condition, arguments in {
            "none": (None,),
            "wrongsig": ("alice", "wrong"),
            "unknown": ("ghost",),
            "disabled": ("bob",),
            "noright": ("alice",),
        }.items():
            answer, (wanted, remark) = caller.ask(command, *arguments), answers[condition]
            if condition == "noright" and wanted != ResponseCode.NO_PERMISSION:
                if refused(answer) != (code in STRICTER and not row["needs"]):
                    found.append(f"{where}, {condition}: {answer.code} {answer.remark}")
            elif (answer.code, answer.remark) != (wanted, remark):
                found.append(f"{where}, {condition}: {answer.code} {answer.remark}, not {remark}")
        unsigned = caller.ask(command, "alice", sign=False)
        if [unsigned.code, unsigned.remark] != answers["nosig"]:
            found.append(f"{where}, no signature: {unsigned.code} {unsigned.remark}")
        if not row["needs"]:
            continue
        caller.grant("dave", row["needs"], "127.0.0.9")
        other = caller.ask(command, "dave")
        if [other.code, other.remark] != answers.get(
            "right, other source", [other.code, other.remark]
        ):
            found.append(f"{where}, other source: {other.code} {other.remark}")
        for source in None, "127.0.0.1":
            caller.grant("carol", row["needs"], source)
            if refused(answer := caller.ask(command, "carol")):
                found.append(f"{where}, with right from {source}: {answer.remark}")
        if refused(answer := caller.ask(command, *ROOT)):
            found.append(f"{where}, super: {answer.remark}")
    return found


@pytest.mark.feature("167a")
async def test_each_request_is_answered_as_java_answers_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path, brokerClusterName="DefaultCluster", **SETTINGS) as broker:

        def work() -> list[str]:
            with BlockingConnection(broker.address) as connection:
                caller = Caller(connection)
                for name in ("alice", "bob", "carol", "dave"):
                    caller.create_user(name)
                disabled = auth.User(user_status="disable").encode()
                caller.ask_root(Code.AUTH_UPDATE_USER, UserHeader("bob"), disabled)
                return differences(caller)

        found = await trio.to_thread.run_sync(work)
        assert not found, "\n".join(found)
