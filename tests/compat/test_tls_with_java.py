"""TLS with the official Java client, name server and broker: each side as server and as client,
both serialisations.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import processes
import pytest
import tls_files
from processes import java_command, java_peer

from triomq.client import ClientSettings, ConsumeFrom, ConsumerSettings, ProducerSettings, Tls
from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.core.errors import ConnectionLost, RemotingError
from triomq.remoting.protocol.codes import RequestCode, SerializeType
from triomq.remoting.protocol.command import Command, request
from triomq.sync import Producer, PullConsumer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

COUNT = 10
SERIALIZE = ["JSON", "ROCKETMQ"]
SERIALIZE_OF_MODE = {"permissive": "JSON", "enforcing": "ROCKETMQ"}
"""TLS carries bytes: one serialisation for each mode of our servers shows both."""


def need_java(version: str) -> None:
    if processes.java_home(version) is None:
        pytest.skip(f"the Java peers {version} are not installed: run `make peers`")


def wait_registered(namesrv: str, broker: str, tls: Tls | None) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with BlockingConnection(namesrv, tls=tls) as connection:
                if f'"{broker}"'.encode() in bytes(
                    connection.invoke(request(RequestCode.GET_BROKER_CLUSTER_INFO)).body
                ):
                    return
        except RemotingError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"broker {broker} did not register with {namesrv}")


@attrs.frozen
class Cluster:
    """A cluster of ours that speaks TLS."""

    namesrv: str
    folder: Path
    files: tls_files.Files
    mode: str


def server_lines(files: tls_files.Files, mode: str, *more: str) -> list[str]:
    return [
        f"tls.server.mode={mode}",
        f"tls.server.certPath={files.certificate}",
        f"tls.server.keyPath={files.key}",
        "tls.enable=true",
        f"tls.client.trustCertPath={files.ca}",
        f"tls.client.certPath={files.certificate}",
        f"tls.client.keyPath={files.key}",
        *more,
    ]


@contextmanager
def our_tls_cluster(folder: Path, mode: str, *more: str) -> Iterator[Cluster]:
    files = tls_files.write(folder / "tls")
    lines = server_lines(files, mode, *more)
    settings = dict(line.split("=", 1) for line in lines)
    with (
        processes.our_name_server(folder, define=lines) as namesrv,
        processes.our_broker(folder / "a", "broker-a", namesrv, **settings),
    ):
        wait_registered(namesrv, "broker-a", files.client(identity=True))
        yield Cluster(namesrv, folder, files, mode)


@pytest.fixture(scope="module", params=["permissive", "enforcing"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with our_tls_cluster(tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


@pytest.fixture(scope="module")
def mutual_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("mutual")
    ca = folder / "tls" / "ca.pem"
    more = (
        "tls.server.need.client.auth=require",
        "tls.server.authClient=true",
        f"tls.server.trustCertPath={ca}",
    )
    with our_tls_cluster(folder, "enforcing", *more) as running:
        yield running


def java_tls(files: tls_files.Files | None) -> list[str]:
    """System properties of a Java client that verifies us; without files it trusts every server,
    which is its default.
    """
    if files is None:
        return ["tls.enable=true"]
    return [
        "tls.enable=true",
        "tls.test.mode.enable=false",
        "tls.client.authServer=true",
        f"tls.client.trustCertPath={files.ca}",
    ]


def send_and_consume(version: str, namesrv: str, topic: str, define: list[str]) -> None:
    sent = [
        line
        for line in java_peer(
            version, "send", namesrv, topic, str(COUNT), "TagA", "sync", define=define
        )
        if line[0] == "SENT"
    ]
    assert [line[1] for line in sent] == ["SEND_OK"] * COUNT
    got = [
        line
        for line in java_peer(
            version,
            "consume",
            namesrv,
            topic,
            f"group-{topic}",
            "*",
            str(COUNT),
            "60",
            define=define,
        )
        if line[0] == "GOT"
    ]
    assert {line[7] for line in got} == {f"body-{number}" for number in range(COUNT)}


@pytest.mark.loss
@pytest.mark.compatible("TLS", peer="java-client-{java_version}")
@pytest.mark.feature("151a")
def test_java_client_speaks_tls_with_us(cluster: Cluster, java_version: str) -> None:
    define = [
        *java_tls(cluster.files),
        f"rocketmq.serialize.type={SERIALIZE_OF_MODE[cluster.mode]}",
    ]
    topic = f"Tls_{java_version.replace('.', '_')}"
    send_and_consume(java_version, cluster.namesrv, topic, define)


@pytest.mark.feature("151a")
def test_java_client_in_its_test_mode(cluster: Cluster, java_version: str) -> None:
    sent = java_peer(
        java_version,
        "send",
        cluster.namesrv,
        "TlsTestMode",
        "1",
        "TagA",
        "sync",
        define=java_tls(None),
    )
    assert [line[1] for line in sent if line[0] == "SENT"] == ["SEND_OK"]


@pytest.mark.loss
@pytest.mark.compatible(
    "TLS enforced", peer="java-client-{java_version}", only={"cluster": "enforcing"}
)
@pytest.mark.feature("151b")
def test_a_plain_java_client_is_served_only_where_that_is_allowed(
    cluster: Cluster, java_version: str
) -> None:
    define = [f"rocketmq.serialize.type={SERIALIZE_OF_MODE[cluster.mode]}"]
    if cluster.mode == "permissive":
        topic = f"Plain_{java_version.replace('.', '_')}"
        send_and_consume(java_version, cluster.namesrv, topic, define)
    else:
        check_that_it_is_refused(cluster, java_version, define)


def check_that_it_is_refused(cluster: Cluster, java_version: str, define: list[str]) -> None:
    command = java_command(
        java_version, "Peer", "send", cluster.namesrv, "Refused", "1", "TagA", "sync", define=define
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode != 0
    assert "SEND_OK" not in done.stdout
    log = (cluster.folder / "namesrv.log").read_text()
    assert (
        "the client does not speak TLS, and tls.server.mode=enforcing demands it; switch TLS on in"
        " the client" in log
    )


@pytest.mark.loss
@pytest.mark.parametrize(
    ("java", "password"),
    [
        ("5.5.0", None),
        ("5.5.0", "open sesame"),
        ("4.9.4", None),
    ],  # the Netty of 4.9.4 cannot decrypt keys of today (PBES2)
)
@pytest.mark.compatible("TLS both ways", peer="java-client-{java}")
def test_java_client_shows_its_certificate(
    mutual_cluster: Cluster, java: str, tmp_path: Path, password: str | None
) -> None:
    need_java(java)
    own = tls_files.write(tmp_path, "java-client", (), server=False, password=password)
    define = [
        *java_tls(mutual_cluster.files),
        f"tls.client.certPath={own.certificate}",
        f"tls.client.keyPath={own.key}",
    ]
    if password is not None:
        define.append(f"tls.client.keyPassword={password}")
    send_and_consume(
        java, mutual_cluster.namesrv, f"Mutual_{java.replace('.', '_')}_{bool(password)}", define
    )


@pytest.mark.feature("189b")
def test_a_java_client_without_certificate_is_refused(
    mutual_cluster: Cluster, java_version: str
) -> None:
    command = java_command(
        java_version,
        "Peer",
        "send",
        mutual_cluster.namesrv,
        "Refused",
        "1",
        "TagA",
        "sync",
        define=java_tls(mutual_cluster.files),
    )
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode != 0
    assert "SEND_OK" not in done.stdout
    assert (
        "the client showed no certificate; give the client one"
        in (mutual_cluster.folder / "namesrv.log").read_text()
    )


# Our clients and Java's servers


@attrs.frozen
class JavaCluster:
    """A Java name server and broker; ``tls`` is how our clients approach them."""

    namesrv: str
    tls: Tls
    files: tls_files.Files


@pytest.fixture(scope="module", params=["test mode", "verified", "enforcing", "enforcing 4.9.4"])
def java_tls_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaCluster]:
    mode, version = (
        request.param.removesuffix(" 4.9.4"),
        "4.9.4" if request.param.endswith("4.9.4") else "5.5.0",
    )
    need_java(version)
    folder = tmp_path_factory.mktemp("java-tls")
    files = tls_files.write(folder / "tls")
    define: list[str] = []
    tls = Tls(verify=False)
    if mode != "test mode":
        define = [
            "tls.test.mode.enable=false",
            f"tls.server.certPath={files.certificate}",
            f"tls.server.keyPath={files.key}",
        ]
        tls = files.client()
    if mode == "enforcing":
        define += [
            "tls.server.mode=enforcing", "tls.enable=true", "tls.client.authServer=true",
            f"tls.client.trustCertPath={files.ca}",
            "tls.server.need.client.auth=require", "tls.server.authClient=true",
            f"tls.server.trustCertPath={files.ca}",
            f"tls.client.certPath={files.certificate}", f"tls.client.keyPath={files.key}",
        ]  # fmt: skip
        tls = files.client(identity=True)
    with processes.java_name_server(version, folder / "namesrv", define=define) as namesrv:
        with java_broker(version, folder / "broker", namesrv, define):
            wait_registered(namesrv, "broker-java", tls)
            yield JavaCluster(namesrv, tls, files)


@contextmanager
def java_broker(version: str, folder: Path, namesrv: str, define: list[str]) -> Iterator[None]:
    """Like ``processes.java_broker``, which asks in plain bytes whether the broker is
    registered.
    """
    port = processes.free_port(span=2)
    processes.write_logback(folder)
    conf = processes.write_java_conf(folder, "broker-java", namesrv, port)
    command = java_command(
        version,
        "org.apache.rocketmq.broker.BrokerStartup",
        "-c",
        str(conf),
        home=folder,
        heap="1g",
        define=define,
    )
    with processes.running(command, folder / "broker.log", port=port) as process:
        yield
        process.kill()


@pytest.mark.loss
@pytest.mark.compatible("TLS", peer="java-server-5.5.0", only={"java_tls_cluster": "verified"})
@pytest.mark.compatible(
    "TLS", "TLS both ways", peer="java-server-5.5.0", only={"java_tls_cluster": "enforcing"}
)
@pytest.mark.compatible(
    "TLS", "TLS both ways", peer="java-server-4.9.4", only={"java_tls_cluster": "enforcing 4.9.4"}
)
@pytest.mark.parametrize("serialize", SERIALIZE)
def test_our_client_speaks_tls_with_java(java_tls_cluster: JavaCluster, serialize: str) -> None:
    client = ClientSettings(tls=java_tls_cluster.tls, serialize=SerializeType[serialize])
    topic = f"FromUs_{serialize}"
    bodies = {b"body-%d" % number for number in range(COUNT)}
    with Producer(
        java_tls_cluster.namesrv, group="ours", settings=ProducerSettings(client=client)
    ) as producer:
        for body in bodies:
            producer.send(topic, body, timeout=20)
    got: set[bytes] = set()
    settings = ConsumerSettings(client=client)
    with PullConsumer(
        java_tls_cluster.namesrv,
        group=f"our-readers-{serialize}",
        subscriptions=topic,
        consume_from=ConsumeFrom.FIRST,
        settings=settings,
    ) as consumer:
        deadline = time.monotonic() + 60
        while got != bodies and time.monotonic() < deadline:
            got |= {bytes(message.body) for message in consumer.poll(timeout=1.0)}
    assert got == bodies


@pytest.mark.feature("151c")
def test_java_s_certificate_is_verified(java_tls_cluster: JavaCluster) -> None:
    stranger = Tls()  # the system's authorities did not issue it
    with pytest.raises(OSError, match="is not trusted"):
        BlockingConnection(java_tls_cluster.namesrv, tls=stranger)


@pytest.mark.compatible(
    "TLS enforced",
    "TLS both ways",
    peer="java-server-5.5.0",
    only={"java_tls_cluster": "enforcing"},
)
@pytest.mark.compatible(
    "TLS enforced",
    "TLS both ways",
    peer="java-server-4.9.4",
    only={"java_tls_cluster": "enforcing 4.9.4"},
)
def test_our_plain_client_and_an_enforcing_java_server(java_tls_cluster: JavaCluster) -> None:
    with BlockingConnection(java_tls_cluster.namesrv) as connection:
        if java_tls_cluster.tls.certificate_file is None:
            assert connection.invoke(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
        else:
            with pytest.raises(ConnectionLost, match="does it demand TLS"):
                connection.invoke(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
            with (
                pytest.raises(OSError),
                BlockingConnection(
                    java_tls_cluster.namesrv, tls=java_tls_cluster.files.client()
                ) as nameless,
            ):
                nameless.invoke(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
