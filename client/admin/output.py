"""Print results: JSON for programs, rich tables on a terminal, plain aligned columns into a pipe or file.

Plain columns have RocketMQ's titles (`#Broker Name`), are as wide as their widest cell and are separated by two blanks, so that `awk` and
eyes can both read them; nothing is cut.  `rich` is imported when a table goes to a terminal and only then: it costs as much as the rest of
the program.
"""

from __future__ import annotations

import json
from typing import TextIO

from triomq.client.admin.command import Result, Table


def print_result(result: Result, stream: TextIO, *, as_json: bool) -> None:
    """Write a result to `stream`."""
    if as_json:
        stream.write(json.dumps(result.document, ensure_ascii=False, separators=(",", ":")) + "\n")
        return
    for position, block in enumerate(result.blocks):
        if position and isinstance(block, Table):
            stream.write("\n")
        if isinstance(block, str):
            stream.write(block + "\n")
        elif stream.isatty():
            _print_rich(block, stream)
        else:
            stream.write(plain(block))


def plain(table: Table) -> str:
    """Return a table as aligned columns, one line a row."""
    titles = [f"#{column.title}" for column in table.columns]
    cells = [titles, *[[_one_line(cell) for cell in row] for row in table.rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(titles))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if column.right else cell.ljust(width) for cell, width, column in zip(row, widths, table.columns, strict=True)
        ]
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)


def _one_line(cell: str) -> str:
    """Keep a row on its line: control characters become escapes; an empty cell becomes `-`, so that columns can be counted."""
    if not cell:
        return "-"
    if cell.isprintable():
        return cell
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in cell)


def _print_rich(table: Table, stream: TextIO) -> None:
    from rich.box import SIMPLE_HEAD  # only for tables on a terminal: start-up time
    from rich.console import Console  # likewise
    from rich.table import Table as RichTable  # likewise
    from rich.text import Text  # likewise

    pretty = RichTable(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column in table.columns:
        pretty.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in table.rows:
        pretty.add_row(*[Text("" if not cell else _one_line(cell)) for cell in row])
    Console(file=stream).print(pretty)
