"""A name server that lets only the brokers and an administrator change what it knows."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest
import trio
from access_callers import PASSWORD, ROOT, SETTINGS, Caller
from mqadmin_calls import mqadmin
from replicated_brokers import broker_group, eventually

from triomq.namesrv.access import READS, WRITES, writer_check
from triomq.namesrv.controller.serve_controller import ControllerParts
from triomq.namesrv.request_table import handler_table
from triomq.remoting.access.access_settings import WriterSettings
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.signing import Credentials

ADMINISTRATOR = Credentials(access_key=ROOT[0], secret_key=ROOT[1])
BROKERS = Credentials(access_key="inner", secret_key="innerpw123")
CODES = set(handler_table(*(MagicMock() for _ in range(4))).handlers)
CODES_OF_CONTROLLERS = set(ControllerParts.handler_table(*(MagicMock() for _ in range(3))).handlers)
WRITERS = WriterSettings(authentication=True, initial_user=ADMINISTRATOR, inner=BROKERS)


async def test_only_brokers_and_the_administrator_change_a_name_server(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    async with broker_group(tmp_path, access=WRITERS) as group:
        await group.start(0, **SETTINGS)  # it waits until it is registered

        def ask() -> None:
            with BlockingConnection(group.namesrv) as connection:
                caller = Caller(connection)
                listed = caller.ask(Command(Code.GET_BROKER_CLUSTER_INFO), None)
                assert b"broker-a" in bytes(listed.body)
                for code in WRITES & CODES:
                    for user in (None, "stranger", ROOT[0]):
                        answer = caller.ask(Command(code), user, PASSWORD)
                        # A header that cannot be read is refused before anybody is asked for.
                        assert answer.code in (ResponseCode.NO_PERMISSION, 1), (code, user)
                wiped = Command(Code.WIPE_WRITE_PERM_OF_BROKER, ext={"brokerName": "broker-a"})
                assert caller.ask(wiped, None).remark == "username cannot be null."

        await trio.to_thread.run_sync(ask)
        put = ("updateKvConfig", "-s", "n", "-k", "k", "-v", "v", "-n", group.namesrv)
        assert (await mqadmin(*put)).code != 0
        assert (await mqadmin(*put, "--credentials", file)).code == 0


def test_every_code_of_a_name_server_is_a_read_or_a_write() -> None:
    codes = CODES | CODES_OF_CONTROLLERS
    assert codes == {int(code) for code in READS | WRITES}
    assert not READS & WRITES


def test_without_a_user_for_the_brokers_a_name_server_does_not_start() -> None:
    with pytest.raises(ConfigError, match="no broker could register"):
        writer_check(WriterSettings(authentication=True, initial_user=ADMINISTRATOR))


async def test_brokers_take_the_notices_of_their_name_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are signed. The slave asks for nothing here, so it acts only when it is told."""
    acting = {"enableSlaveActingMaster": True, "syncBrokerMemberGroupPeriod": 600_000}
    caplog.set_level("INFO")
    settings = {"acting_master": True, "notify_min_broker_id": True, "access": WRITERS}
    async with broker_group(tmp_path, **settings) as group:
        master = await group.start(0, "ASYNC_MASTER", **SETTINGS, **acting)
        await group.start(1, **SETTINGS, **acting)
        await master.crash()
        await eventually(lambda: "acting as" in caplog.text)
    assert "NOTIFY_MIN_BROKER_ID_CHANGE" not in caplog.text, "a notice was refused"
