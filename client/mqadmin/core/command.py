"""A command of mqadmin: its code, its options, and those that it shares with others."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.admin.times import instant_ms
from triomq.client.mqadmin.core.command_list import LIST, title
from triomq.client.mqadmin.core.places import PLACES

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.mqadmin.core.result import Lines, Result


class Effect(enum.Enum):
    """What a command does to the cluster; it decides which of the common options it has."""

    READS = "reads"
    """``--watch`` repeats it"""
    CHANGES = "changes"
    """all its changes are requests of ``Admin``, so ``--dry-run`` can show them"""
    MOVES = "moves"
    """likewise, of a group's offsets; on a terminal it shows them and asks before it begins"""
    DESTROYS = "destroys"
    """likewise, and it asks before it begins, or needs ``--yes``"""
    SENDS = "sends"
    """likewise; its changes are messages that it sends"""
    FOLLOWS = "follows"
    """it reads until Ctrl-C, so nothing repeats it"""
    ACTS = "acts"
    """it sends messages or writes files: neither repeated nor tried"""


def nothing_beyond(values: Values) -> int:
    """Return 0: the whole command is limited by ``--timeout``."""
    return 0


SUBJECTS: Mapping[str, Sequence[str]] = {
    "group": ("group", "groupName", "consumerGroup"),
    "topic": ("topic",),
    "producer": ("producerGroup",),
    "user": ("username",),
    "message": ("msgId",),
}
"""first word of a grouped name → the options that name what such a command is about"""


@attrs.frozen
class AdminCommand:
    """One command of mqadmin."""

    name: str
    """Java's name; matched without regard to case, and in its kebab-case form"""
    run: Callable[[Admin, Values], Awaitable[Result]] | None = None
    local: Callable[[Values], Awaitable[Result]] | None = None
    """instead of ``run``, for a command that needs no cluster"""
    follow: Callable[[Admin, Values, Callable[[Lines], None]], Awaitable[int]] | None = None
    """instead of ``run``, for a command that prints until Ctrl-C; it returns the exit code"""
    screen: Callable[[Values], int] | None = None
    """beside ``run``, on a terminal: it has the terminal and the main thread for itself, outside of
    any loop, and returns the exit code; see ``execution.wants_screen``
    """
    beyond_seconds: Callable[[Values], int] = nothing_beyond
    """seconds of work that the options ask for, beside the requests that ``--timeout`` limits"""
    options: Sequence[Option] = ()
    one_of: Sequence[Sequence[str]] = ()
    """groups of long option names of which exactly one must be given, beside those of ``PLACES``"""
    effect: Effect = Effect.READS
    own_access: bool = False
    """it reads the options about access itself, without a context"""
    loss: str = ""
    """with ``Effect.DESTROYS``: what is deleted, for the question before it"""
    copies: str = ""
    """with ``Effect.SENDS``: what is sent, likewise"""
    asks_with: str = ""
    """with ``Effect.DESTROYS``: the flag without which nothing is deleted, and nothing asked"""

    def with_options(self, *options: Option) -> AdminCommand:
        """Return the command with options of its own."""
        return attrs.evolve(self, options=options)

    @property
    def sentence(self) -> str:
        """Return the description in the command list, as a sentence."""
        summary = LIST[self.name].summary
        return f"{summary[0].upper()}{summary[1:]}."

    @property
    def examples(self) -> Sequence[str]:
        """Return calls, without ``mqadmin``."""
        return LIST[self.name].texts("example")

    @property
    def document(self) -> str:
        """Return the shape of the JSON document."""
        return LIST[self.name].texts("json")[0]

    @property
    def remarks(self) -> str:
        """Return what else the manual says, one remark on each line."""
        return "\n".join(LIST[self.name].texts("remark"))

    @property
    def consequence(self) -> str:
        """Return what the command does after a yes; empty for a command that does not ask."""
        asking = {
            Effect.DESTROYS: f"deletes {self.loss}",
            Effect.SENDS: f"sends {self.copies}",
            Effect.MOVES: "moves the group, and its members drop what they have pulled",
        }
        return asking.get(self.effect, "")

    @property
    def subject(self) -> Option | None:
        """Return the option for the name of what the command is about; None if there is none.

        ``group members billing`` is ``group members -g billing``.
        """
        noun = title(self.name).partition(" ")[0]
        if any(option.is_argument for option in self.options):
            return None
        return next((one for one in self.options if one.name in SUBJECTS.get(noun, ())), None)

    @property
    def exclusive(self) -> Sequence[Sequence[str]]:
        """Return all groups of long option names of which exactly one must be given."""
        asks_place = any(all(option in self.options for option in place) for place in PLACES)
        return ((("brokerAddr", "clusterName"),) if asks_place else ()) + tuple(self.one_of)

    @property
    def names_places(self) -> bool:
        """Return whether it works at one broker, or at those of a cluster."""
        return {"brokerAddr", "clusterName"} <= {option.name for option in self.options}

    @property
    def accepted(self) -> Sequence[Option]:
        """Return all options: its own, those of its effect, and those of every command."""
        more = EFFECT_OPTIONS[self.effect]
        if self.local is not None:
            more = [option for option in more if option is not DRY_RUN]  # it holds requests back
        return (*self.options, *more, *COMMON_OPTIONS)


COMMON_OPTIONS: Sequence[Option] = (
    Option(
        "-n, --namesrvAddr ADDRESSES",
        "name servers, 'host:9876;host2:9876' (default: the environment variable NAMESRV_ADDR)",
        str,
    ),
    Option(
        "--tls FILE",
        "use TLS with this tls.properties file (default: the environment variable TRIOMQ_TLS)",
        str,
    ),
    Option(
        "--credentials FILE",
        "sign requests with accessKey and secretKey of this file (default: the environment variable"
        " TRIOMQ_CREDENTIALS)",
        str,
    ),
    Option(
        "--context NAME",
        "take name servers, TLS and credentials that are not given from this context (default: the"
        " environment variable TRIOMQ_CONTEXT, otherwise the current context)",
    ),
    Option("-h, --help", "describe the command and exit"),
    Option("--json", "print one JSON document instead of text"),
    Option("--csv", "print the rows as CSV instead of text, with the names of the JSON keys"),
    Option(
        "--timeout SECONDS",
        "time limit of the command in seconds; servers that have not answered by then are named",
        whole(1, 3600),
        default=30,
    ),
    Option("--verbose", "show the traceback of a failure"),
)
"""options that every command has"""
WATCH = Option(
    "--watch SECONDS",
    "repeat with this pause, on a terminal in place; Ctrl-C ends it with exit code 0",
    whole(1, 86400),
)
DRY_RUN = Option("--dry-run", "read the present values and print the changes; send nothing")
YES = Option(
    "-y, --yes",
    "do not ask before deleting, sending or moving; needed without a terminal, but for moves",
)
EFFECT_OPTIONS: Mapping[Effect, Sequence[Option]] = {
    Effect.READS: (WATCH,),
    Effect.CHANGES: (DRY_RUN,),
    Effect.MOVES: (DRY_RUN, YES),
    Effect.DESTROYS: (DRY_RUN, YES),
    Effect.SENDS: (DRY_RUN, YES),
    Effect.FOLLOWS: (),
    Effect.ACTS: (),
}
"""effect of a command → options that it has beside its own"""


def period(
    begin: str, end: str, what: str = "messages", *, latest: int | None = None
) -> tuple[Option, Option]:
    """Return the options for the begin and the end of a period, by store time.

    ``latest``: milliseconds since 1970, the end if it is not given; the begin is 0 with it.
    """
    return (
        Option(
            f"{begin} TIME",
            f"only {what} stored then or later, for instance -1h; see times",
            instant_ms,
            default=None if latest is None else 0,
        ),
        Option(f"{end} TIME", f"only {what} stored then or earlier", instant_ms, default=latest),
    )


TOPIC = Option("-t, --topic TOPIC", "name of the topic", required=True)
INTERVAL = Option("-i, --interval SECONDS", "repeat forever, with this pause in seconds", whole(1))
BY_TOPIC = "accepted for old scripts; the topic alone determines the route"
ROUTE_CLUSTER = Option("-c, --cluster NAME", BY_TOPIC)
