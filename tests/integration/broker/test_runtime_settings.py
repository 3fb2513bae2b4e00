"""Settings that a request changes: they hold over restarts, options undo them, and a file that
cannot be written changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import processes
import pytest
from brokers import peer_of, running_broker

from triomq.broker.options import load_broker_config
from triomq.namesrv.command_line import namesrv_parser
from triomq.namesrv.serve import read_options
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command


async def test_changes_of_a_broker_hold_over_restarts(tmp_path: Path) -> None:
    store = Entry("storePathRootDir", str(tmp_path / "store"))
    async with running_broker(tmp_path / "store") as ready, peer_of(ready) as peer:
        changes = (
            b"brokerPermission=4\nautoCreateTopicEnable=false\nconsumerFallbehindThreshold=1024\n"
        )
        assert (await peer.call(Code.UPDATE_BROKER_CONFIG, body=changes)).code == 0
        assert (await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"brokerPermission=2\n")).code == 0
    live = load_broker_config(None, environment={}, definitions=[store]).config.live
    assert (live.broker_permission, live.auto_create_topics, live.slow_consumer_bytes) == (
        2,
        False,
        1024,
    )

    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store.value}\nbrokerPermission=6\n")
    loaded = load_broker_config(conf, environment={})
    assert loaded.config.live.broker_permission == 2
    (warning,) = loaded.warnings
    assert warning.startswith("brokerPermission=2, set while the program ran (")
    assert warning.endswith("replaces the value of broker.conf:2")
    undone = load_broker_config(conf, environment={}, definitions=[Entry("brokerPermission", "6")])
    assert (undone.config.live.broker_permission, undone.warnings) == (6, ())


async def test_what_cannot_be_saved_is_not_applied(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        (tmp_path / "config" / "runtime.properties.tmp").mkdir(parents=True)
        refused = await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"brokerPermission=2\n")
        assert (refused.code, "nothing was changed" in (refused.remark or "")) == (1, True)
        assert b"brokerPermission=6" in bytes((await peer.call(Code.GET_BROKER_CONFIG)).body)


async def test_more_keys_may_be_protected(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, configBlackList="brokerPermission") as ready,
        peer_of(ready) as peer,
    ):
        for key in ("brokerPermission", "configBlackList", "brokerConfigPath"):
            assert (
                await peer.call(Code.UPDATE_BROKER_CONFIG, body=f"{key}=2\n".encode())
            ).code == 16


def test_a_damaged_file_ends_the_start_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "runtime.properties").write_text("brokerPermission=\\u12")
    with pytest.raises(ConfigError, match=r"runtime\.properties: cannot be read .* remove it"):
        load_broker_config(
            None, environment={}, definitions=[Entry("storePathRootDir", str(tmp_path))]
        )


def test_changes_of_a_name_server_hold_over_restarts(tmp_path: Path) -> None:
    kv = f"kvConfigPath={tmp_path / 'kv.json'}"
    for expected, change in (
        ("false", b"orderMessageEnable=true\n"),
        ("true", b"orderMessageEnable=false\n"),
    ):
        with (
            processes.our_name_server(tmp_path, define=[kv]) as address,
            BlockingConnection(address) as connection,
        ):
            assert (
                f"orderMessageEnable={expected}"
                in bytes(connection.invoke(Command(Code.GET_NAMESRV_CONFIG)).body).decode()
            )
            assert connection.invoke(Command(Code.UPDATE_NAMESRV_CONFIG, body=change)).code == 0
    parser = namesrv_parser()
    assert read_options(parser.parse_args(["-D", kv])).config.order_messages is False
    assert (
        read_options(
            parser.parse_args(["-D", kv, "-D", "orderMessageEnable=true"])
        ).config.order_messages
        is True
    )
