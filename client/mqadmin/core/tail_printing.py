"""Print what a command that follows something finds: lines of text, or of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TextIO

from triomq.client.admin.arguments import UsageError, Values
from triomq.client.mqadmin.core.command import Lines
from triomq.remoting.core.printable import printable, printable_json, printable_lines


def line_printer(options: Values, stdout: TextIO, stderr: TextIO) -> Callable[[Lines], None]:
    """Return what prints lines at once, also into a pipe. Raises: UsageError with --csv."""
    if options.flag("csv"):
        raise UsageError("a command that does not end prints no CSV: use --json, a line for each")
    as_json = options.flag("json")

    def show(lines: Lines) -> None:
        if as_json:
            for document in lines.documents:
                text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
                stdout.write(printable_json(text) + "\n")
        else:
            for text in lines.texts:
                stdout.write(printable_lines(text) + "\n")
        stdout.flush()
        for note in lines.notes:
            print(f"mqadmin: warning: {printable(note)}", file=stderr, flush=True)

    return show
