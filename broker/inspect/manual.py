"""Write the page of mqstore from its declarations: `python -m triomq.broker.inspect.manual > docs/mqstore.md`."""

from __future__ import annotations

import sys

from triomq.broker.inspect.__main__ import EXIT_CODES
from triomq.broker.inspect.options import COMMANDS, COMMON, DIRECTORY, Option

INTRODUCTION = """\
# mqstore

`mqstore verify DIR` checks a store directory, `mqstore dump DIR --topic T` prints messages of it. Both work offline, on the directories of TrioMQ and of Apache
RocketMQ (proven on those of 5.5.0 and 4.9.4), and only read: not a byte, a name or a time of change differs afterwards. While a broker has the directory open
they say so on stderr and go on; what they tell about the end of the log then means little.

This page is generated (`make docs`, or `python -m triomq.broker.inspect.manual`); a test fails when it is out of date.

```sh
mqstore verify ~/store
mqstore verify --json ~/store | jq .findings
mqstore verify -c broker.conf ~/store                        # a store with other file sizes, or with its log elsewhere
mqstore dump ~/store --topic Orders --queue 3 --from 1000 --count 10
mqstore dump ~/store --topic Orders --key order-17 --json
```
"""

CHECKS = """\
## What verify checks

The log is read once, in batches; queues and key index are read beside it in step, so memory does not grow with the log
(about 100 MB, 235 MB with 50,000 queues). How fast: [performance](performance.md#mqstore-verify).

| Part | Checks |
|---|---|
| segments | names, lengths, no hole between them |
| every record | size, magic, lengths of body, topic and properties, CRC of the body, its own offset; the BLANK at the end of a segment. The reader goes on behind damage |
| the end of the log | a torn last record, as kill -9 and power failures leave it, is a note: *recovery will cut N bytes*. It is damage if the checkpoint (or, after a clean stop, a queue) knew it whole |
| consume queues | every entry points at a message of its topic, queue and number, with its size and tags code (those of batch queues also with store time and number of messages); no holes; fillers and expired entries are allowed; neither ahead of nor behind the log |
| key index | header, slots, chains; every entry names a message that has a key with its hash, with the right second; every key between the first and last indexed message has an entry |
| checkpoint | knows no more than the log has |
| `abort`, `lock` | tell the state: stopped in order, crashed, in use |
| `config/*.json` | readable, or their `.bak` is |

What the format itself leaves unprotected cannot be checked: flags, times, hosts and property texts of a record (its CRC covers the body only), and the time of delivery in the
entries of delayed messages (it depends on `messageDelayLevel`).

After a crash, differences behind the checkpoint's mark that the next start puts right by itself are notes, not damage.

## Findings

A finding has a severity (`damage` or `note`), a kind, a file, an offset (for log files counted from the beginning of the log), what is wrong, and what can be done.
More than 20 of one kind in one file are counted, not listed.

| Kind | About |
|---|---|
| `segment-missing`, `segment-size`, `segment-name`, `empty-segment`, `foreign-file`, `log-missing` | files of the log (`foreign-file` also elsewhere) |
| `record`, `blank-size`, `torn-end` | what lies in them |
| `queue-entry`, `queue-ahead`, `queue-behind`, `queue-begins-late`, `queue-into-damage`, `unnumbered` | entries of a queue |
| `queue-file-missing`, `queue-size`, `queue-unreadable`, `empty-queue-file`, `queues-missing`, `topic-without-queues`, `deleted-topics` | files of queues |
| `index-entry`, `index-slot`, `index-header`, `index-missing`, `index-ahead`, `index-behind` | the key index |
| `index-size`, `index-unreadable`, `index-geometry`, `empty-index`, `index-missing-files` | its files |
| `checkpoint-ahead`, `checkpoint-mark`, `checkpoint-size`, `checkpoint-missing`, `abort`, `in-use`, `config`, `config-missing` | the small files |

JSON of `verify`: `{"directory", "verdict": "clean" or "damaged", "state": "stopped", "crashed" or "in use", "pid", "log": {…}, "queues": {…}, "index": {…}, "damage", "notes",
"findings": [{"severity", "kind", "file", "offset", "what", "advice"}], "findingsCountedOnly", "seconds"}`. Keys are added, never renamed.

## What dump prints

Messages of one topic, queue by queue in the order of their offsets, as the consume queues have them; with `--log`, or where the topic has no queues, in the order of the log.
`--json` prints one document a line, with mqadmin's names: body as text, or `bodyBase64` if it is not UTF-8; bodies compressed with zlib are inflated. What cannot be read is
passed over with a warning on stderr and exit code 1. `--key` looks at every message of the chosen queues.
"""


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    parts.append(f"## Exit codes\n\n| Code | Meaning |\n|---|---|\n{codes}")
    parts.append(f"## Options of both commands\n\n{_table((DIRECTORY, *COMMON))}")
    parts += [f"## Options of {name}\n\n{_table(options)}" for name, (_, options) in COMMANDS.items() if options]
    parts.append(CHECKS)
    return "\n".join(parts)


def _table(options: tuple[Option, ...]) -> str:
    return "| Option | Meaning |\n|---|---|\n" + "".join(f"| `{option.title}` | {option.meaning} |\n" for option in options)


if __name__ == "__main__":
    sys.stdout.write(page())
