"""deploy/ with users and TLS, as ``mqadmin security init`` makes them: the compose file runs as
processes on this machine, the Kubernetes overlay is rendered by kubectl and read by our programs.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from deploy_files import (
    DEPLOY,
    broker_options,
    compose_file,
    config_of,
    proxy_of,
    rendered,
    service_process,
    words_of,
)
from mqadmin_calls import mqadmin
from processes import free_port

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    TrioMQError,
)
from triomq.broker.config import BrokerConfig
from triomq.remoting.client.access import read_credentials
from triomq.remoting.tls.client import Tls
from triomq.remoting.tls.security_settings import TlsMode

SECURITY = "/etc/triomq/security"
OVERLAY = "kubernetes-secure"


def secured(name: str) -> dict[str, Any]:
    """A service of both compose files, merged as far as these tests read it."""
    base = compose_file()["services"][name]
    over = compose_file("docker-compose.secure.yml")["services"][name]
    environment = {**base.get("environment", {}), **over.get("environment", {})}
    return {**base, **over, "environment": environment}


def made_files(folder: Path, hosts: str) -> Path:
    """A folder with the image's files, and with those of ``mqadmin security init``."""
    shutil.copytree(DEPLOY / "conf", folder)
    done = trio.run(mqadmin, "security", "init", "--dir", folder / "security", "--hosts", hosts)
    assert done.code == 0, done
    return folder


SERVERS = ("namesrv-1", "namesrv-2", "broker-a", "broker-a-slave", "broker-b", "broker-b-slave")
PROXIES = ("proxy-1", "proxy-2")


def test_compose_gives_every_server_users_and_tls(tmp_path: Path) -> None:
    over = compose_file("docker-compose.secure.yml")["services"]
    conf = made_files(tmp_path / "conf", over["security"]["environment"]["HOSTS"])
    assert f"--dir {SECURITY} " in over["security"]["command"][-1]
    assert set(over) == {"security", "console", "admin", *SERVERS, *PROXIES}
    for name in (*SERVERS, *PROXIES):
        service = secured(name)
        assert service["volumes"] == [f"security:{SECURITY}:ro"]
        words = words_of(
            {"command": service["entrypoint"], "args": service["command"]},
            name,
            tmp_path,
            service["command"][0],
        )
        config = proxy_of(words, "n:1", conf) if name in PROXIES else config_of(words, conf)
        assert config.access.authentication
        assert config.access.inner is not None
        assert config.security.mode is TlsMode.ENFORCING
        if isinstance(config, BrokerConfig):
            assert config.access.authorization
            assert config.replication.authentication
    for name in ("console", "admin"):
        for path in over[name]["environment"].values():
            assert Path(path.replace(SECURITY, str(conf / "security"))).is_file()
    for service in over.values():
        assert not re.search("secretKey|password", str(service))


def test_the_compose_cluster_serves_who_has_credentials_and_nobody_else(tmp_path: Path) -> None:
    conf = made_files(tmp_path / "conf", "localhost,127.0.0.1")
    ports = {name: free_port(span=3) for name in ("namesrv-1", "broker-a", "broker-a-slave")}
    address = f"127.0.0.1:{ports['namesrv-1']}"
    addresses = {"namesrv-1:9876;namesrv-2:9876": address}
    with contextlib.ExitStack() as stack:
        started = []
        for name, port in ports.items():
            folder = tmp_path / name
            own = (
                [f"-DkvConfigPath={folder / 'kv.json'}"]
                if name == "namesrv-1"
                else broker_options(folder)
            )
            started.append(
                stack.enter_context(
                    service_process(
                        secured(name), folder, port, *own, conf=conf, addresses=addresses
                    )
                )
            )
        secrets = read_credentials(conf / "security" / "administrator.yml")
        for process in started:
            for file in ("cmdline", "environ"):
                shown = Path(f"/proc/{process.pid}/{file}").read_bytes()
                assert secrets.secret_key.encode() not in shown
        trio.run(send_and_read, address, conf / "security")


async def send_and_read(address: str, security: Path) -> None:
    tls = Tls.from_file(security / "tls" / "tls.properties")
    administrator = security / "administrator.yml"
    me = ("--tls", security / "tls" / "tls.properties", "--credentials", administrator)
    with trio.fail_after(120):
        while True:  # the slave, too: a SYNC_MASTER waits for it
            listed = await mqadmin("cluster", "list", "-n", address, *me, "--json")
            if len(listed.document["brokers"]) == 2:
                break
            await trio.sleep(0.2)
    create = ("topic", "create", "-n", address, "-c", "DefaultCluster", "-t", "orders")
    assert (await mqadmin(*create, *me)).code == 0
    assert (await mqadmin(*create, *me[:2])).code != 0
    signed = ClientSettings(tls=tls, credentials=read_credentials(administrator))
    settings = ProducerSettings(client=signed)
    async with Producer(address, group="shop", settings=settings) as producer:
        receipt = await producer.send("orders", b"x")
        assert receipt.status.name == "STORED"
    got = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        assert message.body == b"x"
        got.set()

    async with PushConsumer(
        address,
        group="billing",
        subscriptions="orders",
        consume_from="first",
        handler=handle,
        settings=ConsumerSettings(client=signed),
    ):
        with trio.fail_after(60):
            await got.wait()
    for stranger in (ClientSettings(tls=tls), ClientSettings()):
        quick = ProducerSettings(client=stranger, retries=0)
        with pytest.raises(TrioMQError):
            async with Producer(address, group="shop", settings=quick) as producer:
                await producer.send("orders", b"y")


def rendered_with_secrets(tmp_path: Path) -> list[dict[str, Any]]:
    conf = made_files(tmp_path / "conf", "localhost")
    shutil.copytree(conf / "security", tmp_path / OVERLAY / "files")
    return rendered(OVERLAY, tmp_path)


def mounted(container: dict[str, Any], pod: dict[str, Any], secrets: Any, root: Path) -> None:
    """Write the secrets of a container where it sees them; ``root`` stands for /etc/triomq."""
    volumes = {volume["name"]: volume.get("secret") for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        if secret := volumes.get(mount["name"]):
            assert (secret["defaultMode"], mount["readOnly"]) == (0o400, True)
            folder = Path(mount["mountPath"].replace("/etc/triomq", str(root)))
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name, data in secrets[secret["secretName"]].items():
                (folder / name).write_bytes(base64.b64decode(data))
                (folder / name).chmod(secret["defaultMode"])


@pytest.mark.feature("199a")
def test_the_overlay_gives_every_pod_its_secrets_as_files(tmp_path: Path) -> None:
    documents = rendered_with_secrets(tmp_path)
    secrets = {
        each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "Secret"
    }
    assert not any("ca-key.pem" in data for data in secrets.values())
    root = tmp_path / "conf"  # the files name folders in it
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in documents
        if each["kind"] in ("StatefulSet", "Deployment")
    }
    assert set(pods) == {"namesrv", "broker-a", "broker-b", "mqproxy", "admin", "console"}
    for name, pod in pods.items():
        (container,) = pod["containers"]
        assert pod["securityContext"]["fsGroup"] == 3000  # reads what belongs to root
        mounted(container, pod, secrets, root)
        if name in ("admin", "console"):
            for entry in container["env"][1:]:
                assert Path(entry["value"].replace("/etc/triomq", str(root))).is_file()
            continue
        for ordinal in range(2):
            words = words_of(container, f"{name}-{ordinal}", tmp_path)
            config = proxy_of(words, "n:1", root) if name == "mqproxy" else config_of(words, root)
            assert config.access.authentication
            assert config.security.mode is TlsMode.ENFORCING
            if isinstance(config, BrokerConfig):
                assert config.access.authorization
                assert config.broker_id == ordinal


@pytest.mark.feature("199a")
def test_the_manifests_fit_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for document in rendered_with_secrets(tmp_path):
        schemas.validate(document, schemas.latest_version(), strict=True)


@pytest.mark.feature("199a")
def test_the_policies_let_clients_and_the_other_broker_in(tmp_path: Path) -> None:
    documents = rendered_with_secrets(tmp_path)
    policies = [each["spec"] for each in documents if each["kind"] == "NetworkPolicy"]
    pods = [
        each["spec"]["template"]
        for each in documents
        if each["kind"] in ("StatefulSet", "Deployment")
        and each["spec"]["template"]["metadata"]["labels"]["app"] == "triomq"
    ]
    for pod in pods:
        labels, (container,) = pod["metadata"]["labels"], pod["spec"]["containers"]
        open_to: dict[str, Any] = {}
        for policy in policies:
            if policy["podSelector"]["matchLabels"].items() <= labels.items():
                for rule in policy["ingress"]:
                    open_to |= {port["port"]: rule.get("from") for port in rule["ports"]}
        names = {port["name"] for port in container["ports"]}
        assert names <= set(open_to)
        assert {name for name in names if open_to[name]} == names & {"replication"}
    (peers,) = [rule["from"] for policy in policies for rule in policy["ingress"] if "from" in rule]
    assert peers == [{"podSelector": {"matchLabels": {"app": "triomq", "role": "broker"}}}]
