"""Find the command that the first words of a command line name; near names for others."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import attrs

from triomq.client.admin.arguments import UsageError
from triomq.client.mqadmin.core.command_list import NAMES, VERBS, title


@attrs.frozen
class Named:
    """A command, and the words behind its name."""

    name: str
    """as in the list of commands"""
    rest: Sequence[str]


def named(words: Sequence[str]) -> Named:
    """Return the command of ``topic list …``, ``topicList …`` or ``topic-list …``.

    Raises: UsageError with the nearest name.
    """
    first = words[0].lower()
    verb = words[1].lower() if len(words) > 1 and not words[1].startswith("-") else ""
    if verb and first in VERBS:
        if (name := VERBS[first].get(verb)) is not None:
            return Named(name, words[2:])
        near = difflib.get_close_matches(verb, VERBS[first], n=1, cutoff=0.6)
        hint = (
            f"the nearest is {first} {near[0]} ({VERBS[first][near[0]]})"
            if near
            else f"`mqadmin {first}` lists the commands"
        )
        raise UsageError(f"there is no command '{first} {words[1]}'; {hint}")
    if first.startswith("-"):
        raise UsageError(
            f"{words[0]} is not a command: `mqadmin COMMAND [options]`; `mqadmin help`"
            " lists the commands"
        )
    if (name := NAMES.get(first)) is not None:
        return Named(name, words[1:])
    raise UsageError(f"there is no command {words[0]!r}; {_hint(f'{first} {verb}'.strip(), first)}")


def _hint(*typed: str) -> str:
    """Return the nearest name in both forms; the best of several readings of what was typed."""
    forms = {
        f"{group} {verb}": name for group, verbs in VERBS.items() for verb, name in verbs.items()
    }
    forms |= NAMES
    best = max(
        (
            (difflib.SequenceMatcher(None, text, near).ratio(), near)
            for text in typed
            for near in difflib.get_close_matches(text, forms, n=1, cutoff=0.6)
        ),
        default=None,
    )
    if best is None:
        return "`mqadmin help` lists the commands"
    name = forms[best[1]]
    grouped = best[1] if " " in best[1] else title(name)
    return f"the nearest is {grouped}" + (f" ({name})" if grouped != name else "")
