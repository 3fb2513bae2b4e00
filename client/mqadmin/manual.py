"""The reference pages of mqadmin: ``docs/mqadmin.md``, and a page for each group of commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triomq.client.admin.arguments import Option
from triomq.client.mqadmin.command_line import examples, option_meaning, subject_line
from triomq.client.mqadmin.commands import load
from triomq.client.mqadmin.core.command import COMMON_OPTIONS, DRY_RUN, WATCH, YES, AdminCommand
from triomq.client.mqadmin.core.command_list import GROUPS, LIST, title
from triomq.client.mqadmin.core.exit_codes import EXIT_CODES
from triomq.client.mqadmin.core.inapplicable import REASONS

EXIT_CODES_HEADING = "## Exit codes\n"
"""where the generated part of ``docs/mqadmin.md`` begins"""


def pages(page: str) -> dict[str, str]:
    """Return the text of each page by its name in the folder of the documentation.

    ``page``: the present ``docs/mqadmin.md``, whose own text at the beginning stays.
    """
    parts = [page[: page.index(EXIT_CODES_HEADING) - 1], _exit_codes(), *_common(), *_index()]
    texts = {"mqadmin.md": "\n".join(parts)}
    for group in GROUPS:
        heading = f"# mqadmin: {group} commands\n"
        note = "Options that every command has, and exit codes: [mqadmin](../mqadmin.md).\n"
        sections = [_section(load(name)) for name in LIST if LIST[name].group == group]
        texts[f"mqadmin/{group}.md"] = "\n".join([heading, note, *sections])
    return texts


def _exit_codes() -> str:
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return f"{EXIT_CODES_HEADING}\n| Code | Meaning |\n|---|---|\n{rows}"


def _option_rows(options: Sequence[Option]) -> str:
    return "".join(
        f"| `{option.spelling}` | {_cell(option_meaning(option))} |\n" for option in options
    )


def _common() -> Iterator[str]:
    head = "| Option | Meaning |\n|---|---|\n"
    yield f"## Options of every command\n\n{head}{_option_rows(COMMON_OPTIONS)}"
    rows = _option_rows((WATCH, DRY_RUN, YES))
    note = "Commands that read have `--watch`, those that change or delete the others:"
    yield f"{note}\n\n{head}{rows}"


def _index() -> Iterator[str]:
    for group in GROUPS:
        rows = "".join(
            f"| [`{title(name)}`](mqadmin/{group}.md#{_anchor(name)}) |"
            f" {f'`{name}`' if title(name) != name else ''} | {_cell(listed.summary)} |\n"
            for name, listed in LIST.items()
            if listed.group == group
        )
        heading = f"## {group.capitalize()} commands"
        yield f"{heading}\n\n| Command | RocketMQ's name | What it does |\n|---|---|---|\n{rows}"
    rows = "".join(
        f"| {', '.join(f'`{name}`' for name in reason.commands)} | {_cell(reason.cause)} |"
        f" {_cell(reason.instead)} |\n"
        for reason in REASONS
    )
    yield (
        "## Commands that do not apply\n\nRocketMQ's mqadmin has them; a call fails with exit code"
        f" 2 and the reason.\n\n| Command | Why | Instead |\n|---|---|---|\n{rows}"
    )


def _anchor(name: str) -> str:
    return title(name).lower().replace(" ", "-")


def _section(command: AdminCommand) -> str:
    lines = [f"## {title(command.name)}\n", f"{command.sentence}\n"]
    if title(command.name) != command.name:
        lines.append(f"Also `{command.name}`.\n")
    own = command.accepted[: -len(COMMON_OPTIONS)]
    lines.append(f"| Option | Meaning |\n|---|---|\n{_option_rows(own)}" if own else "")
    for names in command.exclusive:
        titles = [f"`{option.title}`" for option in command.options if option.name in names]
        lines.append(f"One of {' and '.join(titles)} is needed.\n")
    if command.subject is not None:
        lines.append(f"{subject_line(command.subject)}\n")
    lines += [f"{remark}\n" for remark in command.remarks.splitlines()]
    lines.append(
        "```sh\n" + "".join(f"mqadmin {example}\n" for example in examples(command)) + "```\n"
    )
    lines.append(f"JSON: `{command.document}`\n")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
