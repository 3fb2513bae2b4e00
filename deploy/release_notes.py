"""Print the changelog of a version; fail unless tag, version and changelog agree.

python deploy/release_notes.py v0.2.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


class NotReady(Exception):
    """The release cannot be made; the text names the fix."""


def section(changelog: str, version: str) -> str:
    """Return the text below ``## VERSION - YYYY-MM-DD``.

    Raises: NotReady.
    """
    found = re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d{{2}}-\d{{2}}\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if found is None:
        raise NotReady(
            f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD': give the unreleased section"
            " this heading"
        )
    if not found[1].strip():
        raise NotReady(f"the section of {version} in CHANGELOG.md is empty")
    return found[1].strip() + "\n"


def notes(tag: str, root: Path = ROOT) -> str:
    """Return the notes of the release that a tag names.

    Raises: NotReady.
    """
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise NotReady(
            f"the tag is {tag}, and pyproject.toml has version {version}: tag v{version}, or set"
            " the version"
        )
    if f'__version__ = "{version}"' not in (root / "triomq" / "__init__.py").read_text():
        raise NotReady(f"triomq/__init__.py has another __version__ than pyproject.toml, {version}")
    return section((root / "CHANGELOG.md").read_text(), version)


def main() -> int:
    try:
        print(notes(sys.argv[1] if len(sys.argv) > 1 else ""), end="")
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
