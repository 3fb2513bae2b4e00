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

INTRODUCTION = """\
# mqadmin

`mqadmin GROUP COMMAND [options]` looks at a cluster and changes it. It works on TrioMQ and on
RocketMQ clusters. Each command also has the name that it has in Apache RocketMQ's mqadmin
(`topic list` is `topicList` and `topic-list`), with the same options, so old scripts still work.
Names match without regard to case and inner dashes (`--brokerAddr`, `--broker-addr`).

```sh
mqadmin help                               # the commands
mqadmin topic                              # those of one group
mqadmin topic list --help                  # one command
mqadmin cluster list -n 127.0.0.1:9876
mqadmin cluster list --json
mqadmin group lag -g billing --watch 5     # until Ctrl-C
mqadmin topic tail orders --from -1h --limit 10   # without --limit until Ctrl-C
mqadmin topic update -c DefaultCluster -t orders -r 16 --dry-run
```

This page and those of the commands are generated (`make docs`); a test fails when they are out of
date.

## What to rely on

- **Name servers** come from `-n`, otherwise from a [context](#contexts) or from the environment
  variable `NAMESRV_ADDR`. They are asked in their order until one answers.
- **Text** is a table on a terminal. Where it is too narrow, less important columns are left out and
  named, or each row is printed as lines of title and value. In a pipe or file it is plain aligned
  columns with RocketMQ's titles: nothing is cut, an empty cell is `-`.
- **JSON** (`--json`) is one document on stdout, with the keys given with each command; a test
  compares them with the output. Keys are added, never renamed. An unknown value is `null`, not 0.
- **CSV** (`--csv`) has the rows of the first list or map of that document, and the names of its
  keys as titles, also without rows. The keys of a map (addresses, settings) are a first column. A
  document without lists is one row, and a nested value is JSON.
- **A failure** is one line on stderr with cause and fix, and an exit code. Nothing else goes to
  stderr but warnings (`mqadmin: warning: …`), the progress of `broker drain`, and the lines that
  `bench` prints each second. `--verbose` adds the traceback.
- **An incomplete answer** is marked: when some servers do not answer, the rest is printed, with a
  row for each missing server that says why, a warning counts them, `failures` in the JSON
  document names them, and the exit code is 3.
- **One deadline** (`--timeout`, 30 s) ends the whole command; `bench` has the length of its load
  beside it. A single request has at most 5 s and
  a third of it, so one silent server leaves time for the others.
- **A change** can be tried: `--dry-run` sends only requests that read, and prints what each server
  has and would get. JSON: `{"dryRun", "changes": [{"server", "request", "subject", "before":
  {key: value}, "after": {key: value}}], "failures": {server: reason}}`. Passwords are not shown.
- **Names need no option** where a command is about one group, topic, user, producer group or
  message: `mqadmin group members billing`, `mqadmin topic route orders`. Scripts of RocketMQ's tool
  go on with `-g`, `-t`, `-u` and `-i`.
- **A deletion** (of a topic, group, stored value, user, rule, context) shows the same and asks on
  a terminal. Without a terminal it needs `--yes`, otherwise it ends with exit code 2 and nothing is
  done. RocketMQ's tool asks nothing: add `--yes` to scripts that delete. The commands that send
  stored messages again ask likewise.
- **Start**: the list of commands takes 0.04 s, a tab in the shell 0.1 s (0.3 s for names of
  topics, groups and brokers, which the cluster is asked for, a second at most), a command half as
  long again as `python -c 'import trio'` ([numbers](adr/017-own-parser-of-mqadmin.md)).
- **`--watch SECONDS`** repeats a command that reads, on a terminal in place, in a pipe one output
  after the other. A failure after the first round is shown, and the next round tries again.
  Ctrl-C is its normal end, exit code 0.

## Contexts

A context is a name for a cluster: name servers, TLS, credentials.

```sh
mqadmin context set test -n 127.0.0.1:9876
mqadmin context set production -n 'ns1:9876;ns2:9876' --tls ~/tls.properties \\
    --access-key ops < secret.txt
mqadmin context use test                   # for all calls without -n and --context
mqadmin topic list --context production    # for one call; TRIOMQ_CONTEXT for a shell
```

Contexts are in `$XDG_CONFIG_HOME/triomq/contexts.json` (without the variable below `~/.config`),
with the mode 0600; a file that others can read is refused. Secret keys are read from stdin, never
from the command line, and no command prints them.

A call takes the name servers from the first of: `--context`, `-n`, `TRIOMQ_CONTEXT`,
`NAMESRV_ADDR`, the current context. TLS and keys of a context are used if it was named by
`--context` or `TRIOMQ_CONTEXT`, or if the current context names the servers: they are not sent to
another cluster. `--tls` and `--credentials` win; what neither they nor the context have comes from
`TRIOMQ_TLS` and `TRIOMQ_CREDENTIALS`.

## Times

| Form | Meaning |
|---|---|
| `now` | this moment |
| `-90s`, `-15m`, `-1h`, `-2d12h`, `-1w`, `-250ms` | that long ago |
| `2026-11-24`, `2026-11-24 10:00`, `2026-11-24T10:00:00.250` | local time |
| `2026-11-24T10:00:00Z`, `2026-11-24T10:00:00+08:00` | time with zone (ISO 8601) |
| `2026-11-24#10:00:00:000` | local time as RocketMQ's tool writes it |
| `1795514400000` | milliseconds since 1970 |
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its name in the folder of the documentation."""
    parts = [INTRODUCTION, _exit_codes(), *_common(), *_index()]
    texts = {"mqadmin.md": "\n".join(parts)}
    for group in GROUPS:
        heading = f"# mqadmin: {group} commands\n"
        note = "Options that every command has, and exit codes: [mqadmin](../mqadmin.md).\n"
        sections = [_section(load(name)) for name in LIST if LIST[name].group == group]
        texts[f"mqadmin/{group}.md"] = "\n".join([heading, note, *sections])
    return texts


def _exit_codes() -> str:
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return f"## Exit codes\n\n| Code | Meaning |\n|---|---|\n{rows}"


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
