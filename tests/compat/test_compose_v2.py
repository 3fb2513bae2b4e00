"""The compose file under the loader of Compose v2 (compose-go); ``make compose-test`` runs it under
the Compose that is installed, which may be v1.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
FILE = HERE.parents[1] / "deploy" / "docker-compose.yml"


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("Go is missing: apt-get install golang-go")
    program = tmp_path_factory.mktemp("compose") / "compose"
    done = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(program), "."],
        cwd=HERE / "compose",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return program


def load(loader: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    words = [str(loader), *map(str, files)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_compose_v2_loads_every_profile(loader: Path) -> None:
    done = load(loader, FILE)
    assert done.returncode == 0, done.stderr
    commands = json.loads(done.stdout)
    assert set(commands) == set(yaml.safe_load(FILE.read_text())["services"])
    assert commands["broker-a"][-4:] == [
        "-DbrokerIP1=broker-a",
        "-DbrokerIP2=broker-a",
        "-DlistenPort=10911",
        "-DgrpcServerPort=8081",
    ]


def test_compose_v2_merges_the_file_with_users_and_tls(loader: Path) -> None:
    secure = FILE.with_name("docker-compose.secure.yml")
    done = load(loader, FILE, secure)
    assert done.returncode == 0, done.stderr
    commands = json.loads(done.stdout)
    assert {"security", *yaml.safe_load(FILE.read_text())["services"]} == set(commands)
    assert commands["broker-a"][0] == "mqbroker"  # behind the entry point of the second file


def test_compose_v2_loads_the_file_with_controllers(loader: Path) -> None:
    done = load(loader, FILE.with_name("docker-compose.failover.yml"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["namesrv-2"] == ["-DcontrollerDLegerSelfId=n2"]


def test_the_loader_refuses_what_compose_refuses(loader: Path, tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(FILE.read_text().replace("read_only:", "read_onli:"))
    done = load(loader, broken)
    assert done.returncode == 1
    assert "read_onli" in done.stderr
