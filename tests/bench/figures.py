"""Figures that prove a clause of docs/features.md: a benchmark writes them into
``tests/figures.json``, where ``make features`` reads them.

A benchmark that measures a clause has the option ``--record``, and calls ``record`` with what it
found. ``make figures`` runs all of them. What a clause promises (``most`` or ``least``) stands in
``[measured]`` of ``tests/feature_clauses.toml``, not here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from feature_ledger import FIGURES, ROOT, in_order, load_ledger


def add_record_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=FIGURES,
        metavar="FILE",
        help="write the figures of this run that prove a clause into tests/figures.json (or FILE)",
    )


def record(file: Path | None, clause: str, value: float, figure: str) -> None:
    """Write one figure, in place of that of an earlier run; ``file`` None: do nothing.

    ``value``: what the promise is about, in its unit; ``figure``: what a reader is told.

    Raises: LedgerError if the clause promises no such figure.
    """
    if file is None:
        return
    load_ledger().promise(clause)
    known = json.loads(file.read_text()) if file.exists() else {}
    known[clause] = {
        "value": round(value, 4),
        "figure": figure,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "command": command(),
        "commit": commit(),
    }
    content = {name: known[name] for name in sorted(known, key=in_order)}
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def machine() -> str:
    """The processor, and how busy it is: the load of the last minute, with the run itself."""
    processors = Path("/proc/cpuinfo")
    text = processors.read_text() if processors.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return (
        f"{os.cpu_count()} × {model[1] if model else platform.machine()},"
        f" Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def command() -> str:
    program = Path(sys.argv[0]).resolve()
    name = str(program.relative_to(ROOT)) if program.is_relative_to(ROOT) else program.name
    return shlex.join(["python", name, *sys.argv[1:]])


def commit() -> str:
    """The commit that was measured; with a plus, its files were changed. Without git: unknown."""
    if shutil.which("git") is None:
        return "unknown"
    words = ("git", "describe", "--always", "--exclude=*", "--dirty=+")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
