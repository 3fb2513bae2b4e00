"""The tabs of ``mqadmin top``: their columns, the order of rows, the filter, the texts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from triomq.client.admin.cluster_view import ClusterView
from triomq.client.mqadmin.core.result import AT_LEAST, Row, Table
from triomq.client.mqadmin.top.frame import SLAVE, TopFrame, group_table, server_rows, topic_table

UNKNOWN = "?"
"""the cell of a value that is not known, which is never 0"""
INAPPLICABLE = "-"
"""the cell of a value that this row cannot have"""


@attrs.frozen
class TopColumn:
    """A column of a tab."""

    key: str
    """of the row"""
    title: str
    """``>`` before a title aligns the column right"""
    cell: Callable[[Row], str]
    largest_first: bool = True
    """the order when rows are sorted by this column"""


@attrs.frozen
class Tab:
    """A tab: which rows it has, and how it shows them."""

    name: str
    title: str
    identity: str
    """key of the name by which rows are filtered and found again"""
    rows: Callable[[TopFrame, float, bool], list[Row]]
    """frame, seconds since 1970, whether all rows are wanted → rows"""
    columns: Sequence[TopColumn]
    sort_keys: Sequence[str]
    """the orders that the key ``s`` goes through; the first is the order at the start"""

    def column(self, key: str) -> TopColumn:
        """Return the column of a key."""
        return next(column for column in self.columns if column.key == key)

    def chosen(
        self, frame: TopFrame, now: float, *, sort: str, text: str = "", everything: bool = False
    ) -> list[Row]:
        """Return the rows whose name contains ``text``, sorted; unknown values are last."""
        wanted = text.casefold()
        rows = [
            row for row in self.rows(frame, now, everything) if wanted in self.label(row).casefold()
        ]
        rows.sort(key=self.label)
        largest_first = self.column(sort).largest_first
        known = [row for row in rows if row[sort] is not None]
        known.sort(key=lambda row: _sort_key(row[sort]), reverse=largest_first)
        return known + [row for row in rows if row[sort] is None]

    def label(self, row: Row) -> str:
        """Return the name by which a row is filtered, with that of its broker."""
        more = row.get("brokerName")
        return f"{row[self.identity]} {more}" if more else str(row[self.identity])

    def table(self, rows: Sequence[Row]) -> Table:
        """Return rows as the text that ``--once`` prints."""
        return Table(
            [column.title for column in self.columns],
            [[column.cell(row) for column in self.columns] for row in rows],
        )


def _sort_key(value: str | float) -> tuple[float, str]:
    return (0.0, value.casefold()) if isinstance(value, str) else (float(value), "")


# --- cells


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: INAPPLICABLE if row[key] is None else str(row[key])


def _number(key: str, form: str = "{:,.1f}") -> Callable[[Row], str]:
    """Return a cell of a number; a sum that is incomplete ends with ``AT_LEAST``."""

    def cell(row: Row) -> str:
        if row[key] is None:
            return UNKNOWN
        return form.format(row[key]) + (AT_LEAST if row.get("incomplete") else "")

    return cell


def _of_brokers(inner: Callable[[Row], str]) -> Callable[[Row], str]:
    """Return a cell that name servers do not have."""
    return lambda row: INAPPLICABLE if row["brokerId"] is None else inner(row)


def _percent(row: Row) -> str:
    ratio = row["commitLogDiskRatio"]
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f} %"


def _slave_lag(row: Row) -> str:
    if row["role"] != SLAVE:
        return INAPPLICABLE
    return UNKNOWN if row["slaveLagBytes"] is None else f"{row['slaveLagBytes']:,} B"


def _set(row: Row) -> str:
    """Return the cell of a group in controller mode: ``in, epoch 3``."""
    if row["inSet"] is None:
        return INAPPLICABLE
    return f"{'in' if row['inSet'] else 'out'}, epoch {row['epoch']}"


def _oldest(row: Row) -> str:
    if row["oldestSeconds"] is not None:
        return age_text(row["oldestSeconds"])
    return INAPPLICABLE if row["lag"] == 0 and not row["incomplete"] else UNKNOWN


def _version(row: Row) -> str:
    return row["version"] or UNKNOWN


def _state(row: Row) -> str:
    return "ok" if row["error"] is None else str(row["error"])


def age_text(seconds: float) -> str:
    """Return a time span in its two largest units: ``0.4s``, ``12s``, ``3m20s``, ``2h05m``."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


# --- the tabs

CLUSTER = Tab(
    "cluster",
    "Cluster",
    "address",
    lambda frame, now, everything: server_rows(frame, now),
    (
        TopColumn("role", "Role", _text("role"), largest_first=False),
        TopColumn("brokerName", "Broker Name", _text("brokerName")),
        TopColumn("brokerId", ">BID", _text("brokerId")),
        TopColumn("inSet", "Set", _set),
        TopColumn("address", "Addr", _text("address"), largest_first=False),
        TopColumn("version", "Version", _of_brokers(_version)),
        TopColumn("inTps", ">InTPS", _of_brokers(_number("inTps"))),
        TopColumn("outTps", ">OutTPS", _of_brokers(_number("outTps"))),
        TopColumn("commitLogDiskRatio", ">Disk", _of_brokers(_percent)),
        TopColumn("slaveLagBytes", ">Slave Lag", _slave_lag),
        TopColumn("pageCacheLockMs", ">PageCache ms", _of_brokers(_number("pageCacheLockMs"))),
        TopColumn("putLatency99Ms", ">Put p99 ms", _of_brokers(_number("putLatency99Ms"))),
        TopColumn("putLatency999Ms", ">Put p99.9 ms", _of_brokers(_number("putLatency999Ms"))),
        TopColumn("error", "State", _state),
    ),
    ("role", "address", "inTps", "outTps", "commitLogDiskRatio"),
)
TOPICS = Tab(
    "topics",
    "Topics",
    "topic",
    lambda frame, now, everything: topic_table(frame, now, everything=everything),
    (
        TopColumn("topic", "Topic", _text("topic"), largest_first=False),
        TopColumn("inTps", ">InTPS", _number("inTps")),
        TopColumn("outTps", ">OutTPS", _number("outTps")),
        TopColumn("in24h", ">InMsg24Hour", _number("in24h", "{:,.0f}")),
        TopColumn("brokers", ">Brokers", _text("brokers")),
    ),
    ("inTps", "outTps", "in24h", "topic"),
)
GROUPS = Tab(
    "groups",
    "Groups",
    "group",
    lambda frame, now, everything: group_table(frame, now, everything=everything),
    (
        TopColumn("group", "Group", _text("group"), largest_first=False),
        TopColumn("lag", ">Lag", _number("lag", "{:,.0f}")),
        TopColumn("members", ">Members", _number("members", "{:,.0f}")),
        TopColumn("consumeTps", ">TPS", _number("consumeTps")),
        TopColumn("oldestSeconds", ">Oldest", _oldest),
        TopColumn("topics", ">Topics", _text("topics")),
    ),
    ("lag", "oldestSeconds", "consumeTps", "members", "group"),
)
TABS = (CLUSTER, TOPICS, GROUPS)
"""in the order of their keys 1, 2, 3"""


# --- text beside the tables


def headline(frame: TopFrame, now: float) -> str:
    """Return the totals, and the age of what is shown."""
    view = frame.view
    age = frame.age_seconds(now)
    if age is None:
        return "waiting for the first answers"
    silent = sum(row.gone_since is None and not row.answers for row in view.brokers)
    parts = [
        f"{len(view.brokers)} brokers" + (f" ({silent} silent)" if silent else ""),
        f"in {_total(view.put_rate)}/s",
        f"out {_total(view.get_rate)}/s",
        f"lag {_total(view.lag, '{:,.0f}')}",
        f"data {age_text(age)} old",
        f"topics and groups {_tables_age(view, now)}",
    ]
    if view.failure is not None:
        parts.append(f"the list of brokers is old: {view.failure}")
    return ", ".join(parts)


def _total(value: tuple[float | None, bool], form: str = "{:,.1f}") -> str:
    number, whole = value
    return UNKNOWN if number is None else form.format(number) + ("" if whole else AT_LEAST)


def _tables_age(view: ClusterView, now: float) -> str:
    if view.tables_at is None:
        return "not read yet"
    return f"{age_text(max(0.0, now - view.tables_at))} old"


def detail_lines(frame: TopFrame, tab: Tab, row: Row) -> list[str]:
    """Return all that the frame knows about one row, a line each."""
    lines = [f"{key}: {UNKNOWN if value is None else value}" for key, value in row.items()]
    view = frame.view
    if tab is CLUSTER:
        broker = view.broker(row["address"])
        status = {} if broker is None or broker.status is None else broker.status
        lines += ["", "runtime counters" if status else "no runtime counters"]
        lines += [f"{key}: {value}" for key, value in sorted(status.items())]
    elif tab is TOPICS:
        topic = row["topic"]
        readers = [group for group in view.groups.values() if topic in group.topics]
        lines += ["", f"groups: {len(readers)}"]
        for group in readers:
            waiting = sum(count for (_, of), count in group.waiting.items() if of == topic)
            lag = UNKNOWN if group.lag is None else f"{waiting:,}"
            lines.append(f"{group.name}: {lag} messages behind")
    elif (found := view.groups.get(row["group"])) is not None:
        lines += ["", f"topics: {len(found.topics)}", *found.topics]
        lines += ["", f"queues that wait: {len(found.waiting)} brokers and topics"]
        lines += [
            f"{topic} at {broker}: {count:,} messages"
            for (broker, topic), count in sorted(found.waiting.items())
        ]
    return lines
