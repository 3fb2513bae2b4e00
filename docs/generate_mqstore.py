"""Makes docs/mqstore.md from the declarations of mqstore's options."""

from __future__ import annotations

from triomq.broker.inspect.options import COMMANDS, COMMON, DIRECTORY, EXIT_CODES, Option

INTRODUCTION = """\
# mqstore

`mqstore verify DIR` checks a store directory, and `mqstore dump DIR --topic T` prints its
messages. Both work offline, on directories of TrioMQ and of Apache RocketMQ (tested with 5.5.0 and
4.9.4), and only read: they change no byte, name or modification time. While a broker uses the
directory, they warn on stderr and continue; findings about the end of the log then mean little.

This page is generated (`make docs`); a test fails when it is out of date.

```sh
mqstore verify ~/store
mqstore verify --json ~/store | jq .findings
mqstore verify -c broker.conf ~/store     # other file sizes, or the log in another folder
mqstore dump ~/store --topic Orders --queue 3 --from 1000 --count 10
mqstore dump ~/store --topic Orders --key order-17 --json
```
"""

CHECKS = """\
## What verify checks

The log is read once, in batches; queues and key index are read in step with it, so memory does not
grow with the log (about 100 MB, 235 MB with 50,000 queues). Speed:
[performance](performance.md#mqstore-verify).

- segments: names, lengths, no missing segment
- every record: size, magic, lengths of body, topic and properties, CRC of the body, its own
  offset; the BLANK at the end of a segment. The reader resumes behind damage
- the end of the log: a torn last record, as kill -9 and power failures leave it, is a note:
  *recovery will cut N bytes*. It is damage if the checkpoint (or, after a clean stop, a queue) has
  it as a whole record
- consume queues: every entry points at a message of its topic, queue and number, with its size and
  tags code (in batch queues also store time and number of messages); no missing entry; fillers and
  expired entries are allowed; neither ahead of nor behind the log
- key index: header, slots, chains; every entry points at a message that has a key with its hash,
  with the right second; every key between the first and last indexed message has an entry
- checkpoint: is not ahead of the log
- `abort`, `lock`: show the state: stopped in order, crashed, in use
- `config/*.json`: can be read, or their `.bak` can

What the format does not protect cannot be checked: flags, times, hosts and property texts of a
record (its CRC covers the body only), and the time of delivery in the entries of delayed messages
(it depends on `messageDelayLevel`).

After a crash, differences behind the checkpoint's mark that the next start repairs are notes, not
damage.

## Findings

A finding has a severity (`damage` or `note`), a kind, a file, an offset (in log files counted from
the beginning of the log), a description, and advice. If a file has more than 20 findings of one
kind, the others are only counted.

- `segment-missing`, `segment-size`, `segment-name`, `empty-segment`, `foreign-file`,
  `log-missing`: files of the log (`foreign-file` also elsewhere)
- `record`, `blank-size`, `torn-end`: their content
- `queue-entry`, `queue-ahead`, `queue-behind`, `queue-begins-late`, `queue-into-damage`,
  `unnumbered`: entries of a queue
- `queue-file-missing`, `queue-size`, `queue-unreadable`, `empty-queue-file`, `queues-missing`,
  `topic-without-queues`, `deleted-topics`: files of queues
- `index-entry`, `index-slot`, `index-header`, `index-missing`, `index-ahead`, `index-behind`: the
  key index
- `index-size`, `index-unreadable`, `index-geometry`, `empty-index`, `index-missing-files`: its
  files
- `checkpoint-ahead`, `checkpoint-mark`, `checkpoint-size`, `checkpoint-missing`, `abort`,
  `in-use`, `config`, `config-missing`: the small files

JSON of `verify`: `{"directory", "verdict": "clean" or "damaged", "state": "stopped", "crashed" or
"in use", "pid", "log": {…}, "queues": {…}, "index": {…}, "damage", "notes", "findings":
[{"severity", "kind", "file", "offset", "what", "advice"}], "findingsCountedOnly", "seconds"}`.
Keys are added, never renamed.

## What dump prints

Messages of one topic, queue by queue and by offset, as the consume queues have them; with `--log`,
or if the topic has no queues, in the order of the log. `--json` prints one document per line, with
mqadmin's names: the body as text, or `bodyBase64` if it is not UTF-8; bodies compressed with zlib
are inflated. Messages that cannot be read are skipped with a warning on stderr, and exit code 1.
`--key` reads every message of the chosen queues.
"""


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    parts.append(f"## Exit codes\n\n| Code | Meaning |\n|---|---|\n{codes}")
    parts.append(f"## Options of both commands\n\n{_table((DIRECTORY, *COMMON))}")
    parts += [
        f"## Options of {name}\n\n{_table(options)}"
        for name, (_, options) in COMMANDS.items()
        if options
    ]
    parts.append(CHECKS)
    return "\n".join(parts)


def _table(options: tuple[Option, ...]) -> str:
    return "| Option | Meaning |\n|---|---|\n" + "".join(
        f"| `{_title(option)}` | {option.meaning} |\n" for option in options
    )


def _title(option: Option) -> str:
    metavar = option.settings.get("metavar")
    return ", ".join(option.names) + (f" {metavar}" if metavar else "")
