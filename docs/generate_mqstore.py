"""Write exit codes and options of docs/mqstore.md from the declarations of mqstore."""

from __future__ import annotations

from pathlib import Path

from triomq.broker.inspect.options import COMMANDS, COMMON, DIRECTORY, EXIT_CODES, Option

BEGIN, END = "## Exit codes\n", "## What verify checks\n"


def page() -> str:
    """Return the whole page: its own text, and between two headings what is declared."""
    text = Path(__file__).with_name("mqstore.md").read_text()
    parts = [text[: text.index(BEGIN) - 1]]
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    parts.append(f"{BEGIN}\n| Code | Meaning |\n|---|---|\n{codes}")
    parts.append(f"## Options of both commands\n\n{_table((DIRECTORY, *COMMON))}")
    parts += [
        f"## Options of {name}\n\n{_table(options)}"
        for name, (_, options) in COMMANDS.items()
        if options
    ]
    parts.append(text[text.index(END) :])
    return "\n".join(parts)


def _table(options: tuple[Option, ...]) -> str:
    return "| Option | Meaning |\n|---|---|\n" + "".join(
        f"| `{_title(option)}` | {option.meaning} |\n" for option in options
    )


def _title(option: Option) -> str:
    metavar = option.settings.get("metavar")
    return ", ".join(option.names) + (f" {metavar}" if metavar else "")
