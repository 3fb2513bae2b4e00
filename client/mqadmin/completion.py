"""Completion of mqadmin's command line in bash, zsh and fish.

A shell's script asks ``mqadmin __complete WORDS…``, with the words in front of the cursor, and gets
a candidate on each line: the word, a tab, its meaning. So the scripts have no list of commands, and
do not go out of date. Topics, groups, brokers and clusters are those of the call's cluster, if it
answers within a second. Nothing is printed where a file name belongs: the shells then complete
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triomq.client.admin.arguments import Option, UsageError, matching
from triomq.client.admin.contexts import contexts_path, read_contexts
from triomq.client.core.errors import SettingsError
from triomq.client.mqadmin.commands import load
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.command_list import LIST, VERBS, kebab, title
from triomq.client.mqadmin.core.completion_scripts import SCRIPTS
from triomq.client.mqadmin.core.names import named
from triomq.remoting.core.printable import printable

Candidate = tuple[str, str]
NAMING = ("TOPIC", "GROUP", "BROKER", "NAME", "ADDRESS")
"""placeholders of options that may name something of the cluster"""


def completed(words: Sequence[str]) -> str:
    """Return the candidates for the last of the words, one on each line with its meaning."""
    typed = words[-1] if words else ""
    found = [
        (word, meaning)
        for word, meaning in _candidates(words[:-1], typed)
        if word.lower().startswith(typed.lower())
    ]
    return "\n".join(f"{word}\t{printable(meaning)}" for word, meaning in found)


def _candidates(before: Sequence[str], typed: str) -> Iterator[Candidate]:
    if before and before[0] == "help":
        before = before[1:]
    if not before:
        yield from _first_words(typed)
        return
    group = before[0].lower()
    if len(before) == 1 and group in VERBS and not typed.startswith("-"):
        yield from ((verb, LIST[name].summary) for verb, name in VERBS[group].items())
        return
    try:
        found = named(before)
    except UsageError:
        return
    yield from _options(load(found.name), list(found.rest), typed)


def _first_words(typed: str) -> Iterator[Candidate]:
    """Yield groups and names of one word; RocketMQ's names only for what begins no group."""
    yield from ((group, ", ".join(verbs)) for group, verbs in VERBS.items())
    yield from ((name, LIST[name].summary) for name in LIST if title(name) == name)
    yield "help", "describe commands"
    if not any(group.startswith(typed.lower()) for group in VERBS):
        for name in LIST:
            for spelling in dict.fromkeys((name, kebab(name))):
                if title(name) != name and spelling not in VERBS:
                    yield spelling, LIST[name].summary


def _options(command: AdminCommand, rest: list[str], typed: str) -> Iterator[Candidate]:
    """Yield values if the last word is an option with a value, otherwise options."""
    given: dict[str, str] = {}
    subject = [] if command.subject is None else [command.subject]
    arguments = [option for option in command.options if option.is_argument] or subject
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            given |= {one.name: token for one in arguments[:1]}
            arguments = arguments[1:]
            continue
        option, has_value = matching(command.accepted, token)
        if option is None:
            continue
        given[option.name] = _value_of(token) if has_value else ""
        if option.placeholder and not has_value:
            if not rest:
                yield from _values(option, given, typed)
                return
            given[option.name] = rest.pop(0)
    arguments = [one for one in arguments if one.name not in given]
    if arguments and not typed.startswith("-"):
        yield from _values(arguments[0], given, typed)
        return
    for option in command.accepted:
        if option.name not in given and not option.is_argument:
            yield f"--{option.name}", option.meaning
            if typed == f"-{option.letter}":
                yield typed, option.meaning


def _value_of(token: str) -> str:
    """Return the value in ``--topic=orders`` or ``-torders``."""
    return token.partition("=")[2] if token.startswith("--") else token[2:].removeprefix("=")


def _values(option: Option, given: dict[str, str], typed: str) -> Iterator[Candidate]:
    """Yield the values of an option: those that are fixed, or names that the cluster has."""
    if option.placeholder == "BOOL":
        yield from (("true", ""), ("false", ""))
    elif option.placeholder == "SHELL":
        yield from ((shell, "") for shell in SCRIPTS)
    elif option.name == "context" or option.meaning.startswith("name of the context"):
        try:
            contexts = read_contexts(contexts_path()).contexts
        except SettingsError:
            return
        yield from ((name, context.namesrv or "") for name, context in contexts.items())
    elif option.placeholder in NAMING:
        # Only for names of the cluster: it needs Trio.
        from triomq.client.mqadmin.core.known_names import kind_of, known_names

        if kind := kind_of(option):
            yield from known_names(kind, given, typed)
