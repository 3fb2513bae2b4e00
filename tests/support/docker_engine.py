"""Docker for tests: the engine that runs already, or an engine that ends with the tests; a base
image without a registry; compose.

Nothing here needs a registry or, inside a build, a package index: debootstrap and ``docker import``
make the base image, and pip downloads the wheels outside of the build.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".compose"
CONTEXT = (
    "broker",
    "client",
    "namesrv",
    "remoting",
    "triomq",
    "pyspark_triomq",
    "examples",
    "deploy",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    ".dockerignore",
)
PACKAGES = "docker.io docker-compose iptables debootstrap"
START_SECONDS = 60
BASE_VARIABLE = "COMPOSE_TEST_BASE"
"""environment variable: an image with Python >= 3.11 to be used in place of one made by debootstrap
"""


class NoDocker(Exception):
    """Docker cannot run here; the message says why, and what would help."""


def run(
    *command: str | Path, check: bool = True, seconds: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its whole output is in the error when it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        **options,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))} ended with"
            f" {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        )
    return done


def need(program: str) -> None:
    if shutil.which(program) is None:
        raise NoDocker(f"{program} is missing: apt-get install {PACKAGES}")


@attrs.define(eq=False)
class Engine:
    """A Docker engine, reached through ``environment``."""

    environment: dict[str, str]

    def docker(
        self, *words: str | Path, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return run("docker", *words, check=check, env=self.environment, **options)

    def compose_words(self) -> list[str]:
        """How Compose is called here: v2 if it is there, else v1. Raises NoDocker."""
        if self.docker("compose", "version", check=False).returncode == 0:
            return ["docker", "compose"]
        need("docker-compose")
        return ["docker-compose"]


@contextlib.contextmanager
def docker_engine() -> Iterator[Engine]:
    """The engine that is running, else one of our own, with its own folders, that is ended by its
    pid. Raises NoDocker.
    """
    need("docker")
    environment = {
        **os.environ,
        "DOCKER_BUILDKIT": "0",
    }  # no buildx needed; the Dockerfile asks for nothing newer
    if run(
        "docker", "info", "--format", "{{.ServerVersion}}", check=False, env=environment
    ).stdout.strip():
        yield Engine(environment)
        return
    if os.geteuid() != 0:
        raise NoDocker("no Docker engine answers, and only root can start one")
    for program in ("dockerd", "iptables"):
        need(program)
    folder = Path(tempfile.mkdtemp(prefix="triomq-docker-"))
    log, address = folder / "dockerd.log", f"unix://{folder}/docker.sock"
    command = [
        "dockerd",
        "--data-root",
        folder / "data",
        "--exec-root",
        folder / "exec",
        "--pidfile",
        folder / "dockerd.pid",
        "--host",
        address,
        "--bridge",
        "none",
    ]
    with log.open("wb") as stream:
        engine = subprocess.Popen(
            [str(word) for word in command], stdout=stream, stderr=subprocess.STDOUT
        )
    environment["DOCKER_HOST"] = address
    try:
        deadline = time.monotonic() + START_SECONDS
        while (
            run(
                "docker", "info", "--format", "{{.ServerVersion}}", check=False, env=environment
            ).stdout.strip()
            == ""
        ):
            if engine.poll() is not None or time.monotonic() > deadline:
                raise NoDocker(
                    "dockerd does not start here; the end of its log:"
                    f" {log.read_text(errors='replace')[-600:]}"
                )
            time.sleep(0.2)
        yield Engine(environment)
    finally:
        engine.send_signal(signal.SIGTERM)
        try:
            engine.wait(60)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
        shutil.rmtree(folder, ignore_errors=True)


def base_image(engine: Engine) -> str:
    """An image with Python >= 3.11: the one that COMPOSE_TEST_BASE names, else Debian or Ubuntu as
    this machine, made by debootstrap and kept.
    """
    if given := os.environ.get(BASE_VARIABLE):
        return given
    archive = CACHE / "base.tar"
    if not archive.exists():
        need("debootstrap")
        release = dict(
            line.split("=", 1)
            for line in Path("/etc/os-release").read_text().splitlines()
            if "=" in line
        )
        suite = release.get("VERSION_CODENAME", "bookworm").strip('"')
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="triomq-base-") as text:
            tree = Path(text) / "tree"
            done = run(
                "debootstrap",
                "--variant=minbase",
                "--include=python3,python3-venv",
                suite,
                tree,
                check=False,
                seconds=600,
            )
            if done.returncode != 0:
                raise NoDocker(f"debootstrap {suite} failed: {(done.stdout + done.stderr)[-600:]}")
            shutil.rmtree(tree / "var" / "cache" / "apt", ignore_errors=True)
            shutil.rmtree(tree / "var" / "lib" / "apt" / "lists", ignore_errors=True)
            run("tar", "-C", tree, "--one-file-system", "-cf", CACHE / "base.partial", ".")
            (CACHE / "base.partial").replace(archive)
    engine.docker("import", archive, "triomq-base:test")
    return "triomq-base:test"


def wheelhouse(engine: Engine, image: str, folder: Path) -> None:
    """Bring our wheel and those that it needs, for the Python of *image*, into *folder*."""
    version = engine.docker(
        "run",
        "--rm",
        "--network",
        "none",
        image,
        "python3",
        "-c",
        "import sys; print('%d.%d' % sys.version_info[:2])",
    ).stdout.strip()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("triomq-*.whl")
    run(
        *pip,
        "download",
        "--only-binary=:all:",
        "--python-version",
        version,
        "--dest",
        folder,
        f"{wheel}[grpc,console]",
    )


def build_context(folder: Path) -> Path:
    """A copy of what an image is built from, so that the checkout stays as it is."""
    folder.mkdir()
    for name in CONTEXT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source,
                folder / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.whl"),
            )
        else:
            shutil.copy2(source, folder / name)
    return folder


@attrs.define(eq=False)
class Compose:
    """One project of the compose file in *file*."""

    engine: Engine
    words: Sequence[str]
    file: Path
    environment: dict[str, str]

    def __call__(
        self, *words: str, check: bool = True, seconds: float = 300, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return run(
            *self.words,
            "-f",
            self.file,
            *words,
            check=check,
            seconds=seconds,
            env=self.environment,
            **options,
        )

    def container(self, service: str) -> str:
        """The container's id, also of one that has stopped."""
        found = self.engine.docker(
            "ps",
            "-aq",
            "--filter",
            f"label=com.docker.compose.project={self.environment['COMPOSE_PROJECT_NAME']}",
            "--filter",
            f"label=com.docker.compose.service={service}",
        )
        (identity,) = found.stdout.split()
        return identity

    def state(self, service: str) -> dict[str, Any]:
        (document,) = json.loads(self.engine.docker("inspect", self.container(service)).stdout)
        return dict(document["State"])

    def wait_healthy(self, services: Sequence[str], seconds: float = 120) -> None:
        """Until every health check says so."""
        deadline = time.monotonic() + seconds
        waiting = list(services)
        while waiting := [
            service
            for service in waiting
            if self.state(service).get("Health", {}).get("Status") != "healthy"
        ]:
            if time.monotonic() > deadline:
                states = {service: self.state(service) for service in waiting}
                logs = self("logs", "--tail=40", *waiting, check=False).stdout
                raise AssertionError(f"not healthy: {json.dumps(states, indent=1)[-3000:]}\n{logs}")
            time.sleep(0.3)

    def python(
        self, service: str, program: str, *words: str, check: bool = True, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program inside a container."""
        return self(
            "exec", "-T", service, "python", "-c", program, *words, check=check, seconds=seconds
        )

    def mqadmin(self, *words: str) -> Any:
        """What mqadmin says inside the admin container."""
        return json.loads(self("exec", "-T", "admin", "mqadmin", *words, "--json").stdout)
