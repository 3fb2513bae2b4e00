"""Users, and the login at the HA port, under a controller of ours: the brokers' own user does all
that controller mode needs, and nobody else does.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tls_files
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from controlled_group import NAME, controlled_group
from monitor_pages import get, value
from replicated_brokers import log_bytes

from triomq.namesrv.access import READS, WRITES
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.rpc_hooks import Signing
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.controller import ElectMasterHeader
from triomq.remoting.protocol.signing import Credentials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

USERS = ("authenticationEnabled", "initAuthenticationUser", "innerClientAuthenticationCredentials")
SIGNING = Signing(Credentials(access_key=ROOT[0], secret_key=ROOT[1]))
LOGIN: dict[str, object] = {**SETTINGS, "haAuthentication": "true", "minInSyncReplicas": 1}


@pytest.mark.feature(211)
async def test_a_stranger_neither_copies_the_log_nor_counts_in_the_set(tmp_path: Path) -> None:
    """Brokers log in at each master that the controller names, and one with another secret does
    not, though the controller has given it an id.
    """
    async with controlled_group(tmp_path, hooks=[SIGNING], **LOGIN) as group:
        wrong = {"accessKey": "inner", "secretKey": "another-secret"}
        stranger = {**LOGIN, "innerClientAuthenticationCredentials": json.dumps(wrong)}
        await group.add(3, **stranger).start()

        async def is_turned_away() -> bool:
            return "is turned away: haAuthentication" in group.brokers[1].log.read_text()

        await group.until(is_turned_away)
        await group.send_until_ok(1, "T", b"secret body")
        await group.settled(1, {1, 2})
        page = (await get(group.monitors[1], "/metrics"))[2]
        assert value(page, "triomq_sync_state_set_size") == 2
        await group.brokers[1].end(9)
        await group.settled(2, {2})
        await group.send_until_ok(2, "T", b"after")
        assert b"after" in log_bytes(tmp_path / "broker-2" / "store")
        assert not any(log_bytes(tmp_path / "broker-3" / "store"))


async def test_brokers_follow_each_other_over_tls_and_a_stranger_does_not(tmp_path: Path) -> None:
    """The certificate's name makes a slave of each master that the controller names."""
    shown = tls_files.write(tmp_path / "tls")
    own = tls_files.write(tmp_path / "tls-own", "brokers", server=False)
    other = tls_files.write(tmp_path / "tls-other", "program", server=False)
    settings: dict[str, object] = {
        **SETTINGS,
        "minInSyncReplicas": 1,
        "haTls": "true",
        "haCertificateNames": "brokers",
        "tls.server.certPath": shown.certificate,
        "tls.server.keyPath": shown.key,
        "tls.server.trustCertPath": shown.ca,
        "tls.client.trustCertPath": shown.ca,
        "tls.client.certPath": own.certificate,
        "tls.client.keyPath": own.key,
    }
    async with controlled_group(tmp_path, hooks=[SIGNING], **settings) as group:
        pair = {"tls.client.certPath": other.certificate, "tls.client.keyPath": other.key}
        await group.add(3, **{**settings, **pair}).start()

        async def is_turned_away() -> bool:
            return "is turned away: haTls" in group.brokers[1].log.read_text()

        await group.until(is_turned_away)
        await group.send_until_ok(1, "T", b"secret body")
        await group.settled(1, {1, 2})
        await group.brokers[1].end(9)
        await group.settled(2, {2})
        await group.send_until_ok(2, "T", b"after")
        await group.brokers[1].start()
        await group.settled(2, {1, 2})
        for broker in (1, 2):
            assert b"after" in log_bytes(tmp_path / f"broker-{broker}" / "store")
        assert not any(log_bytes(tmp_path / "broker-3" / "store"))


async def test_only_brokers_and_the_administrator_ask_a_controller_for_changes(
    tmp_path: Path,
) -> None:
    """The controller's notices are signed as well: brokers take them."""
    users = [f"{key}={SETTINGS[key]}" for key in USERS]
    async with controlled_group(tmp_path, define=users, hooks=[SIGNING], **LOGIN) as group:

        def ask() -> None:
            with BlockingConnection(group.controllers) as connection:
                caller = Caller(connection)
                elect = request(Code.CONTROLLER_ELECT_MASTER, ElectMasterHeader("C", NAME, 2, True))
                assert caller.ask(elect, None).remark == "username cannot be null."
                assert caller.ask(elect, "stranger", PASSWORD).code == ResponseCode.NO_PERMISSION
                asked = [code for code in WRITES | READS if 1000 < code < 1020]
                for code in asked:
                    refused = caller.ask(Command(code), None).code in (
                        ResponseCode.NO_PERMISSION,
                        ResponseCode.SYSTEM_ERROR,  # its header is read first
                    )
                    assert refused or code in READS, code
                assert caller.ask(elect, *ROOT).code == 0

        await group.settled(1, {1, 2})
        await trio.to_thread.run_sync(ask)
        await group.settled(2, {1, 2})
        logs = "".join(broker.log.read_text() for broker in group.brokers.values())
        assert "NOTIFY_BROKER_ROLE_CHANGED" not in logs, "a notice was refused"
