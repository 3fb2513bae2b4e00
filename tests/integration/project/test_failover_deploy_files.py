"""deploy/ with controllers: the compose file runs as processes on this machine and its master is
killed; the Kubernetes overlay is rendered by kubectl and read by our own programs.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio
from deploy_files import (
    DEPLOY,
    broker_options,
    compose_file,
    config_of,
    rendered,
    service_process,
    words_of,
)
from mqadmin_calls import mqadmin
from processes import free_port

from triomq import Producer, SendStatus, TrioMQError
from triomq.broker.config import BrokerConfig
from triomq.namesrv.config import NamesrvConfig

FILE = "docker-compose.failover.yml"
OVERLAY = "kubernetes-failover"
SERVICES: dict[str, Any] = {
    name: service for name, service in compose_file(FILE)["services"].items() if name != "admin"
}
NAMES = ("namesrv-1", "namesrv-2", "namesrv-3")
REPLICAS = ("broker-a-1", "broker-a-2", "broker-a-3")


def check(configs: dict[str, BrokerConfig | NamesrvConfig], controllers: list[str]) -> None:
    """Each name server has a controller of its own, and each broker knows all of them."""
    namesrvs = [one for one in configs.values() if isinstance(one, NamesrvConfig)]
    assert [one.controller.own_peer().address for one in namesrvs] == controllers
    for namesrv in namesrvs:
        assert [peer.address for peer in namesrv.controller.all_peers()] == controllers
        assert str(namesrv.controller.store_path).startswith("/var/lib/triomq/")
    for config in configs.values():
        if isinstance(config, BrokerConfig):
            settings = config.replication.controller
            assert settings.enabled
            assert list(settings.addresses) == controllers
            assert config.replication.replicas.min_in_sync_replicas == 2


def test_compose_has_three_controllers_and_a_group_of_three(tmp_path: Path) -> None:
    assert set(SERVICES) == {*NAMES, *REPLICAS}
    configs, published = {}, set()
    for name, service in SERVICES.items():
        program = service["entrypoint"][2].split()[1]
        folder = tmp_path / name
        folder.mkdir()
        container = {"command": service["entrypoint"], "args": service["command"]}
        words = words_of(container, name, folder, program, service["environment"])
        configs[name] = config = config_of(words)
        ports = {tuple(entry.split(":")[-2:]) for entry in service["ports"]}
        assert not ports & published
        published |= ports
        if isinstance(config, BrokerConfig):
            known = config.listen_port, config.fast_listen_port(), config.endpoint.port
            assert ports == {(str(port), str(port)) for port in known}
            assert (config.broker_name, config.broker_ip, config.ha_ip) == ("broker-a", name, name)
        assert service["volumes"] == [f"{name}:/var/lib/triomq"]
        assert service["healthcheck"]["test"] == ["CMD", "probe", "ready"]
    check(configs, [f"{name}:9878" for name in NAMES])


def test_compose_itself_accepts_the_file() -> None:
    command = ["docker-compose", "-f", str(DEPLOY / FILE), "config", "--quiet"]
    if shutil.which(command[0]) is None:
        pytest.skip("docker-compose is missing: apt-get install docker-compose")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.feature("199a")
def test_the_overlay_has_three_controllers_and_groups_of_three(tmp_path: Path) -> None:
    documents = rendered(OVERLAY, tmp_path)
    configs = {}
    for each in documents:
        if each["kind"] != "StatefulSet":
            continue
        name, spec = each["metadata"]["name"], each["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        assert spec["replicas"] == 3
        for ordinal in range(3):
            pod = f"{name}-{ordinal}"
            program = "mqnamesrv" if name == "namesrv" else "mqbroker"
            configs[pod] = config_of(words_of(container, pod, tmp_path, program))
    assert len(configs) == 9
    check(configs, [f"namesrv-{number}.namesrv:9878" for number in range(3)])
    (service,) = (
        each["spec"]
        for each in documents
        if (each["kind"], each["metadata"]["name"]) == ("Service", "namesrv")
    )
    assert service["publishNotReadyAddresses"]
    (policy,) = (each for each in documents if each["metadata"]["name"] == "controllers")
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": "controller"}]
    assert {"name": "controller", "port": 9878, "targetPort": "controller"} in service["ports"]


@pytest.mark.feature("199a")
def test_the_overlay_fits_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for document in rendered(OVERLAY, tmp_path):
        schemas.validate(document, schemas.latest_version(), strict=True)


@pytest.mark.slow
@pytest.mark.loss
@pytest.mark.timeout(300)
def test_sends_go_on_when_the_master_of_the_compose_cluster_is_killed(tmp_path: Path) -> None:
    ports = {name: free_port(span=3) for name in SERVICES}
    controllers = {f"{name}:9878": f"127.0.0.1:{free_port()}" for name in NAMES}
    servers = {f"{name}:9876": f"127.0.0.1:{ports[name]}" for name in NAMES}
    started = {}
    with contextlib.ExitStack() as stack:
        for name, port in ports.items():
            folder = tmp_path / name
            own = (
                [f"-DkvConfigPath={folder / 'kv'}", f"-DcontrollerStorePath={folder / 'raft'}"]
                if name in NAMES
                else broker_options(folder)
            )
            started[f"127.0.0.1:{port}"] = stack.enter_context(
                service_process(
                    SERVICES[name], folder, port, *own, addresses={**controllers, **servers}
                )
            )

        async def run() -> None:
            namesrv, leaders = ";".join(servers.values()), ";".join(controllers.values())
            asked = ("broker", "replicas", "-b", "broker-a", "--json", "-a", leaders, "-n", namesrv)
            with trio.fail_after(250):
                while True:
                    found = await mqadmin(*asked)
                    group = found.document["groups"]["broker-a"] if found.code == 0 else {}
                    if len(group.get("inSyncReplicas", ())) == 3:
                        break
                    await trio.sleep(0.2)
                create = ("topic", "create", "-n", namesrv, "-c", "DefaultCluster", "-t", "orders")
                assert (await mqadmin(*create)).code == 0
                tables = [tmp_path / name / "store/config/topics.json" for name in REPLICAS]
                while not all(b'"orders"' in table.read_bytes() for table in tables):
                    await trio.sleep(0.2)  # slaves copy topics every 3 s
                async with Producer(namesrv, group="shop") as producer:
                    assert await producer.send("orders", b"before")
                    started[group["masterAddress"]].kill()
                    stored = 0
                    while stored < 20:
                        try:
                            receipt = await producer.send("orders", b"after")
                        except TrioMQError:  # no second copy before the other slave follows, 2 s
                            await trio.sleep(0.2)
                        else:
                            assert receipt.status is SendStatus.STORED
                            stored += 1
                found = await mqadmin(*asked)
                after = found.document["groups"]["broker-a"]
                assert after["masterAddress"] != group["masterAddress"]
                assert after["masterEpoch"] > group["masterEpoch"]

        trio.run(run)
