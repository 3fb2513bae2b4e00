"""What a command of mqadmin is: its declaration, and the result that it hands back for printing.

A command never prints and never exits.  It returns a `Result`: a JSON value with stable keys (``--json``) and the same facts as blocks of
text and tables (for people).  `cli.py` decides which of the two is shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, Values, whole

GROUPS = ("cluster", "topic", "consumer", "producer", "message", "security")
"""Sections of the command list, in order."""


@attrs.frozen
class Column:
    """A column of a table; `title` is Java's, without the leading `#`."""

    title: str
    right: bool = False
    """numbers stand right"""


@attrs.frozen
class Table:
    """Rows of texts below titled columns.  Cells are never cut."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


@attrs.frozen(kw_only=True)
class Result:
    """What a command found or did."""

    document: Mapping[str, Any]
    """what `--json` prints"""
    blocks: Sequence[Table | str]
    """what people see: tables, and lines of text"""
    failures: Mapping[str, str] = attrs.field(factory=dict)
    """servers that did not answer, and why; others did"""
    asked: int = 0
    """how many servers were asked; only used with `failures`"""
    notes: Sequence[str] = ()
    """warnings for stderr"""
    bad_news: bool = False
    """the command did what it should, and what it found must end a script: exit code 1"""


@attrs.frozen(kw_only=True)
class Command:
    """One command of mqadmin."""

    name: str
    """Java's name; matched without regard to case, and in its kebab-case form"""
    group: str = attrs.field(validator=attrs.validators.in_(GROUPS))
    summary: str
    run: Callable[[Admin, Values], Awaitable[Result]] | None = None
    local: Callable[[Values], Awaitable[Result]] | None = None
    """in place of `run` for a command that needs no cluster"""
    options: Sequence[Option] = ()
    one_of: Sequence[Sequence[str]] = ()
    """groups of long option names of which exactly one must be given"""
    examples: Sequence[str]
    """what stands after `mqadmin `"""
    document: str
    """the shape of the JSON document, for the manual"""
    remarks: Sequence[str] = ()
    """where we do more or other than RocketMQ's mqadmin, for the manual"""

    @property
    def alias(self) -> str:
        """Return the kebab-case form, `topicList` → `topic-list`."""
        return kebab(self.name)


def request_seconds(timeout: int) -> float:
    """Return how many seconds one request may take, of `timeout` for the whole command."""
    return min(REQUEST_SECONDS, timeout * REQUEST_SHARE)


def kebab(name: str) -> str:
    """Return `topicList` as `topic-list`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


REQUEST_SECONDS = 5.0
REQUEST_SHARE = 1 / 3
"""largest share of `--timeout` for one request: a server that hangs in the first step leaves time for the next ones"""
COMMON_OPTIONS: Sequence[Option] = (
    Option(
        "n",
        "namesrvAddr",
        "name servers, 'host:9876;host2:9876' (default: the environment variable NAMESRV_ADDR)",
        placeholder="ADDRESSES",
    ),
    Option(
        "",
        "tls",
        "use TLS, as this tls.properties file says (default: the environment variable TRIOMQ_TLS)",
        placeholder="FILE",
        ours=True,
    ),
    Option(
        "",
        "credentials",
        "sign requests with accessKey and secretKey of this file (default: the environment variable TRIOMQ_CREDENTIALS)",
        placeholder="FILE",
        ours=True,
    ),
    Option("h", "help", "describe the command and stop", None),
    Option("", "json", "print one JSON document instead of text", None, ours=True),
    Option(
        "", "timeout", "seconds that the command may take; what has not answered by then is named", whole(1, 3600), default=30, placeholder="SECONDS", ours=True
    ),
    Option("", "verbose", "show the traceback of a failure", None, ours=True),
)
"""Options that every command has."""
