"""The console script `mqstore`: verify and dump. Exit code 0 = clean, 1 = damage found, 2 = wrong usage; see docs/mqstore.md."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

import attrs

from triomq.broker.inspect.dump import Dump, message_document, message_text
from triomq.broker.inspect.findings import Report
from triomq.broker.inspect.layout import NotAStore, StoreFiles
from triomq.broker.inspect.options import PROGRAM, StoreToolOptions, parse_options
from triomq.broker.inspect.output import report_lines
from triomq.broker.inspect.verify import NoProgress, Progress, verify
from triomq.broker.store.lock import lock_state
from triomq.remoting.settings import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

EXIT_CLEAN, EXIT_DAMAGE, EXIT_USAGE = 0, 1, 2
EXIT_CODES = {
    EXIT_CLEAN: "clean: no damage (notes may have been printed); `dump` printed everything that was asked for",
    EXIT_DAMAGE: "`verify` found damage; `dump` could not read some messages",
    EXIT_USAGE: "wrong usage: unknown option, no store in the directory, no such topic in it, a folder without permission",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code of the process."""
    try:
        options = parse_options(sys.argv[1:] if arguments is None else arguments)
        return run_verify(options) if options.command == "verify" else run_dump(options)
    except (ConfigError, NotAStore) as error:
        complain(str(error))
        return EXIT_USAGE
    except BrokenPipeError:  # the reader had enough (`mqstore dump … | head`)
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLEAN
    except OSError as error:
        complain(f"{error.filename or 'the store'}: {(error.strerror or str(error)).lower()}; give this user permission to read the directory, or check the disk")
        return EXIT_USAGE
    except KeyboardInterrupt:
        complain("interrupted: not everything has been read")
        return EXIT_DAMAGE


def complain(text: str) -> None:
    print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)


def run_verify(options: StoreToolOptions) -> int:
    """Check a store and print the verdict."""
    warn_if_in_use(options)
    with progress_bar(sys.stderr) as progress:
        verdict = verify(options.directory, options.sizes, progress)
    if options.as_json:
        print(json.dumps(verdict.document(), ensure_ascii=False))
    else:
        for line in report_lines(verdict):
            print(line)
    sys.stdout.flush()
    return EXIT_CLEAN if verdict.clean else EXIT_DAMAGE


def run_dump(options: StoreToolOptions) -> int:
    """Print messages, one JSON document a line or as text."""
    assert options.wanted is not None
    warn_if_in_use(options)
    complaints: list[None] = []

    def note(text: str) -> None:
        complaints.append(None)
        complain(f"warning: {text}")

    dump = Dump(StoreFiles.find(options.directory, options.sizes, Report()), options.wanted, note)
    messages = dump.messages()
    for message in itertools.islice(messages, options.count) if options.count else messages:
        print(json.dumps(message_document(message), ensure_ascii=False, separators=(",", ":")) if options.as_json else message_text(message))
    sys.stdout.flush()
    if not dump.known:
        queue = "" if options.wanted.queue_id is None else f"queue {options.wanted.queue_id} of "
        complain(f"the store holds no message of {queue}topic {options.wanted.topic}; `ls {options.directory / 'consumequeue'}` lists the topics")
        return EXIT_USAGE
    return EXIT_DAMAGE if complaints else EXIT_CLEAN


def warn_if_in_use(options: StoreToolOptions) -> None:
    lock = lock_state(options.directory / "lock")
    if lock.held:
        complain(f"warning: {lock.owner} works in {options.directory}: what is read changes meanwhile; stop the broker or look at a copy")


@contextlib.contextmanager
def progress_bar(stream: TextIO) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere."""
    if not stream.isatty():
        yield NoProgress()
        return
    from rich.console import Console  # only on a terminal: start-up time
    from rich.progress import (  # likewise
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress  # likewise

    columns = (TextColumn("verify"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with RichProgress(*columns, console=Console(file=stream), transient=True) as bar:
        yield TerminalBar(bar, bar.add_task("verify", total=None))


@attrs.frozen
class TerminalBar:
    """A Progress for people."""

    bar: RichProgress
    task: TaskID

    def start(self, bytes_total: int) -> None:
        self.bar.update(self.task, total=bytes_total)

    def advance(self, bytes_read: int) -> None:
        self.bar.advance(self.task, bytes_read)


if __name__ == "__main__":
    sys.exit(main())
