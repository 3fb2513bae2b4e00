"""The reference pages of mqadmin: ``docs/mqadmin.md``, and a page for each group of commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triomq.client.admin.arguments import Option
from triomq.client.admin.command import COMMON_OPTIONS, AdminCommand
from triomq.client.admin.command_line import option_meaning
from triomq.client.admin.command_list import GROUPS, LIST
from triomq.client.admin.commands import load
from triomq.client.admin.exit_codes import EXIT_CODES

INTRODUCTION = """\
# mqadmin

`mqadmin COMMAND [options]` looks at a cluster and changes it. It works on TrioMQ and on RocketMQ
clusters, and its commands and options have the names of Apache RocketMQ's mqadmin, so old scripts
still work. Names match without regard to case and in kebab-case (`topic-list`, `--broker-addr`).

```sh
mqadmin help                               # the commands
mqadmin topicList --help                   # one command
mqadmin clusterList -n 127.0.0.1:9876
mqadmin clusterList --json
```

This page and those of the commands are generated (`make docs`); a test fails when they are out of
date.

## What to rely on

- **Name servers** come from `-n`, otherwise from the environment variable `NAMESRV_ADDR`. They are
  asked in their order until one answers.
- **Text** is a table on a terminal. In a pipe or file it is plain aligned columns with RocketMQ's
  titles: nothing is cut, an empty cell is `-`.
- **JSON** (`--json`) is one document on stdout, with the keys given with each command. Keys are
  added, never renamed. An unknown value is `null`, not 0.
- **A failure** is one line on stderr with cause and fix, and an exit code. Nothing else goes to
  stderr but warnings (`mqadmin: warning: …`). `--verbose` adds the traceback.
- **An incomplete answer** is marked: when some brokers do not answer, the rest is printed, a
  warning counts the missing brokers, `failures` in the JSON document names them, and the exit code
  is 3.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its name in the folder of the documentation."""
    texts = {"mqadmin.md": "\n".join([INTRODUCTION, _exit_codes(), _common(), *_index()])}
    for group in GROUPS:
        title = f"# mqadmin: {group} commands\n"
        note = "Options that every command has, and exit codes: [mqadmin](../mqadmin.md).\n"
        sections = [_section(load(name)) for name in LIST if LIST[name].group == group]
        texts[f"mqadmin/{group}.md"] = "\n".join([title, note, *sections])
    return texts


def _exit_codes() -> str:
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return f"## Exit codes\n\n| Code | Meaning |\n|---|---|\n{rows}"


def _option_rows(options: Sequence[Option]) -> str:
    return "".join(
        f"| `{option.spelling}` | {_cell(option_meaning(option))} |\n" for option in options
    )


def _common() -> str:
    return (
        "## Options of every command\n\n| Option | Meaning"
        f" |\n|---|---|\n{_option_rows(COMMON_OPTIONS)}"
    )


def _index() -> Iterator[str]:
    for group in GROUPS:
        rows = "".join(
            f"| [`{name}`](mqadmin/{group}.md#{name.lower()}) | {_cell(listed.summary)} |\n"
            for name, listed in LIST.items()
            if listed.group == group
        )
        title = f"## {group.capitalize()} commands"
        yield f"{title}\n\n| Command | What it does |\n|---|---|\n{rows}"


def _section(command: AdminCommand) -> str:
    lines = [f"## {command.name}\n", f"{command.sentence}\n"]
    if command.options:
        lines.append(f"| Option | Meaning |\n|---|---|\n{_option_rows(command.options)}")
    for names in command.one_of:
        titles = [f"`{option.title}`" for option in command.options if option.name in names]
        lines.append(f"One of {' and '.join(titles)} is needed.\n")
    lines += [f"{remark}\n" for remark in command.remarks.splitlines()]
    lines.append(
        "```sh\n" + "".join(f"mqadmin {example}\n" for example in command.examples) + "```\n"
    )
    lines.append(f"JSON: `{command.document}`\n")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
