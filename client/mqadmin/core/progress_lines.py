"""Lines on stderr about how far a command is, for commands that wait."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TextIO

from triomq.remoting.core.printable import printable

_WRITE: ContextVar[Callable[[str], None] | None] = ContextVar("mqadmin_progress", default=None)


def show_progress_on(stream: TextIO) -> None:
    """Write the progress of commands that run from now on in this task to ``stream``."""

    def write(line: str) -> None:
        print(f"mqadmin: {printable(line)}", file=stream, flush=True)

    _WRITE.set(write)


def tell_progress(line: str) -> None:
    """Show a line, if a stream was named."""
    if (write := _WRITE.get()) is not None:
        write(line)
