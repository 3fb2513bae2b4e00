"""Where a batch is held: a mark in the folder of its query, and a file that lets it go on."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

GATE_SECONDS_MAX = 600.0


def wait_at_gate(folder: str, batch: int, marker: str, rows: list[Any]) -> None:
    """Show that something is inside a batch, and wait until the gate of the batch is open.

    ``rows``: the places of the rows that are held.
    """
    inside = Path(folder) / "inside"
    inside.mkdir(exist_ok=True)
    mark = inside / f"{batch}-{marker}-{os.getpid()}"
    fresh = inside / f"new-{os.getpid()}"
    fresh.write_text(json.dumps(rows))
    os.replace(fresh, mark)
    deadline = time.monotonic() + GATE_SECONDS_MAX
    while not (Path(folder) / f"open-{batch}").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the gate stayed closed")
        time.sleep(0.02)
