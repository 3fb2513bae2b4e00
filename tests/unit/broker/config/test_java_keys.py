"""The tables of Java's keys: complete, consistent with the configuration classes, every reason
explained.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from triomq.broker.config import BrokerConfig
from triomq.broker.java_keys import BROKER_KEYS
from triomq.client.proxy.proxy_config import PROXY_KEYS, ProxyConfig
from triomq.namesrv.config import NAMESRV_KEYS, NamesrvConfig
from triomq.remoting.core.java_keys import KeyTable, Status
from triomq.remoting.core.settings import settings_of

TABLES = [
    pytest.param(BROKER_KEYS, BrokerConfig, 595, id="broker"),
    pytest.param(NAMESRV_KEYS, NamesrvConfig, 103, id="namesrv"),
    pytest.param(PROXY_KEYS, ProxyConfig, 196, id="proxy"),
]


@pytest.mark.parametrize(("table", "config", "count"), TABLES)
def test_honoured_keys_are_exactly_our_fields(
    table: KeyTable, config: type[Any], count: int
) -> None:
    assert len(table.rows) == count
    assert len(table.path.read_text().splitlines()) == count + 1
    honoured = {key for key, row in table.rows.items() if row.status is Status.HONOURED}
    assert honoured == {
        described.java for _, _, described in settings_of(config) if not described.own
    }
    assert not {described.java for _, _, described in settings_of(config) if described.own} & set(
        table.rows
    )


@pytest.mark.parametrize(("table", "config", "count"), TABLES)
def test_every_reason_is_explained_and_used(table: KeyTable, config: type[Any], count: int) -> None:
    used = {row.reason for row in table.rows.values() if row.status is not Status.HONOURED}
    assert used <= set(table.reasons)
    assert set(table.reasons) <= used
    assert all(table.reasons[row.reason].fix for row in table.rows.values() if row.refused)


@pytest.mark.parametrize(("table", "config", "count"), TABLES)
def test_java_types_match_ours(table: KeyTable, config: type[Any], count: int) -> None:
    kinds = {"int": "whole number", "long": "whole number", "boolean": "true or false"}
    for _, _, described in settings_of(config):
        if described.own:
            continue
        row = table.rows[described.java]
        if row.java_type in kinds:
            assert described.kind.name == kinds[row.java_type], row.key


@pytest.mark.parametrize(("table", "config", "count"), TABLES)
def test_no_two_settings_share_a_key(table: KeyTable, config: type[Any], count: int) -> None:
    names = [described.java for _, _, described in settings_of(config)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("package", "config"),
    [("broker", BrokerConfig), ("namesrv", NamesrvConfig), ("client/proxy", ProxyConfig)],
)
def test_every_setting_is_used_by_its_program(package: str, config: type[Any]) -> None:
    """A key that nothing reads must not be called honoured. Methods of a group pass it on as a
    whole.
    """
    folder = Path(__file__).parents[4] / package
    module = folder / ("proxy_config.py" if package == "client/proxy" else "config.py")
    own = module if module.exists() else folder / "config" / "__init__.py"
    sources = "\n".join(path.read_text() for path in folder.rglob("*.py") if path != own)
    own_methods = own.read_text().split("def ", 1)[1]
    for field in attrs.fields(config):
        used = re.search(
            rf"(config(\.current)?|live)\.{field.name}\b|\"{field.name}\"", sources
        ) or re.search(rf"(self|config)\.{field.name}\b", own_methods)
        assert used, field.name


# Keys whose default differs from Java 5.5.0 on purpose: numbers of tasks, on which no speed
# depends, and intervals of TrioMQ.
OWN_DEFAULTS = {
    "ackMessageThreadPoolNums", "endTransactionThreadPoolNums", "litePullMessageThreadPoolNums",
    "loadBalanceProcessorThreadPoolNums",
    "processReplyMessageThreadPoolNums", "adminBrokerThreadPoolNums", "clientManageThreadPoolNums",
    "consumerManageThreadPoolNums", "flushConsumeQueueThoroughInterval", "heartbeatThreadPoolNums",
    "pullMessageThreadPoolNums", "queryMessageThreadPoolNums", "sendMessageThreadPoolNums",
    "serverSelectorThreads", "serverWorkerThreads", "shutdownWaitTimeSeconds",
    "clientRequestThreadPoolNums", "defaultThreadPoolNums",
    "syncBrokerMetadataPeriod",  # a lease depends on it
    "grpcMaxInboundMessageSize",  # 130 MiB would hold the loop
    "tls.client.authServer", "tls.test.mode.enable",  # safe by default
}  # fmt: skip


@pytest.mark.parametrize(("table", "config", "count"), TABLES)
def test_other_defaults_are_java_s(table: KeyTable, config: type[Any], count: int) -> None:
    different = set()
    for _, attribute, described in settings_of(config):
        if described.default_text is not None or described.own:
            continue
        row = table.rows[described.java]
        if described.kind.write(attribute.default) != (
            row.default if row.default != "-" else row.default_494
        ):  # "-": 5.5.0 has no such key
            different.add(described.java)
    assert different == OWN_DEFAULTS & set(table.rows)


def test_a_sample_of_each_class() -> None:
    rows = BROKER_KEYS.rows
    assert rows["brokerRole"].owner == "MessageStoreConfig"
    assert (
        rows["registerBrokerTimeoutMills"].default,
        rows["registerBrokerTimeoutMills"].default_494,
    ) == ("24000", "6000")
    assert (rows["timerWheelEnable"].default_494, rows["filterServerNums"].default) == ("-", "-")
    assert (rows["serverWorkerThreads"].owner, rows["clientWorkerThreads"].owner) == (
        "NettyServerConfig",
        "NettyClientConfig",
    )
    assert (rows["aclCacheMaxNum"].owner, rows["tieredStoreFilePath"].owner) == (
        "AuthConfig",
        "TieredStoreConfig",
    )
