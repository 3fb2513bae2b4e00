"""A broker's configuration: the files of a RocketMQ installation, sources in Java's order, roles
that must be refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq.broker.command_line import broker_parser
from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.config.pool_settings import PoolSettings
from triomq.broker.options import load_broker_config, read_options
from triomq.broker.replication.replicas import ReplicaRules
from triomq.broker.store.core.config import FlushMode, StoreConfig
from triomq.broker.store.core.retention import RetentionRules
from triomq.remoting.core.properties_file import Entry, format_properties
from triomq.remoting.core.settings import ConfigError, Loaded, render
from triomq.remoting.server.network_settings import NetworkSettings

CONF = Path(__file__).parents[3] / "golden" / "conf"


def parse_options(words: list[str], environment: dict[str, str]) -> Loaded[BrokerConfig]:
    return read_options(broker_parser().parse_args(words), environment)


def refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(file, environment={})
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "broker.conf",
        "2m-noslave/broker-a.properties",
        "2m-noslave/broker-b.properties",
        "2m-noslave/broker-trace.properties",
        "2m-2s-async/broker-a.properties",
        "2m-2s-async/broker-b.properties",
    ],
)
def test_java_s_files_of_asynchronous_masters_work(name: str) -> None:
    loaded = load_broker_config(CONF / name, environment={})
    config = loaded.config
    assert config.cluster_name == "DefaultCluster"
    assert config.broker_name == (Path(name).stem if "/" in name else "broker-a")
    assert (config.broker_id, config.broker_role) == (0, BrokerRole.ASYNC_MASTER)
    assert config.store.flush_mode is FlushMode.ASYNC
    assert (config.store.retention.reserved_hours, config.store.retention.delete_hours) == (
        48,
        (4,),
    )
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(CONF)) for path in CONF.rglob("*-s.properties"))
)
def test_java_s_files_of_slaves_work(name: str) -> None:
    loaded = load_broker_config(CONF / name, environment={})
    assert (loaded.config.broker_role, loaded.config.broker_id) == (BrokerRole.SLAVE, 1)
    assert loaded.warnings == ()


@pytest.mark.parametrize("name", ["broker-a.properties", "broker-b.properties"])
def test_java_s_files_of_synchronous_masters_wait_for_one_slave(name: str) -> None:
    loaded = load_broker_config(CONF / "2m-2s-sync" / name, environment={})
    assert (loaded.config.broker_role, loaded.config.replication.replicas) == (
        BrokerRole.SYNC_MASTER,
        ReplicaRules(),
    )
    assert loaded.warnings == ()
    java = load_broker_config(
        CONF / "2m-2s-sync" / name, environment={}, definitions=[Entry("inSyncReplicas", "1")]
    )
    assert java.config.replication.replicas.in_sync_replicas == 1


@pytest.mark.parametrize(
    ("name", "start"),
    [
        (
            "dledger/broker-n0.conf",
            (
                "broker-n0.conf:7: enableDLegerCommitLog=true is not offered by this version"
                " (a commit log that is a Raft log; controller mode has taken its place); write"
                " enableControllerMode=true"
            ),
        ),
        (
            "container/2container-2m-2s/broker-container1.conf",
            "broker-container1.conf:4: brokerConfigPaths=",
        ),
        (
            "controller/controller-standalone.conf",
            "controller-standalone.conf:1: unknown key controllerDLegerGroup",
        ),
    ],
)
def test_java_s_files_for_missing_features_are_refused(name: str, start: str) -> None:
    assert refusal(CONF / name).startswith(start)


def test_the_file_that_tutorials_copy_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/q")
    loaded = load_broker_config(CONF / "folklore.properties", environment={})
    config = loaded.config
    assert config.namesrv_addresses == ("rocketmq-nameserver1:9876", "rocketmq-nameserver2:9876")
    assert config.default_topic_queue_count == 4
    assert config.store.root == Path("/home/q/rocketmq/store")
    assert config.store.message_size_bytes_max == 65536
    assert config.store.checkpoint_interval_ms == 60000
    assert config.pools.by_name()["pull"].workers == 128
    assert config.store.retention.used_percent_max == 88
    assert len(loaded.warnings) == 1
    assert "storePathConsumeQueue, storePathIndex" in loaded.warnings[0]


def test_name_servers_come_from_environment_file_option_in_java_s_order(tmp_path: Path) -> None:
    file = tmp_path / "b.conf"
    file.write_text("namesrvAddr=file:1\n")
    environment = {"NAMESRV_ADDR": "env:1"}
    assert load_broker_config(None, environment={}).config.namesrv_addresses == ()
    assert load_broker_config(None, environment=environment).config.namesrv_addresses == ("env:1",)
    assert load_broker_config(file, environment=environment).config.namesrv_addresses == ("file:1",)
    assert parse_options(
        ["-c", str(file), "-n", "o:1;o:2"], environment
    ).config.namesrv_addresses == ("o:1", "o:2")
    assert parse_options(
        ["-c", str(file), "-D", "namesrvAddr=d:1"], environment
    ).config.namesrv_addresses == ("d:1",)
    with pytest.raises(
        ConfigError,
        match="environment NAMESRV_ADDR: namesrvAddr=nonsense: address 'nonsense' has no port",
    ):
        load_broker_config(None, environment={"NAMESRV_ADDR": "nonsense"})


def test_options_are_read() -> None:
    parsed = broker_parser().parse_args(
        [
            "-D",
            "brokerName=b",
            "-D",
            "listenPort=0",
            "--print-config",
            "--log-dir",
            "logs",
            "--log-level",
            "debug",
        ]
    )
    config = read_options(parsed, {}).config
    assert (config.broker_name, config.listen_port, parsed.print_config) == ("b", 0, True)
    assert (parsed.log_dir, parsed.log_level) == (Path("logs"), "debug")
    with pytest.raises(ConfigError, match="option -D: brokerName has no value; write -D KEY=VALUE"):
        parse_options(["-D", "brokerName"], {})
    with pytest.raises(
        ConfigError,
        match=(
            "option -c: cannot read /no/such/file: no such file or directory; name an existing"
            " properties file"
        ),
    ):
        parse_options(["-c", "/no/such/file"], {})


def test_an_id_that_does_not_fit_the_role_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "option -D: brokerId=0 with brokerRole=SLAVE: 0 is the master's; give the slave a"
            " number from 1 on"
        ),
    ):
        load_broker_config(None, environment={}, definitions=[Entry("brokerRole", "SLAVE")])
    with pytest.raises(
        ConfigError,
        match=(
            "option -D: brokerId=1 with brokerRole=ASYNC_MASTER: only slaves have another id than"
            " 0; write brokerId=0"
        ),
    ):
        load_broker_config(None, environment={}, definitions=[Entry("brokerId", "1")])


@pytest.mark.parametrize("key", ["migrateAuthFromV1Enabled", "enableDLegerCommitLog"])
def test_what_would_be_less_safe_than_believed_is_refused(key: str) -> None:
    assert (
        load_broker_config(None, environment={}, definitions=[Entry(key, "false")]).warnings == ()
    )
    with pytest.raises(ConfigError, match=f"option -D: {key}=true is not offered by this version"):
        load_broker_config(None, environment={}, definitions=[Entry(key, "true")])


def test_printed_configuration_is_read_back(tmp_path: Path) -> None:
    config = BrokerConfig(
        broker_name="b-é",
        broker_ip="192.0.2.7",
        namesrv_addresses=("a:1", "b:2"),
        store=StoreConfig(root=Path("/s"), flush_mode=FlushMode.SYNC),
    )
    file = tmp_path / "printed.conf"
    file.write_text(format_properties(render(config)))
    again = load_broker_config(file, environment={})
    assert again.config == config
    assert again.warnings == ()


def test_derived_defaults() -> None:
    config = BrokerConfig(
        broker_ip="192.0.2.7", listen_port=20911, store=StoreConfig(root=Path("/s"))
    )
    assert (config.ha_port, config.ha_ip) == (20912, "192.0.2.7")
    assert config.store.commitlog == Path("/s/commitlog")
    assert config.broker_name
    assert BrokerConfig(broker_ip="x", register_period_ms=1).register_period_ms == 10_000
    assert BrokerConfig(broker_ip="x", register_period_ms=90_000).register_period_ms == 60_000


def test_store_and_pools_get_what_they_need() -> None:
    settings = StoreConfig(root=Path("/s"), queue_file_size_bytes=1001)
    store = settings.opened_at(bytes(8))
    assert (store.root, store.queue_file_size_bytes, store.store_host) == (
        Path("/s"),
        1020,
        bytes(8),
    )
    pools = PoolSettings(send_workers=7, send_queue=9, send_wait_ms=11).by_name()
    assert set(pools) == {
        *(
            "send",
            "pull",
            "lite-pull",
            "ack",
            "reply",
            "query",
            "client",
            "consumer",
            "heartbeat",
            "transaction",
            "balance",
            "admin",
        ),
        *("lock", "offset", "disk", "change", "relay"),
    }
    assert (pools["send"].workers, pools["send"].queue_requests_max, pools["send"].wait_ms_max) == (
        7,
        9,
        11,
    )
    assert pools["query"].wait_ms_max == 0
    assert pools["heartbeat"].wait_ms_max == 31_000
    waits = {
        name: pool.wait_ms_max
        for name, pool in PoolSettings().by_name().items()
        if pool.wait_ms_max
    }
    assert waits == {
        "send": 200,
        "pull": 5000,
        "lite-pull": 5000,
        "ack": 3000,
        "heartbeat": 31_000,
        "transaction": 3000,
        **dict.fromkeys(("admin", "lock", "offset", "disk", "change", "relay"), 5000),
    }
    assert not any(pool.wait_ms_max for pool in PoolSettings(fast_failure=False).by_name().values())
    own = BrokerConfig(
        broker_ip="x",
        network=NetworkSettings(connections_max=7, buffers_max_bytes=1 << 20, idle_seconds=9),
    ).network
    limited = own.server_config("127.0.0.1", 0, pools)
    assert (limited.connections_max, limited.buffers_max_bytes, limited.idle_seconds) == (
        7,
        1 << 20,
        9,
    )
    server = BrokerConfig(broker_ip="x").network.server_config("127.0.0.1", 0, pools)
    assert (
        server.selector_count,
        server.codec_count,
        server.outbox_high_bytes,
        server.outbox_hard_bytes,
    ) == (1, 1, 4 << 20, 64 << 20)


def test_retention_under_java_s_names(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "fileReservedTime=5\ndeleteWhen=02;14\ndiskMaxUsedSpaceRatio=99\ndiskSpaceCleanForciblyRatio=10\ndiskSpaceWarningLevelRatio=95\n"
    )
    rules = load_broker_config(file, environment={}).config.store.opened_at(bytes(8)).retention
    assert (rules.reserved_hours, rules.delete_hours) == (5, (2, 14))
    assert (rules.used_percent_max, rules.force_percent, rules.warning_percent) == (
        95,
        30,
        90,
    )  # Java's clamps
    assert (
        StoreConfig(root=Path("/s")).opened_at(bytes(8)).retention == RetentionRules()
    )  # the defaults are the same
    file.write_text("deleteWhen=4am\n")
    assert (
        refusal(file)
        == "broker.conf:1: deleteWhen=4am: '4am' is not an hour from 00 to 23; write for example 04"
        " or 04;16"
    )


def test_java_s_file_for_controller_mode_is_taken() -> None:
    config = load_broker_config(
        CONF / "controller" / "quick-start" / "broker-n0.conf", environment={}
    ).config
    assert config.replication.controller.enabled
    assert config.replication.controller.addresses == ("127.0.0.1:9878",)
    assert config.replication.replicas.min_in_sync_replicas == 0  # two, if there are two brokers


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "without controllerAddr"),
        ({"controllerAddr": "a:1", "enableSlaveActingMaster": "true"}, "enableSlaveActingMaster"),
        ({"controllerAddr": "a:1", "allAckInSyncStateSet": "false"}, "would be lost"),
    ],
)
def test_what_controller_mode_excludes_is_refused(settings: dict[str, str], problem: str) -> None:
    given = {"enableControllerMode": "true", **settings}
    with pytest.raises(ConfigError, match=problem):
        load_broker_config(
            None, environment={}, definitions=[Entry(key, value) for key, value in given.items()]
        )
