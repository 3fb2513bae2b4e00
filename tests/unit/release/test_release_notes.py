"""What a tag must find before anything is published; and that the workflow does it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RELEASE = runpy.run_path(str(ROOT / "deploy" / "release_notes.py"))


def project(
    folder: Path,
    *,
    version: str = "1.2.3",
    module: str = "1.2.3",
    changelog: str = (
        "## 1.2.3 - 2026-11-24\n\n### Added\n- This.\n\n## 1.2.2 - 2026-01-01\n- That.\n"
    ),
) -> Path:
    (folder / "triomq").mkdir()
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (folder / "triomq" / "__init__.py").write_text(f'__version__ = "{module}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}")
    return folder


def test_the_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    assert RELEASE["notes"]("v1.2.3", project(tmp_path)) == "### Added\n- This.\n"


@pytest.mark.parametrize(
    ("tag", "given", "complaint"),
    [
        ("v1.2.4", {}, "the tag is v1.2.4, and pyproject.toml has version 1.2.3"),
        ("1.2.3", {}, "tag v1.2.3"),
        ("v1.2.3", {"module": "1.2.2"}, "another __version__"),
        ("v1.2.3", {"changelog": "## Unreleased\n- This.\n"}, "no section '## 1.2.3 - YYYY-MM-DD'"),
        ("v1.2.3", {"changelog": "## 1.2.3\n- This.\n"}, "no section"),
        (
            "v1.2.3",
            {"changelog": "## 1.2.3 - 2026-11-24\n\n## 1.2.2 - 2026-01-01\n- That.\n"},
            "is empty",
        ),
    ],
)
def test_what_is_not_ready_is_not_released(
    tmp_path: Path, tag: str, given: dict[str, str], complaint: str
) -> None:
    with pytest.raises(RELEASE["NotReady"], match=complaint):
        RELEASE["notes"](tag, project(tmp_path, **given))


def test_the_command_fails_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "release_notes.py", "v0.0.0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("release: the tag is v0.0.0, and pyproject.toml has version ")
    assert done.stderr.count("\n") == 1


def test_the_workflow_builds_checks_and_publishes_without_a_password() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    commands = "\n".join(step.get("run", "") for step in build["steps"])
    for command in (
        "deploy/release_notes.py",
        "make check test",
        "make dist",
        "twine check --strict",
    ):
        assert command in commands
    assert publish["needs"] == "build"
    assert publish["permissions"]["id-token"] == "write"
    assert any(
        step.get("uses", "").startswith("pypa/gh-action-pypi-publish@") for step in publish["steps"]
    )
    assert "secrets" not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
