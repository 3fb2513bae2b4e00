"""Settings that an operator changed while a program ran: kept in a properties file of the program's own for its next start.

The operator's file (``-c``) is never written.  At the next start the saved values come after that file and before options, so that a
change holds until it is changed again, and an option can always undo it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import trio

from triomq.remoting.atomic_file import DamagedFile, read_file, replace_file
from triomq.remoting.properties import Entry, format_properties, parse_entries
from triomq.remoting.settings import ConfigError, Source

_HEADING = "# Settings that were changed while the program ran. They win over its file, and options (-D) win over them.\n"


def read_saved(path: Path) -> Source:
    """What was saved, as a source for `load`; without a file an empty one.  Raises ConfigError for a file that cannot be read."""
    try:
        entries = read_file(path, _parse)
    except NotADirectoryError:  # the first save will report it
        return Source(str(path), ())
    except (OSError, DamagedFile) as error:
        raise ConfigError(str(path), f"cannot be read ({error})", "repair it, or remove it and its .bak to forget what was changed while the program ran") from None
    return Source(str(path), entries or ())


def _parse(content: bytes) -> tuple[Entry, ...]:
    return tuple(parse_entries(content.decode()))


def overruled(saved: Source, others: Sequence[Source], origins: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each setting of the operator's sources that a saved one replaces; ``origins`` are those of the loaded configuration."""
    before = {entry.key: source.place(entry) for source in others for entry in source.entries}
    return tuple(
        f"{entry.key}={entry.value}, set while the program ran ({saved.name}), replaces the value of {before[entry.key]}"
        for entry in saved.entries
        if entry.key in before and origins.get(entry.key) == saved.place(entry)
    )


@attrs.define(eq=False)
class SavedSettings:
    """The file and what is in it."""

    path: Path
    _texts: dict[str, str] = attrs.field(factory=dict)
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @classmethod
    def open(cls, path: Path) -> SavedSettings:
        """Raises ConfigError."""
        return cls(path, {entry.key: entry.value for entry in read_saved(path).entries})

    async def save(self, changes: Mapping[str, str]) -> None:
        """Add changes (Java's names and texts) and write the file; OSError, and nothing is added, when it cannot be written."""
        async with self._writing:
            texts = {**self._texts, **changes}
            await trio.to_thread.run_sync(replace_file, self.path, (_HEADING + format_properties(texts)).encode())
            self._texts = texts
