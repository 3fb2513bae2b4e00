"""Bring the peers that we did not write into ``.peers``: the Java name server, broker, client and
tools of 5.5.0 and 4.9.4, RocketMQ's benchmark programs, the Go client, Java's proxy, the Java,
Python and Node clients of RocketMQ 5 (gRPC), axe-core, and a PySpark that Delta has a package for.

``--iceberg`` brings Iceberg's PySpark as well, for ``make lake-test``; ``--kafka`` Kafka 3.9.1, for
``make bench-kafka``; ``--spark-kafka`` also PySpark 4.2.0 with Spark's Kafka source, in an
environment of its own, for ``make bench-spark``. Needs
``java``, ``javac``, ``mvn``, ``go`` and ``npm`` on the path; each missing one is named with what to
install. Safe to run again: what is there is kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent.parent / ".peers"
JAVA_VERSIONS = ("5.5.0", "4.9.4")
PROXY_VERSION = "5.5.0"
GRPC_JAVA_VERSION = "5.2.0"
GRPC_PYTHON_VERSION = "5.1.2"
"""In tests/compat/grpc/python/requirements.txt."""
GRPC_NODE_VERSION = "1.0.8"
"""In tests/compat/grpc/node/package.json."""
GRPC_GO_VERSION = "5.1.4"
"""In tests/compat/grpc/go/go.mod."""
AXE_VERSION = "4.10.3"
"""In tests/compat/axe/package.json."""
KAFKA_VERSION = "3.9.1"
SPARK_KAFKA_VERSION = "4.2.0"
"""The newest release of Spark's Kafka source on Maven Central; PySpark must be the same."""
LAKE_SPARKS = {"delta": "4.2", "iceberg": "4.1"}
"""Kind of table -> the newest version of PySpark that it has a package for."""
ARTIFACTS = ("namesrv", "broker", "client", "tools")
TOOLS = {
    "java": "a JDK of at least 17 (Debian: apt-get install openjdk-17-jdk-headless)",
    "javac": "a JDK of at least 17 (Debian: apt-get install openjdk-17-jdk-headless)",
    "mvn": "Maven (Debian: apt-get install maven)",
    "go": "Go 1.25 or newer, or 1.21 that may bring it (Debian 13: apt-get install golang-go)",
    "npm": "Node and npm (Debian: apt-get install nodejs npm)",
}


def pom(version: str, dependencies: Iterable[str]) -> str:
    """``dependencies``: group:artifact."""
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, _, artifact in (name.partition(":") for name in dependencies)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>triomq.tests</groupId><artifactId>peers</artifactId><version>{version}</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )


def copy_jars(home: Path, version: str, dependencies: Iterable[str], *options: str) -> None:
    """From Maven Central into ``home/jars``."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(pom(version, dependencies))
    subprocess.run(
        [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(home / "pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={home / 'jars'}",
            *options,
        ],
        check=True,
    )


def install_java(version: str) -> None:
    home = PEERS / f"java-{version}"
    if not (home / ".complete").exists():
        print(f"peers: RocketMQ {version} from Maven Central ...", flush=True)
        copy_jars(home, version, [f"org.apache.rocketmq:rocketmq-{name}" for name in ARTIFACTS])
        (home / ".complete").touch()
    compile_java(HERE / "java", home, "Headers")


def compile_java(source: Path, home: Path, of_sources: str) -> None:
    """Compile a folder into ``home/classes`` unless ``of_sources``, one class of it, is newer."""
    sources = sorted(source.glob("*.java"))
    classes = home / "classes"
    newest = max(file.stat().st_mtime for file in sources)
    built = classes / f"{of_sources}.class"
    if not built.exists() or built.stat().st_mtime < newest:
        classes.mkdir(exist_ok=True)
        path = f"{home / 'jars'}/*"
        subprocess.run(
            ["javac", "-nowarn", "-cp", path, "-d", str(classes), *map(str, sources)], check=True
        )


def install_benchmark_programs() -> None:
    """RocketMQ's Producer, Consumer and BatchProducer; their dependencies are there with the
    client.
    """
    version = JAVA_VERSIONS[0]
    jars = PEERS / f"java-{version}" / "jars"
    if (jars / f"rocketmq-example-{version}.jar").exists():
        return
    print(f"peers: RocketMQ's benchmark programs {version} from Maven Central ...", flush=True)
    work = PEERS / "benchmark"
    copy_jars(work, version, ["org.apache.rocketmq:rocketmq-example"], "-DexcludeTransitive=true")
    shutil.move(work / "jars" / f"rocketmq-example-{version}.jar", jars)
    shutil.rmtree(work)


def install_kafka() -> None:
    home = PEERS / f"kafka-{KAFKA_VERSION}"
    if (home / ".complete").exists():
        return
    print(f"peers: Kafka {KAFKA_VERSION} from Maven Central ...", flush=True)
    copy_jars(home, KAFKA_VERSION, ("org.apache.kafka:kafka_2.13", "org.apache.kafka:kafka-tools"))
    (home / ".complete").touch()


def install_spark_kafka() -> None:
    home = PEERS / f"spark-kafka-{SPARK_KAFKA_VERSION}"
    if (home / ".complete").exists():
        return
    print(f"peers: Spark's Kafka source {SPARK_KAFKA_VERSION} from Maven Central ...", flush=True)
    copy_jars(
        home,
        SPARK_KAFKA_VERSION,
        ["org.apache.spark:spark-sql-kafka-0-10_2.13"],
        "-DincludeScope=runtime",
        # The rest is in PySpark.
        "-DincludeArtifactIds=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,"
        "kafka-clients,commons-pool2",
    )
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    command = [str(home / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    command += [f"pyspark=={SPARK_KAFKA_VERSION}", "psutil>=6"]
    command += ["--editable", f"{HERE.parent.parent}[spark]"]
    subprocess.run(command, check=True)
    (home / ".complete").touch()


def install_lake_spark(kind: str) -> None:
    """Another PySpark, without the rest of an environment: ``spark_peers.lake_path`` puts it before
    the one that is installed.
    """
    version = LAKE_SPARKS[kind]
    home = PEERS / f"pyspark-{version}"
    if (home / ".complete").exists():
        return
    print(f"peers: PySpark {version} for {kind} from PyPI ...", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--target", str(home), f"pyspark=={version}.*"], check=True)
    (home / ".complete").touch()


def build_go(source: Path, home: Path, name: str, what: str) -> None:
    """Build the program of a folder, unless it is newer than its sources."""
    binary = home / name
    newest = max(file.stat().st_mtime for file in source.iterdir())
    if binary.exists() and binary.stat().st_mtime >= newest:
        return
    print(f"peers: {what} from the Go module proxy ...", flush=True)
    work = home / "src"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    # go.sum pins every module: a module with other contents fails the build.
    subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(binary.resolve()), "."], cwd=work, check=True
    )
    (home / ".complete").touch()


def install_java_proxy() -> None:
    home = PEERS / f"rocketmq-proxy-{PROXY_VERSION}"
    if (home / ".complete").exists():
        return
    print(f"peers: RocketMQ's proxy {PROXY_VERSION} from Maven Central ...", flush=True)
    copy_jars(home, PROXY_VERSION, ["org.apache.rocketmq:rocketmq-proxy"])
    (home / ".complete").touch()


def install_grpc_java() -> None:
    home = PEERS / f"grpc-java-{GRPC_JAVA_VERSION}"
    if not (home / ".complete").exists():
        print(f"peers: the gRPC client {GRPC_JAVA_VERSION} from Maven Central ...", flush=True)
        copy_jars(home, GRPC_JAVA_VERSION, ["org.apache.rocketmq:rocketmq-client-java"])
        (home / ".complete").touch()
    compile_java(HERE / "grpc" / "java", home, "GrpcPeer")


def install_grpc_python() -> None:
    """In an environment of its own: it pins versions of grpcio and protobuf."""
    home = PEERS / f"grpc-python-{GRPC_PYTHON_VERSION}"
    if (home / ".complete").exists():
        return
    print(f"peers: the gRPC client {GRPC_PYTHON_VERSION} from PyPI ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    command = [str(home / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    requirements = HERE / "grpc" / "python" / "requirements.txt"
    subprocess.run([*command, "--disable-pip-version-check", "-r", str(requirements)], check=True)
    (home / ".complete").touch()


def install_grpc_node() -> None:
    install_from_npm(
        PEERS / f"grpc-node-{GRPC_NODE_VERSION}",
        HERE / "grpc" / "node",
        f"the gRPC client {GRPC_NODE_VERSION}",
    )


def install_axe() -> None:
    """The rules of accessibility that the console's pages are checked with."""
    install_from_npm(PEERS / f"axe-{AXE_VERSION}", HERE / "axe", f"axe-core {AXE_VERSION}")


def install_from_npm(home: Path, source: Path, what: str) -> None:
    if (home / ".complete").exists():
        return
    print(f"peers: {what} from the npm registry ...", flush=True)
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(source / name, home)
    # The lock file has the hash of every package; no package runs a script.
    command = ["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=home, check=True)
    (home / ".complete").touch()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--iceberg", action="store_true", help="also Iceberg's PySpark, for make lake-test"
    )
    parser.add_argument("--kafka", action="store_true", help="also Kafka, for make bench-kafka")
    parser.add_argument(
        "--spark-kafka", action="store_true", help="also Spark's Kafka source, for make bench-spark"
    )
    options = parser.parse_args()
    missing = [
        f"{tool}: install {hint}" for tool, hint in TOOLS.items() if shutil.which(tool) is None
    ]
    if missing:
        print("peers: missing tools\n  " + "\n  ".join(missing), file=sys.stderr)
        return 1
    for version in JAVA_VERSIONS:
        install_java(version)
    install_benchmark_programs()
    build_go(HERE / "go", PEERS / "go", "peer", "the Go client")
    install_java_proxy()
    install_grpc_java()
    install_grpc_python()
    install_grpc_node()
    build_go(
        HERE / "grpc" / "go",
        PEERS / f"grpc-go-{GRPC_GO_VERSION}",
        "grpc_peer",
        f"the gRPC client {GRPC_GO_VERSION}",
    )
    install_axe()
    install_lake_spark("delta")
    if options.iceberg:
        install_lake_spark("iceberg")
    if options.kafka:
        install_kafka()
    if options.spark_kafka:
        install_spark_kafka()
    return 0


if __name__ == "__main__":
    sys.exit(main())
