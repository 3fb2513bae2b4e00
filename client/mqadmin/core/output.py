"""Print results: JSON for programs, tables on a terminal, plain columns into a pipe or file.

Plain columns have RocketMQ's titles (``#Broker Name``), are as wide as their widest cell and are
separated by two blanks, for ``awk`` and for people; nothing is cut. ``rich`` is imported only for a
table on a terminal: its import takes as long as the rest of the program.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TextIO

from triomq.client.admin.arguments import UsageError, Values
from triomq.client.mqadmin.core.result import Lines, Result, Table
from triomq.remoting.core.printable import printable, printable_json, printable_lines

FOLDED_WIDTH_MIN = 24
"""narrowest last column that is folded; rows are stacked if the terminal leaves less"""


SERVER_TITLES = frozenset({"Addr", "Broker", "Broker Name", "BrokerName", "brokerName"})
"""columns that name a server"""


def print_result(
    result: Result, stream: TextIO, *, as_json: bool, csv_shape: str | None = None
) -> None:
    """Write a result to ``stream``: JSON, CSV of a document in the notation ``csv_shape``, or text.

    In text, each server that failed has a line below the first table.
    """
    if as_json:
        document = dict(result.document)
        if result.failures is not None:
            document["failures"] = result.failures
        _print_json(document, stream)
        return
    if csv_shape is not None:
        # Only for --csv: start-up time.
        from triomq.client.mqadmin.core.csv_output import csv_text

        stream.write(csv_text(csv_shape, result.document))
        return
    failures = dict(result.failures or {})
    for position, block in enumerate(result.blocks):
        if position and isinstance(block, Table):
            stream.write("\n")
        if isinstance(block, str):
            stream.write(printable_lines(block) + "\n")
        elif stream.isatty():
            _print_rich(block, stream)
        else:
            stream.write(plain(block))
        if isinstance(block, Table):
            _print_failures(block, failures, stream)
            failures = {}
    _print_failures(None, failures, stream)


def _print_json(document: Mapping[str, object], stream: TextIO) -> None:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    stream.write(printable_json(text) + "\n")


def _print_failures(table: Table | None, failures: Mapping[str, str], stream: TextIO) -> None:
    """Write a row for each server that failed and that the table does not name.

    The reason is not a cell of the table: it would widen a column of numbers.
    """
    columns = [] if table is None else [title.removeprefix(">") for title in table.columns]
    place = next((n for n, title in enumerate(columns) if title in SERVER_TITLES), 0)
    shown = {cell for row in ([] if table is None else table.rows) for cell in row}
    for server, reason in failures.items():
        if server not in shown:
            row = f"{'-  ' * place}{server}  failed: {' '.join(reason.split())}"
            stream.write(printable(row) + "\n")


def plain(table: Table) -> str:
    """Return a table as aligned columns, one line a row."""
    titles, *rows = _texts(table)
    cells = [[f"#{title}" for title in titles], *[[cell or "-" for cell in row] for row in rows]]
    widths = _widths(cells)
    lines = []
    for row in cells:
        padded = []
        for cell, width, column in zip(row, widths, table.columns, strict=True):
            blanks = " " * (width - shown_width(cell))
            padded.append(blanks + cell if column.startswith(">") else cell + blanks)
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)


def shown_width(text: str) -> int:
    """Return the width of a text in columns of a terminal: Chinese characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(letter)
        else 2
        if unicodedata.east_asian_width(letter) in "WF"
        else 1
        for letter in text
    )


def _texts(table: Table) -> list[list[str]]:
    """Return the titles and the cells of a table."""
    titles = [column.removeprefix(">") for column in table.columns]
    rows = [["" if cell is None else _one_line(str(cell)) for cell in row] for row in table.rows]
    return [titles, *rows]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(shown_width(row[index]) for row in rows) for index in range(len(rows[0]))]


def _one_line(cell: str) -> str:
    """Keep a row on its line: control characters become escapes."""
    if cell.isprintable():
        return cell
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in cell
    )


def _print_rich(table: Table, stream: TextIO) -> None:
    """Print to a terminal.

    Where it is too narrow, the table goes without its ``spare`` columns, one after the other; then
    its last column is folded, if it has ``FOLDED_WIDTH_MIN`` columns; otherwise each row is printed
    as lines. Nothing is cut.
    """
    from rich.box import SIMPLE_HEAD  # only for tables on a terminal: start-up time
    from rich.console import Console  # likewise
    from rich.table import Table as RichTable  # likewise
    from rich.text import Text  # likewise

    console = Console(file=stream)
    shown, left_out = _fitting(table, console.width)
    titles, *rows = _texts(shown)
    widths = _widths([titles, *rows])
    if not _fits(widths, console.width):
        stream.write(stacked(table))
        return
    pretty = RichTable(box=SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
    for index, title in enumerate(titles):
        last = index == len(titles) - 1
        pretty.add_column(
            title,
            justify="right" if shown.columns[index].startswith(">") else "left",
            overflow="fold",
            no_wrap=not last,
            min_width=None if last else widths[index],
        )
    for row in rows:
        pretty.add_row(*map(Text, row))
    console.print(pretty)
    if left_out:
        stream.write(f"(no room for {', '.join(left_out)}: use a wider terminal or --json)\n")


def _fitting(table: Table, width: int) -> tuple[Table, list[str]]:
    """Return a table without the spare columns that have no room, and their titles."""
    left_out: list[str] = []
    for title in ("", *table.spare):
        left_out += [title] if title else []
        kept = [n for n, one in enumerate(table.columns) if one.lstrip(">") not in left_out]
        rows = [[row[n] for n in kept] for row in table.rows]
        shown = Table([table.columns[n] for n in kept], rows)
        if _fits(_widths(_texts(shown)), width):
            return shown, left_out
    return table, []


def _fits(widths: Sequence[int], width: int) -> bool:
    """Return whether columns have room, the last one after folding; each has two blanks beside."""
    room = width - sum(widths[:-1]) - 2 * len(widths)
    return room >= min(widths[-1], FOLDED_WIDTH_MIN)


def stacked(table: Table) -> str:
    """Return each row as lines of title and cell, with an empty line between rows."""
    titles, *rows = _texts(table)
    width = max(map(shown_width, titles))
    return "\n".join(
        "".join(
            f"{title}{' ' * (width - shown_width(title))}  {cell}\n"
            for title, cell in zip(titles, row, strict=True)
            if cell
        )
        for row in rows
    )


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


def line_printer(options: Values, stdout: TextIO, stderr: TextIO) -> Callable[[Lines], None]:
    """Return what prints lines at once, also into a pipe. Raises: UsageError with --csv."""
    if options.flag("csv"):
        raise UsageError("a command that does not end prints no CSV: use --json, a line for each")
    as_json = options.flag("json")

    def show(lines: Lines) -> None:
        if as_json:
            for document in lines.documents:
                _print_json(document, stdout)
        else:
            stdout.writelines(printable_lines(text) + "\n" for text in lines.texts)
        stdout.flush()
        for note in lines.notes:
            print(f"mqadmin: warning: {printable(note)}", file=stderr, flush=True)

    return show
