"""Bring the peers that we did not write into `.peers`: the Java name server, broker, client and tools of 5.5.0 and 4.9.4, and the Go client.

Needs `java`, `javac`, `mvn` and `go` on the path; each missing one is named with what to install. Safe to run again: what is there is kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent.parent / ".peers"
JAVA_VERSIONS = ("5.5.0", "4.9.4")
ARTIFACTS = ("namesrv", "broker", "client", "tools")
TOOLS = {
    "java": "a JDK of at least 17 (Debian: apt-get install openjdk-17-jdk-headless)",
    "javac": "a JDK of at least 17 (Debian: apt-get install openjdk-17-jdk-headless)",
    "mvn": "Maven (Debian: apt-get install maven)",
    "go": "Go (Debian: apt-get install golang-go)",
}


def pom(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-{name}</artifactId><version>{version}</version></dependency>"
        for name in ARTIFACTS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>triomq.tests</groupId><artifactId>peers</artifactId><version>{version}</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def install_java(version: str) -> None:
    home = PEERS / f"java-{version}"
    jars = home / "jars"
    if not (home / ".complete").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(pom(version))
        print(f"peers: RocketMQ {version} from Maven Central ...", flush=True)
        subprocess.run(
            ["mvn", "-q", "-B", "-f", str(home / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"],
            check=True,
        )
        (home / ".complete").touch()
    sources = sorted((HERE / "java").glob("*.java"))
    classes = home / "classes"
    newest = max(source.stat().st_mtime for source in sources)
    built = classes / "Headers.class"
    if not built.exists() or built.stat().st_mtime < newest:
        classes.mkdir(exist_ok=True)
        subprocess.run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *map(str, sources)], check=True)


def install_go() -> None:
    binary = PEERS / "go" / "peer"
    source = HERE / "go"
    newest = max(file.stat().st_mtime for file in source.iterdir())
    if binary.exists() and binary.stat().st_mtime >= newest:
        return
    print("peers: the Go client from the Go module proxy ...", flush=True)
    work = PEERS / "go" / "src"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    # go.sum pins every module: a module with other contents fails the build.
    subprocess.run(["go", "build", "-mod=readonly", "-o", str(binary.resolve()), "."], cwd=work, check=True)


def main() -> int:
    missing = [f"{tool}: install {hint}" for tool, hint in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        print("peers: missing tools\n  " + "\n  ".join(missing), file=sys.stderr)
        return 1
    for version in JAVA_VERSIONS:
        install_java(version)
    install_go()
    return 0


if __name__ == "__main__":
    sys.exit(main())
