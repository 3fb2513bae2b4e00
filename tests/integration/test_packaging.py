"""What a user gets from `pip install triomq`: a wheel built from the sdist, installed into an empty environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist (`python -m build` does it in this order)."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_sdist_holds_ordinary_files(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    names = {member.name.split("/", 1)[1] for member in members}
    assert {"triomq/broker/app.py", "triomq/remoting/protocol/record.py", "triomq/py.typed", "pyspark_triomq/__init__.py", "LICENSE"} <= names


def test_wheel_puts_only_two_names_into_site_packages(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"triomq", "pyspark_triomq"}
    expected = {f"triomq/{path.relative_to(ROOT)}" for package in ("remoting", "namesrv", "broker", "client") for path in (ROOT / package).rglob("*.py")}
    assert expected <= set(names)
    assert "triomq/py.typed" in names


@pytest.mark.feature(179)
def test_wheel_runs_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", next(dist.glob("*.whl")), cwd=tmp_path)
    (tmp_path / "client.py").write_text("MINE = True\n")
    program = (
        "import client, triomq; assert client.MINE; "
        "from triomq import Producer, PushConsumer, PullConsumer, Message; "
        "import triomq.broker.app, triomq.namesrv.app, pyspark_triomq; print(Producer.__module__)"
    )
    assert run(python, "-c", program, cwd=tmp_path).startswith("triomq.client.")
    for script in ("mqnamesrv", "mqbroker", "mqadmin", "mqstore", "mqlocal"):
        assert "usage" in run(python.parent / script, "--help", cwd=tmp_path).lower()
