"""Wall clocks that jump while a process runs: libfaketime between the process and its C library.

The steady clock is left alone, as on a real machine. The library is loaded when a program starts
(``LD_PRELOAD``) and reads the offset from a file of the process at every call, so a jump counts
from the next call on. Without the library clocks cannot jump; ``why_not`` says so.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

PLACES = (
    "/usr/lib/*/faketime",
    "/usr/lib/faketime",
    "/usr/lib64/faketime",
    "/usr/local/lib/faketime",
    "/opt/homebrew/lib/faketime",
)
ENVIRONMENT = {
    "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    # each process has a clock of its own, and a killed one leaves nothing
    "FAKETIME_DISABLE_SHM": "1",
    "NO_FAKE_STAT": "1",  # files have the times that they were given
}
FILE = "FAKETIME_TIMESTAMP_FILE"


def libfaketime() -> Path | None:
    found = [path for place in PLACES for path in Path("/").glob(f"{place[1:]}/libfaketime.so.1")]
    return found[0] if found else None


def why_not() -> str:
    """Why no clock can jump here; empty if it can."""
    return (
        ""
        if libfaketime() is not None
        else "libfaketime is missing (apt-get install libfaketime): no clock jumps"
    )


def environment() -> dict[str, str]:
    """For a program whose clock, and that of whatever it forks, is to jump; empty without the
    library.
    """
    found = libfaketime()
    return {**ENVIRONMENT, "LD_PRELOAD": str(found)} if found is not None else {}


def follow(path: Path) -> None:
    """From now on this process has the clock that ``set_clock`` sets there."""
    if libfaketime() is None:
        return
    if "libfaketime" not in os.environ.get("LD_PRELOAD", ""):
        raise RuntimeError(
            "this process was started without libfaketime: something else has started"
            " multiprocessing's fork server"
        )
    os.environ[FILE] = str(path)


def set_clock(path: Path, seconds: float) -> None:
    """Set the clock of the processes that follow this file ``seconds`` ahead of the real clock."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(f"{seconds:+.3f}\n")
    fresh.replace(path)


def sleep(seconds: float) -> None:
    """``time.sleep`` for processes with the library: it refuses the absolute times by which Python
    waits since 3.11.
    """
    select.select((), (), (), seconds)


def note_clock(path: Path, times: Path) -> int:
    """A program that writes once per jump how far its wall clock is from the one that only goes
    forward, until it is killed.
    """
    follow(path)
    last = 0
    while True:
        ahead = round(time.time() - time.monotonic())
        if abs(ahead - last) > 1:
            last = ahead
            with times.open("a") as file:
                file.write(f"{ahead}\n")
        sleep(0.01)
