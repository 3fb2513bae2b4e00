"""The live view of ``mqadmin top``, made with Textual.

Textual runs on asyncio and needs the main thread, for the signals of the terminal; ``Admin`` runs
on Trio. So the loader has a Trio loop in a thread of its own, behind a ``Portal``, as
``triomq.aio`` has. The two loops never call each other: the loader replaces one frozen frame, which
this side reads four times a second; this side only sends the loader through the portal which
rows are on the screen. Neither can block the other, and a loader that waits for a broker leaves
the keys working.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import attrs
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from triomq.client.core.portal import Portal
from triomq.client.mqadmin.core.result import Row
from triomq.client.mqadmin.top.frame import TopFrame
from triomq.client.mqadmin.top.loader import TopLoader
from triomq.client.mqadmin.top.tabs import (
    GROUPS,
    TABS,
    TOPICS,
    Tab,
    TopColumn,
    detail_lines,
    headline,
)
from triomq.remoting.core.printable import printable

REFRESH_SECONDS = 0.25
"""between two reads of the loader's frame"""
ROWS_MAX = 200
"""rows of a table: laying them out takes 60 ms (500: 180 ms), and a filter finds the others"""


class FrameSource(Protocol):
    """What the view needs of the loader."""

    @property
    def frame(self) -> TopFrame:
        """The newest frame."""

    @property
    def crash(self) -> Exception | None:
        """The error that ended the loader."""

    def show_first(self, topics: Sequence[str], groups: Sequence[str]) -> None:
        """Read the details of these rows first."""


@attrs.frozen
class PortalSource:
    """The loader behind a portal."""

    loader: TopLoader
    portal: Portal[TopLoader]

    @property
    def frame(self) -> TopFrame:
        return self.loader.frame

    @property
    def crash(self) -> Exception | None:
        return self.loader.crash

    def show_first(self, topics: Sequence[str], groups: Sequence[str]) -> None:
        self.portal.call_soon(self.loader.show_first, topics, groups)


def _cell(column: TopColumn, text: str) -> Text:
    """Return the text of a cell; as a plain str, ``[::1]:9876`` would be read as markup."""
    return Text(printable(text), justify="right" if column.title.startswith(">") else "left")


class RowDetails(ModalScreen[None]):
    """All that is known about one row."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Back")]
    CSS = "RowDetails VerticalScroll { margin: 2 6; border: solid $primary; background: $surface; }"

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self.lines = lines

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static("\n".join(map(printable, self.lines)), markup=False, id="details")


class TopApp(App[None]):
    """Three tabs over one table."""

    CSS = """
    #headline { height: auto; background: $primary-darken-2; color: $text; padding: 0 1; }
    #status { height: 1; padding: 0 1; color: $text-muted; }
    #filter { display: none; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "tab(0)", "Cluster"),
        Binding("2", "tab(1)", "Topics"),
        Binding("3", "tab(2)", "Groups"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter"),
        Binding("a", "everything", "All"),
        Binding("enter", "details", "Details", show=True),
        Binding("escape", "clear", "Clear filter", show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, source: FrameSource, wall: Callable[[], float] | None = None) -> None:
        """Describe the view; ``wall``: the clock, seconds since 1970 (None: the system's)."""
        super().__init__()
        self._source = source
        self._wall = wall
        self.shown_tab: Tab = TABS[0]
        self.filter_text = ""
        self.everything = False
        self.sorts = {tab.name: tab.sort_keys[0] for tab in TABS}
        """tab → the key by which its rows are sorted"""
        self.shown: list[Row] = []
        """the rows of the table"""
        self.total = 0
        """number of rows that pass the filter"""
        self._drawn: TopFrame | None = None
        self._filled: tuple[str, str, list[list[str]]] | None = None
        """tab, order and cells of the table"""

    # --- parts and start

    def compose(self) -> ComposeResult:
        yield Static("", id="headline", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static("", id="status", markup=False)
        yield Input(placeholder="part of a name; Enter keeps it, Escape clears it", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        # Ctrl-C is a key while the terminal is raw; `kill -INT` must end the view as well. Outside
        # the main thread (a view without a terminal) there are no signals.
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self.exit)
        self.table.focus()
        self.redraw()
        self.set_interval(REFRESH_SECONDS, self.refresh_frame)

    @property
    def table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    def now(self) -> float:
        """Return seconds since 1970."""
        return time.time() if self._wall is None else self._wall()

    # --- drawing

    def refresh_frame(self) -> None:
        """Draw a new frame, if there is one; the ages are always new."""
        if self._source.crash is not None:
            self.exit(return_code=1)
            return
        if not self.query("#headline"):
            return  # the view ends, and has no parts any more
        if self._source.frame is not self._drawn:
            self.redraw()
        self._draw_lines()
        self._name_shown_rows()

    def redraw(self) -> None:
        """Fill the table from the newest frame; the cursor stays on its row's name."""
        frame, tab, table = self._source.frame, self.shown_tab, self.table
        name = self._name_at_cursor()
        place, scroll = table.cursor_row, table.scroll_y
        rows = tab.chosen(
            frame,
            self.now(),
            sort=self.sorts[tab.name],
            text=self.filter_text,
            everything=self.everything,
        )
        self._drawn, self.total, self.shown = frame, len(rows), rows[:ROWS_MAX]
        self._draw_lines()
        cells = [[column.cell(row) for column in tab.columns] for row in self.shown]
        filled = tab.name, self.sorts[tab.name], cells
        if filled == self._filled:
            return  # laying out the same again takes long
        self._filled = filled
        table.clear(columns=True)
        for column in tab.columns:
            mark = " *" if column.key == self.sorts[tab.name] else ""
            table.add_column(_cell(column, column.title.removeprefix(">") + mark), key=column.key)
        table.add_rows([_cell(*pair) for pair in zip(tab.columns, row)] for row in cells)
        names = [row[tab.identity] for row in self.shown]
        table.move_cursor(row=names.index(name) if name in names else place)
        table.scroll_y = scroll

    def _draw_lines(self) -> None:
        now, tab = self.now(), self.shown_tab
        self.query_one("#headline", Static).update(printable(headline(self._source.frame, now)))
        parts = [f"{tab.title}: {self.total:,}", f"sorted by {self.sorts[tab.name]}"]
        if self.total > ROWS_MAX:
            parts.append(f"the first {ROWS_MAX} are shown, / filters")
        if self.filter_text:
            parts.append(f"filter {self.filter_text!r}")
        if self.everything:
            parts.append("with those of the system")
        self.query_one("#status", Static).update(printable(", ".join(parts)))

    def _name_shown_rows(self) -> None:
        """Name the rows on the screen, so that the loader reads their details first."""
        table = self.table
        first = max(0, int(table.scroll_y))
        visible = self.shown[first : first + max(1, table.size.height)]
        topics = [row["topic"] for row in visible] if self.shown_tab is TOPICS else []
        groups = [row["group"] for row in visible] if self.shown_tab is GROUPS else []
        self._source.show_first(topics, groups)

    def _name_at_cursor(self) -> str | None:
        row = self.table.cursor_row
        if 0 <= row < len(self.shown):
            return self.shown[row].get(self.shown_tab.identity)
        return None

    # --- keys

    def action_tab(self, number: int) -> None:
        """Show another tab, with its own order and without the filter."""
        self.shown_tab, self.filter_text, self.shown = TABS[number], "", []
        self.query_one("#filter", Input).value = ""
        self.table.scroll_y = 0
        self.redraw()

    def action_sort(self) -> None:
        """Sort by the next key of the tab."""
        keys = self.shown_tab.sort_keys
        at = keys.index(self.sorts[self.shown_tab.name])
        self.sorts[self.shown_tab.name] = keys[(at + 1) % len(keys)]
        self.redraw()

    def action_everything(self) -> None:
        """Show topics and groups of the system, or hide them again."""
        self.everything = not self.everything
        self.redraw()

    def action_filter(self) -> None:
        """Open the line for the filter."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.focus()

    def action_clear(self) -> None:
        """Drop the filter."""
        line = self.query_one("#filter", Input)
        line.value, line.display = "", False
        self.table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.filter_text = event.value.strip()
        self.redraw()

    def on_input_submitted(self) -> None:
        """Keep the filter, and give the keys back to the table."""
        self.query_one("#filter", Input).display = False
        self.table.focus()

    def on_data_table_row_selected(self) -> None:
        self.action_details()

    def action_details(self) -> None:
        """Show all that is known about the row at the cursor."""
        place = self.table.cursor_row
        if 0 <= place < len(self.shown):
            row = self.shown[place]
            self.push_screen(RowDetails(detail_lines(self._source.frame, self.shown_tab, row)))
