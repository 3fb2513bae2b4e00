"""What a new commit's message must have; ``CONTRIBUTING.md`` has the rule and two examples."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

SINCE = "2026-11-30T22:30:00+00:00"
"""older commits are not checked"""
SUBJECT_MAX = 72
BODY_MAX = 100
TRIVIAL_LINES = 20
"""changed lines of Python outside ``tests`` up to which a subject says enough"""
_START, _END = "\x01", "\x02"


def message_errors(message: str, product_lines: int) -> list[str]:
    """Return what is wrong with a message; ``product_lines``: lines that the commit changes."""
    subject, *rest = message.strip().split("\n")
    errors = []
    if len(subject) > SUBJECT_MAX:
        errors.append(f"the subject has {len(subject)} characters: use at most {SUBJECT_MAX}")
    if subject.endswith("."):
        errors.append("the subject ends with a full stop: leave it out")
    if rest and rest[0]:
        errors.append("the line after the subject is not empty: leave one empty line")
    if any(len(line) > BODY_MAX for line in rest):
        errors.append(f"a line of the body is longer than {BODY_MAX} characters: wrap it")
    if not rest and product_lines > TRIVIAL_LINES:
        errors.append(f"it changes {product_lines} lines and has no body: say why in one")
    return errors


def commit_errors(root: Path) -> Iterator[str]:
    """Yield the errors of the commits since ``SINCE`` that the clone has.

    A shallow clone knows no parent of its oldest commit, so that one may lack a body.
    """
    words = ("git", "log", "--no-merges", f"--since={SINCE}", "--numstat", "--no-renames")
    form = f"--format={_START}%h %P%n%B{_END}"
    log = subprocess.run([*words, form], cwd=root, capture_output=True, text=True, check=True)
    for entry in log.stdout.split(_START)[1:]:
        head, _, text = entry.partition("\n")
        commit, *parents = head.split()
        message, _, changes = text.partition(_END)
        lines = _product_lines(changes) if parents else 0
        yield from (f"{commit}: {error}" for error in message_errors(message, lines))


def _product_lines(changes: str) -> int:
    """Return the added and removed lines of Python outside ``tests`` (lines of ``--numstat``)."""
    rows = [line.split("\t") for line in changes.split("\n") if line.endswith(".py")]
    return sum(int(row[0]) + int(row[1]) for row in rows if not row[2].startswith("tests/"))
