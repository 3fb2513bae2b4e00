"""The list of mqadmin's commands: their names, and the texts of help and manual.

``commands.txt`` has a paragraph for each command, in the order of help and manual. Its first line
has RocketMQ's name, the module in the package ``commands``, the section of help and manual, the
grouped names (``topic list``; the documentation uses the first), and the summary. The lines below
are examples (without ``mqadmin``), the shape of the JSON document, and remarks, for instance about
differences from RocketMQ's mqadmin; a deeper indented line goes on with the one above. ``$NAME``
stands for a text that several commands share: the first paragraph defines them. The second one has
the groups in order, with their first commands; the others follow in the order of the file.

This module imports no command: start-up is most of a command's time. A new command is a paragraph
there and an ``AdminCommand`` in the ``COMMANDS`` of its module; a test compares the two.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

GROUPS = ("cluster", "topic", "consumer", "producer", "message", "security", "context", "shell")
"""sections of the list, in order"""


class Listed(NamedTuple):
    """A command in the list of commands."""

    module: str
    """name in the package ``commands``"""
    group: str
    """one of ``GROUPS``"""
    grouped: Sequence[str]
    """``topic list`` and the like; empty for a command with one word"""
    summary: str
    lines: str
    """the lines below the first one"""

    def texts(self, kind: str) -> list[str]:
        """Return the texts of all lines that are an ``example``, a ``remark``, or the ``json``."""
        return _texts(kind, self.lines)


def _texts(name: str, lines: str) -> list[str]:
    """Return the texts behind ``name:``, with the shared texts in place of their names."""
    texts = re.findall(rf"^ *{re.escape(name)}: (.*(?:\n {{8}}.*)*)", lines, re.MULTILINE)
    return [
        re.sub(r"\$\w+", lambda word: "\n".join(_texts(word[0], _SHARED)), " ".join(text.split()))
        for text in texts
    ]


def _read_list() -> tuple[str, str, Mapping[str, Listed]]:
    """Return the shared texts, the groups, and name → command in the order of help and manual."""
    path = os.path.join(os.path.dirname(__file__), "commands.txt")
    with open(path, encoding="utf-8") as file:
        _, shared, groups, *paragraphs = file.read().split("\n\n")
    found = {}
    for paragraph in paragraphs:
        head, _, lines = paragraph.partition("\n")
        name, module, section, grouped, summary = map(str.strip, head.split("|"))
        names = grouped.split(", ") if grouped else ()
        found[name] = Listed(module, section, names, summary, lines)
    return shared, groups.replace("\n" + " " * 8, " "), found


_SHARED, _GROUPS, LIST = _read_list()


def kebab(name: str) -> str:
    """Return ``topicList`` as ``topic-list``."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


NAMES: Mapping[str, str] = {
    spelling.lower(): name for name in LIST for spelling in (name, kebab(name))
}
"""lower-case name or kebab-case alias → name"""


def _verbs_of(group: str, first: str) -> dict[str, str]:
    known = {
        names.removeprefix(f"{group} "): name
        for name, listed in LIST.items()
        for names in listed.grouped
        if names.startswith(f"{group} ")
    }
    return {verb: known[verb] for verb in first.split()} | known


VERBS: Mapping[str, Mapping[str, str]] = {
    group: _verbs_of(group, first)
    for group, _, first in (line.partition(":") for line in _GROUPS.splitlines())
}
"""group → verb → name in the list of commands"""


def title(name: str) -> str:
    """Return the name that the documentation uses: the grouped one, if there is one."""
    listed = LIST.get(name)
    return listed.grouped[0] if listed is not None and listed.grouped else name


def overview_of(group: str) -> str:
    """Return the list of a group's commands."""
    verbs = VERBS[group]
    width = max(map(len, verbs))
    lines = [f"usage: mqadmin {group} COMMAND [options]", ""]
    lines += [f"  {verb:{width}}  {LIST[name].summary} ({name})" for verb, name in verbs.items()]
    return "\n".join([*lines, "", f"`mqadmin {group} COMMAND --help` describes a command."])
