"""A command of mqadmin: its options and code, and the result that it returns for printing.

A command never prints and never exits. It returns a ``Result``: a JSON value with stable keys
(``--json``), and the same facts as blocks of text and tables. ``execution.py`` prints one of them.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.errors import MasterMissing
from triomq.client.admin.times import instant_ms
from triomq.client.mqadmin.core.command_list import LIST, title

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.answers import Answers
    from triomq.remoting.protocol.codes import RequestCode
    from triomq.remoting.protocol.command import Command


@attrs.frozen
class Table:
    """Rows below titled columns. Cells are never cut."""

    columns: Sequence[str]
    """titles, Java's without the leading ``#``; ``>`` before a title aligns a column right"""
    rows: Sequence[Sequence[object]]
    """cells are printed as ``str`` does it, None as an empty cell"""
    spare: Sequence[str] = ()
    """titles, without ``>``, of columns that a narrow terminal goes without, the first one first"""


def table_of(
    rows: Iterable[Mapping[str, object]],
    columns: Mapping[str, str | Callable[[Mapping[str, Any]], object]],
    spare: Sequence[str] = (),
) -> Table:
    """Return a table of documents.

    ``columns``: title → key of a document, or a function that returns the cell of a document.
    """
    cells = [
        [row[cell] if isinstance(cell, str) else cell(row) for cell in columns.values()]
        for row in rows
    ]
    return Table(list(columns), cells, spare)


AT_LEAST = "+"
"""end of a sum that lacks the part of a server that did not answer"""


def sum_text(total: int, *, whole: bool) -> str:
    """Return a sum; ``whole``: whether all servers have answered."""
    return f"{total}{'' if whole else AT_LEAST}"


@attrs.frozen(kw_only=True)
class Result:
    """The result of a command."""

    document: Mapping[str, Any]
    """the output of ``--json``, without ``failures``"""
    blocks: Sequence[Table | str]
    """the output without ``--json``: tables, and lines of text"""
    failures: Mapping[str, str] | None = None
    """servers that did not answer → reason; None if ``--json`` has no ``failures``"""
    asked: int = 0
    """number of asked servers; only used with ``failures``"""
    notes: Sequence[str] = ()
    """warnings for stderr"""
    bad_news: bool = False
    """the command succeeded, but its finding must stop a script: exit code 1"""
    partial: bool = False
    """all servers answered, but only a part was done: exit code 3"""


@attrs.frozen(kw_only=True)
class Lines:
    """What a command that follows something found since its last lines."""

    documents: Sequence[Mapping[str, object]] = ()
    """the output of ``--json``: one line for each"""
    texts: Sequence[str] = ()
    """the output without ``--json``"""
    notes: Sequence[str] = ()
    """warnings for stderr"""


NO_BROKERS = "no broker is registered at the name server; start one with `mqbroker -n ADDRESSES`"


async def chosen_brokers(admin: Admin, options: Values, *, masters_only: bool = True) -> list[str]:
    """Return the address of --brokerAddr, or those of the brokers of --clusterName.

    Raises: UsageError unless exactly one of the options is given, MasterMissing.
    """
    address, cluster = options.maybe_text("brokerAddr"), options.maybe_text("clusterName")
    if (address is None) == (cluster is None):
        raise UsageError("give exactly one of -b/--brokerAddr and -c/--clusterName")
    if address is not None:
        return [address]
    chosen = await admin.brokers(cluster, masters_only=masters_only)
    if not chosen:
        raise MasterMissing(str(cluster))
    return [broker.address for broker in chosen]


def chosen_controllers(options: Values) -> list[str]:
    """Return the controllers that were given. Raises: UsageError for none."""
    text = options.text("controllerAddress")
    found = [part.strip() for part in text.split(";") if part.strip()]
    if not found:
        raise UsageError("-a/--controllerAddress needs an address, host:port")
    return found


def answered(
    answers: Answers[object],
    document: Mapping[str, object],
    blocks: Sequence[Table | str],
    *,
    notes: Sequence[str] = (),
) -> Result:
    """Return the result of a command that asked several servers."""
    return Result(
        document=document,
        blocks=blocks,
        failures=answers.reasons(),
        asked=answers.asked,
        notes=notes,
    )


async def ask_each(
    admin: Admin,
    addresses: Iterable[str],
    code: RequestCode,
    header: object | None = None,
    body: bytes = b"",
) -> Answers[Command]:
    """Send the same request to several servers.

    Raises: TrioMQError if no server answers.
    """
    answers = await admin.for_each(addresses, lambda target: admin.ask(target, code, header, body))
    answers.some()
    return answers


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


@attrs.frozen(kw_only=True)
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
MASTERS = (
    Option("-b, --brokerAddr ADDRESS", "at one broker, host:port"),
    Option("-c, --clusterName NAME", "at all masters of a cluster"),
)
BROKERS = (
    Option("-b, --brokerAddr ADDRESS", "one broker, host:port"),
    Option("-c, --clusterName NAME", "all brokers of a cluster"),
)
EVERYWHERE = (
    Option("-b, --brokerAddr ADDRESS", "at one broker, host:port"),
    Option("-c, --clusterName NAME", "at all brokers of a cluster, slaves too"),
)
PLACES = (MASTERS, BROKERS, EVERYWHERE)
"""a command with the options of one of these needs exactly one of them"""
CONTROLLERS = Option(
    "-a, --controllerAddress ADDRESSES", "controllers, 'host:9878;host2:9878'", required=True
)
ROUTE_CLUSTER = Option(
    "-c, --cluster NAME", "accepted for old scripts; the topic alone determines the route"
)
