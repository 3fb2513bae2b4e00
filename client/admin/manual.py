"""Write the reference page of mqadmin from its declarations: `python -m triomq.client.admin.manual > docs/mqadmin.md`."""

from __future__ import annotations

import sys

from triomq.client.admin.arguments import Option
from triomq.client.admin.cli import option_meaning, option_title
from triomq.client.admin.command import COMMON_OPTIONS, GROUPS, Command
from triomq.client.admin.commands import all_commands
from triomq.client.admin.errors import EXIT_CODES

INTRODUCTION = """\
# mqadmin

`mqadmin COMMAND [options]` looks at a cluster and changes it. Commands and options have the names of Apache RocketMQ's mqadmin, so old scripts and
habits go on working, and it works on TrioMQ and on RocketMQ clusters. Command names match without regard to case and also in kebab-case (`topic-list`);
long options match in kebab-case too (`--broker-addr`). `mqadmin help` lists the commands, `mqadmin COMMAND --help` describes one.

This page is generated (`make docs`, or `python -m triomq.client.admin.manual`); a test fails when it is out of date.

## What to rely on

- **Name servers** come from `-n`, else from the environment variable `NAMESRV_ADDR`. They are asked in their order until one answers.
- **People** see tables on a terminal and, in a pipe or file, plain aligned columns with RocketMQ's titles: nothing is cut, an empty cell is `-`.
- **Programs** use `--json`: one JSON document on stdout with the keys given below. Keys are added, never renamed. What is not known is `null`, not 0.
- **Failures** are one line on stderr with cause and fix, and an exit code; nothing else goes to stderr but warnings (`mqadmin: warning: …`).
  `--verbose` adds the traceback.
- **Half an answer** is said to be one: when some brokers answer and others do not, the rest is printed, a warning counts who is missing, `failures` in the
  JSON document names them, and the exit code is 3.
"""


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, _exit_codes(), _common(), _index()]
    for group in GROUPS:
        commands = [command for command in all_commands() if command.group == group]
        parts += [f"## {group.capitalize()} commands\n", *map(_section, commands)]
    return "\n".join(parts)


def _exit_codes() -> str:
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return f"## Exit codes\n\n| Code | Meaning |\n|---|---|\n{rows}"


def _option_rows(options: tuple[Option, ...]) -> str:
    return "".join(f"| `{option_title(option).strip()}` | {_cell(option_meaning(option))} |\n" for option in options)


def _common() -> str:
    return f"## Options of every command\n\n| Option | Meaning |\n|---|---|\n{_option_rows(tuple(COMMON_OPTIONS))}"


def _index() -> str:
    rows = "".join(
        f"| [`{command.name}`](#{command.name.lower()}) | {_cell(command.summary)} |\n" for command in all_commands()
    )
    return f"## Commands\n\n| Command | What it does |\n|---|---|\n{rows}"


def _section(command: Command) -> str:
    lines = [f"### {command.name}\n", f"{command.summary[0].upper()}{command.summary[1:]}.\n"]
    if command.options:
        lines.append(f"| Option | Meaning |\n|---|---|\n{_option_rows(tuple(command.options))}")
    for names in command.one_of:
        titles = [f"`{option.title}`" for option in command.options if option.name in names]
        lines.append(f"One of {' and '.join(titles)} is needed.\n")
    lines += [f"{remark}\n" for remark in command.remarks]
    lines.append("```sh\n" + "".join(f"mqadmin {example}\n" for example in command.examples) + "```\n")
    lines.append(f"JSON: `{command.document}`\n")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
