"""Accounts of ACL 1.0 by requests, as RocketMQ 4.9.4 answers them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import trio
from access_callers import Caller
from access_requests import GOLDEN, access_request, recorded
from brokers import running_broker

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.topic import CreateTopicHeader

SECRET = "12345678"
ADMIN = "rocketmq2", SECRET
FILE = (GOLDEN / "plain_acl.yml").read_text()
"""The accounts of the recorded broker."""
ON_PURPOSE = {
    "create by normal": "an account that is no administrator makes no accounts",
    "cluster acl info by normal": "nor reads where they are",
    "white bad": "a pattern that cannot be read is refused",
    "normal account creates an admin account": "",
    "that account creates a topic": "",
    "normal account deletes it": "",
    "normal account sets white addresses to *": "",
    "no credentials after that": "",
    "set back": "",
    "reads all secrets with 54": "",
    "batch 320 to DENY topic": "a batch is a send",
    "310 retry topic, producer group GA in a": "the group of the retry topic counts",
}
"""Recorded experiment -> why it ends otherwise here."""


async def test_each_experiment_ends_as_at_4_9_4(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    path.chmod(0o600)
    settings = {"aclEnable": True, "plainAclFile": path, "grpcServerPort": 0}

    def work(address: str) -> tuple[list[str], list[str]]:
        found, refused_here = [], []
        with BlockingConnection(address) as connection:
            caller = Caller(connection)
            caller.ask(
                request(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("TA", "TBW102", 4, 4, 6)),
                *ADMIN,
            )
            for row in recorded("admin", "4.9.4"):
                secret = "87654321" if row["caller"] == "newacct1" else SECRET
                sent = Command(row["code"], ext={k: str(v) for k, v in row["ext"].items()})
                if row["code"] == Code.SEND_MESSAGE_V2:
                    sent.body = b"x"
                answer = caller.ask(sent, row["caller"], secret)
                theirs = (row["remark"] or "").partition(", org.")[0]
                theirs = theirs.replace("secretKey=87654321", "secretKey=(hidden)")
                if row["name"] in ON_PURPOSE:
                    refused_here.append(row["name"])
                    assert answer.code != 0, row["name"]
                    continue
                if row["remark"] == "FOUND":  # only that it is allowed: the log is another one
                    theirs, row["resp"] = answer.remark, answer.code
                    assert answer.code == ResponseCode.PULL_NOT_FOUND, answer.remark
                if answer.code != row["resp"] or (answer.code and answer.remark != theirs):
                    found.append(f"{row['name']}: {answer.code} {answer.remark}, not {theirs}")
                if row["code"] == Code.GET_BROKER_CLUSTER_ACL_CONFIG:
                    mine, java = json.loads(bytes(answer.body)), json.loads(row["respBody"])
                    assert mine["globalWhiteAddrs"] == java["globalWhiteAddrs"]
                    assert {each["accessKey"]: each["secretKey"] for each in mine[ACCOUNTS]} == {
                        each["accessKey"]: each["secretKey"] for each in java[ACCOUNTS]
                    }
                    assert mine[ACCOUNTS][0] == java[ACCOUNTS][0]
                if row["code"] == Code.GET_BROKER_CLUSTER_ACL_INFO and answer.code == 0:
                    assert answer.ext is not None
                    versions = json.loads(answer.ext["allAclFileVersion"])
                    assert list(versions) == [str(path)]
                    found += (
                        [] if versions[str(path)].keys() == {"counter", "timestamp"} else ["52"]
                    )
                    assert answer.ext.keys() >= row["respExt"].keys()
        return found, refused_here

    async with running_broker(tmp_path, **settings) as broker:
        found, refused_here = await trio.to_thread.run_sync(work, broker.address)
    assert not found, "\n".join(found)
    assert set(refused_here) < set(ON_PURPOSE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "127.0.0.7" in path.read_text()
    assert "newacct1" not in path.read_text()


ACCOUNTS = "plainAccessConfigs"


async def test_only_administrators_change_accounts_and_users_come_from_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    before = path.read_text()

    def work(address: str) -> None:
        with BlockingConnection(address) as connection:
            caller = Caller(connection)
            evil = {"accessKey": "evil1234", "secretKey": SECRET, "admin": "true"}
            for code, ext in (
                (Code.UPDATE_AND_CREATE_ACL_CONFIG, evil),
                (Code.DELETE_ACL_CONFIG, {"accessKey": "rocketmq2"}),
                (Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "*"}),
                (Code.GET_BROKER_CLUSTER_ACL_INFO, {}),
                (Code.GET_BROKER_CLUSTER_ACL_CONFIG, {}),
            ):
                answer = caller.ask(Command(code, ext=ext), "nobody1", SECRET)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert f"Need admin permission for request code={int(code)}" in str(answer.remark)
            made = caller.ask(access_request(Code.AUTH_CREATE_USER, ""), *ADMIN)
            assert made.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            outside = {"globalWhiteAddrs": "*", "aclFileFullPath": str(tmp_path / "other.yml")}
            sent = Command(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext=outside)
            assert caller.ask(sent, *ADMIN).code == 211
            listed = caller.ask(access_request(Code.AUTH_LIST_USER, ""), *ADMIN)
            assert listed.code == 0

    settings = {"aclEnable": True, "plainAclFile": path, "grpcServerPort": 0}
    async with running_broker(tmp_path, **settings) as broker:
        await trio.to_thread.run_sync(work, broker.address)
    assert path.read_text() == before


async def test_without_acl_1_0_these_requests_are_not_supported(tmp_path: Path) -> None:
    def work(address: str) -> int:
        with BlockingConnection(address) as connection:
            command = Command(Code.GET_BROKER_CLUSTER_ACL_CONFIG)
            return Caller(connection).ask(command, None).code

    async with running_broker(tmp_path, grpcServerPort=0) as broker:
        code = await trio.to_thread.run_sync(work, broker.address)
    assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.feature("167g")
async def test_an_edited_file_decides_under_load(tmp_path: Path) -> None:
    """While requests come, the file is cut off, damaged and replaced: each is decided by the old or
    by the new content.
    """
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    path.chmod(0o600)
    settings = {"aclEnable": True, "plainAclFile": path, "grpcServerPort": 0}
    remarks: set[str] = set()
    new_secret = "87654321"

    def work(address: str) -> None:
        with BlockingConnection(address) as connection:
            caller = Caller(connection)

            def ask(secret: str) -> int:
                answer = caller.ask(access_request(Code.AUTH_LIST_USER, ""), "rocketmq2", secret)
                remarks.add(answer.remark or "")
                return answer.code

            cuts = ("secretKey: 12345678, admin", "=SUB]", "whiteip, ")
            for text in ("accounts: [", *(FILE[: FILE.index(cut) + 3] for cut in cuts)):
                path.write_text(text)
                for _ in range(20):
                    assert ask(SECRET) == 0
            changed = f"rocketmq2, secretKey: {new_secret}"
            path.write_text(FILE.replace("rocketmq2, secretKey: 12345678", changed))
            deadline = time.monotonic() + 60
            while ask(new_secret) != 0:
                assert time.monotonic() < deadline
            assert ask(SECRET) != 0

    async with running_broker(tmp_path, **settings) as broker:
        await trio.to_thread.run_sync(work, broker.address)
    wrong = "Check signature failed for accessKey=rocketmq2"
    assert {remark for remark in remarks if "AclException" in remark} <= {
        f"org.apache.rocketmq.acl.common.AclException: {wrong}"
    }
