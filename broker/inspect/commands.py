"""The commands of ``mqstore``, verify and dump: read the options, run, print."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from triomq.broker.inspect.dump import Dump, Wanted, message_text, record_document
from triomq.broker.inspect.layout import NotAStore, Sizes, StoreFiles
from triomq.broker.inspect.options import EXIT_CLEAN, EXIT_DAMAGE, EXIT_USAGE, PROGRAM, SIZE_KEYS
from triomq.broker.inspect.report import LEVEL_WORDS, Report
from triomq.broker.inspect.verify import Verdict, verify
from triomq.broker.store.core.config import QUEUE_ENTRY_BYTES
from triomq.broker.store.lock import lock_state
from triomq.remoting.core.command_line import defined_entries, file_source
from triomq.remoting.core.findings import Finding, Level
from triomq.remoting.core.printable import printable_json
from triomq.remoting.core.settings import ConfigError


def read_sizes(config: Path | None, defined: Sequence[str]) -> Sizes:
    """Read the sizes of files from the broker's configuration file and the options ``-D``.

    Raises: ConfigError.
    """
    own = defined_entries(defined)
    for entry in own:
        if entry.key not in (*SIZE_KEYS, "storePathCommitLog"):
            raise ConfigError(
                "option -D",
                f"{entry.key} is not a setting of mqstore",
                f"use {', '.join(SIZE_KEYS)} or storePathCommitLog",
            )
    entries = [*(file_source(config).entries if config is not None else ()), *own]
    values = {entry.key: entry.value.strip() for entry in entries}
    numbers: dict[str, int | None] = {}
    for key in SIZE_KEYS:
        text = values.get(key)
        if text is not None and (not text.isdecimal() or int(text) == 0):
            raise ConfigError(
                key, f"{text!r} is not a number above 0", "give it as the broker had it"
            )
        numbers[key] = int(text) if text is not None else None
    queue_size = numbers["mappedFileSizeConsumeQueue"]
    return Sizes(
        commitlog=Path(values["storePathCommitLog"]) if values.get("storePathCommitLog") else None,
        segment_size=numbers["mappedFileSizeCommitLog"],
        queue_file_size=-(-queue_size // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES
        if queue_size
        else None,
        index_slots=numbers["maxHashSlotNum"],
        index_entries=numbers["maxIndexNum"],
    )


def run(parsed: argparse.Namespace) -> int:
    """Run one command; return the exit code of the process."""
    try:
        sizes = read_sizes(parsed.config, parsed.define)
        warn_if_in_use(parsed.DIR)
        if parsed.command == "verify":
            return run_verify(parsed.DIR, sizes, as_json=parsed.json)
        wanted = Wanted(
            topic=parsed.topic,
            queue_id=parsed.queue,
            start=parsed.start,
            key=parsed.key,
            by_log=parsed.by_log,
        )
        return run_dump(parsed.DIR, sizes, wanted, parsed.count, as_json=parsed.json)
    except (ConfigError, NotAStore) as error:
        complain(str(error))
        return EXIT_USAGE
    except BrokenPipeError:  # the reader closed the pipe (`mqstore dump … | head`)
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLEAN
    except OSError as error:
        complain(
            f"{error.filename or 'the store'}: {(error.strerror or str(error)).lower()}; give this"
            " user permission to read the directory, or check the disk"
        )
        return EXIT_USAGE


def complain(text: str) -> None:
    print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)


def run_verify(directory: Path, sizes: Sizes, *, as_json: bool) -> int:
    """Check a store and print the result."""
    with progress_bar(sys.stderr) as progress:
        verdict = verify(directory, sizes, progress)
    if as_json:
        print(json_text(verdict.document()))
    else:
        for line in report_lines(verdict):
            print(line)
    sys.stdout.flush()
    return EXIT_CLEAN if verdict.clean else EXIT_DAMAGE


def run_dump(directory: Path, sizes: Sizes, wanted: Wanted, count: int, *, as_json: bool) -> int:
    """Print up to ``count`` messages (0: all) as text, or as one JSON document per line."""
    warnings = 0

    def warn(text: str) -> None:
        nonlocal warnings
        warnings += 1
        complain(f"warning: {text}")

    dump = Dump(StoreFiles.find(directory, sizes, Report()), wanted, warn)
    messages = dump.messages()
    for message in itertools.islice(messages, count) if count else messages:
        print(json_text(record_document(message)) if as_json else message_text(message))
    sys.stdout.flush()
    if not dump.known:
        queue = "" if wanted.queue_id is None else f"queue {wanted.queue_id} of "
        complain(
            f"the store holds no message of {queue}topic {wanted.topic}; `ls"
            f" {directory / 'consumequeue'}` lists the topics"
        )
        return EXIT_USAGE
    return EXIT_DAMAGE if warnings else EXIT_CLEAN


def json_text(document: dict[str, object]) -> str:
    return printable_json(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def warn_if_in_use(directory: Path) -> None:
    lock = lock_state(directory / "lock")
    if lock.held:
        complain(
            f"warning: {lock.owner} uses {directory}: its files change during the"
            " inspection; stop the broker or inspect a copy"
        )


@contextlib.contextmanager
def progress_bar(stream: TextIO) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, otherwise nothing; provide the callback that moves it."""
    if not stream.isatty():
        yield lambda read_bytes, total_bytes: None
        return
    from rich.console import Console  # only on a terminal: start-up time
    from rich.progress import (  # likewise
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("verify"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda read_bytes, total_bytes: bar.update(
            task, completed=read_bytes, total=total_bytes
        )


MIB = 1 << 20


def report_lines(verdict: Verdict) -> Iterator[str]:
    """Yield a summary, the findings with damage first, and the verdict in the last line."""
    log, queues, index, files = verdict.log, verdict.queues, verdict.index, verdict.files
    rate = (log.end - files.log_start) / MIB / max(verdict.seconds, 0.001)
    yield f"store    {files.root}: {verdict.state.text}"
    yield (
        f"log      {len(files.lengths)} segments of {files.segment_size:,} bytes, offsets"
        f" {files.log_start:,} to {log.end:,}, {log.records:,} messages"
    )
    yield f"queues   {queues.queue_count:,} queues, {queues.entries:,} entries"
    yield f"index    {index.file_count:,} files, {index.entries:,} entries"
    yield f"time     {verdict.seconds:.1f} s ({rate:,.0f} MiB/s of log)"
    for level, word in LEVEL_WORDS.items():
        for finding in verdict.report.findings:
            if finding.level is level:
                yield ""
                yield from _finding_lines(finding, files.root)
        for (found, kind, path), count in verdict.report.suppressed.items():
            if found is level:
                yield ""
                yield (
                    f"{word.upper()}   {_short(path, files.root)}: and {count:,} more of kind"
                    f" {kind}"
                )
    yield ""
    damage, notes = verdict.report.count(Level.PROBLEM), verdict.report.count(Level.ADVICE)
    text = "clean" if verdict.clean else f"DAMAGED: {damage:,} findings of damage"
    yield f"verdict  {text}" + (f", {notes:,} notes" if notes else "")


def _finding_lines(finding: Finding, root: Path) -> Iterator[str]:
    place = "" if finding.offset is None else f" at {finding.offset}"
    word = LEVEL_WORDS[finding.level].upper()
    yield f"{word}   {_short(finding.subject, root)}{place}: {finding.text}"
    yield f"         what can be done: {finding.fix}"


def _short(name: str, root: Path) -> Path:
    path = Path(name)
    return path.relative_to(root) if path.is_relative_to(root) else path
