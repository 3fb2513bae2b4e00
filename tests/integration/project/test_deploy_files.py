"""The files of deploy/ fit together: every command line and key is accepted by our own parsers,
every port, name and path meets its other end.

The compose file also runs for real, and an API server takes the Kubernetes manifests
(tests/compose); pods and systemd units cannot run here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_files import DEPLOY, STATE, compose_file, config_of, proxy_of, rendered, words_of

from triomq.broker.config import BrokerConfig, BrokerRole
from triomq.broker.config.endpoint_settings import DEFAULT_GRPC_PORT
from triomq.client.console.core.command_line import console_parser
from triomq.client.console.run import STOP_SECONDS
from triomq.client.pipeline.spec_check import check_spec
from triomq.client.pipeline.spec_file import read_spec

ROOT = DEPLOY.parent


def broker_of(words: Sequence[str], conf: Path = DEPLOY / "conf") -> BrokerConfig:
    config = config_of(words, conf)
    assert isinstance(config, BrokerConfig)
    return config


# --- compose
# ------------------------------------------------------------------------------------------------


PROXIES = {
    name: service
    for name, service in compose_file()["services"].items()
    if service.get("command", [""])[0] == "mqproxy"
}
SERVICES = {
    name: service
    for name, service in compose_file()["services"].items()
    if service.get("command", [""])[0] in ("mqbroker", "mqnamesrv")
}


def test_compose_has_two_name_servers_and_two_groups_of_master_and_slave() -> None:
    configs = {name: config_of(service["command"]) for name, service in SERVICES.items()}
    brokers = {
        name: (config.broker_name, config.broker_id, config.broker_role, config.broker_ip)
        for name, config in configs.items()
        if isinstance(config, BrokerConfig)
    }
    assert brokers == {
        "broker-a": ("broker-a", 0, BrokerRole.SYNC_MASTER, "broker-a"),
        "broker-a-slave": ("broker-a", 1, BrokerRole.SLAVE, "broker-a-slave"),
        "broker-b": ("broker-b", 0, BrokerRole.SYNC_MASTER, "broker-b"),
        "broker-b-slave": ("broker-b", 1, BrokerRole.SLAVE, "broker-b-slave"),
    }
    assert set(configs) - set(brokers) == {"namesrv-1", "namesrv-2"}


@pytest.mark.parametrize("name", SERVICES)
def test_each_compose_service(name: str) -> None:
    service, config = SERVICES[name], config_of(SERVICES[name]["command"])
    published = {tuple(map(int, entry.split(":")[-2:])) for entry in service["ports"]}
    if isinstance(config, BrokerConfig):
        # Clients dial the advertised port: it must be the same inside and outside, and so must the
        # fast port.
        ports = {config.listen_port, config.fast_listen_port()}
        if config.broker_role is not BrokerRole.SLAVE:
            assert config.endpoint.port > 0
            ports.add(config.endpoint.port)
        assert published == {(port, port) for port in ports}
        assert service["environment"]["NAMESRV_ADDR"] == "namesrv-1:9876;namesrv-2:9876"
        assert str(config.store.root).startswith(STATE)
    else:
        assert {inside for _, inside in published} == {config.listen_port}
        assert str(config.kv_path).startswith(STATE)
    assert service["healthcheck"]["test"] == ["CMD", "probe", "ready"]
    assert (config.monitor.host, config.monitor.port) == ("0.0.0.0", 9898)
    assert service["volumes"] == [f"{name}:{STATE}"]
    assert name in compose_file()["volumes"]
    assert int(service["stop_grace_period"].removesuffix("s")) <= 10
    assert config.network.drain_seconds < 10


def test_two_proxies_stand_behind_one_name() -> None:
    assert set(PROXIES) == {"proxy-1", "proxy-2"}
    for service in PROXIES.values():
        config = proxy_of(service["command"], service["environment"]["NAMESRV_ADDR"])
        assert config.namesrv_addresses == ("namesrv-1:9876", "namesrv-2:9876")
        (published,) = (entry.rsplit(":", 1)[1] for entry in service["ports"])
        # Published under another number, so routes must have the number that the client dialled.
        assert (int(published), config.keeps_ports) == (config.listen_port, True)
        assert (config.monitor.host, config.monitor.port) == ("0.0.0.0", 9898)
        assert service["profiles"] == ["proxy"]
        assert service["networks"]["default"]["aliases"] == ["mqproxy"]
        assert service["healthcheck"]["test"] == ["CMD", "probe", "ready"]
        assert config.grpc.drain_seconds < int(service["stop_grace_period"].removesuffix("s"))
        assert "volumes" not in service  # it keeps no files


def test_the_console_is_published_and_keeps_its_users() -> None:
    service = compose_file()["services"]["console"]
    program, *options = service["command"]
    parsed = console_parser().parse_args(options)
    assert (program, parsed.host) == ("mqconsole", "0.0.0.0")  # a container's ports
    assert [entry.split(":")[-1] for entry in service["ports"]] == [str(parsed.port)]
    assert service["healthcheck"]["test"] == ["CMD", "probe", "livez", str(parsed.port)]
    assert service["volumes"] == [f"console:{parsed.users.parent}"]
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS
    (added,) = re.findall(r"run --rm console mqconsole (.*)", (ROOT / "docs/deploy.md").read_text())
    assert console_parser().parse_args(added.split()).users_file == parsed.users


def test_no_port_is_published_twice_and_every_name_is_there() -> None:
    document = compose_file()
    published = [
        entry.rsplit(":", 1)[0]
        for service in document["services"].values()
        for entry in service.get("ports", ())
    ]
    assert len(published) == len(set(published))
    for service in document["services"].values():
        assert set(service.get("depends_on", ())) <= set(document["services"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in document["volumes"] or (DEPLOY / source).exists(), source
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert "version" not in document  # Compose v2 warns about it, v1 from 1.27 on does without


def test_one_variable_changes_what_clients_are_told_and_not_what_slaves_are_told() -> None:
    for name, service in compose_file(ADVERTISED_HOST="192.0.2.7")["services"].items():
        if service.get("command", [""])[0] == "mqbroker":
            config = broker_of(service["command"])
            assert (config.broker_ip, config.ha_ip) == ("192.0.2.7", name)


def test_prometheus_scrapes_every_service() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    targets = {
        target
        for job in document["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    assert targets == {f"{name}:9898" for name in (*SERVICES, *PROXIES)}


def test_the_probe_has_the_port_of_the_configurations() -> None:
    (port,) = re.findall(r"^PORT = (\d+)$", (DEPLOY / "probe.py").read_text(), re.MULTILINE)
    for program, name in (("mqnamesrv", "namesrv.conf"), ("mqbroker", "broker.conf")):
        assert config_of([program, "-c", f"/etc/triomq/{name}"]).monitor.port == int(port)


def test_the_dockerfile_copies_what_is_there_and_ends_as_an_ordinary_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert text.index("ARG BASE=python:3.13-slim") < text.index("FROM ${BASE}")
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["3000:3000"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in (
        "broker",
        "client",
        "namesrv",
        "remoting",
        "triomq",
        "pyspark_triomq",
        "pyproject.toml",
        "README.md",
        "deploy",
    ):
        assert f"!{name}" in ignored


def test_spark_services_can_work_together() -> None:
    """Executors write the query's state beside the driver's checkpoint, and Java runs what it has
    unpacked into /tmp.
    """
    services = compose_file()["services"]
    spark = {
        name: service
        for name, service in services.items()
        if "spark" in service.get("profiles", ())
    }
    assert set(spark) == {
        "spark-master",
        "spark-worker-1",
        "spark-worker-2",
        "spark-job",
        "flights",
    }
    command = spark.pop("spark-job")["command"]
    assert command[:2] == ["mqpipeline", "run"]
    pipeline = read_spec(str(DEPLOY / "spark" / Path(command[2]).name))
    assert check_spec(pipeline) == []
    assert pipeline.run.options["spark.driver.host"] == services["spark-job"]["hostname"]
    paths = (pipeline.sink.path, pipeline.run.checkpoint)
    assert [path for path in paths if not str(path).startswith(f"{STATE}/")] == []
    program = (DEPLOY / "spark" / "spark.py").read_text()
    for service in spark.values():
        assert f'"{service["command"][-1]}": ' in program
    for service in (*spark.values(), services["spark-job"]):
        assert service["volumes"] == [f"spark:{STATE}"]
        assert service["tmpfs"] == ["/tmp:exec"]
        assert (service["build"]["args"]["EXTRAS"], service["environment"]["SPARK_MASTER"]) == (
            "demo",
            "spark://spark-master:7077",
        )


def test_compose_itself_accepts_the_file() -> None:
    command = ["docker-compose", "-f", str(DEPLOY / "docker-compose.yml"), "config", "--quiet"]
    if shutil.which(command[0]) is None:
        pytest.skip("docker-compose is missing: apt-get install docker-compose")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Kubernetes
# ------------------------------------------------------------------------------------------------


def manifests() -> list[dict[str, Any]]:
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {
        "kustomization.yaml"
    }
    return [
        document
        for name in listed
        for document in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
    ]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {
        document["metadata"]["name"]: document
        for document in manifests()
        if document["kind"] == kind
    }


@pytest.mark.feature("199a", "199d")
@pytest.mark.parametrize("name", ["namesrv", "broker-a", "broker-b"])
def test_each_stateful_set(name: str, tmp_path: Path) -> None:
    spec, service = of_kind("StatefulSet")[name]["spec"], of_kind("Service")[name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert (
        spec["selector"]["matchLabels"]
        == service["selector"]
        == labels
        == of_kind("PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"]
    )
    assert (spec["serviceName"], service["clusterIP"]) == (name, "None")
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {(port["targetPort"], port["port"]) for port in service["ports"]} == set(ports.items())
    assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "monitor"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "monitor"}
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 3000
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {
        mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in claims
    } == {STATE}
    seen = []
    for ordinal in range(spec["replicas"]):
        config = config_of(words_of(container, f"{name}-{ordinal}", tmp_path))
        assert ports["remoting"] == config.listen_port
        assert (ports["monitor"], config.monitor.host) == (config.monitor.port, "0.0.0.0")
        assert pod["terminationGracePeriodSeconds"] >= config.network.drain_seconds + 5
        if isinstance(config, BrokerConfig):
            assert (ports["fast"], ports["replication"], ports["grpc"]) == (
                config.fast_listen_port(),
                config.ha_port,
                DEFAULT_GRPC_PORT,
            )
            assert config.endpoint.port == -1  # the default
            seen.append(
                (config.broker_name, config.broker_id, config.broker_role, config.broker_ip)
            )
    if name != "namesrv":
        assert seen == [
            (name, 0, BrokerRole.SYNC_MASTER, f"{name}-0.{name}.mq.svc"),
            (name, 1, BrokerRole.SLAVE, f"{name}-1.{name}.mq.svc"),
        ]
        (addresses,) = [
            entry["value"] for entry in container["env"] if entry["name"] == "NAMESRV_ADDR"
        ]
        namesrv = of_kind("StatefulSet")["namesrv"]["spec"]
        assert addresses.split(";") == [
            f"namesrv-{number}.namesrv:9876" for number in range(namesrv["replicas"])
        ]


def test_the_proxies_of_the_deployment() -> None:
    spec, service = of_kind("Deployment")["mqproxy"]["spec"], of_kind("Service")["mqproxy"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert (
        spec["selector"]["matchLabels"]
        == service["selector"]
        == labels
        == of_kind("PodDisruptionBudget")["mqproxy"]["spec"]["selector"]["matchLabels"]
    )
    assert spec["replicas"] == 2
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {(port["targetPort"], port["port"]) for port in service["ports"]} == set(ports.items())
    (namesrv,) = (one["value"] for one in container["env"] if one["name"] == "NAMESRV_ADDR")
    config = proxy_of(container["args"], namesrv)
    assert ports == {"grpc": config.listen_port, "monitor": config.monitor.port}
    assert config.monitor.host == "0.0.0.0"
    assert pod["terminationGracePeriodSeconds"] >= config.grpc.drain_seconds + 5
    replicas = of_kind("StatefulSet")["namesrv"]["spec"]["replicas"]
    assert config.namesrv_addresses == tuple(
        f"namesrv-{number}.namesrv:9876" for number in range(replicas)
    )


def test_the_console_of_the_deployment(tmp_path: Path) -> None:
    service, deployment = rendered("kubernetes-console", tmp_path)
    spec = deployment["spec"]
    assert spec["selector"]["matchLabels"] == service["spec"]["selector"]
    (container,) = spec["template"]["spec"]["containers"]
    program, *options = container["args"]
    parsed = console_parser().parse_args(options)
    assert (program, parsed.host) == ("mqconsole", "0.0.0.0")
    assert [port["containerPort"] for port in container["ports"]] == [parsed.port]
    assert [port["port"] for port in service["spec"]["ports"]] == [parsed.port]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > STOP_SECONDS
    volume = spec["template"]["spec"]["volumes"][0]["secret"]["secretName"]
    page = (ROOT / "docs/deploy.md").read_text()
    assert f"create secret generic {volume} --from-file={parsed.users.name}=" in page
    assert parsed.users.parent == Path(container["volumeMounts"][0]["mountPath"])


def test_the_two_groups_differ_in_their_names_only() -> None:
    one, other = (
        (DEPLOY / "kubernetes" / f"{name}.yaml").read_text() for name in ("broker-a", "broker-b")
    )
    assert one.replace("broker-a", "broker-b") == other


# --- systemd
# ------------------------------------------------------------------------------------------------


def unit(name: str) -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(key, []).append(value)
    return settings


@pytest.mark.feature("199b", "199d")
@pytest.mark.parametrize(
    ("name", "instances"),
    [("mqnamesrv.service", [""]), ("mqbroker@.service", ["broker-a", "broker-a-slave"])],
)
def test_each_unit(name: str, instances: list[str], tmp_path: Path) -> None:
    settings = unit(name)
    for instance in instances:
        (start,) = settings["ExecStart"]
        program, *options = start.replace("%i", instance).split()
        config = config_of([Path(program).name, *options], DEPLOY / "systemd")
        assert int(settings["TimeoutStopSec"][0]) > config.network.drain_seconds
        written = config.store.root if isinstance(config, BrokerConfig) else config.kv_path
        assert str(written).startswith(f"/var/lib/{settings['StateDirectory'][0]}/")
        assert config.monitor.host == "127.0.0.1"
    verify_unit(name, tmp_path)


@pytest.mark.feature("199b", "199d")
def test_the_unit_of_the_console(tmp_path: Path) -> None:
    settings = unit("mqconsole.service")
    (start,) = settings["ExecStart"]
    program, *options = start.split()
    parsed = console_parser().parse_args(options)
    assert (Path(program).name, parsed.host) == ("mqconsole", "127.0.0.1")
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert page.count(str(parsed.users)) == 2  # it is written and given to the unit's user
    assert int(settings["TimeoutStopSec"][0]) > STOP_SECONDS
    verify_unit("mqconsole.service", tmp_path)


def verify_unit(name: str, tmp_path: Path) -> None:
    """As systemd reads it."""
    analyse = shutil.which("systemd-analyze")
    if analyse is not None:
        text = (DEPLOY / "systemd" / name).read_text()
        installed = tmp_path / name.replace("@", "@broker-a")
        installed.write_text(
            re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", text)
            .replace("User=triomq", "User=root")
            .replace("Group=triomq", "Group=root")
        )
        done = subprocess.run(
            [analyse, "verify", "--man=no", str(installed)],
            capture_output=True,
            text=True,
            check=False,
        )
        ours = [
            line
            for line in (done.stdout + done.stderr).splitlines()
            if name.partition("@")[0].partition(".")[0] in line
        ]
        assert (done.returncode, ours) == (0, []), done.stderr


@pytest.mark.feature("199c")
def test_what_the_page_says_installs_every_file(tmp_path: Path) -> None:
    """The lines that copy units and configurations are run, with folders of here in place of the
    machine's.
    """
    page = (ROOT / "docs" / "deploy.md").read_text()
    for folder in re.findall(r"^kubectl apply -k (\S+)$", page, re.MULTILINE):
        assert (ROOT / folder / "kustomization.yaml").is_file()
    lines = re.findall(r"^install .*$", page, re.MULTILINE)
    for line in lines:
        subprocess.run(line.replace("/etc/", f"{tmp_path}/"), shell=True, cwd=ROOT, check=True)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        path.name for path in (DEPLOY / "systemd").iterdir()
    }
    started = re.findall(r"^systemctl enable --now (.*)$", page, re.MULTILINE)
    assert started == ["mqnamesrv mqbroker@broker-a", "mqconsole"]
    for name in " ".join(started).split():
        template, _, instance = name.partition("@")
        unit_file = tmp_path / "systemd" / "system" / f"{template}{'@' if instance else ''}.service"
        assert unit_file.is_file()
        if " -c " in unit_file.read_text():
            assert (tmp_path / "triomq" / f"{instance or 'namesrv'}.conf").is_file()


def test_the_pages_that_the_files_name_exist() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix != ".whl":
            for page in re.findall(r"docs/[a-z]+\.md", path.read_text()):
                assert (ROOT / page).exists(), (path, page)
