"""Keep settings that an operator changed while a program ran, for its next start.

They are saved in a properties file of the program; the operator's file (``-c``) is never written.
At the next start the saved values are read after it and before options: a change holds until the
next change, and an option overrides it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import attrs
import trio

from triomq.remoting.core.atomic_file import DamagedFile, read_file, replace_file
from triomq.remoting.core.java_keys import KeyTable
from triomq.remoting.core.properties_file import format_properties, parse_entries
from triomq.remoting.core.settings import ConfigError, Loaded, Source, load

_HEADING = (
    "# Settings that were changed while the program ran. They win over its file, and options (-D)"
    " win over them.\n"
)


class WithSavedSettings(Protocol):
    """A configuration of a program that saves settings."""

    def saved_settings_path(self) -> Path:
        """Return the file of the saved settings."""


C = TypeVar("C", bound=WithSavedSettings)


def load_with_saved(
    cls: type[C], sources: Sequence[Source], options: Sequence[Source], known: KeyTable
) -> Loaded[C]:
    """Fill a configuration class from ``sources``, its saved settings and ``options``.

    The last wins; a warning names each value of ``sources`` that a saved setting replaces.

    Raises: ConfigError.
    """
    # The place of the saved settings is a setting itself.
    path = load(cls, [*sources, *options], known).config.saved_settings_path()
    saved = read_saved(path)
    loaded = load(cls, [*sources, saved, *options], known)
    return attrs.evolve(
        loaded, warnings=(*loaded.warnings, *overruled(saved, sources, loaded.origins))
    )


def read_saved(path: Path) -> Source:
    """Return the saved settings as a source for ``load``, an empty source without a file.

    Raises: ConfigError for a file that cannot be read.
    """
    try:
        entries = read_file(path, lambda content: tuple(parse_entries(content.decode())))
    except PermissionError:
        raise ConfigError(
            str(_closed(path)),
            "permission denied",
            "give the user of this program read and write permission there, or choose another"
            " folder",
        ) from None
    except (OSError, DamagedFile) as error:
        if not os.path.isdir(path.parent):
            return Source(str(path), ())  # no such folder is or can be: what makes it says why
        raise ConfigError(
            str(path),
            f"cannot be read ({error})",
            "repair it, or remove it and its .bak to forget what was changed while the program ran",
        ) from None
    return Source(str(path), entries or ())


def _closed(path: Path) -> Path:
    """Return the topmost folder of a path that this user may not enter, or the path."""
    return next((one for one in reversed(path.parents) if not os.access(one, os.X_OK)), path)


def overruled(
    saved: Source, others: Sequence[Source], origins: Mapping[str, str]
) -> tuple[str, ...]:
    """Return one line for each setting of the operator's sources that a saved setting replaces.

    *origins*: those of the loaded configuration.
    """
    before = {entry.key: source.place(entry) for source in others for entry in source.entries}
    return tuple(
        f"{entry.key}={entry.value}, set while the program ran ({saved.name}), replaces the value"
        f" of {before[entry.key]}"
        for entry in saved.entries
        if entry.key in before and origins.get(entry.key) == saved.place(entry)
    )


@attrs.define(eq=False)
class SavedSettings:
    """The file and its content."""

    path: Path
    _texts: dict[str, str] = attrs.field(factory=dict)
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @classmethod
    def open(cls, path: Path) -> SavedSettings:
        """Read the file. Raises: ConfigError."""
        return cls(path, {entry.key: entry.value for entry in read_saved(path).entries})

    async def save(self, changes: Mapping[str, str]) -> None:
        """Add changes (Java's names and texts) and write the file; after an error nothing is added.

        Raises: OSError.
        Checkpoint: always.
        """
        async with self._writing:
            texts = {**self._texts, **changes}
            await trio.to_thread.run_sync(
                replace_file, self.path, (_HEADING + format_properties(texts)).encode()
            )
            self._texts = texts
